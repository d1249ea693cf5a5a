"""MoDNN: Mao et al., "MoDNN: Local Distributed Mobile Computing System for Deep Neural Network", DATE 2017.

Biased one-dimensional partition (BODP): with c_i the speed of device i, it gets c_i / sum c of the rows of every layer,
once for all. The group owner, here rank 0, maps and reduces every layer: all of its input goes out from it, with the
rows that neighbours share, and all of its output comes back. Dense fully connected layers are cut by outputs in the
same proportion. Pools and activations are computed with the convolution before them.

Not here: clusters of sparse fully connected weights (MSCC), and columns where they are more than rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from solver.base.spans import Span
from solver.cluster.cluster import Cluster
from solver.model.convnet import ConvNet
from solver.model.kinds.operator import ELEMENTWISE
from solver.plan.plan import Wire
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, alone_on
from solver.schedule.networks.segment_steps import net_setting
from solver.systems.convnets.common import (
    chain_points,
    finished,
    gathered,
    plan_of,
    rows_end,
    runs_between,
    speed_shares,
    star,
)


def plan_modnn(net: ConvNet, cluster: Cluster, wire: Wire = Wire.FLOAT32) -> SegmentPlan:
    """Share out every layer in proportion to speed, by way of rank 0."""
    s = net_setting(net, cluster)
    shares = speed_shares(s, Span(0, rows_end(net)))
    blocks = [(nodes, shares) for nodes in runs_between(chain_points(net))]
    segments = [*star(blocks, s.devices), *_connected(net, shares)]
    return finished(s, cluster, plan_of(s, cluster, "modnn", wire, segments))


def _connected(net: ConvNet, shares: Sequence[float]) -> list[Segment]:
    """Return what comes after the rows: every Gemm, with its activation, by outputs; all else on rank 0."""
    starts = [rows_end(net)]
    for number in range(starts[0] + 1, len(net.nodes)):
        follows = net.nodes[number].op in ELEMENTWISE
        if net.nodes[number].op == "Gemm" or (net.nodes[starts[-1]].op == "Gemm" and not follows):
            starts.append(number)
    segments = []
    for nodes in runs_between([*starts, len(net.nodes)] if starts[0] < len(net.nodes) else []):
        if net.nodes[nodes.start].op == "Gemm":
            segments += [Segment(nodes, SegmentCut.CHANNELS, tuple(shares)), gathered(nodes.stop, len(shares))]
        else:
            segments.append(Segment(nodes, SegmentCut.ROWS, alone_on(0, len(shares))))
    return segments
