"""AOFL: Zhou et al., "Adaptive Parallel Execution of Deep Neural Networks on Heterogeneous Edge Devices", SEC 2019.

Where to fuse layers, by a dynamic program (section 4). Every fused block is handed out by the local device, here rank
0, and taken back by it. With t_f(i, j) the seconds of layers i to j - 1 fused, of n layers,

    t_o(n) = 0,    t_o(i) = min over i < j <= n of t_f(i, j) + t_o(j)
    t_f(i, j) = t_x(what goes out) + max over devices of compute, recomputed halos included + t_x(what comes back)

For every block devices are added in order of speed, then bandwidth, while that makes it faster, and sized so that all
finish together: device d takes the share x_d of the block in c_d + x_d r_d, c_d a call and two latencies, r_d its
compute and transfers of the whole block. Residual blocks are fused whole or not at all.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from solver.base.spans import Span
from solver.cluster.cluster import Cluster
from solver.model.convnet import ConvNet
from solver.plan.plan import Wire
from solver.plan.segments import SegmentPlan, alone_on
from solver.schedule.networks.segment_steps import NetSetting, compute_s, net_setting
from solver.schedule.networks.steps import moved_between
from solver.systems.convnets.common import (
    chain_points,
    exchange_s,
    finish_together,
    finished,
    on_root,
    plan_of,
    rest_on_root,
    star,
    star_block,
)

SizedBlock = tuple[float, tuple[float, ...]]  # seconds, and shares of every device


def plan_aofl(net: ConvNet, cluster: Cluster, wire: Wire = Wire.FLOAT32) -> SegmentPlan:
    """Choose blocks, and who computes how much of each."""
    s, points = net_setting(net, cluster), chain_points(net)
    sized: dict[Span, SizedBlock] = {}

    @cache
    def best_from(at: int) -> tuple[float, tuple[Span, ...]]:
        if at == len(points) - 1:
            return 0.0, ()
        found = []
        for stop in range(at + 1, len(points)):
            nodes = Span(points[at], points[stop])
            sized[nodes] = sized_block(s, wire, nodes)
            rest_s, rest = best_from(stop)
            found.append((sized[nodes][0] + rest_s, (nodes, *rest)))
        return min(found, key=lambda choice: choice[0])

    blocks = [(nodes, sized[nodes][1]) for nodes in best_from(0)[1]]
    segments = [*star(blocks, s.devices), *rest_on_root(net, s.devices)]
    return finished(s, cluster, plan_of(s, cluster, "aofl", wire, segments))


def sized_block(s: NetSetting, wire: Wire, nodes: Span) -> SizedBlock:
    """Return t_f of a block and the shares: devices are added while it becomes faster."""
    whole_s = s.whole_s(nodes)
    bandwidth, latency_s = s.machine.network.bandwidth, s.machine.network.latency_s
    order = sorted(range(s.devices), key=lambda rank: (whole_s[rank], -bandwidth[rank], rank))
    away = np.arange(s.devices) > 0
    fixed = s.session_s + 2 * latency_s * away
    slope = whole_s + _moved_bytes(s, wire, nodes) / bandwidth * away
    best: SizedBlock | None = None
    for count in range(1, s.devices + 1):
        crew, shares = order[:count], np.zeros(s.devices)
        shares[crew] = finish_together(fixed[crew], np.maximum(slope[crew], 1e-12))
        found = block_s(s, wire, nodes, tuple(shares.tolist())), tuple(shares.tolist())
        if best is not None and found[0] >= best[0]:
            return best
        best = found
    assert best is not None
    return best


def block_s(s: NetSetting, wire: Wire, nodes: Span, shares: tuple[float, ...]) -> float:
    """Return t_f of a block with these shares."""
    block = star_block(s.net, nodes, shares)
    handed_out_s = exchange_s(s, wire, block.before, block.needs)
    taken_back_s = exchange_s(s, wire, block.after, on_root(s.net, block.after, s.devices))
    return handed_out_s + float(compute_s(s, block).max()) + taken_back_s


def _moved_bytes(s: NetSetting, wire: Wire, nodes: Span) -> float:
    """Return the bytes of all that goes out and comes back where another device computes the whole block."""
    if s.devices == 1:
        return 0.0
    block = star_block(s.net, nodes, alone_on(1, s.devices))
    out = moved_between(s.net, block.before, block.needs, wire)
    back = moved_between(s.net, block.after, on_root(s.net, block.after, s.devices), wire)
    return float(out[0, 1] + back[1, 0])
