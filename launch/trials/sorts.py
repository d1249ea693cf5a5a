"""The sorts of faults: each is done in a `with`, and mended at its end."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from launch.base import shell
from launch.lab import up as lab_up
from launch.lab.lab import Host, Lab, load_lab
from launch.trials.asking import ASK_AGAIN_S, PATIENCE_S, Bench
from launch.watch.agent import MARK
from solver.base.errors import HeptiError
from solver.cluster.cluster import GIB

LASTS_S = 10.0  # what is mended again, but for a rank that is frozen
FROZEN_S = 5.0
OFF_S = 5.0  # a host that is restarted
HOUR_S = 3600.0
LEFT_GIB = 0.1  # where memory is short
CLOCK = "clock an hour off"
Sort = Callable[[Bench, random.Random], AbstractContextManager[str]]  # gives the board that has it


def tell_lab(*words: str) -> None:
    """Run a command of the lab.

    Raises
    ------
    HeptiError
        If it fails.
    """
    shell.run([sys.executable, "-m", "launch", "lab", *words])


def _some_rank(bench: Bench, rng: random.Random) -> tuple[str, int]:
    """Return a rank by chance, once there is one: board, process number."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if ranks := bench.ranks():
            return rng.choice(ranks)
        time.sleep(ASK_AGAIN_S)
    raise HeptiError(f"the service had no ranks for {PATIENCE_S:.0f} s")


@contextmanager
def kill_rank(bench: Bench, rng: random.Random) -> Iterator[str]:
    """Kill a rank."""
    board, pid = _some_rank(bench, rng)
    os.kill(pid, signal.SIGKILL)
    yield board


@contextmanager
def kill_mpirun(bench: Bench, rng: random.Random) -> Iterator[str]:
    """Kill a model's mpirun, which is a process below the service; not that of the ranks in reserve."""
    import psutil  # of the extra `serve`, as the service

    _some_rank(bench, rng)
    jobs = bench.jobs()
    below = psutil.Process(bench.service.process.pid).children(recursive=True)
    starters = [process for process in below if process.name() in ("prterun", "mpirun")]
    rng.choice([one for one in starters if int(one.environ()[MARK].rpartition("/")[2]) in jobs]).kill()
    yield ""


@contextmanager
def kill_service(bench: Bench, rng: random.Random) -> Iterator[str]:
    """Kill the service itself, and start it again at once."""
    bench.service.process.kill()
    bench.start_again()
    yield ""


@contextmanager
def freeze_rank(bench: Bench, rng: random.Random) -> Iterator[str]:
    """Stop a rank for a while."""
    board, pid = _some_rank(bench, rng)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield board
        time.sleep(FROZEN_S)
    finally:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:  # the service has ended it
            return


@contextmanager
def cut_cable(bench: Bench, rng: random.Random) -> Iterator[str]:
    """Unplug a board."""
    host = rng.choice(bench.lab.hosts)
    tell_lab("cut", bench.lab.name, host.name)
    try:
        yield host.name
        time.sleep(LASTS_S)
    finally:
        tell_lab("mend", bench.lab.name, host.name)


def setting(words: Callable[[Lab, Host], tuple[str, str]]) -> Sort:
    """Return the fault of a board that is set to something else: `words` are what is set, and what was."""

    @contextmanager
    def fault(bench: Bench, rng: random.Random) -> Iterator[str]:
        lab = load_lab(bench.lab.name)
        host = rng.choice(lab.hosts)
        other, before = words(lab, host)
        tell_lab("set", bench.lab.name, host.name, other)
        try:
            yield host.name
            time.sleep(LASTS_S)
        finally:
            tell_lab("set", bench.lab.name, host.name, before)

    return fault


def _thin_link(_: Lab, host: Host) -> tuple[str, str]:
    rate = host.bandwidth_bytes_per_s * 8 / 1e6
    return f"bandwidth_mbps={0.05 * rate:.3g}", f"bandwidth_mbps={rate!r}"


def _short_memory(lab: Lab, host: Host) -> tuple[str, str]:
    used = lab_up.usage(lab)[lab.hosts.index(host)]["memory_used_gib"]
    # A cap below what is used the kernel refuses.
    return f"memory_gib={used + LEFT_GIB:.4f}", f"memory_gib={host.memory_bytes / GIB!r}"


@contextmanager
def fill_disk(bench: Bench, rng: random.Random) -> Iterator[str]:
    """Fill a board's disk, and kill its rank: what is started again finds it full."""
    board, pid = _some_rank(bench, rng)
    tell_lab("fill", bench.lab.name, board)
    try:
        os.kill(pid, signal.SIGKILL)
        yield board
        time.sleep(LASTS_S)
    finally:
        tell_lab("clear", bench.lab.name, board)


def restarting(choose: Callable[[Lab, random.Random], Host]) -> Sort:
    """Return the fault of a board that loses its current, and is up again after some seconds."""

    @contextmanager
    def fault(bench: Bench, rng: random.Random) -> Iterator[str]:
        name = choose(bench.lab, rng).name
        tell_lab("cut", bench.lab.name, name)  # first: nobody hears from what dies on it
        try:
            tell_lab("kill", bench.lab.name, name)
            yield name
            time.sleep(OFF_S)
        finally:
            tell_lab("mend", bench.lab.name, name)
            tell_lab("boot", bench.lab.name, name)

    return fault


@contextmanager
def move_clock(bench: Bench, rng: random.Random) -> Iterator[str]:
    """Set this machine's clock, which all hosts have, an hour ahead or back, and right again."""
    right_s = time.time() - time.monotonic()
    time.clock_settime(time.CLOCK_REALTIME, time.time() + rng.choice((-HOUR_S, HOUR_S)))
    try:
        yield ""
        time.sleep(LASTS_S)
    finally:
        time.clock_settime(time.CLOCK_REALTIME, right_s + time.monotonic())


FAULTS: Mapping[str, Sort] = {
    "rank killed": kill_rank,
    "mpirun killed": kill_mpirun,
    "service killed": kill_service,
    "rank frozen": freeze_rank,
    "cable cut": cut_cable,
    "link at 5 %": setting(_thin_link),
    "CPU at a tenth": setting(lambda lab, host: ("cpu=10%", f"cpu={100 * host.cpu!r}%")),
    "memory short": setting(_short_memory),
    "disk full": fill_disk,
    "host restarted": restarting(lambda lab, rng: rng.choice(lab.hosts[1:])),
    "rank 0's host restarted": restarting(lambda lab, _: lab.hosts[0]),
    CLOCK: move_clock,
}
