"""Polish: a descent on the exact price, by the clocks of ranks, from the layers that the search by tables has found.

Tables count steps that all devices end together; by clocks each goes on when it has what it needs, so that other shares
may be best. Units of an axis move between two devices that have some, or between one and all others in proportion to
what these have, as many as a power of two; of all moves of a run of layers the best is made, until none pays. They have
one structure, and are priced at once. Who takes part stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from solver.cluster.curves import Floats
from solver.programs.search import MANY, Configuration, spreads
from solver.schedule.encoders.layer_table import Units, layer_weights
from solver.schedule.encoders.setting import Setting

WORTH = 1e-5  # of the seconds: less is not moved for

Runs = Sequence[tuple[Configuration, int]]  # layers of equal shares, and how many
RunSeconds = Callable[[Runs, int, Units], Floats]  # the seconds of a request where a run has these shares, [n, p]: [n]


def polished(s: Setting, runs: Runs, priced: RunSeconds, room: Floats) -> Runs:
    """Return layers with shares that are better by clocks, or those given; of many devices these, for time (`MANY`).

    Parameters
    ----------
    priced
        Asks the clocks.
    room : [p]
        Bytes that every device has for weights.
    """
    number = kept = 0  # the run at hand, and how many in a row have stayed as they are
    best_s = np.inf
    while s.devices <= MANY and kept < len(runs):
        layer, often = runs[number]
        units = _moved(layer.units)
        held = layer_weights(s, layer.kind).held_bytes(units)
        others = sum(count * one.held_bytes for one, count in runs) - often * layer.held_bytes
        fits = np.asarray(others + often * held <= room).all(-1) | (np.arange(len(held)) == 0)  # as it is, in any case
        units = {axis: counts[fits] for axis, counts in units.items()}
        seconds = priced(runs, number, units)
        best, best_s = int(seconds.argmin()), min(best_s, float(seconds[0]))
        if seconds[best] < (1 - WORTH) * best_s:
            best_s, kept = float(seconds[best]), 0
            own = {axis: counts[best] for axis, counts in units.items()}
            runs = [
                *runs[:number],
                (replace(layer, units=own, held_bytes=held[fits][best]), often),
                *runs[number + 1 :],
            ]
        else:
            kept, number = kept + 1, (number + 1) % len(runs)
    return runs


def _moved(units: Units) -> Units:
    """Return the units as they are, then after every move that leaves some to who has some, [moves + 1, p]."""
    counts = np.stack(list(units.values()))
    moves = [
        (axis, giver, taker, 1 << power)
        for axis, own in enumerate(counts.tolist())
        for giver, has in enumerate(own)
        for power in range(max(has - 1, 0).bit_length())
        for taker, other in enumerate(own)
        if other and taker != giver
    ]
    after = np.repeat(counts[None], len(moves) + 1, 0)
    for number, (axis, giver, taker, size) in enumerate(moves, 1):
        after[number, axis, giver] -= size
        after[number, axis, taker] += size
    after = np.concatenate([after, *(counts + moved for moved in spreads(counts, range(len(counts))))])
    stays = ((after > 0) == (counts > 0)).all((1, 2))
    return {axis: after[stays, number] for number, axis in enumerate(units)}
