"""EdgeFlow: Hu and Li, "Distributed Inference With Deep Learning Models Across Heterogeneous Edge Devices".

INFOCOM 2022. A layer is an execution unit on every device: the inputs that it needs, its operator, and a forwarding
table, who gets which of its rows. A unit runs when its inputs are there, without a barrier; here what ranks exchange
follows from the shares of two segments. Shares are found layer by layer in topological order, those before being fixed:

    minimise  max_d finish_d,    finish_d = max(finish of d before, arrived_d) + call_d + compute_d(rows)
    arrived_d = max over e of (finish of e before + latency + bytes(e -> d) / B_ed)

over who computes something. bytes(e -> d), the rows that d needs and e has, are linear in where d's rows begin and end
as long as neither passes an end of e's rows. So a linear program finds shares near to those before, of all devices, and
without the one with the smallest share as long as that is faster; then rows move one by one from the last to be done,
by the true costs.

The first layer is shared out as if all had the image. Else the device that has it would compute most of that layer, and
of all others, since no later layer alone makes it worth to move so many rows: on a slow link 40 % slower.

The formulas are a reading of the abstract and the project's page: the text was not at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from solver.base.spans import Span, largest_remainder
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.convnet import ConvNet
from solver.model.kinds.operator import IMAGE_ROW
from solver.plan.plan import Wire
from solver.plan.segments import Segment, SegmentCut, SegmentPlan
from solver.schedule.networks.segment_steps import NetSetting, compute_s, net_setting
from solver.schedule.networks.steps import Held, image_on_root, moved_between, segment_shares
from solver.systems.convnets.common import (
    cut_points,
    finished,
    halo,
    height_of,
    plan_of,
    rest_on_root,
    rows_end,
    runs_between,
    shares_of,
    speed_shares,
)


@dataclass(frozen=True, slots=True, eq=False)
class UnitFlow:
    """How far an image is: where values lie, and when every device is done, [p] seconds."""

    held: Mapping[str, Held]
    finish: Floats


@dataclass(frozen=True, slots=True, eq=False)
class UnitLinks:
    """Bytes a second from every device to every other, [p, p], the seconds of a message, [p, p], and the format."""

    bandwidth: Floats
    latency_s: Floats
    wire: Wire


def plan_edgeflow(net: ConvNet, cluster: Cluster, wire: Wire = Wire.FLOAT32) -> SegmentPlan:
    """Share out every layer so that its last device is done as early as can be, those before being fixed."""
    s, p = net_setting(net, cluster), len(cluster.names)
    links = links_of(cluster, wire)
    flow = UnitFlow(image_on_root(net, p), np.zeros(p))
    shares, segments = speed_shares(s, Span(0, rows_end(net))), []
    for nodes in runs_between(cut_points(net)):
        shares, flow = best_unit(s, links if nodes.start else at_once(links), nodes, flow, shares)
        segments.append(Segment(nodes, SegmentCut.ROWS, shares))
    segments += rest_on_root(net, p)
    return finished(s, cluster, plan_of(s, cluster, "edgeflow", wire, segments))


def links_of(cluster: Cluster, wire: Wire) -> UnitLinks:
    """Return the links between all devices."""
    ranks = range(len(cluster.names))
    links = [[cluster.link(one, other) for other in ranks] for one in ranks]
    bandwidth, latency_s = (
        np.array([[getattr(link, name) for link in row] for row in links])
        for name in ("bandwidth_bytes_per_s", "latency_s")
    )
    return UnitLinks(bandwidth, latency_s, wire)


def at_once(links: UnitLinks) -> UnitLinks:
    """Return links that take no time."""
    return UnitLinks(np.full_like(links.bandwidth, np.inf), np.zeros_like(links.latency_s), links.wire)


def best_unit(
    s: NetSetting, links: UnitLinks, nodes: Span, flow: UnitFlow, before: Sequence[float]
) -> tuple[tuple[float, ...], UnitFlow]:
    """Return the shares of a layer, and the flow after it; `before` are the shares of the layer before."""
    height = height_of(s.net, nodes.stop)

    def last(rows: Sequence[int]) -> float:
        return float(run_unit(s, links, nodes, flow, shares_of(rows)).finish[np.array(rows) > 0].max())

    rows, crew = largest_remainder(before, height), list(range(s.devices))
    found = near_shares(s, links, nodes, flow, before, crew)
    rows = min(rows, largest_remainder(found, height), key=last)
    while len(crew) > 1:
        crew.remove(min(crew, key=lambda rank: float(found[rank])))
        found = near_shares(s, links, nodes, flow, before, crew)
        if last(largest_remainder(found, height)) >= last(rows):
            break
        rows = largest_remainder(found, height)
    best_s = last(rows)
    while True:
        moved = min(_moves(s, links, nodes, flow, rows), key=last, default=rows)
        if last(moved) >= best_s:
            return shares_of(rows), run_unit(s, links, nodes, flow, shares_of(rows))
        rows, best_s = moved, last(moved)


def _moves(s: NetSetting, links: UnitLinks, nodes: Span, flow: UnitFlow, rows: Sequence[int]) -> Iterator[list[int]]:
    """Yield these rows with one of the device that is done last given to another."""
    finish = run_unit(s, links, nodes, flow, shares_of(rows)).finish
    latest = max((rank for rank, count in enumerate(rows) if count), key=lambda rank: float(finish[rank]))
    for other in range(len(rows)):
        if other != latest:
            moved = list(rows)
            moved[latest] -= 1
            moved[other] += 1
            yield moved


def run_unit(s: NetSetting, links: UnitLinks, nodes: Span, flow: UnitFlow, shares: Sequence[float]) -> UnitFlow:
    """Return the flow after a layer with these shares."""
    unit = segment_shares(s.net, Segment(nodes, SegmentCut.ROWS, tuple(shares)), flow.held)
    moved = moved_between(s.net, flow.held, unit.needs, links.wire)
    arriving = np.where(moved > 0, flow.finish[:, None] + links.latency_s + moved / links.bandwidth, 0.0)
    compute = compute_s(s, unit)
    finish = np.where(compute > 0, np.maximum(flow.finish, arriving.max(0)) + compute, flow.finish)
    return UnitFlow(unit.after, finish)


def near_shares(
    s: NetSetting, links: UnitLinks, nodes: Span, flow: UnitFlow, before: Sequence[float], crew: Sequence[int]
) -> list[float]:
    """Return the shares of a crew by the linear program, [p]: who needs rows of whom is as with the shares before."""
    own = np.array(crew)
    compute = np.diag(s.whole_s(nodes)[own])
    calls = s.session_s[own]
    begins = np.tril(np.ones((own.size, own.size)), -1)  # of the rows of every device, by the shares
    near = np.maximum(np.array(before)[own], 1e-9)
    near = near / near.sum()
    slopes, fixed = list(compute), list(calls + flow.finish[own])
    for d in range(own.size):
        first, stop = begins[d], begins[d] + np.eye(own.size)[d]
        for e in np.flatnonzero(np.arange(s.devices) != own[d]).tolist():
            line, constant = np.zeros(own.size), 0.0
            for value, (above, below) in _needed(s.net, nodes).items():
                rows = Span(*flow.held[value].box[IMAGE_ROW][0, e].tolist())
                overlap = _overlap(s.net, value, rows, (first, stop), near, above, below)
                row_bytes = _row_bytes(s.net, value, links.wire)
                line, constant = line + row_bytes * overlap[0], constant + row_bytes * overlap[1]
            if line.any() or constant:
                per_byte = 1 / links.bandwidth[e, own[d]]
                slopes.append(compute[d] + line * per_byte)
                fixed.append(calls[d] + flow.finish[e] + links.latency_s[e, own[d]] + constant * per_byte)
    from solver.programs.convnets.best_shares import best_shares  # cvxpy takes 0.9 s to import

    found = best_shares([(np.array(slopes), np.array(fixed))], np.ones(own.size))
    assert found is not None  # any shares are possible
    shares = np.zeros(s.devices)
    shares[own] = found.shares
    return [float(share) for share in shares]


def _needed(net: ConvNet, nodes: Span) -> dict[str, tuple[int, int]]:
    """Return what a layer computes of, and how many rows above and below its own part it needs of each."""
    needed: dict[str, tuple[int, int]] = {}
    for number in range(nodes.start, nodes.stop):
        for value in net.values_of(net.nodes[number]):
            if net.made_by[value] < nodes.start and net.extent(value).rows.stop > 1:
                above, below = needed.get(value, (0, 0))
                more_above, more_below = halo(net, number)
                needed[value] = max(above, more_above), max(below, more_below)
    return needed


def _row_bytes(net: ConvNet, value: str, wire: Wire) -> float:
    every = net.extent(value)
    return every.size / every.rows.stop * (1 if value == net.input else wire.bits / 8)


def _overlap(
    net: ConvNet, value: str, rows: Span, ends: tuple[Floats, Floats], near: Floats, above: int, below: int
) -> tuple[Floats, float]:
    """Return how many rows that a device needs lie with another, a line of the shares: slopes [n], and what is fixed.

    Parameters
    ----------
    rows
        That the other has.
    ends : [n] each
        Where the device's part begins and ends, as sums of shares.
    near : [n]
        The shares around which it is a line.
    above, below
        Rows that it needs besides.
    """
    height = net.extent(value).rows.stop
    first, stop = float(ends[0] @ near) * height - above, float(ends[1] @ near) * height + below
    if min(stop, rows.stop) <= max(first, rows.start):
        return np.zeros(near.size), 0.0
    slope, fixed = np.zeros(near.size), 0.0
    if stop < rows.stop:
        slope, fixed = slope + ends[1] * height, fixed + below
    else:
        fixed += rows.stop
    if first > rows.start:
        slope, fixed = slope - ends[0] * height, fixed + above
    else:
        fixed -= rows.start
    return slope, fixed
