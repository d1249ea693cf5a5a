"""First shares: on every axis those with the least makespan of the compute, within what the caps allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    axes, weights = list(table.units), table.weights
    counts, unit_bytes = ([own.get(axis, 0) for axis in axes] for own in (table.units, weights.per_unit))
    order = range(len(axes))
    orders = [order, order[::-1]] if (caps < weights.whole + np.dot(unit_bytes, counts)).any() else []
    room, of_axes = np.where(crew, caps - weights.whole, -1.0), [seconds[axis] for axis in axes]
    for one in (None, *orders):
        found = within_room(of_axes, counts, unit_bytes, [0] * len(axes), room, one)
        if found is not None:
            starts.append(dict(zip(axes, found, strict=True)))
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


def within_room(
    seconds: Sequence[Floats], counts: Sequence[int], unit_bytes: Sequence[float], share_bytes: Sequence[float],
    room: Floats, order: Sequence[int] | None,
) -> Integers | None:  # fmt: skip
    """Return units of every axis by least makespan within what there is room for, [axes, p]; None where there is none.

    Parameters
    ----------
    seconds, counts
        Of every axis, of 0 to all units on every device, [counts + 1, p], and all units.
    unit_bytes, share_bytes
        Of every axis what a unit takes, and what a share does beside its units. Who has room for nothing has no units
        that take nothing either.
    room : [p]
        Bytes.
    order
        In which axes are shared out, each in the room that those before it leave; None: each in a like part of it,
        rounded up: what that breaks is put right later.
    """
    units, left, whole = np.zeros((len(counts), room.size), np.int64), room, np.dot(unit_bytes, counts)
    for k in range(len(counts)) if order is None else order:
        if not (total := counts[k]):
            continue
        if not unit_bytes[k]:
            most = np.where(left < 0, 0, total)
        elif order is None:
            most = np.ceil(np.clip(room / (whole + sum(share_bytes)), 0.0, 1.0) * total).astype(np.int64)
        else:
            most = np.clip((left - share_bytes[k]) // unit_bytes[k], 0, total).astype(np.int64)
        if most.sum() < total:
            return None
        units[k] = least_makespan(seconds[k], most, total)
        if order is not None:
            left = left - np.where(units[k] > 0, share_bytes[k] + unit_bytes[k] * units[k], 0.0)
    return units


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
