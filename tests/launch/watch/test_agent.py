"""A board's agent as a process: its heartbeats, its orders, and what it kills."""

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from hepti_mpi.base.fork_client import peer
from launch.base.sent import sent
from launch.watch import agent, site
from launch.watch.starter import CLIENT
from solver.cluster import board
from tests.kit.languages import make_tiny
from tests.kit.processes import has_ended

HERE = Path(__file__).parent
IDLE = "import sys, time; print('there', flush=True); time.sleep(100)"


class Running:
    """An agent that runs."""

    def __init__(self, process):
        self.process = process

    def beat(self):
        return json.loads(self.process.stdout.readline())

    def order(self, number, keep=(), following=0, **more):
        """Give an order; return the heartbeat that answers it."""
        line = {"n": number, "keep": list(keep), "next": following, **more}
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        while (beat := self.beat()).get("n") != number:
            pass
        return beat


@contextmanager
def running(service, token="now", *, sent=False, server=()):
    """Start an agent, as a file or sent to a shell's Python on standard input."""
    where = site.Site(("far",), 1, enter=() if not sent else ("env",))
    command, first = [sys.executable, agent.__file__, service, token, *server], b""
    if sent:
        command, first = where.agent("far", service, token, Path("none"))
        command = ["sh", "-c", command[-1]]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.stdin.write(first.decode())
    process.stdin.flush()
    try:
        yield Running(process)
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


@contextmanager
def rank(mark, number=0):
    """Start a process that is marked as a rank."""
    variables = {**os.environ, agent.MARK: mark, "PMIX_RANK": str(number)}
    process = subprocess.Popen([sys.executable, "-c", IDLE], env=variables, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "there\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def service():
    return f"agent{os.getpid()}x{time.monotonic_ns() % 10**6}"


@pytest.mark.parametrize("before", [None, "mpirun's"])
def test_a_process_that_was_looked_at_before_it_had_its_environment_is_a_rank(service, before):
    """Between fork and exec it has its parent's; an order has the agent look twice within a millisecond."""
    mark = f"{service}/now/1"
    own = {**os.environ, agent.MARK: mark, "PMIX_RANK": "2"}
    parents = {**os.environ, agent.MARK: mark} if before else dict(os.environ)
    begins = f"import os, sys; input(); os.execve(sys.executable, [sys.executable, '-c', {IDLE!r}], {own!r})"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", begins], env=parents, stdin=pipe, stdout=pipe, text=True) as process:
        marked = agent.Marked(service)
        try:
            for _ in range(3):
                marked.look()
            assert marked.states() == []
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "there\n"

            marked.look()

            assert [(rank["job"], rank["rank"]) for rank in marked.states()] == [(1, 2)]
        finally:
            process.kill()


@pytest.mark.parametrize("sent", [False, True])
def test_an_agent_tells_of_its_board_and_the_ranks_there(service, sent):
    with rank(f"{service}/now/3", 2) as process, running(service, sent=sent) as far:
        beat = far.beat()

        assert 0 < beat["free_bytes"] <= beat["total_bytes"]
        assert [(own["pid"], own["job"], own["rank"]) for own in beat["ranks"]] == [(process.pid, 3, 2)]
        assert beat["ranks"][0]["state"] in "SR"


def test_it_kills_what_is_neither_kept_nor_new(service):
    with (
        running(service) as far,
        rank(f"{service}/now/1") as gone,
        rank(f"{service}/now/2", 1) as kept,
        rank(f"{service}/now/3", 2) as new,
        rank(f"{service}/before/9", 3) as old,
        rank(f"{service}x/now/1", 4) as other,
    ):
        beat = far.order(1, keep=[2], following=3)

        assert sorted(own["rank"] for own in beat["ranks"]) == [1, 2]
        assert gone.wait(5) == old.wait(5) == -9
        assert [process.poll() for process in (kept, new, other)] == [None] * 3


def test_the_end_of_a_rank_is_told_at_once(service):
    with running(service) as far, rank(f"{service}/now/1") as process:
        assert far.order(1, keep=[1], following=2)["ranks"]
        begin = time.monotonic()
        process.kill()
        process.wait()
        while far.beat()["ranks"]:
            pass

        assert time.monotonic() - begin < agent.BEAT_S / 2


def test_when_its_service_is_gone_it_kills_the_service_s_ranks_and_nothing_newer(service):
    with rank(f"{service}/now/1") as process, rank(f"{service}/now/2") as newer:
        with running(service) as far:
            folder = Path(far.order(1, keep=[1], following=2)["folder"])
            assert folder.is_dir()
            with rank(f"{service}/next/1") as of_next:
                far.process.stdin.close()
                far.process.wait(10)

                assert of_next.poll() is None
        assert process.wait(5) == -9
        assert newer.poll() is None
        assert not folder.exists()


def test_a_rank_that_is_forked_is_told_of_in_its_client_s_place(service, tmp_path):
    """The client is what mpirun knows, and what is marked; the rank is what computes, stands still and is killed."""

    def forked(far, client):
        while not (found := far.beat()["ranks"]) or found[0]["pid"] == client.pid:
            pass
        (own,) = found
        assert (own["job"], own["rank"]) == (1, 2)
        return own["pid"]

    words = ["generate", "--model", str(make_tiny(tmp_path).path), "--input", "-", "--cluster", "mixed4"]
    variables = {**os.environ, agent.MARK: f"{service}/now/1", "PMIX_RANK": "2"}
    pipe = subprocess.PIPE
    command = [*CLIENT, service, *words]
    with running(service, server=(sys.executable, "1")) as far:
        far.order(1, keep=[1], following=2)
        with subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, stderr=pipe) as client:
            rank = forked(far, client)
            os.kill(rank, signal.SIGSTOP)
            while far.order(2, keep=[1], following=2)["ranks"][0]["state"] != "T":
                pass
            # Not SIGSEGV: once MPI has begun, it shows a stack trace of that, and aborts, by SIGABRT (`opal_signal`).
            os.kill(rank, signal.SIGILL)
            os.kill(rank, signal.SIGCONT)
            while not (killed := far.beat()["killed"]):
                pass
            assert killed == [{"job": 1, "rank": 2, "signal": signal.SIGILL}]
            assert client.wait(10) == -signal.SIGILL
        with subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, stderr=pipe) as client:
            rank = forked(far, client)
            beat = far.order(3, keep=[], following=2)

            assert beat["ranks"] == []
            assert len(beat["killed"]) == 1, "what is killed by an order is no loss"
            assert has_ended(rank)
            assert client.wait(10) == -signal.SIGKILL


def listens(service):
    """Return the process number of the agent that has started the service's fork server, None where there is none."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(f"\0{service}")
        except ConnectionRefusedError:
            return None
        return peer(client)[0]


@pytest.mark.parametrize("cause", ["killed", "gone"])
def test_the_fork_server_of_a_service_that_was_killed_is_the_next_one_s(cause, service):
    """And it ends after an order that is the last."""
    server = (sys.executable, "1")
    variables = {**os.environ, agent.MARK: f"{service}/second/1", "PMIX_RANK": "0"}
    with running(service, "first", server=server) as old:
        old.order(1)
        if cause == "killed":
            old.process.kill()
        else:
            old.process.stdin.close()
        old.process.wait(10)
        with running(service, "second", server=server) as new:
            new.order(1, keep=[1], following=2)
            assert listens(service) == old.process.pid
            subprocess.run([*CLIENT, service, "--help"], env=variables, stdout=subprocess.DEVNULL, check=True)
            assert listens(service) == old.process.pid
            new.order(2, keep=[1], following=2, last=True)
        end = time.monotonic() + 5
        while listens(service) is not None:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_a_fork_server_of_another_program_is_replaced(service):
    with running(service, "first", server=(sys.executable, "1")) as old:
        old.order(1)
        with running(service, "second", server=(sys.executable, "2")) as new:
            end = time.monotonic() + 30
            while listens(service) != new.process.pid:
                assert time.monotonic() < end
                new.order(1)
            new.order(2, last=True)


def test_what_a_rank_has_started_is_no_rank_and_is_killed_with_it(service):
    """As rank 0's process that plans: one that stands still is no rank that does."""
    variables = {**os.environ, agent.MARK: f"{service}/now/1", "PMIX_RANK": "0"}
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {IDLE!r}])"
    with subprocess.Popen([sys.executable, "-c", program], env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "there\n"
        with running(service) as far:
            beat = far.beat()
            assert [own["pid"] for own in beat["ranks"]] == [process.pid]
            far.order(1, keep=[], following=2)
        assert process.stdout.read() == ""  # which ends when both have
        assert process.wait() == -signal.SIGKILL


def test_files_go_there_and_back(service):
    with running(service) as far:
        assert "error" not in far.order(1, write="a.toml", text="é = 1\n")
        assert far.order(2, read="a.toml")["text"] == "é = 1\n"
        assert "No such file" in far.order(3, read="b.toml")["error"]


def test_what_a_dead_service_of_its_name_has_left_is_cleared_away(service):
    process = subprocess.Popen(
        [sys.executable, agent.__file__, service, "dead"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    folder = Path(json.loads(process.stdout.readline())["folder"])
    process.kill()
    process.communicate()
    assert folder.is_dir()
    with running(service) as far:
        far.beat()

        assert not folder.exists()


def test_folders_of_daemons_and_agents_that_are_dead_and_ours_are_swept(tmp_path, monkeypatch):
    """An agent that is killed with its board cannot remove them; the next one may be of a service on another port."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead, old = tmp_path / f"prted.{ended.pid}", tmp_path / f"hepti-serve-x-before-{ended.pid}-1"
    names = (f"prted.{os.getpid()}", f"hepti-serve-x-now-{os.getpid()}-1", "prted.no-number", f"other.{ended.pid}")
    others = [tmp_path / name for name in names]
    for folder in (dead, old, *others):
        folder.mkdir()
        (folder / "file").touch()
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    agent.sweep(str(tmp_path))
    assert dead.exists(), "another user's"
    monkeypatch.undo()
    agent.sweep(str(tmp_path))

    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_files_of_mpi_are_swept_that_are_ours_and_that_no_process_has(tmp_path, monkeypatch):
    """Ranks that are killed leave them; their names do not say whose they are."""
    dead, mapped, begun, other = (
        tmp_path / name for name in ("sm_segment.a.0.1.0", "sm_segment.a.0.1.1", "sm_segment.a.0.2.0", "other")
    )
    for file in (dead, mapped, begun, other):
        file.write_bytes(bytes(100))
    mine = os.geteuid()
    with mapped.open("rb") as file:
        segment = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    with segment, begun.open("rb"):
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
        agent.sweep(str(tmp_path))
        assert dead.exists(), "another user's"
        monkeypatch.undo()
        agent.sweep(str(tmp_path))

    assert sorted(tmp_path.iterdir()) == sorted([mapped, begun, other])


def test_an_agent_imports_little():
    """On a slow board that is restarted its start is waited for."""
    heavy = {"asyncio", "glob", "pathlib", "shutil", "site", "subprocess", "tempfile", "threading", "typing"}
    program = f"import sys; exec({sent(site.AGENT)!r}, {{}}); print(*sys.modules)"
    told = subprocess.run([sys.executable, *site.BARE, "-c", program], capture_output=True, text=True, check=True)

    assert not heavy & set(told.stdout.split())


@pytest.mark.parametrize("version", [1, 2])
def test_a_cap_on_memory_counts_and_files_in_the_cache_are_free(tmp_path, monkeypatch, version):
    names = board.SECOND
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 100000\n")
    (tmp_path / "memory.events").write_text("oom 1\noom_kill 2\n")
    if version == 1:
        names = board.FIRST
        (tmp_path / "memory.max").rename(tmp_path / "memory.limit_in_bytes")
        (tmp_path / "memory.current").rename(tmp_path / "memory.usage_in_bytes")
        (tmp_path / "memory.stat").write_text("inactive_file 5\ntotal_inactive_file 100000\n")
        (tmp_path / "memory.events").rename(tmp_path / "memory.oom_control")
    gauges = agent.Gauges()
    gauges.groups = [(str(tmp_path), names)]
    told = gauges.read([])

    assert (told["free_bytes"], told["total_bytes"], told["oom_kills"]) == (400000, 1000000, 2)
