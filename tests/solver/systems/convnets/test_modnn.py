"""MoDNN by hand."""

from solver.plan.segments import SegmentCut
from solver.systems.convnets import plan_network
from tests.kit.chains import boards, chain, counts


def test_rows_in_proportion_to_speed_and_rank_0_between_all_layers():
    """Speeds 1, 2, 3 of 12 rows: 2, 4, 6."""
    net = chain(("conv", 4), ("conv", 4), ("mean",), ("flatten",), ("gemm", 12), ("relu",))

    plan = plan_network("modnn", net, boards(1.0, 2.0, 3.0))

    assert [(part.nodes.start, part.nodes.stop, part.cut) for part in plan.segments] == [
        (0, 1, SegmentCut.ROWS), (1, 1, SegmentCut.ROWS), (1, 3, SegmentCut.ROWS), (3, 3, SegmentCut.ROWS),
        (3, 4, SegmentCut.ROWS), (4, 6, SegmentCut.CHANNELS), (6, 6, SegmentCut.ROWS),
    ]  # fmt: skip
    assert counts(plan, net, 0) == (2, 4, 6)
    assert all(plan.segments[number].active == (0,) for number in (1, 3, 4, 6))
    assert plan.segments[5].shares == plan.segments[0].shares
