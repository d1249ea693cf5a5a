"""Galaxy: Ye et al., "Galaxy: A Resource-Efficient Collaborative Edge AI System for In-situ Transformer Inference".

INFOCOM 2024, arXiv 2405.17245: attention by heads and MLP by columns (cut `block`), the connective parts (residual and
norm) by rows; a reduce-scatter after each block and an all-gather before the next, four times (p - 1)/p S H elements
a layer and device, which the engine overlaps with the products as Galaxy does. Its planner:

    V_d = 1 / (t_MHA,d + t_MLP,d)                            capacity of device d for one layer
    1. heads and columns in proportion to V_d, as if memory had no end; rows of the connective parts equal
    2. what overflows a device's memory goes to devices with room, in proportion to V_d: columns first, then heads
    3. failure where the room of all does not suffice

Columns are counted in tiles, and rounded by the largest remainder.
"""

from __future__ import annotations

import numpy as np

from solver.base.spans import largest_remainder
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.blocks import Axis
from solver.model.spec import ModelSpec, encoder_blocks
from solver.plan.plan import Plan, uniform_plan
from solver.schedule.encoders.cost import setting
from solver.schedule.encoders.layer_table import (
    BLOCK_ROWS,
    Integers,
    LayerKind,
    kind_steps,
    layer_plan,
    layer_weights,
    unit_count,
)
from solver.schedule.encoders.memory import packing, weights_room
from solver.schedule.shortage import does_not_fit

KIND = LayerKind((BLOCK_ROWS, BLOCK_ROWS))


def plan_galaxy(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Share heads and columns by capacity, then repair what memory does not hold."""
    encoder_blocks(spec)  # its cuts are of these two blocks
    s, everyone = setting(spec, cluster, rows), np.ones(len(cluster.devices), bool)
    axes = (Axis.FFN, Axis.HEADS)  # columns are repaired first
    equal = np.array(largest_remainder([1.0] * everyone.size, rows))
    # Every device as if it had all of a layer.
    values = {Axis.ROWS: equal.astype(float), **{axis: s.length(axis) * everyone.astype(float) for axis in axes}}
    steps = kind_steps(s, KIND, values, everyone)
    loads = [(often, load) for often, step in steps for load in (step.before, step.during)]
    whole = sum(often * load[axis] for often, load in loads for axis in axes if axis in load)
    room = weights_room(spec, cluster, rows)
    sizes, totals = [layer_weights(s, KIND).per_unit[axis] for axis in axes], [unit_count(s, axis) for axis in axes]
    of_layer = np.maximum(room, 0.0) / spec.layers
    (columns, heads), short = allocate(1 / np.asarray(whole), totals, sizes, of_layer)
    if short.any():
        # With more room on some, others get other shares: until all have what they need.
        while short.any():
            of_layer = of_layer + np.ceil(short)
            _, short = allocate(1 / np.asarray(whole), totals, sizes, of_layer)
        missing = np.where(of_layer * spec.layers > np.maximum(room, 0.0), of_layer * spec.layers - room, 0.0)
        raise does_not_fit(f"{spec.name} by galaxy", cluster, missing / packing(spec, cluster))
    units = {Axis.FFN: columns, Axis.HEADS: heads, Axis.ROWS: equal}
    return uniform_plan(
        spec, cluster.names, layer_plan(s, KIND, units),
        system="galaxy", rows=rows, cluster_fingerprint=cluster.fingerprint,
    )  # fmt: skip


def allocate(capacity: Floats, totals: list[int], sizes: list[int], room: Floats) -> tuple[list[Integers], Floats]:
    """Share units of several kinds.

    Parameters
    ----------
    capacity : [p]
        V_d.
    totals, sizes
        Of every kind how many units there are, and the bytes of one; the first is repaired first.
    room : [p] bytes
        What every device may hold.

    Returns
    -------
    (units of each kind [p], bytes [p])
        The shares, and what devices lack for them: what finds no room is given to all in proportion to V_d.
    """
    counts = [np.array(largest_remainder(capacity.tolist(), total)) for total in totals]
    for number, size in enumerate(sizes):
        over = np.maximum(_held(counts, sizes) - room, 0.0)
        cut = np.minimum(counts[number], np.ceil(over / size).astype(int))
        counts[number] = counts[number] - cut
        left = int(cut.sum())
        while left:
            free = np.maximum((room - _held(counts, sizes)) // size, 0).astype(int)
            free = free if free.any() else np.full(free.size, left)
            shares = np.where(free > 0, capacity, 0.0).tolist()
            given = np.minimum(np.array(largest_remainder(shares, left)), free)
            counts[number] = counts[number] + given
            left -= int(given.sum())
    return counts, np.maximum(_held(counts, sizes) - room, 0.0)


def _held(counts: list[Integers], sizes: list[int]) -> Floats:
    return np.asarray(sum(size * units for size, units in zip(sizes, counts, strict=True)), float)
