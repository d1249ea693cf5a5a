"""Rows in tiles come to those who want them, however many tiles and owners there are."""

import numpy as np

from hepti_mpi.exchange import Tiles, gather_rows, whole
from solver.routes import Route
from solver.spans import Partition, Span

MANY = 1100


def test_more_than_a_thousand_tiles_stay_apart(world):
    """Rank 0 has most of the rows, a tile each: who passes these on in the ring sends its own meanwhile."""
    have = Partition.of_counts([MANY] + [3 + rank for rank in range(world.size - 1)])
    x = np.arange(2 * have.total, dtype=np.float32).reshape(-1, 2)
    everything = [Span(0, have.total)] * world.size

    own = Tiles.here(x[have[world.rank].slice])
    arrived = whole(gather_rows(world, own, have, everything, tile_rows=1, route=Route.RING))

    np.testing.assert_array_equal(arrived, x)
    world.finish_sending()
