"""Polish: a descent on the exact price, by the clocks of ranks, from layers that programs have found.

What a program cannot see is tried here: that shares are whole, that a second row needs packed weights, and who takes
part. Of all moves of a run of layers (`solver.programs.moves`) the best is made, until none pays. All are priced at
once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solver.cluster.curves import Floats
from solver.programs.layers import runs_seconds
from solver.programs.moves import crew_moves, pairs, spreads
from solver.programs.search import MANY, Configuration
from solver.programs.tiles_and_routes import Runs
from solver.schedule.encoders.layer_table import Units, layer_weights, taking
from solver.schedule.encoders.setting import Setting
from solver.schedule.exchange import Mask

WORTH = 1e-5  # of the seconds: less is not moved for
FEW = 4  # devices, of more of which fewer sizes of moves are tried


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """What devices have for weights.

    Parameters
    ----------
    size : [p]
        Bytes.
    able : [p]
        Who may take part: who lacks memory even for what comes before weights has no rows without weights either.
    """

    size: Floats
    able: Mask

    def fits(self, units: Units, held: Floats) -> Mask:
        """Return whether devices can have these shares, and hold so many bytes, [..., p]: [...]."""
        return np.asarray((held <= self.size).all(-1) & ~(taking(units) & ~self.able).any(-1))


def polished(s: Setting, runs: Runs, room: Room) -> Runs:
    """Return layers with shares that are better by clocks, or those given; of many devices these, for time (`MANY`).

    Parameters
    ----------
    room
        What devices have for weights.
    """
    number = kept = 0  # the run at hand, and how many in a row have stayed as they are
    best_s = np.inf
    while s.devices <= MANY and kept < len(runs):
        layer, often = runs[number]
        units = moved(layer.units)
        held = layer_weights(s, layer.kind).held_bytes(units)
        others = sum(count * one.held_bytes for one, count in runs) - often * layer.held_bytes
        fits = room.fits(units, others + often * held) | (np.arange(len(held)) == 0)  # as it is, in any case
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


def with_other_crew(s: Setting, layer: Configuration, often: int, room: Room) -> Configuration:
    """Return the best of the layers that one move makes after which others have some of an axis, or the layer.

    Of so many layers of its like.
    """
    units = moved(layer.units)
    counts = np.stack(list(units.values()), 1)
    held = layer_weights(s, layer.kind).held_bytes(units)
    other = ((counts > 0) != (counts[0] > 0)).any((1, 2)) & room.fits(units, often * held)
    other[0] = True
    units = {axis: own[other] for axis, own in units.items()}
    best = int(runs_seconds(s, [(layer, often)], 0, units).argmin())
    if not best:
        return layer
    return replace(layer, units={axis: own[best] for axis, own in units.items()}, held_bytes=held[other][best])


def moved(units: Units) -> Units:
    """Return the units as they are, then after every move, [moves + 1, p]."""
    counts = np.stack(list(units.values()))
    axes, devices = range(len(counts)), range(counts.shape[1])
    coarse = len(devices) > FEW
    changes = [pairs(counts, axes, devices, devices, coarse=coarse), *spreads(counts, axes), *crew_moves(counts)]
    after = np.concatenate([counts[None], *(counts + own for own in changes)])
    _, first = np.unique(after, axis=0, return_index=True)
    after = after[np.sort(first)]
    return {axis: after[:, number] for number, axis in enumerate(units)}
