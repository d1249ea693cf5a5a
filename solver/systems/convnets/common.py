"""What planners of convolutional networks share: where a graph can be cut, speeds, shares, and a star's exchanges.

Rows are shared out up to the first node that needs all of them (`rows_end`); rank 0 computes what follows. In a star
rank 0 has all before and after every block: it hands rows out and takes them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from solver.base.spans import Span
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.convnet import ConvNet
from solver.model.kinds.operator import windows
from solver.model.operators import GLOBAL_POOLS, is_by_rows, row_part
from solver.plan.plan import Wire
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, alone_on
from solver.schedule.exchange import of_matrix
from solver.schedule.networks.memory import check_memory
from solver.schedule.networks.segment_steps import NetSetting, predicted, price_segments
from solver.schedule.networks.steps import Held, Regions, SegmentShares, all_on, live_on, moved_between, segment_shares


def rows_end(net: ConvNet) -> int:
    """Return the number of the first node after which nothing has rows to share out: rank 0 computes from it on."""
    stop = row_part(net)
    while stop and _of_one_row(net, stop - 1):
        stop -= 1
    return stop


def _of_one_row(net: ConvNet, number: int) -> bool:
    node = net.nodes[number]
    return all(net.extent(value).rows.stop == 1 for value in (*net.values_of(node), node.output))


def has_halo(net: ConvNet, number: int) -> bool:
    """Return whether rows of a node's output need more rows of its input than their own part."""
    above, below = halo(net, number)
    return above + below > 0


def halo(net: ConvNet, number: int) -> tuple[int, int]:
    """Return how many rows above and below its own part of the input a part of the output needs."""
    node = net.nodes[number]
    if not is_by_rows(net, node):
        return 0, 0
    window = windows(node)[0]
    above, below = (max(0, -(-rows // window.per)) for rows in (-window.first, window.after))
    return (above, below) if window.after > window.first else (0, 0)


def cut_points(net: ConvNet) -> list[int]:
    """Return where segments by rows begin and end: before every node with a halo, after every global pool.

    The first is 0, the last where rows end. What needs no neighbours (1 × 1, activations, most pools) is fused with
    what is before it.
    """
    stop = rows_end(net)
    inner = {at for at in range(1, stop) if has_halo(net, at) or net.nodes[at - 1].op in GLOBAL_POOLS}
    return sorted({0, stop} | inner)


def chain_points(net: ConvNet) -> list[int]:
    """Return the cut points of a chain: those at which one value is all that there is.

    A residual block or an inception module counts as one layer: a star would send the values beside it up and down. A
    point within one moves to its beginning.
    """
    points, alone = {0, rows_end(net)}, 0
    for at in range(1, rows_end(net)):
        if len(net.live(at)) == 1:
            alone = at
        if has_halo(net, at):
            points.add(alone)
        if net.nodes[at - 1].op in GLOBAL_POOLS:
            points.add(at)
    return sorted(points)


def runs_between(points: Iterable[int]) -> list[Span]:
    """Return the nodes from each point to the next."""
    return [Span(start, stop) for start, stop in pairwise(points)]


def speed_shares(s: NetSetting, nodes: Span) -> tuple[float, ...]:
    """Return shares in proportion to the devices' speeds; equal ones where there is nothing to compute."""
    seconds = s.whole_s(nodes)
    speeds = 1 / seconds if seconds.all() else np.ones(s.devices)
    return tuple((speeds / speeds.sum()).tolist())


def shares_of(parts: Sequence[float]) -> tuple[float, ...]:
    """Return whole rows, or any other parts, as shares."""
    return tuple(float(part) / sum(parts) for part in parts)


def height_of(net: ConvNet, at: int) -> int:
    """Return how many rows devices share out that end with node `at` - 1: the most of any value, or before a pool."""
    pooled = {node.output: net.values_of(node)[0] for node in net.nodes if node.op in GLOBAL_POOLS}
    return max((net.extent(pooled.get(value, value)).rows.stop for value in net.live(at)), default=1)


def finish_together(fixed: Floats, slope: Floats) -> Floats:
    """Share out one so that all who have any finish at once: device i with x_i at fixed_i + slope_i x_i, [p].

    With T the time, x_i = max(0, (T - fixed_i) / slope_i); who cannot begin before T gets nothing.
    """
    order = np.argsort(fixed, kind="stable")
    rates = np.cumsum(1 / slope[order])
    times = (1 + np.cumsum(fixed[order] / slope[order])) / rates  # of the first n devices together
    return np.asarray(np.maximum(0.0, (times.min() - fixed) / slope))


def gathered(at: int, ranks: int) -> Segment:
    """Return the segment of no nodes that brings all there is to rank 0."""
    return Segment(Span(at, at), SegmentCut.ROWS, alone_on(0, ranks))


def star(blocks: Iterable[tuple[Span, Sequence[float]]], ranks: int) -> list[Segment]:
    """Return blocks by rows with these shares; rank 0 has all between them."""
    segments = []
    for nodes, shares in blocks:
        segments.append(Segment(nodes, SegmentCut.ROWS, tuple(shares)))
        if shares[0] < 1:
            segments.append(gathered(nodes.stop, ranks))
    return segments


def rest_on_root(net: ConvNet, ranks: int) -> list[Segment]:
    """Return what comes after the rows, on rank 0."""
    stop = rows_end(net)
    return [Segment(Span(stop, len(net.nodes)), SegmentCut.ROWS, alone_on(0, ranks))] if stop < len(net.nodes) else []


def star_block(net: ConvNet, nodes: Span, shares: Sequence[float]) -> SegmentShares:
    """Return what follows from a block by rows where rank 0 has all before it."""
    before = live_on(net, nodes.start, 0, len(shares))
    return segment_shares(net, Segment(nodes, SegmentCut.ROWS, tuple(shares)), before)


def on_root(net: ConvNet, held: Mapping[str, Held], ranks: int) -> Regions:
    """Return what rank 0 needs to have all that lies anywhere."""
    return {name: own.box for name, own in all_on([own.value for own in held.values()], 0, ranks).items()}


def exchange_s(s: NetSetting, wire: Wire, held: Mapping[str, Held], needs: Regions) -> float:
    """Return when all have what they need, where all begin at once."""
    return float(of_matrix(moved_between(s.net, held, needs, wire)).seconds(s.machine.network).max())


def plan_of(s: NetSetting, cluster: Cluster, system: str, wire: Wire, segments: Iterable[Segment]) -> SegmentPlan:
    """Return the plan of these segments."""
    net = s.net
    return SegmentPlan(tuple(segments), cluster.names, net.name, net.fingerprint, cluster.fingerprint, system, wire)


def seconds_of(s: NetSetting, plan: SegmentPlan) -> float:
    """Return the seconds of an image by a plan."""
    return price_segments(s, plan).prediction.seconds


def finished(s: NetSetting, cluster: Cluster, plan: SegmentPlan) -> SegmentPlan:
    """Return the plan with what is predicted of it.

    Raises
    ------
    HeptiError
        If it does not fit the network, or a device lacks memory for it.
    """
    plan.check(s.net, s.devices)
    check_memory(s.net, cluster, plan)
    return predicted(s, plan)
