"""What is sent comes to those whom it is for, once and in order, and nobody waits who need not."""

import time

import numpy as np
import pytest

from hepti_mpi.comm import group as comm
from hepti_mpi.comm.mailbox import LONGEST_PAUSE_S, Mailbox
from hepti_mpi.comm.mpi import LARGEST_TAG, Tag, check_tags

KINDS = ("orders", "decisions", "reports", "weights")
LARGE = 1 << 22  # float32 numbers: more than MPI sends at once


@pytest.mark.sizes
def test_kinds_are_taken_in_any_order_and_each_stays_in_its_own(world):
    """Three of every kind from rank 0, taken kind by kind, the last kind first."""
    if world.rank == 0:
        for number in range(3):
            for kind in KINDS:
                getattr(world, kind).send((kind, number), range(world.size))
        taken = []
    else:
        taken = [getattr(world, kind).take() for kind in reversed(KINDS) for _ in range(3)]
    world.barrier()

    expected = [(kind, number) for kind in reversed(KINDS) for number in range(3)]
    assert taken == (expected if world.rank else [])
    assert all(getattr(world, kind).poll() is None for kind in KINDS)  # a rank gets nothing of its own


@pytest.mark.sizes
def test_everybody_tells_one_rank_which_knows_who_it_was(world):
    world.reports.send(f"rank {world.rank}", [0])
    found = []
    while world.rank == 0 and len(found) < world.size - 1:
        if (report := world.reports.poll()) is not None:
            found.append(report)
    world.barrier()

    assert sorted(found) == [(rank, f"rank {rank}") for rank in range(1, world.size) if world.rank == 0]


def test_an_array_comes_in_pieces_and_is_kept_until_it_has_left(world):
    """Nobody but the mailbox holds what is sent."""
    rows = np.zeros((3, LARGE // 2), np.float32)
    if world.rank == 0:
        for number in range(3):
            for part in np.full((2, LARGE // 4), number, np.float32):
                world.weights.send(part.copy(), world.others())
        while world.weights.leaving():
            world.pause()
    else:
        for came in world.weights.fill(rows):
            if not came:
                world.pause()
    world.barrier()

    expected = np.arange(3, dtype=np.float32)[:, None] * (world.rank > 0)
    np.testing.assert_array_equal(rows, np.broadcast_to(expected, rows.shape))


def test_what_nobody_takes_keeps_nobody_waiting_and_is_counted(world):
    """Rank 0 sees how many pieces are still on their way, and so how many more to read."""
    sent = np.ones(LARGE, np.float32)
    if world.rank == 0:
        for _ in range(3):
            world.weights.send(sent, world.others())
        leaving = world.weights.leaving()
    world.barrier()
    for _ in range(3 * (world.rank > 0)):
        for _ in world.weights.fill(np.empty(LARGE, np.float32)):
            pass
    while world.weights.leaving():
        world.pause()

    if world.rank == 0:
        assert leaving == 3 * (world.size - 1)


@pytest.mark.sizes
def test_who_waits_looks_seldom_works_meanwhile_and_is_counted(world):
    late_s, looks, work = 0.2, [], iter([True] * 5)
    world.traffic.reset()
    world.barrier()
    if world.rank == 0:
        time.sleep(late_s)
        world.decisions.send("now", world.others())
        return
    poll = world.decisions.poll
    world.decisions.poll = lambda: looks.append(True) or poll()
    try:
        assert world.decisions.take(lambda: next(work, False)) == "now"
    finally:
        del world.decisions.poll

    assert next(work, None) is None
    assert len(looks) < 200 + late_s / LONGEST_PAUSE_S
    assert world.traffic.wait_s > late_s / 2


@pytest.mark.sizes
def test_clocks_are_compared_with_rank_0s(world):
    """Here all ranks have the same."""
    ahead = comm.world().on_all(world.clock_ahead)

    assert ahead[0] == 0
    np.testing.assert_allclose(ahead, 0, atol=0.05)


def test_rows_have_tags_of_their_own_that_every_mpi_has():
    check_tags(LARGEST_TAG - Tag.PARTS + 1)

    with pytest.raises(ValueError, match=f"no tags for the parts of {LARGEST_TAG} ranks"):
        check_tags(LARGEST_TAG)


def test_no_tag_is_anothers(world):
    boxes = [box for box in vars(world).values() if isinstance(box, Mailbox)]

    assert len(boxes) == len({box._tag for box in boxes}) == 6
