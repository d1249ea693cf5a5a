"""DeeperThings: Stahl et al., "DeeperThings: Fully Distributed CNN Inference on Resource-Constrained Edge Devices".

International Journal of Parallel Programming 49, 2021; SAMOS 2019. Late layers have more weights than pixels. All N
devices share out equally what a late layer has, so that each holds 1 / N of its weights; by

    LOP    output channels                        sends  (M - own) (N - 1) + K (N - 1) / N
    LIP    input channels, whose summands add up         M (N - 1) / N + K (N - 1)
    FUSE   LOP of a layer, LIP of the next               (M - own) (N - 1)  and  K (N - 1): nothing between

with M numbers in, K out, and `own` = M / N after a layer by LOP, else 0. An integer program chooses, with one of four
binaries a layer, o, i, f and s: least traffic subject to o + i + f + s = 1 and s of a layer = f of the one before.
Summands are added up on rank 0, which computes activations and pools after them. Early layers are by rows.

Here layers are late from the first one on that, as all after it, has more weights than numbers in its maps; early ones
are equal rows with exchanged halos, not the paper's grid of fused tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from solver.base.spans import Span
from solver.cluster.cluster import Cluster
from solver.model.convnet import ConvNet
from solver.model.operators import BY_CHANNELS, SUMS, tensors_of
from solver.plan.plan import Wire
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, alone_on, equal_shares
from solver.programs.integer import Way, least_traffic
from solver.schedule.networks.segment_steps import net_setting
from solver.systems.convnets.common import cut_points, finished, plan_of, rows_end, runs_between


def plan_deeperthings(net: ConvNet, cluster: Cluster, wire: Wire = Wire.FLOAT32) -> SegmentPlan:
    """Share out late layers by the integer program, early ones by rows, all equally."""
    s = net_setting(net, cluster)
    late = late_layers(net)
    start, rows = late[0].start if late else len(net.nodes), rows_end(net)
    equal, root = equal_shares(range(s.devices), s.devices), alone_on(0, s.devices)
    points = sorted({at for at in cut_points(net) if at < start} | {min(start, rows)})
    segments = [Segment(nodes, SegmentCut.ROWS, equal) for nodes in runs_between(points)]
    if rows < start:
        segments.append(Segment(Span(rows, start), SegmentCut.ROWS, root))
    for nodes, way in zip(late, ways_of(net, late, s.devices), strict=True):
        summed = way in (Way.INPUTS, Way.SECOND)
        stop = nodes.start + 1 if summed else _channels_end(net, nodes)
        cut = SegmentCut.INPUT_CHANNELS if summed else SegmentCut.CHANNELS
        segments.append(Segment(Span(nodes.start, stop), cut, equal))
        if summed or stop < nodes.stop:
            segments.append(Segment(Span(stop, nodes.stop), SegmentCut.ROWS, root))
    return finished(s, cluster, plan_of(s, cluster, "deeperthings", wire, segments))


def late_layers(net: ConvNet) -> list[Span]:
    """Return the layers, a product with all up to the next, that have more weights than maps, as all after them."""
    starts = [number for number, node in enumerate(net.nodes) if node.op in SUMS]
    late: list[Span] = []
    for nodes in reversed(runs_between([*starts, len(net.nodes)])):
        weights = sum(math.prod(net.tensors[name]) for name in tensors_of(net, net.nodes[nodes.start]))
        if weights <= net.extent(_input(net, nodes)).size + net.extent(net.nodes[nodes.start].output).size:
            break
        late.insert(0, nodes)
    return late


def ways_of(net: ConvNet, late: list[Span], devices: int) -> list[Way]:
    """Return the way of every late layer by the integer program."""
    if not late:
        return []
    sizes = list(_sizes(net, late))
    inputs, outputs, summands = (list(column) for column in zip(*sizes, strict=True))
    adds = [net.nodes[nodes.start].attributes.get("group", 1) == 1 for nodes in late]
    return least_traffic(inputs, outputs, summands, adds, devices)


def _sizes(net: ConvNet, late: list[Span]) -> Iterator[tuple[int, int, int]]:
    """Yield of every layer how many numbers go in, come out, and are added up."""
    for nodes in late:
        first, last = net.nodes[nodes.start], net.nodes[nodes.stop - 1]
        yield net.extent(_input(net, nodes)).size, net.extent(last.output).size, net.extent(first.output).size


def _input(net: ConvNet, nodes: Span) -> str:
    return net.values_of(net.nodes[nodes.start])[0]


def _channels_end(net: ConvNet, nodes: Span) -> int:
    """Return where the part of a layer ends that devices can compute channels of."""
    others = (number for number in range(nodes.start, nodes.stop) if net.nodes[number].op not in BY_CHANNELS)
    return next(others, nodes.stop)
