"""A supervisor of fake boards, and what can happen to these."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from launch.serve.served import served_file
from launch.serve.supervisor import Supervisor
from launch.watch.site import Site
from launch.watch.timing import Timing
from solver.cluster.named import find_cluster

HERE = Path(__file__).parents[1] / "launch/serve"
WAY = (sys.executable, str(HERE / "fake_way.py"))
TOKEN_S = 0.02
# A tenth of what there is. Not of silence: agents share the cores with all else that tests do; nor of what is only
# waited for where processes are slow to start.
QUICK = replace(
    Timing().faster(10), silence_s=2.0, suspect_s=1.0, first_s=15.0, coming_s=5.0, reserve_late_s=60.0, load_s=1800.0
)


def fake_site(boards):
    """Return boards that are reached the fake way."""
    return Site(tuple(boards), len(boards), WAY)


async def fake_plan(_, cluster, *, ahead):
    """Return a plan as the planner's program does: with FAKE_ONE the first board has all, else each has a byte."""
    names = [device.name for device in cluster.devices]
    sizes = [int(rank == 0 or "FAKE_ONE" not in os.environ) for rank in range(len(names))]
    return json.dumps({"devices": names, "predicted": {"weights_bytes": sizes}})


def fake_cluster(boards):
    """Return a cluster of so many devices."""
    four = find_cluster("mixed4")
    return replace(four, devices=tuple(replace(four.devices[0], name=board) for board in boards), links={})


@contextlib.asynccontextmanager
async def supervised(
    path, boards=("pi-0", "pi-1", "pi-2"), *, measured=False, most_waiting=8, sequences=None, more=(), **timing
):
    """Run a supervisor for the block; `timing` is what is not as in `QUICK`."""
    cluster = None if measured else fake_cluster(boards)
    service = f"test{os.getpid()}{time.monotonic_ns() % 10**6}"
    supervisor = Supervisor(
        fake_site(boards), [served_file(file) for file in (path, *more)], service, cluster=cluster,
        most_waiting=most_waiting, sequences=sequences, timing=replace(QUICK, **timing),
    )  # fmt: skip
    supervisor.service = service
    task = asyncio.create_task(supervisor.run())
    try:
        yield supervisor
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not marked(service)
        cleared(service)


def cleared(service):
    """Remove what agents and services that were killed have left: the next one of the same name would."""
    for folder in Path("/dev/shm").glob(f"hepti-*{service}-*"):
        shutil.rmtree(folder)


async def until(condition, seconds=30.0):
    """Wait until something is true; return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.02)
    return value


async def ready(supervisor, seconds=30.0):
    """Wait until the only model is ready; return it."""
    (model,) = supervisor.models.values()
    await until(lambda: model.state == "ready", seconds)
    return model


def table(supervisor):
    """Return the state of the only model."""
    (model,) = supervisor.state()["models"]
    return model


def events(supervisor, kind):
    """Return the sentences of a kind."""
    return [event["text"] for event in supervisor.state()["events"] if event["kind"] == kind]


def asks(tokens, *, stream=True):
    """Return a request for so many tokens."""
    return {"tokens": [10], "max_tokens": tokens, "stream": stream}


def should_be(tokens):
    """Return the answer's tokens."""
    return [11 + number for number in range(tokens)]


async def told(request):
    """Return a request's tokens as they were told one by one, and its last line."""
    lines = [line async for line in request.events()]
    return [line["token"] for line in lines[:-1]], lines[-1]


def environments():
    """Return the environment of every process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            found[int(path.parts[2])] = dict(word.split("=", 1) for word in words if "=" in word)
    return found


def marked(service):
    """Return the processes of a service's ranks, mpirun included."""
    return [pid for pid, variables in environments().items() if variables.get("HEPTI_SERVE", "").startswith(service)]


def rank_process(supervisor, rank):
    """Return the process of a rank of the only model."""
    (served,) = supervisor.models.values()
    found = environments()
    (pid,) = [
        pid for pid in marked(supervisor.service)
        if found[pid].get("PMIX_RANK") == str(rank) and found[pid]["HEPTI_SERVE"].endswith(f"/{served.job.number}")
    ]  # fmt: skip
    return pid


def unplug(board):
    """Take a board away: its agent and ranks stand still, and nobody gets there."""
    (Path(os.environ["FAKE_UNPLUGGED"]) / board).touch()
    _signal(board, signal.SIGSTOP)


def plug(board):
    """Give it back."""
    (Path(os.environ["FAKE_UNPLUGGED"]) / board).unlink()
    _signal(board, signal.SIGCONT)


def _signal(board, number):
    """Send a signal to all on a board of this test's: others may run beside it."""
    own = {"FAKE_HOST": board, "FAKE_UNPLUGGED": os.environ["FAKE_UNPLUGGED"]}
    for pid, variables in environments().items():
        if own.items() <= variables.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
