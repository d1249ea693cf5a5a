"""DeepThings: Zhao, Barijough, Gerstlauer, "DeepThings: Distributed Adaptive Deep Learning Inference ...", TCAD 2018.

On resource-constrained IoT edge clusters (IEEE TCAD 37(11)). Fused tile partitioning (section IV-A, algorithm 1): the
first l layers are fused, and the map that they end with is cut into a grid of N x M tiles. Walked back from its output,
every tile needs a part of the image that overlaps with its neighbours', and is a task of its own: memory is that of one
tile. The gateway, here rank 0, hands out tiles, puts together what comes back, and computes the later layers. Who is
done steals tiles from others (section IV-B); here from rank 0, which has the image. With reuse (section IV-C) every
other tile of a checkerboard waits for its neighbours, and takes the overlaps that they have computed.

Here l and the grid are those by which an image takes least time: l of the points at which one value is all that there
is (the paper has 16 layers of YOLOv2), the grid of the paper's, 3 x 3 to 5 x 5, or a finer one where memory does not
suffice. Tiles are first shared out in proportion to speed. Reuse is where it is predicted to be faster. In the paper it
makes an image of YOLOv2 27 % faster; of the first 16 layers on four boards, 5 x 5, we predict 34 % at 940 Mbps, 19 % at
80 Mbps, and at 20 Mbps that strips take longer than what they save.
"""

from __future__ import annotations

from collections.abc import Iterator

from solver.base.spans import Span
from solver.cluster.cluster import Cluster
from solver.model.convnet import ConvNet
from solver.plan.plan import Wire
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, alone_on
from solver.schedule.networks.memory import lacking
from solver.schedule.networks.segment_steps import NetSetting, net_setting
from solver.systems.convnets.common import chain_points, finished, plan_of, seconds_of, speed_shares

GRIDS = ((3, 3), (4, 4), (5, 5))
FINER = ((6, 6), (7, 7), (8, 8))


def plan_deepthings(net: ConvNet, cluster: Cluster, wire: Wire = Wire.FLOAT32) -> SegmentPlan:
    """Fuse as many layers, by such a grid, as is fastest of what memory suffices for."""
    s = net_setting(net, cluster)
    best: SegmentPlan | None = None
    for grids in (GRIDS, *((grid,) for grid in FINER)):
        plans = [
            plan_of(s, cluster, "deepthings", wire, tiled(s, at, grid, reuse=reuse))
            for grid in grids
            for at in _stops(net)
            for reuse in (False, True)
        ]
        plans.sort(key=lambda plan: seconds_of(s, plan))
        best = best or plans[0]
        for plan in plans:
            if not lacking(net, cluster, plan):
                return finished(s, cluster, plan)
    assert best is not None
    return finished(s, cluster, best)  # which says what is missing


def tiled(
    s: NetSetting, stop: int, grid: tuple[int, int], *, stealing: bool = True, reuse: bool = False
) -> Iterator[Segment]:
    """Yield the segments: nodes before `stop` by tiles, in proportion to speed; the others on rank 0."""
    fused, rest = Span(0, stop), Span(stop, len(s.net.nodes))
    if fused.size:
        yield Segment(fused, SegmentCut.TILES, speed_shares(s, fused), False, grid, stealing, reuse)
    if rest.size:
        yield Segment(rest, SegmentCut.ROWS, alone_on(0, s.devices))


def _stops(net: ConvNet) -> list[int]:
    """Return after how many nodes tiles may end: with a map."""
    return [at for at in chain_points(net) if at and max(net.extent(v).rows.stop for v in net.live(at)) > 1] or [0]
