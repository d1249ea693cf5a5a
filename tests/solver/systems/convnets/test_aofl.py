"""AOFL by hand, and its program against every way to fuse."""

from itertools import combinations, pairwise

import pytest

from solver.base.spans import Span
from solver.plan.plan import Wire
from solver.plan.segments import SegmentCut
from solver.schedule.networks.segment_steps import net_setting
from solver.systems.convnets import plan_network
from solver.systems.convnets.aofl import block_s, sized_block
from tests.kit.chains import boards, chain, slab, spans
from tests.sweeps import pairs

WIRE = Wire.FLOAT32


def test_the_seconds_of_a_block_by_hand():
    """Rank 1 gets its pixels, the halo of both layers with them, and sends back numbers; copies take under 1 %.

    A slab takes as long as 0.7 rows more.
    """
    net, speeds = chain(("conv", 32), ("conv", 32), size=24), (1e9, 2e9)
    s = net_setting(net, boards(1.0, 2.0, mbps=8.0, latency_us=500.0))
    row_flop = (2 * 3 * 9 * 32 * 24, 2 * 32 * 9 * 32 * 24)
    compute = []
    for own, speed in zip(spans((8, 16)), speeds, strict=True):
        made = slab(own, 2, 24)[1:]
        work = sum(flop * (stop - start + 0.7) / 24.7 * 24 for flop, (start, stop) in zip(row_flop, made, strict=True))
        compute.append((work + 4e6) / speed)
    out_s, back_s = 500e-6 + 18 * 24 * 3 / 1e6, 500e-6 + 16 * 24 * 32 * 4 / 1e6

    assert block_s(s, WIRE, Span(0, 2), (1 / 3, 2 / 3)) == pytest.approx(out_s + max(compute) + back_s, rel=0.01)


@pytest.mark.parametrize(("mbps", "layers"), pairs([30.0, 3.0, 1000.0], [1, 4, 6]))
def test_no_other_fusing_is_faster(layers, mbps):
    """All 2 to the power of 5 ways to fuse six layers."""
    net = chain(*[("conv", 8 + 4 * number) for number in range(layers)], size=20)
    cluster = boards(0.5, 1.0, 0.1, mbps=mbps)
    s = net_setting(net, cluster)

    def seconds_of(points):
        return sum(sized_block(s, WIRE, Span(*ends))[0] for ends in pairwise((0, *points, layers)))

    ways = [points for count in range(layers) for points in combinations(range(1, layers), count)]
    found = [part.nodes.stop for part in plan_network("aofl", net, cluster).segments if part.nodes.size]

    assert seconds_of(found[:-1]) == pytest.approx(min(map(seconds_of, ways)))


def test_slow_devices_are_left_out_and_sizes_finish_together():
    """A board of a hundredth of the speed would be the last whatever it got; the others are done at once."""
    net = chain(("conv", 64), ("conv", 64), size=48)
    s = net_setting(net, boards(1.0, 3.0, 0.01, mbps=10_000.0, latency_us=1.0))

    _, shares = sized_block(s, WIRE, Span(0, 2))

    assert shares[2] == 0
    whole_flop = 2 * (3 + 64) * 9 * 64 * 48 * 48
    ends = [(4e6 + whole_flop * shares[0]) / 1e9, (4e6 + whole_flop * shares[1]) / 3e9]
    assert ends[0] == pytest.approx(ends[1], rel=0.02)


def test_a_device_that_is_much_faster_takes_all():
    """Section 5.5 of the paper."""
    plan = plan_network("aofl", chain(("conv", 16), ("conv", 16), size=24), boards(100.0, 1.0, 1.0))

    assert [part.cut for part in plan.segments] == [SegmentCut.ROWS] * len(plan.segments)
    assert {part.active for part in plan.segments} == {(0,)}
