"""CoEdge: one share of the rows of all layers for every device, by a linear program.

Zeng et al., "CoEdge: Cooperative DNN Inference With Adaptive Workload Partitioning Over Heterogeneous Edge Devices",
IEEE/ACM Transactions on Networking 29(2), 2021, arXiv 2012.03257. Layers are synchronous: before every layer that needs
rows of neighbours all exchange them, then all compute. What is after the rows is the master's, here rank 0's. Within a
set D of devices, with lambda_i the share of device i, l over the segments between exchanges, a_i the seconds of a call,
b_li of all rows of a segment, and P_i, X_i watts of computing and sending:

    latency   minimise  T = sum_l (tc_l + tx_l) + in + out + what rank 0 computes alone
    energy    minimise  sum_i P_i sum_l (a_i + b_li lambda_i) + X_i sent_i / B_i,    T <= deadline          (C1)
              subject to  (C2)  tc_l >= a_i + b_li lambda_i                                for every i in D
                          (C3)  in >= latency + bytes of i / B_i,  latency + bytes of all / B_0;  `out` alike
                          (C4)  weights_i + activations_i lambda_i <= memory_i
                          (C5)  sum_i lambda_i = 1,  lambda >= 0;  0 outside D

tx_l, the halos, do not depend on lambda: neighbours exchange as many rows whatever they have. Rows come from direct
neighbours only: a device has no rows, or at least as many as a halo has (the padding threshold). So, as in the paper,
the relaxation is solved for all devices, the smallest share below the threshold dropped, and it is solved again. The
dual of (C1) says what a second costs in joules.

The formulas are a reading: the text was not at hand, only its abstract and notes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from solver.base.errors import HeptiError, InfeasiblePlanError
from solver.base.spans import Span
from solver.cluster.cluster import PROGRAM_BYTES, Cluster
from solver.cluster.curves import Floats
from solver.model.convnet import ConvNet
from solver.plan.plan import Wire
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, alone_on, equal_shares
from solver.schedule.networks.memory import memory_of
from solver.schedule.networks.segment_steps import NetSetting, net_setting, weights_of
from solver.schedule.networks.steps import moved_between, unrolled
from solver.systems.convnets.common import (
    cut_points,
    exchange_s,
    finished,
    halo,
    plan_of,
    rest_on_root,
    rows_end,
    runs_between,
)

if TYPE_CHECKING:
    from solver.programs.convnets.best_shares import BestShares


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    """The optimum of the linear program.

    Parameters
    ----------
    shares : [p]
        lambda.
    seconds, joules
        Of an image; joules of what watts were declared.
    joules_per_s
        What a second less before the deadline costs.
    """

    shares: Floats
    seconds: float
    joules: float
    joules_per_s: float


@dataclass(frozen=True, slots=True, eq=False)
class CoEdgeTerms:
    """What of the program does not depend on who takes part.

    Parameters
    ----------
    call_s : [p]
        a.
    segment_s : [segments, p]
        b.
    rest_s
        What rank 0 computes after the rows.
    in_s, out_s : [p]
        Of all rows that a device gets or gives back, over its own link.
    weights, activations, room : [p] bytes
    compute_watts, transmit_watts : [p]
    """

    call_s: Floats
    segment_s: Floats
    rest_s: float
    in_s: Floats
    out_s: Floats
    weights: Floats
    activations: Floats
    room: Floats
    compute_watts: Floats
    transmit_watts: Floats


def plan_coedge(
    net: ConvNet, cluster: Cluster, wire: Wire = Wire.FLOAT32, *, deadline_s: float | None = None
) -> SegmentPlan:
    """Share out rows by the linear program: for least latency, or for least energy before a deadline.

    Raises
    ------
    HeptiError
        If no shares meet the deadline, or fit into memory; or there is one, and no device says what it draws.
    """
    if deadline_s is not None and not any(device.compute_watts for device in cluster.devices):
        raise HeptiError(
            "coedge: energy before a deadline needs compute_watts of the devices in the cluster file, or by --set"
        )
    s = net_setting(net, cluster)
    shares = coedge_sharing(s, cluster, wire, deadline_s).shares
    return finished(s, cluster, plan_of(s, cluster, "coedge", wire, segments_of(net, shares.tolist())))


def segments_of(net: ConvNet, shares: Sequence[float]) -> list[Segment]:
    """Return the segments between exchanges, by rows with these shares, and the rest on rank 0."""
    by_rows = [Segment(nodes, SegmentCut.ROWS, tuple(shares)) for nodes in runs_between(cut_points(net))]
    return [*by_rows, *rest_on_root(net, len(shares))]


def coedge_sharing(s: NetSetting, cluster: Cluster, wire: Wire, deadline_s: float | None = None) -> Sharing:
    """Solve the program, and again without the smallest share below the threshold, until none is.

    Raises
    ------
    InfeasiblePlanError
        As `plan_coedge`.
    """
    terms = coedge_terms(s, cluster, wire)
    devices = np.flatnonzero(terms.weights <= terms.room).tolist() or list(range(s.devices))
    least = max((max(halo(s.net, at)) / _height(s.net, at) for at in range(rows_end(s.net))), default=0.0)
    while True:
        found = optimum(s, wire, terms, devices, deadline_s)
        below = [rank for rank in devices if found.shares[rank] < least - 1e-9]
        if not below or len(devices) == 1:
            return found
        devices.remove(min(below, key=lambda rank: float(found.shares[rank])))


def _height(net: ConvNet, number: int) -> int:
    return net.extent(net.values_of(net.nodes[number])[0]).rows.stop


def coedge_terms(s: NetSetting, cluster: Cluster, wire: Wire) -> CoEdgeTerms:
    """Return the parameters of the program."""
    net, p, ranks = s.net, s.devices, range(s.devices)
    stop = rows_end(net)
    alone = [plan_of(s, cluster, "coedge", wire, segments_of(net, alone_on(rank, p))) for rank in ranks]
    weights = np.array([weights_of(net, plan)[rank] for rank, plan in enumerate(alone)])
    activations = np.array([memory_of(net, plan)[rank] for rank, plan in enumerate(alone)]) - weights
    links = [cluster.link(0, rank).bandwidth_bytes_per_s for rank in ranks[1:]]
    bandwidth = np.array([cluster.bandwidth(0), *links])
    # A global pool leaves summands, however few rows it is of.
    shared = [net.extent(value).size for value in net.live(stop) if net.extent(value).rows.stop > 1]
    return CoEdgeTerms(
        call_s=s.session_s,
        segment_s=np.reshape([s.whole_s(nodes) for nodes in runs_between(cut_points(net))], (-1, p)),
        rest_s=float(s.whole_s(Span(stop, len(net.nodes)))[0]),
        in_s=net.extent(net.input).size / bandwidth,
        out_s=sum(shared) * wire.bits / 8 / bandwidth,
        weights=weights,
        activations=activations,
        room=np.array([device.memory_bytes - PROGRAM_BYTES for device in cluster.devices]),
        compute_watts=np.array([device.compute_watts for device in cluster.devices]),
        transmit_watts=np.array([device.transmit_watts for device in cluster.devices]),
    )


def optimum(
    s: NetSetting, wire: Wire, terms: CoEdgeTerms, devices: Sequence[int], deadline_s: float | None = None
) -> Sharing:
    """Solve the program for a set of devices.

    Raises
    ------
    InfeasiblePlanError
        As `plan_coedge`.
    """
    halo_s, halo_sent_s = halos(s, wire, devices)
    fixed_s, own, away = terms.rest_s + halo_s, np.array(devices), np.array(devices) > 0
    latency_s = s.machine.network.latency_s * away.any()
    stages = [(np.diag(seconds[own]), terms.call_s[own]) for seconds in terms.segment_s]  # (C2)
    for seconds in (terms.in_s, terms.out_s):  # (C3)
        lines = np.vstack([np.diag(seconds[own] * away), seconds[0] * away])
        stages.append((lines, np.full(len(lines), latency_s)))
    most = np.clip((terms.room - terms.weights)[own] / np.maximum(terms.activations[own], 1e-9), 0.0, 1.0)  # (C4)
    watts, sending = terms.compute_watts[own], terms.transmit_watts[own]
    joules = watts * terms.segment_s[:, own].sum(0) + (sending * terms.out_s[own] + _root_j(terms)) * away
    always = watts @ terms.call_s[own] * len(terms.segment_s) + sending @ halo_sent_s[own]
    always += terms.compute_watts[0] * terms.rest_s
    within_s = None if deadline_s is None else deadline_s - fixed_s
    from solver.programs.convnets.best_shares import best_shares  # cvxpy takes 0.9 s to import

    found = best_shares(stages, most, None if deadline_s is None else joules, within_s)
    if found is None:
        raise _no_shares(s.net, best_shares(stages, most), fixed_s, most, deadline_s)
    shares = np.zeros(s.devices)
    shares[own] = found.shares
    return Sharing(shares, found.seconds + fixed_s, float(joules @ found.shares + always), found.per_second)


def _root_j(terms: CoEdgeTerms) -> float:
    """Return the joules of handing all rows out."""
    return float(terms.transmit_watts[0] * terms.in_s[0])


def halos(s: NetSetting, wire: Wire, devices: Sequence[int]) -> tuple[float, Floats]:
    """Return the seconds of all exchanges between segments, and those that every device sends, [p].

    They are those of equal shares: they depend on who takes part, but for rounding not on how much anybody has.
    """
    plan = SegmentPlan(tuple(segments_of(s.net, equal_shares(devices, s.devices))), tuple("?" * s.devices), s.net.name)
    seconds, sent = 0.0, np.zeros(s.devices)
    for number, segment in enumerate(unrolled(s.net, plan)):
        if 0 < number < len(cut_points(s.net)) - 1:
            seconds += exchange_s(s, wire, segment.before, segment.needs)
            sent += moved_between(s.net, segment.before, segment.needs, wire).sum(1)
    return seconds, sent / s.machine.network.bandwidth


def _no_shares(
    net: ConvNet, fastest: BestShares | None, fixed_s: float, most: Floats, deadline_s: float | None
) -> InfeasiblePlanError:
    if fastest is None or deadline_s is None:
        return InfeasiblePlanError(
            f"coedge: memory is enough for {100 * most.sum():.0f} % of the rows of {net.name}: add devices or memory"
        )
    return InfeasiblePlanError(
        f"coedge: no shares of {net.name} are done within {1e3 * deadline_s:g} ms, the fastest take "
        f"{1e3 * (fastest.seconds + fixed_s):.3g} ms"
    )
