"""First shares: on every axis those with the least makespan of the compute, within what the caps allow."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from solver.base.spans import largest_remainder
from solver.cluster.curves import Floats
from solver.model.blocks import Axis
from solver.schedule.encoders.layer_table import Integers, LayerTable, Units
from solver.schedule.exchange import Mask


def starts_of(table: LayerTable, crew: Mask, seconds: Mapping[Axis, Floats], caps: Floats) -> list[Units]:
    """Return first shares of a crew: every axis by the makespan of its compute; the same with equal shares of rows.

    Where rows are only exchanged, the largest share is what counts. All of an axis on one device is tried, too.

    Where caps bind, axes are shared out one after the other, each within the room that those before it leave, or each
    within a like part of the room.
    """
    starts: list[Units] = []
    axes = list(table.units)
    weights = table.weights
    most_bytes = weights.whole + sum(size * table.units[axis] for axis, size in weights.per_unit.items())
    orders = [axes, axes[::-1]] if (caps < most_bytes).any() else []
    for order in [None, *orders]:
        units: dict[Axis, Integers] = {}
        for axis in order or axes:
            most = np.where(crew, _room(table, axis, caps, units if order else None), 0)
            if most.sum() < table.units[axis]:
                break
            units[axis] = least_makespan(seconds[axis], most, table.units[axis])
        else:
            starts.append({axis: units[axis] for axis in axes})
    others: list[Units] = []
    if Axis.ROWS in axes:
        others += [{**units, Axis.ROWS: _equal(units[Axis.ROWS])} for units in starts]
    if len(axes) > 1:
        others += [{**units, axis: alone} for units in starts for axis in axes for alone in _on_one(units[axis])]
    return starts + others


def _equal(counts: Integers) -> Integers:
    return np.array(largest_remainder((counts > 0).astype(float).tolist(), int(counts.sum())), np.int64)


def _on_one(counts: Integers) -> Integers:
    """Return the counts with all on one device, for every device that has some, [n, p]."""
    return np.asarray(counts.sum() * np.eye(counts.size, dtype=np.int64)[counts > 0])


def _room(table: LayerTable, axis: Axis, caps: Floats, given: Units | None) -> Integers:
    """Return how many units of an axis the caps allow every device, beside the shares that are given."""
    weights, total = table.weights, table.units[axis]
    room = caps - weights.whole
    if axis is Axis.ROWS:
        return np.where(room < 0, 0, total)
    size = weights.per_unit[axis]
    if given is not None:
        room = room - sum(weights.per_unit.get(other, 0) * counts for other, counts in given.items())
        return np.asarray(np.clip(room // size, 0, total), np.int64)
    # Of every axis a like part, rounded up: moves mend what that breaks.
    whole = sum(size * table.units[other] for other, size in weights.per_unit.items())
    return np.ceil(np.clip(room / whole, 0.0, 1.0) * total).astype(np.int64)


def least_makespan(seconds: Floats, most: Integers, total: int) -> Integers:
    """Share `total` units so that the slowest device is as fast as can be; `seconds` [total + 1, p] never falls.

    Every unit that a device may take has the time at which it is done, if the device takes all units up to it. The
    least makespan is the total-th of these times.
    """
    units = np.arange(1, total + 1)[:, None]
    done = np.where(units <= most, seconds[1:], np.inf)
    limit = np.partition(done, total - 1, axis=None)[total - 1]
    counts = np.asarray((done <= limit).sum(0))
    # Of units that are done at the same time, some may be one too many.
    for device in np.flatnonzero((done == limit).any(0)):
        counts[device] -= min(counts.sum() - total, (done[:, device] == limit).sum())
    return counts
