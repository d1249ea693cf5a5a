"""Runs of layers: what a request takes by the clocks of ranks, and shares of one of them, which are bettered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from solver.cluster.curves import Floats
from solver.model.blocks import Axis
from solver.plan.plan import StreamLayout
from solver.programs.moves import AllMoves, descend
from solver.programs.polish import by_clocks, moved
from solver.programs.search import MANY, Configuration, Terms
from solver.programs.shares import ClockProgram, HeldBytes, Moves
from solver.programs.tiles_and_routes import Runs, in_order, plan_of
from solver.schedule.encoders.cost import AlikePlans, alike_seconds, alike_turns
from solver.schedule.encoders.layer_table import (
    Integers,
    Units,
    layer_cuts,
    layer_weights,
    taking,
)
from solver.schedule.encoders.setting import Setting
from solver.schedule.exchange import Mask

# Devices, up to which equal layers are polished; unlike ones up to `MANY`. Plans of 9 to 12 are up to 10 % faster, for
# 1 s of CPU time; of 16 it takes 3 s, of two unlike layers of 12 45 s.
MOST_POLISHED = 12
AT_ONCE = 1 << 18  # plans times pairs of ranks that are priced at once: arrays stay in the processor's cache


def runs_seconds(s: Setting, runs: Runs, number: int, units: Units) -> Floats:
    """Return the seconds of a request, [n], where a run of layers has any of these shares, [n, p], others their own.

    Of what one device alone has there is an exchange of nothing, which may change them by a quarter of a per cent.
    """
    found = np.zeros(len(next(iter(units.values()))))
    for some in _together(s, runs, number, units):
        found[some] = alike_seconds(s, _alike(s, runs, number, {axis: own[some] for axis, own in units.items()}))
    return found


def _together(s: Setting, runs: Runs, number: int, units: Units) -> Iterator[NDArray[np.intp]]:
    """Yield which plans are priced at once: their sums are made alike, and arrays of ranks and plans are small.

    Who has all rows does not compute them in tiles.
    """
    others = [taking(layer.units) for place, (layer, _) in enumerate(runs) if place != number]
    some = reduce(np.logical_or, others, taking(units))
    alike = np.zeros(len(some), np.int64)
    if any(norm is StreamLayout.FULL for layer, _ in runs for _, norm in layer.kind.cuts):
        alike += some.sum(-1) > 2
    if s.tile_rows and (rows := units.get(Axis.ROWS)) is not None:
        alike += 2 * np.where((rows > 0).sum(-1) == 1, 1 + rows.argmax(-1), 0)
    for own in np.unique(alike):
        plans = np.flatnonzero(alike == own)
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


def program_of(s: Setting, layer: Configuration, terms: Terms, reach: float = 1.0) -> ClockProgram:
    """Return the program of shares around a layer, of a request all of whose layers are like it.

    Parameters
    ----------
    reach
        As of `ClockProgram`.
    """
    units, weights, layers = np.stack(list(layer.units.values())), layer_weights(s, layer.kind), s.spec.layers
    crew = np.flatnonzero(units.any(0) | (np.arange(s.devices) == 0))
    moves = Moves.of(units[:, crew])
    every = np.zeros((1 + moves.count, *units.shape), np.int64)
    every[:, :, crew] = moves.plans
    alike = _alike(s, [(layer, layers)], 0, {axis: every[:, number] for number, axis in enumerate(layer.units)})
    per_unit = np.array([float(weights.per_unit.get(axis, 0)) for axis in layer.units])
    rows = layer.units.get(Axis.ROWS, np.zeros(s.devices, np.int64))[crew]
    held = HeldBytes(
        per_unit, np.where(rows > 0, float(weights.whole), 0.0), terms.caps[crew], layers * terms.prices[crew]
    )
    machine, turns = alike_turns(s, alike)
    return ClockProgram(machine, [(1.0, turns)], moves, reach, held, among=np.eye(s.devices)[crew])


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


@dataclass(frozen=True, slots=True, eq=False)
class PartedRun:
    """A run of layers whose shares are sought (`solver.programs.polish.Parted`); of the others they stay."""

    s: Setting
    runs: Runs
    number: int
    room: Room

    @property
    def units(self) -> Integers:
        """Those that the layer has, [axes, p]."""
        layer, _ = self.runs[self.number]
        return np.stack(list(layer.units.values()))

    def seconds(self, units: Integers) -> Floats:  # noqa: D102
        return runs_seconds(self.s, self.runs, self.number, self._by_axis(units))

    def fits(self, units: Integers) -> Mask:  # noqa: D102
        layer, often = self.runs[self.number]
        own = self._by_axis(units)
        others = sum(count * one.held_bytes for one, count in self.runs) - often * layer.held_bytes
        return self.room.fits(own, others + often * layer_weights(self.s, layer.kind).held_bytes(own))

    def program(self, units: Integers) -> ClockProgram:
        """Return the program of a request all of whose layers are like it."""
        (layer, often), *_ = self.with_units(units)
        return program_of(self.s, layer, Terms(np.zeros(self.s.devices), np.maximum(self.room.size, 0.0) / often))

    def with_units(self, units: Integers) -> Runs:
        """Return the runs with these shares of the one at hand, [axes, p]."""
        (layer, often), own = self.runs[self.number], self._by_axis(units)
        other = replace(layer, units=own, held_bytes=layer_weights(self.s, layer.kind).held_bytes(own))
        return [*self.runs[: self.number], (other, often), *self.runs[self.number + 1 :]]

    def _by_axis(self, units: Integers) -> Units:
        layer, _ = self.runs[self.number]
        return {axis: units[..., number, :] for number, axis in enumerate(layer.units)}


@dataclass(slots=True)
class MovedRuns:
    """Runs of layers, of one of which all moves are priced at once; `least_s` is what the fastest so far took."""

    s: Setting
    runs: Runs
    room: Room
    least_s: float = np.inf

    @property
    def places(self) -> int:
        """How many runs there are."""
        return len(self.runs)

    def takes(self, step: AllMoves, place: int) -> bool:
        """Make the best of all moves of a run, if it pays."""
        parted = PartedRun(self.s, self.runs, place, self.room)
        shares = by_clocks(parted, parted.units, self.least_s)
        paid = shares.takes(step)
        self.runs, self.least_s = parted.with_units(shares.units), shares.least
        return paid


def polished_runs(s: Setting, runs: Runs, room: Room) -> Runs:
    """Return layers with shares that are better by clocks, or those given; of many devices these, for time."""
    found = MovedRuns(s, runs, room)
    if s.devices <= (MANY if len(runs) > 1 else MOST_POLISHED):
        descend(found, [moved])
    return found.runs
