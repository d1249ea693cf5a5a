"""Polish: a descent on the exact price, by the clocks of ranks, from the layers that the search by tables has found.

Tables count steps that all devices end together; by clocks each goes on when it has what it needs, so that other shares
may be best. Units move between two devices that have some, a sixteenth of an axis at first, half as many whenever no
move pays: a pattern search (Hooke and Jeeves, "'Direct Search' Solution of Numerical and Statistical Problems", Journal
of the ACM 8, 1961). All moves of a round have one structure, and are priced at once. Who takes part stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from solver.cluster.curves import Floats
from solver.model.blocks import Axis
from solver.programs.search import MANY, Configuration
from solver.schedule.encoders.layer_table import Units, layer_seconds, layer_weights
from solver.schedule.encoders.setting import Setting

FIRST = 16  # part of an axis that moves at first
WORTH = 1e-5  # of the seconds: less is not moved for

Runs = Sequence[tuple[Configuration, int]]  # layers of equal shares, and how many


def polished(s: Setting, runs: Runs, seconds_of: Callable[[Sequence[Runs]], Floats], room: Floats) -> Runs:
    """Return layers with shares that are better by clocks, of as many devices as are worth the time (`MANY`).

    Parameters
    ----------
    seconds_of
        Returns the seconds of a request by each of some ways, [n].
    room : [p]
        Bytes that every device has for weights.
    """
    if s.devices > MANY:
        return _counted(s, runs)
    best_s = float(seconds_of([runs])[0])
    sizes = [{axis: max(1, int(counts.sum()) // FIRST) for axis, counts in layer.units.items()} for layer, _ in runs]
    while True:
        moves = [
            (*runs[:number], (_with(s, layer, units), often), *runs[number + 1 :])
            for number, (layer, often) in enumerate(runs)
            for units in _moved(layer.units, sizes[number])
        ]
        fitting = [move for move in moves if _fit(move, room)]
        seconds = seconds_of(fitting)
        if seconds.min(initial=np.inf) < best_s * (1 - WORTH):
            best_s, runs = float(seconds.min()), fitting[int(seconds.argmin())]
        elif all(size == 1 for own in sizes for size in own.values()):
            return _counted(s, runs)
        else:
            sizes = [{axis: max(1, size // 2) for axis, size in own.items()} for own in sizes]


def _moved(units: Units, sizes: Mapping[Axis, int]) -> Iterator[Units]:
    """Yield the units after a move of so many of an axis from one device to another; both have some after it."""
    for axis, counts in units.items():
        having, size = np.flatnonzero(counts), sizes[axis]
        for giver in having[counts[having] > size]:
            for taker in having[having != giver]:
                after = counts.copy()
                after[giver] -= size
                after[taker] += size
                yield {**units, axis: after}


def _with(s: Setting, layer: Configuration, units: Units) -> Configuration:
    return replace(layer, units=units, held_bytes=layer_weights(s, layer.kind).held_bytes(units))


def _fit(runs: Runs, room: Floats) -> bool:
    return bool((sum(often * layer.held_bytes for layer, often in runs) <= room).all())


def _counted(s: Setting, runs: Runs) -> Runs:
    """Return layers with the seconds that tables count, by these tiles and routes."""
    return [(replace(one, seconds=float(layer_seconds(s, one.kind, one.units))), often) for one, often in runs]
