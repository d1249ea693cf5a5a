"""Hepti as the paper reckons: Lee et al., ICS 2024, section 3.

The three cuts of a MatMul, by rows of L, by columns of R and block-wise, each over the whole model, and the offloading
ratios that make

    T = max over devices of the compute delay + the communication delay

least, a sum, as nothing overlaps in the paper's accounting. The sections that were read leave the solver open; this
reading (systems.md 1.3): profile, keep the cuts whose shares fit in memory, for each find the shares with the least T,
take the best cut. Shares are in percent, the same for heads, columns and rows, moved from device to device as long as T
falls. The engine overlaps all the same: the prediction of the plan says what it would take there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from solver.base.spans import largest_remainder
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.blocks import Axis, Cut
from solver.model.spec import ModelSpec, encoder_blocks
from solver.plan.plan import Plan, StreamLayout, uniform_plan
from solver.schedule.encoders.cost import setting
from solver.schedule.encoders.layer_table import (
    BLOCK_FULL,
    ROWS,
    Integers,
    LayerKind,
    LayerTable,
    Units,
    layer_plan,
    layer_table,
    over_all,
    with_root,
)
from solver.schedule.encoders.memory import packing, weights_room
from solver.schedule.shortage import does_not_fit

STRATEGIES = (
    LayerKind((ROWS, ROWS)),
    LayerKind(((Cut.COLUMNS, StreamLayout.FULL),) * 2),
    LayerKind((BLOCK_FULL, BLOCK_FULL)),
)
PERCENT = 100
MOVES = (32, 16, 8, 4, 2, 1)  # percent at a time
FEW = 8  # devices, beyond which only the one with the most gives away
OVERFLOW = 1e-3  # seconds a byte above what a device has: more than any byte can save


def plan_hepti_additive(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Take the cut and the ratios of least T."""
    encoder_blocks(spec)  # its cuts are of these two blocks
    s, speeds = setting(spec, cluster, rows), np.array([device.compute_flop_per_s for device in cluster.devices])
    # No more can have a percent each.
    crew = with_root(np.isin(np.arange(speeds.size), np.argsort(-speeds, kind="stable")[:PERCENT]))
    room = weights_room(spec, cluster, rows)[crew]
    found, short = [], []
    for kind in STRATEGIES:
        table = layer_table(s.only(crew), kind)

        def cost(percent: Integers, table: LayerTable = table) -> Floats:
            units = _units(table, percent)
            over = np.maximum(spec.layers * table.held_bytes(units) - room, 0.0) * (percent > 0)
            return np.asarray(additive_seconds(table, units) + OVERFLOW * over.sum(-1))

        percent = least(cost, np.array(largest_remainder(speeds[crew].tolist(), PERCENT)))
        units = _units(table, percent)
        short.append(np.maximum(spec.layers * table.held_bytes(units) - room, 0.0) * (percent > 0))
        if not short[-1].any():
            found.append((float(cost(percent)), kind, units))
    if not found:
        missing = np.zeros(speeds.size)
        missing[crew] = min(short, key=np.sum)
        missing[0] = max(missing[0], -weights_room(spec, cluster, rows)[0])  # embeddings and heads, whatever else
        what = f"{spec.name} by hepti-additive, in any of the three cuts,"
        raise does_not_fit(what, cluster, missing / packing(spec, cluster))
    _, kind, of_crew = min(found, key=lambda one: one[0])
    units = {axis: over_all(counts, crew, speeds.size) for axis, counts in of_crew.items()}
    return uniform_plan(
        spec, cluster.names, layer_plan(s, kind, units),
        system="hepti-additive", rows=rows, cluster_fingerprint=cluster.fingerprint,
    )  # fmt: skip


def additive_seconds(table: LayerTable, units: Units) -> Floats:
    """Return T of a layer, [...]: in every step the slowest compute, then the slowest exchange."""
    steps = table.step_times(units)
    return np.asarray(sum(often * (step.compute.max(-1) + step.exchange.max(-1)) for often, step in steps))


def least(cost: Callable[[Integers], Floats], start: Integers) -> Integers:
    """Move percent between devices as long as the cost falls; also from all on one device.

    Parameters
    ----------
    cost
        Of shares [ways, p], which add up as `start` does.
    start : [p]
        Shares to begin with.
    """
    p = start.size
    starts = np.vstack([start, start.sum() * np.eye(p, dtype=int)[: FEW if p > FEW else p]])
    ends = [_descend(cost, one) for one in (starts[0], starts[1:][cost(starts[1:]).argmin()])]
    return min(ends, key=lambda shares: float(cost(shares[None])[0]))


def _descend(cost: Callable[[Integers], Floats], shares: Integers) -> Integers:
    best = float(cost(shares[None])[0])
    while True:
        givers = range(shares.size) if shares.size <= FEW else [int(shares.argmax())]
        moves = [
            (giver, taker, min(step, int(shares[giver])))
            for giver in givers
            for taker in range(shares.size)
            for step in MOVES
            if giver != taker and shares[giver]
        ]
        ways = np.repeat(shares[None], len(moves), axis=0)
        for way, (giver, taker, step) in zip(ways, moves, strict=True):
            way[giver] -= step
            way[taker] += step
        costs = cost(ways) if moves else np.array([np.inf])
        if not costs.min() < best:
            return shares
        best, shares = float(costs.min()), ways[costs.argmin()]


def _units(table: LayerTable, percent: Integers) -> dict[Axis, Integers]:
    """Return the shares of every axis in whole units, [..., p]."""
    flat = percent.reshape(-1, percent.shape[-1])
    return {
        axis: np.array([largest_remainder(way.tolist(), total) for way in flat]).reshape(percent.shape)
        for axis, total in table.units.items()
    }
