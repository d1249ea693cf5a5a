"""EdgeFlow against brute force over the rows of two layers, all of it computed here."""

from itertools import product

import pytest

from solver.base.spans import Partition
from solver.plan.segments import SegmentCut
from solver.systems.convnets import plan_network
from tests.kit.chains import boards, chain, counts, spans
from tests.sweeps import pairs

SIZE = 12
NET = chain(("conv", 64), ("conv", 32), size=SIZE)
ROW_FLOP = (2 * 3 * 9 * 64 * SIZE, 2 * 64 * 9 * 32 * SIZE)
ROW_BYTES = 64 * SIZE * 4


def unit(work, rows, begins, speeds):
    """Return when every board is done: who has no rows, when it was before. A slab takes as long as 0.7 rows more."""
    return [
        begin + (4e6 + (count + 0.7) / (SIZE + 0.7) * SIZE * work) / (speed * 1e9) if count else begin
        for begin, count, speed in zip(begins, rows, speeds, strict=True)
    ]


def second(rows, before, finish, speeds, mbps, latency_s):
    """Return when every board is done with the second layer: a row above and below its own, of those who have them."""
    begins = list(finish)
    for d, (start, stop) in enumerate(spans(rows)):
        for e, (first, last) in enumerate(spans(before)):
            common = min(stop + 1, last) - max(start - 1, first)
            if d != e and start < stop and common > 0:
                begins[d] = max(begins[d], finish[e] + latency_s + common * ROW_BYTES / (mbps * 1e6 / 8))
    return unit(ROW_FLOP[1], rows, begins, speeds)


def last(rows, finish):
    """Return when the last of those who compute is done."""
    return max(end for end, count in zip(finish, rows, strict=True) if count)


@pytest.mark.parametrize(
    ("mbps", "speeds"), pairs([5.0, 50.0, 500.0], [(0.1, 0.1), (0.05, 0.2), (0.1, 0.05, 0.2), (0.02, 0.3, 0.1)])
)
def test_every_layer_is_done_nearly_as_early_as_by_any_rows(speeds, mbps):
    """Of these twelve, one second layer is 1.5 % later than the best; the others are the best, but for copies."""
    every = [rows for rows in product(range(SIZE + 1), repeat=len(speeds)) if sum(rows) == SIZE]
    none = [0.0] * len(speeds)

    plan = plan_network("edgeflow", NET, boards(*speeds, mbps=mbps, latency_us=100.0))

    first_rows, second_rows = counts(plan, NET, 0), Partition.of_shares(plan.segments[1].shares, SIZE).counts
    first = {rows: unit(ROW_FLOP[0], rows, none, speeds) for rows in every}
    assert last(first_rows, first[first_rows]) == pytest.approx(min(last(r, f) for r, f in first.items()), rel=0.005)
    ends = {rows: second(rows, first_rows, first[first_rows], speeds, mbps, 100e-6) for rows in every}
    assert last(second_rows, ends[second_rows]) == pytest.approx(min(last(r, f) for r, f in ends.items()), rel=0.02)


def test_layers_have_shares_of_their_own():
    """A call of the second board takes 8 ms: longer than the first computes the first layer, 6 ms, and the third."""
    net = chain(("conv", 64), ("conv", 64), ("pool",), ("pool",), ("pool",), ("conv", 4), ("mean",), size=24)

    plan = plan_network("edgeflow", net, boards(1.0, 0.5, mbps=1000.0))

    assert {part.cut for part in plan.segments} == {SegmentCut.ROWS}
    assert [part.active for part in plan.segments] == [(0,), (0, 1), (0,)]
