"""Runs of layers: what a request takes by the clocks of ranks, and the program of shares for one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from solver.base.spans import largest_remainder
from solver.cluster.curves import Floats
from solver.model.blocks import Axis
from solver.plan.plan import StreamLayout
from solver.programs.search import Configuration, Terms
from solver.programs.shares import ClockProgram, FoundShares, HeldBytes, Moves
from solver.programs.tiles_and_routes import Runs, in_order, plan_of
from solver.schedule.encoders.cost import AlikePlans, alike_seconds, alike_turns
from solver.schedule.encoders.layer_table import (
    Integers,
    Units,
    layer_cuts,
    layer_weights,
    taking,
    unit_count,
)
from solver.schedule.encoders.setting import Setting

AT_ONCE = 1 << 18  # plans times pairs of ranks that are priced at once: arrays stay in the processor's cache
PROBE = 0.1  # of a device's units: by how many plans differ from which the program of shares takes what a unit costs


def runs_seconds(s: Setting, runs: Runs, number: int, units: Units) -> Floats:
    """Return the seconds of a request, [n], where a run of layers has any of these shares, [n, p], others their own.

    Of what one device alone has there is an exchange of nothing, which may change them by a quarter of a per cent.
    """
    found = np.zeros(len(next(iter(units.values()))))
    for some in _together(runs, number, units):
        found[some] = alike_seconds(s, _alike(s, runs, number, {axis: own[some] for axis, own in units.items()}))
    return found


def _together(runs: Runs, number: int, units: Units) -> Iterator[NDArray[np.intp]]:
    """Yield which plans are priced at once: their sums are made alike, and arrays of ranks and plans are small."""
    others = [taking(layer.units) for place, (layer, _) in enumerate(runs) if place != number]
    some = reduce(np.logical_or, others, taking(units))
    several = some.sum(-1) > 2
    full = any(norm is StreamLayout.FULL for layer, _ in runs for _, norm in layer.kind.cuts)
    for alike in (several, ~several) if full else (several | ~several,):
        plans = np.flatnonzero(alike)
        ranks = int(some[plans].any(0).sum()) + 1
        most = max(1, AT_ONCE // ranks**2)
        yield from (plans[start : start + most] for start in range(0, plans.size, most))


def _alike(s: Setting, runs: Runs, number: int, units: Units) -> AlikePlans:
    """Return plans in which a run has any of these shares, [n, p], by that in which most devices have some."""
    some, (layer, often) = taking(units), runs[number]
    first = {axis: counts[int(some.sum(1).argmax())] for axis, counts in units.items()}
    every = [*runs[:number], (replace(layer, units=first), often), *runs[number + 1 :]]
    plan, plans = plan_of(s, every), len(some)
    shares = [
        units if own is every[number][0]
        else {axis: np.repeat(counts[None], plans, 0) for axis, counts in own.units.items()}
        for own, _ in in_order(every)
    ]  # fmt: skip
    crew = sorted({0, *plan.stages[0].active, *np.flatnonzero(some.any(0)).tolist()})
    layers = [(layer, own) for (_, layer), own in zip(plan.stages[0].layers, shares, strict=True)]
    return AlikePlans(plan, crew, lambda ranks: [layer_cuts(s, layer, own, ranks) for layer, own in layers])


def program_of(s: Setting, layer: Configuration, terms: Terms, reach: float = 1.0) -> tuple[ClockProgram, Integers]:
    """Return the program of shares around a layer, of a request all of whose layers are like it, and of which devices.

    Parameters
    ----------
    reach
        As of `ClockProgram`.
    """
    units, weights, layers = np.stack(list(layer.units.values())), layer_weights(s, layer.kind), s.spec.layers
    crew = np.flatnonzero(units.any(0) | (np.arange(s.devices) == 0))
    moves = Moves.of(units[:, crew], PROBE)
    every = np.zeros((1 + moves.count, *units.shape), np.int64)
    every[:, :, crew] = moves.plans
    alike = _alike(s, [(layer, layers)], 0, {axis: every[:, number] for number, axis in enumerate(layer.units)})
    per_unit = np.array([float(weights.per_unit.get(axis, 0)) for axis in layer.units])
    rows = layer.units.get(Axis.ROWS, np.zeros(s.devices, np.int64))[crew]
    held = HeldBytes(
        per_unit, np.where(rows > 0, float(weights.whole), 0.0), terms.caps[crew], layers * terms.prices[crew]
    )
    return ClockProgram(*alike_turns(s, alike), moves, reach, held), crew


def whole_shares(s: Setting, layer: Configuration, found: FoundShares, crew: Integers) -> Units:
    """Return what a program found in whole units, the nearest that add up."""
    whole = {}
    for axis, own in zip(layer.units, found.units, strict=True):
        shares = np.zeros(s.devices)
        shares[crew] = np.maximum(own, 0.0)
        whole[axis] = np.array(largest_remainder(shares.tolist(), unit_count(s, axis)))
    return whole
