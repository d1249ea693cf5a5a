"""EdgeLD by hand: two boards, two convolutions of 4 channels on 12 rows of 12 pixels, all of it computed here."""

import numpy as np
import pytest

from solver.base.spans import Span
from solver.plan.plan import Wire
from solver.schedule.networks.segment_steps import net_setting
from solver.systems.convnets import plan_network
from solver.systems.convnets.edgeld import pool_points, predicted_s
from tests.kit.chains import boards, chain, counts, slab, spans

NET = chain(("conv", 4), ("conv", 4))
SPEEDS, MBPS = (0.004, 0.008), 40.0
ROW_FLOP = (2 * 3 * 9 * 4 * 12, 2 * 4 * 9 * 4 * 12)  # of either convolution


def by_hand(rows):
    """Return T of both boards: FLOP by speed, a call of 4e6 FLOP, bytes of pixels out and of numbers back."""
    seconds = []
    for rank, (own, speed) in enumerate(zip(spans(rows), SPEEDS, strict=True)):
        needs, *made = slab(own, 2, 12)
        work = sum(flop * (stop - start) for flop, (start, stop) in zip(ROW_FLOP, made, strict=True))
        moved = (3 * 12 * (needs[1] - needs[0]) + 4 * 4 * 12 * (own[1] - own[0])) * (rank > 0)
        seconds.append((work + 4e6) / (speed * 1e9) + moved / (MBPS * 1e6 / 8))
    return seconds


def test_a_block_ends_where_maps_become_smaller():
    """After the first pool, and where the rows end; the second pool is of the last block."""
    net = chain(("conv", 4), ("conv", 4), ("pool",), ("conv", 4), ("conv", 4), ("pool",), ("flatten",), ("gemm", 3))

    assert pool_points(net) == [0, 3, 6]


@pytest.mark.parametrize("rows", [(6, 6), (1, 11), (11, 1), (4, 8)])
def test_seconds_are_those_by_hand(rows):
    s = net_setting(NET, boards(*SPEEDS, mbps=MBPS))

    assert predicted_s(s, Wire.FLOAT32, Span(0, 2), rows) == pytest.approx(by_hand(rows))


def test_rows_are_moved_until_that_does_not_help():
    """From 4 and 8, in proportion to speed, to what is best of all: the slower board has the longer call."""
    best = min(((rows, 12 - rows) for rows in range(1, 12)), key=lambda rows: max(by_hand(rows)))

    found = plan_network("edgeld", NET, boards(*SPEEDS, mbps=MBPS))

    assert max(by_hand((4, 8))) > max(by_hand(best))
    assert counts(found, NET, 0) == best
    assert np.argmax(by_hand(best)) == 0 or best[0] == 1
