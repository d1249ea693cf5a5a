"""Polish: a descent on the exact price, by the clocks of ranks, from layers that programs have found.

What a program cannot see is tried here: that shares are whole, that a second row needs packed weights, and who takes
part. Units of an axis move between two devices, or between one and all others in proportion to what these have; a
device hands over to another, swaps with one, leaves or joins, on several axes at once. Of all moves of a run of layers
the best is made, until none pays. All are priced at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from solver.cluster.curves import Floats
from solver.programs.layers import Runs, runs_seconds
from solver.programs.search import MANY, Configuration, crew_moves, spreads
from solver.schedule.encoders.layer_table import Integers, Units, layer_weights
from solver.schedule.encoders.setting import Setting

WORTH = 1e-5  # of the seconds: less is not moved for
FEW = 4  # devices, of more of which fewer sizes of moves are tried


def polished(s: Setting, runs: Runs, room: Floats) -> Runs:
    """Return layers with shares that are better by clocks, or those given; of many devices these, for time (`MANY`).

    Parameters
    ----------
    room : [p]
        Bytes that every device has for weights.
    """
    number = kept = 0  # the run at hand, and how many in a row have stayed as they are
    best_s = np.inf
    while s.devices <= MANY and kept < len(runs):
        layer, often = runs[number]
        units = moved(layer.units)
        held = layer_weights(s, layer.kind).held_bytes(units)
        others = sum(count * one.held_bytes for one, count in runs) - often * layer.held_bytes
        fits = np.asarray(others + often * held <= room).all(-1) | (np.arange(len(held)) == 0)  # as it is, in any case
        units, held = {axis: counts[fits] for axis, counts in units.items()}, held[fits]
        seconds = runs_seconds(s, runs, number, units)
        best, best_s = int(seconds.argmin()), min(best_s, float(seconds[0]))
        if seconds[best] < (1 - WORTH) * best_s:
            best_s, kept = float(seconds[best]), 0
            own = {axis: counts[best] for axis, counts in units.items()}
            runs = [*runs[:number], (replace(layer, units=own, held_bytes=held[best]), often), *runs[number + 1 :]]
        else:
            kept, number = kept + 1, (number + 1) % len(runs)
    return runs


def with_other_crew(s: Setting, layer: Configuration, often: int, caps: Floats) -> Configuration:
    """Return the best of the layers that one move makes after which others have some of an axis, or the layer."""
    units = moved(layer.units)
    counts = np.stack(list(units.values()), 1)
    held = layer_weights(s, layer.kind).held_bytes(units)
    other = ((counts > 0) != (counts[0] > 0)).any((1, 2)) & (held <= caps).all(-1)
    other[0] = True
    units = {axis: own[other] for axis, own in units.items()}
    best = int(runs_seconds(s, [(layer, often)], 0, units).argmin())
    if not best:
        return layer
    return replace(layer, units={axis: own[best] for axis, own in units.items()}, held_bytes=held[other][best])


def moved(units: Units) -> Units:
    """Return the units as they are, then after every move, [moves + 1, p]."""
    counts = np.stack(list(units.values()))
    changes = [*_pairs(counts), *spreads(counts, range(len(counts))), *crew_moves(counts)]
    after = np.concatenate([counts[None], *(counts + own for own in changes)])
    _, first = np.unique(after, axis=0, return_index=True)
    after = after[np.sort(first)]
    return {axis: after[:, number] for number, axis in enumerate(units)}


def _pairs(counts: Integers) -> Iterator[Integers]:
    """Yield moves of units between two devices, [moves, axes, p], each a change of the counts that adds up to zero."""
    devices = range(counts.shape[1])
    listed = [
        (axis, giver, taker, size)
        for axis, own in enumerate(counts.tolist())
        for giver, has in enumerate(own)
        for size in _sizes(has, len(devices))
        for taker in devices
        if taker != giver
    ]
    axis, giver, taker, size = np.array(listed, np.int64).reshape(-1, 4).T
    moves, every = np.zeros((size.size, *counts.shape), np.int64), np.arange(size.size)
    moves[every, axis, giver] = -size
    moves[every, axis, taker] = size
    yield moves


def _sizes(have: int, devices: int) -> list[int]:
    """Return how many units may move: powers of two, of more than few devices of four, and all."""
    step = 1 if devices <= FEW else 2
    return sorted({1 << power for power in range(0, have.bit_length(), step)} | {have}) if have else []
