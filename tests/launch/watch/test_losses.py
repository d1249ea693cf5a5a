"""What heartbeats say is lost, and how it is named."""

import asyncio
import gc
import sys
import time
from types import SimpleNamespace

import pytest

from launch.watch import losses
from launch.watch.boards import WatchedBoard, states
from launch.watch.losses import LossWatch, RanksLostError
from launch.watch.ranks import RankJob
from launch.watch.site import Site
from launch.watch.timing import Timing

TIMING = Timing()


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(losses, "time", clock)
    return clock


def board(name, *ranks, kills=0):
    found = WatchedBoard(name, TIMING)
    found.alive, found.seen_at = True, time.monotonic()
    found.facts = {"ranks": list(ranks), "oom_kills": kills}
    return found


def a_rank(rank, state="S", cpu_s=1.0):
    return {"pid": 100 + rank, "job": 7, "rank": rank, "state": state, "cpu_s": cpu_s}


def watching():
    boards = {"pi-0": board("pi-0", a_rank(0)), "pi-1": board("pi-1", a_rank(1))}
    job = SimpleNamespace(number=7, boards=("pi-0", "pi-1"), code=None, signalled=lambda: None)
    watch = LossWatch(job, boards, 1.0, TIMING)
    watch.look(ready=True)
    return watch, boards, job


def test_a_silent_board_is_named(clock, kept):
    watch, boards, _ = watching()
    boards["pi-1"].alive = False
    boards["pi-1"].seen_at -= 5

    with pytest.raises(RanksLostError) as caught:
        watch.look(ready=True)
    kept(caught.value)
    assert caught.value.board == "pi-1"


@pytest.mark.parametrize("state", [None, "Z"])
def test_a_rank_that_has_ended_is_named_once_mpirun_had_time_to_say_why(clock, state, kept):
    watch, boards, job = watching()
    boards["pi-1"].facts["ranks"] = [] if state is None else [a_rank(1, state)]
    watch.look(ready=True)
    clock.now += TIMING.gone_s + 0.1
    job.signalled = lambda: "rank 1 on pi-1 was ended by signal 9 (SIGKILL)"

    with pytest.raises(RanksLostError) as caught:
        watch.look(ready=True)
    kept(caught.value)


def test_out_of_memory_is_the_reason_where_a_board_counts_such_a_kill(clock, kept):
    watch, boards, _ = watching()
    boards["pi-1"].facts = {"ranks": [], "oom_kills": 1}
    watch.look(ready=True)
    clock.now += TIMING.gone_s + 0.1

    with pytest.raises(RanksLostError) as caught:
        watch.look(ready=True)
    kept(caught.value)


def test_a_rank_that_is_still_for_a_moment_is_no_loss(clock, kept):
    watch, boards, _ = watching()
    boards["pi-0"].facts["ranks"] = [a_rank(0, "T")]
    watch.look(ready=True)
    clock.now += TIMING.silence_s - 0.1
    watch.look(ready=True)
    boards["pi-0"].facts["ranks"] = [a_rank(0)]
    watch.look(ready=True)
    boards["pi-0"].facts["ranks"] = [a_rank(0, "T")]
    watch.look(ready=True)
    clock.now += TIMING.silence_s + 0.1

    with pytest.raises(RanksLostError) as caught:
        watch.look(ready=True)
    kept(caught.value)


def test_rank_0_may_be_silent_as_long_as_ranks_compute(clock, kept):
    watch, boards, _ = watching()
    for asked_s in range(1, 60):
        clock.now += 1
        boards["pi-1"].facts["ranks"] = [a_rank(1, "R", cpu_s=1.0 + asked_s)]
        watch.look(ready=True, asked_s=float(asked_s))
    clock.now += TIMING.silence_s + 1

    with pytest.raises(RanksLostError) as caught:
        watch.look(ready=True, asked_s=65.0)
    kept(caught.value)


def test_the_page_sees_a_rank_on_its_board_alone():
    boards = {"pi-0": board("pi-0", a_rank(0), a_rank(1)), "pi-1": board("pi-1", a_rank(0), a_rank(1))}
    rows = states(boards, {7: ("pi-0", "pi-1")})

    assert [[rank["pid"] for rank in row["ranks"]] for row in rows] == [[100], [101]]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("prterun noticed that process rank 1 with PID 5 on node vm exited on\nsignal 9 (Killed).\n", 137),
        (
            "PRTE has lost communication with a remote daemon.\n\n  HNP daemon   : [prterun-a,0] on node vm\n"
            "  Remote daemon: [prterun-a,2] on node pi-1\n",
            1,
        ),
        (
            "-----\nA daemon failed to report back after being spawned. This could\nbe due to several factors\n\n"
            "  Local host:    vm\n  Remote host:   pi-1\n  Daemon exit status: 213\n\nThis may also\n",
            213,
        ),
        ("note: 2 ranks\npython -m hepti_mpi: no room\n-----\nmore\n", 1),
        ("note: 2 ranks\n", 3),
        ("note: 2 ranks\n", 213),
        ("note: 2 ranks\n", 137),
        ("note: 2 ranks\n", -15),
    ],
    ids=["killed", "lost", "unstarted", "ours", "3", "213", "137", "-15"],
)
def test_the_end_of_mpirun_is_said_in_one_line(said, code, kept):
    job = RankJob.__new__(RankJob)
    job.boards = ("pi-0", "pi-1")
    job._words = said.splitlines(keepends=True)
    job._process = SimpleNamespace(returncode=code)

    kept(job.words())
    assert job.blamed == ("pi-1" if "daemon" in said else None)


def test_a_board_s_ranks_are_the_devices_that_it_is_of_all():
    site = Site(("pi-0", "pi-1", "pi-2"), 3)

    assert site.devices(("pi-0", "pi-2")) == (0, 2)
    assert site.hostfile_text(("pi-0", "pi-2")) == "pi-0 slots=1\npi-2 slots=1\n"
    assert Site(("localhost",), 4, alone=True).hostfile_text(("localhost",)) == "localhost slots=4\n"


def test_why_mpirun_did_not_start_is_the_first_that_it_says(tmp_path, kept):
    """And not the end of a line that it has wrapped."""
    said = f"{'-' * 74}\nThe directory could not be\nmade:\n\n  Error: no room\n\nPlease check\nagain.\n{'-' * 74}\n"

    async def words():
        command = [sys.executable, "-c", f"import sys; sys.stderr.write({said!r}); sys.exit(1)"]
        job = await RankJob.start(1, ["pi-0"], command, {}, tmp_path / "log")
        await job.ended()
        return job.words()

    kept(asyncio.run(words()))


def test_ranks_that_have_ended_leave_nothing_to_a_loop_that_is_closed(tmp_path, monkeypatch):
    """What they have started may hold their streams open."""
    complaints = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)

    async def begun_and_ended():
        job = await RankJob.start(1, ["pi-0"], ["sh", "-c", "setsid sleep 2 & exec sleep 60"], {}, tmp_path / "log")
        await asyncio.sleep(0.1)
        await job.end(hard=False)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begun_and_ended())
    loop.close()
    gc.collect()

    assert not complaints
