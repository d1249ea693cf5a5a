"""Rows in tiles come to those who want them, however many tiles and owners there are."""

import numpy as np
import pytest

from hepti_mpi.comm import group as comm
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.rows import Tiles, gather_rows, whole
from solver.base.spans import Partition, Span
from solver.plan.routes import Route

MANY = 1100


@pytest.mark.sizes
def test_more_than_a_thousand_tiles_stay_apart(world):
    """Rank 0 has most of the rows, a tile each: who passes these on in the ring sends its own meanwhile."""
    have = Partition.of_counts([MANY] + [3 + rank for rank in range(world.size - 1)])
    x = np.arange(2 * have.total, dtype=np.float32).reshape(-1, 2)
    everything = [Span(0, have.total)] * world.size

    own = Tiles.here(x[have[world.rank].slice])
    arrived = whole(gather_rows(world, own, have, everything, tile_rows=1, route=Route.RING))

    np.testing.assert_array_equal(arrived, x)
    world.finish_sending()


@pytest.mark.sizes
@pytest.mark.parametrize(
    "wait", [lambda group: group.wait_some([]), Group.pause, Group.finish_sending, lambda group: group.orders.take()]
)
def test_a_rank_that_has_dropped_rows_says_so_instead_of_waiting(wait, world):
    """Nobody has iterated over the blocks, and so nobody has sent any; a rank alone has nobody who waits."""
    if world.size < 2:
        return
    group = comm.world()  # nothing of another test arrives in what stays open here
    have = Partition.of_counts([4] * world.size)

    gather_rows(group, Tiles.here(np.zeros((4, 2), np.float32)), have, [Span(0, have.total)] * world.size)

    with pytest.raises(RuntimeError, match="dropped: 1 pieces not sent"):
        wait(group)
