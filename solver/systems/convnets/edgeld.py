"""EdgeLD: Xue et al., "EdgeLD: Locally Distributed Deep Learning Inference on Edge Device Clusters", HPCC 2020.

Layers are fused between two pools: here, between two places of a chain where maps become smaller. Rank 0 hands out the
input of every fused block, with the halo that its layers have together, and takes back what comes out. Shares are found
block by block by the optimised computing-based partition (OCBP, Algorithm 1):

    1  begin with rows in proportion to speed
    2  predict T_i = a_i F_i + b_i + bytes_i / B_i of every device
    3  move a row from the slowest to the fastest; again, from 2

until the slowest has one row, or a row moved would not make the slowest faster: that gap is tolerated. F_i is the FLOP
of device i, halo included, bytes_i what goes to and from it. The line a_i F + b_i is measured: here a_i are the seconds
that it takes for all rows by their FLOP, b_i those of a call.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver.base.spans import Span, largest_remainder
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.convnet import ConvNet
from solver.model.operators import flop
from solver.plan.plan import Wire
from solver.plan.segments import SegmentPlan
from solver.schedule.networks.segment_steps import NetSetting, net_setting, pieces_flop
from solver.schedule.networks.steps import moved_between
from solver.systems.convnets.common import (
    chain_points,
    finished,
    height_of,
    on_root,
    plan_of,
    rest_on_root,
    rows_end,
    runs_between,
    shares_of,
    speed_shares,
    star,
    star_block,
)


def plan_edgeld(net: ConvNet, cluster: Cluster, wire: Wire = Wire.FLOAT32) -> SegmentPlan:
    """Share out every fused block by moving rows."""
    s = net_setting(net, cluster)
    blocks = [(nodes, shares_of(moved_rows(s, wire, nodes))) for nodes in runs_between(pool_points(net))]
    segments = [*star(blocks, s.devices), *rest_on_root(net, s.devices)]
    return finished(s, cluster, plan_of(s, cluster, "edgeld", wire, segments))


def pool_points(net: ConvNet) -> list[int]:
    """Return the points of a chain at which maps are smaller than at the one before."""
    first, *others = chain_points(net)
    points = [first]
    for at in others:
        if height_of(net, at) < height_of(net, points[-1]) or at == rows_end(net):
            points.append(at)
    return points


def moved_rows(s: NetSetting, wire: Wire, nodes: Span) -> list[int]:
    """Return every device's rows of a block by OCBP."""
    shares = speed_shares(s, Span(0, rows_end(s.net)))
    rows = largest_remainder(shares, height_of(s.net, nodes.stop))
    seconds = predicted_s(s, wire, nodes, rows)
    while rows[slowest := int(seconds.argmax())] > 1:
        tried = list(rows)
        tried[slowest] -= 1
        tried[int(seconds.argmin())] += 1
        later = predicted_s(s, wire, nodes, tried)
        if later.max() >= seconds.max():
            break
        rows, seconds = tried, later
    return rows


def predicted_s(s: NetSetting, wire: Wire, nodes: Span, rows: Sequence[int]) -> Floats:
    """Return T_i of every device for its rows of a block, [p]; nothing where it has none."""
    net, every = s.net, range(rows_end(s.net))
    block = star_block(net, nodes, shares_of(rows))
    whole_flop = sum(flop(net, net.nodes[number]) for number in every)
    line = s.whole_s(Span(0, len(every))) / max(whole_flop, 1)
    handed_out = moved_between(net, block.before, block.needs, wire)
    taken_back = moved_between(net, block.after, on_root(net, block.after, s.devices), wire)
    calls = s.session_s * (np.array(rows) > 0)
    moved = (handed_out[0] + taken_back[:, 0]) / s.machine.network.bandwidth
    return np.asarray(line * pieces_flop(net, block.compute).sum(0) + calls + moved)
