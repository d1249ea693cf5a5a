"""How ranks wait for each other."""

import time

import numpy as np
import pytest

from hepti_mpi.comm.mailbox import LONGEST_PAUSE_S
from hepti_mpi.comm.mpi import TIMER_SLACK, TIMER_SLACK_NS, Tag

LATE_S = 0.2
IN_TIME_S = 60.0


@pytest.mark.sizes
def test_a_long_wait_looks_seldom_and_still_ends_in_time(world, monkeypatch):
    """A rank that looks all the time eats the quota that it needs as soon as the rows are there."""
    looks = []
    look = world.arrived
    monkeypatch.setattr(world, "arrived", lambda requests: looks.append(time.perf_counter()) or look(requests))
    rows = np.zeros(3, np.float32)
    source = (world.rank - 1) % world.size
    requests = [world.post_receive(rows, source, Tag.PARTS)]
    world.barrier()
    time.sleep(LATE_S * (world.rank == 0))  # all others, and so all but one, wait for it or for nothing
    world.post_send(np.full(3, world.rank, np.float32), (world.rank + 1) % world.size, Tag.PARTS)

    assert world.wait_some(requests) == [0]
    np.testing.assert_array_equal(rows, source)
    # Some at once and ever fewer, then one a millisecond; looking every 0.1 ms would be five times as often.
    assert len(looks) < 200 + LATE_S / LONGEST_PAUSE_S
    world.finish_sending()


@pytest.mark.sizes
@pytest.mark.parametrize("ranks", ["all", "root"])
def test_who_waits_for_a_step_of_others_leaves_them_the_core(world, ranks):
    """The other rank on a board may be another model's, which loads its weights."""

    def late():
        time.sleep(LATE_S * (world.rank == 0))
        return world.rank

    world.barrier()
    before = time.process_time()
    if ranks == "all":
        assert world.on_all(late) == list(range(world.size))
    else:
        assert world.from_root(late if world.rank == 0 else None) == 0
    assert time.process_time() - before < LATE_S / 2


@pytest.mark.skipif(not TIMER_SLACK.exists(), reason="this system has no timer slack")
def test_who_sleeps_wakes_in_time(world):
    assert TIMER_SLACK.read_text().strip() == TIMER_SLACK_NS


@pytest.mark.sizes
def test_what_has_been_sent_is_forgotten(world):
    """A message is kept until it has left; after that its memory serves again."""
    sent = np.arange(50, dtype=np.float32)
    rows = np.zeros(50, np.float32)
    before, after = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    for number in range(50):
        requests = [world.post_receive(rows[number : number + 1], before, Tag.PARTS)]
        world.post_send(sent[number : number + 1], after, Tag.PARTS)
        world.wait_some(requests)

    np.testing.assert_array_equal(rows, sent)
    assert len(world._sending) < 50
    world.finish_sending()


def test_messages_go_on_while_a_rank_computes(world):
    """Both ways: one that is larger than what MPI sends at once needs its receiver, too, before it is under way."""
    large = np.ones(8 * 2**20, np.float32)
    rows = np.zeros_like(large)
    source = (world.rank - 1) % world.size
    requests = [world.post_receive(rows, source, Tag.PARTS)]
    world.post_send(large, (world.rank + 1) % world.size, Tag.PARTS)

    with world.moving():
        by = time.monotonic() + IN_TIME_S
        while not rows.all() and time.monotonic() < by:  # computes, and calls MPI nowhere
            pass
    assert rows.all()
    world.finish_sending()
    while requests[0]:
        world.wait_some(requests)


@pytest.mark.sizes
def test_a_report_is_not_taken_for_rows(world):
    """Rank 0 asks whether a batch can go on; what a rank tells of the batch before is no reason to."""
    last, by = world.size - 1, time.monotonic() + IN_TIME_S
    told, taken, rows = None, None, np.zeros(3, np.float32)
    if last == 0:
        return  # alone, it tells nobody
    if world.rank == last:
        world.reports.send("how it was", [0])
    if world.rank == 0:
        while not world._comm.Iprobe(last, Tag.REPORT) and time.monotonic() < by:
            pass
        taken, told = world.has_rows(last), world.reports.poll()
    world.barrier()
    if world.rank == last:
        world.post_send(np.ones(3, np.float32), 0, Tag.PARTS + last)
    if world.rank == 0:
        while not world.has_rows(last) and time.monotonic() < by:
            pass
        world.wait_some([world.post_receive(rows, last, Tag.PARTS + last)])
    world.finish_sending()
    if world.rank == 0:
        assert told == (last, "how it was")
        assert rows.all()
        assert not taken
