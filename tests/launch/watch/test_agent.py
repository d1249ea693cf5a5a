"""A board's agent as a process: its heartbeats, its orders, and what it kills."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from launch.watch import agent, site

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
def running(service, token="now", *, sent=False):
    """Start an agent, as a file or sent to a shell's Python on standard input."""
    where = site.Site(("far",), 1, enter=() if not sent else ("env",))
    command, first = [sys.executable, agent.__file__, service, token], b""
    if sent:
        command, first = where.agent("far", service, token)
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


@pytest.mark.parametrize("version", [1, 2])
def test_a_cap_on_memory_counts_and_files_in_the_cache_are_free(tmp_path, monkeypatch, version):
    names = {"cap": "memory.max", "use": "memory.current", "cached": "inactive_file"}
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 100000\n")
    (tmp_path / "memory.events").write_text("oom 1\noom_kill 2\n")
    if version == 1:
        names = {"cap": "memory.limit_in_bytes", "use": "memory.usage_in_bytes", "cached": "total_inactive_file"}
        (tmp_path / "memory.max").rename(tmp_path / "memory.limit_in_bytes")
        (tmp_path / "memory.current").rename(tmp_path / "memory.usage_in_bytes")
        (tmp_path / "memory.stat").write_text("inactive_file 5\ntotal_inactive_file 100000\n")
        (tmp_path / "memory.events").rename(tmp_path / "memory.oom_control")
    gauges = agent.Gauges()
    gauges.groups = [(str(tmp_path), names)]
    told = gauges.read([])

    assert (told["free_bytes"], told["total_bytes"], told["oom_kills"]) == (400000, 1000000, 2)
