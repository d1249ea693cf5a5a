"""Whole shares of one kind of layer, by least makespans and exchange of units.

What is sought is the least of

    seconds + sum_i price_i bytes_i        subject to bytes_i <= cap_i

where prices are seconds per byte: what memory is worth to layers of other kinds (`solver.programs.integer`). Starts
are, for every crew, the shares with the least makespan of the compute on each axis: the least T for which the largest
shares within T add up to the whole. From the best starts units move from device to device, all that
one has if need be, as long as that pays; where no move pays and devices are few, two moves at a time. All candidates
are priced together, by the tables of `solver.schedule.layer_table`. Where there are few shares at all, all are tried.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.cluster.curves import Floats
from solver.model.blocks import Axis
from solver.programs.first_shares import starts_of
from solver.schedule.exchange import Mask
from solver.schedule.layer_table import Integers, LayerKind, LayerTable, Units, layer_table, taking, unit_count
from solver.schedule.setting import Setting

# Seconds per byte above a cap: more than any byte can save.
OVERFLOW = 1e-3
# Of candidates that cost the same, the one with less time on all devices together wins: it leads across plateaus of
# the maximum.
SLACK = 1e-4
ALL_WAYS = 20_000  # shares, up to which all are tried
JOINING = 64  # devices, up to which all stay candidates of a later solve
FEW = 4  # devices, up to which two moves at a time are tried
MANY = 8  # devices, beyond which units move only from the slowest and to the fastest


@dataclass(frozen=True, slots=True, eq=False)
class Configuration:
    """A layer with whole shares: a configuration that the integer program can choose."""

    kind: LayerKind
    units: Units  # [p]
    seconds: float
    held_bytes: Floats  # [p]


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What bytes of a layer cost, [p]: seconds per byte, and the most that it may hold."""

    prices: Floats
    caps: Floats

    def charge(self, held: Floats) -> Floats:
        """Return the seconds that bytes are charged with, [...]."""
        return np.asarray((self.prices * held + OVERFLOW * np.maximum(held - self.caps, 0.0)).sum(-1))

    def cost(self, layer: Configuration) -> float:
        """Return a layer's seconds and what its bytes are charged with."""
        return layer.seconds + float(self.charge(layer.held_bytes))

    def only(self, devices: NDArray[np.intp]) -> Terms:
        """Return the terms of some of the devices."""
        return Terms(self.prices[devices], self.caps[devices])


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Shares among `devices` alone, to be improved, and their score."""

    table: LayerTable
    devices: NDArray[np.intp]
    units: Units
    score: float

    @property
    def kind(self) -> LayerKind:
        """Of the layer."""
        return self.table.kind

    def fits(self, terms: Terms) -> bool:
        """Return whether no device holds more than its cap."""
        return bool((self.table.held_bytes(self.units) <= terms.caps[self.devices]).all())


def drafts(setting: Setting, kind: LayerKind, crews: Sequence[Mask], terms: Terms) -> list[Draft]:
    """Return first shares of a kind of layer among each of several crews, [p], where memory can hold them."""
    devices = np.flatnonzero(np.logical_or.reduce(crews))
    table, terms = layer_table(setting.only(devices), kind), terms.only(devices)
    if _ways(table.setting, kind) <= ALL_WAYS:
        units = _all_shares(table)
        scores = _score(table, units, terms)
        best = int(scores.argmin())
        return [Draft(table, devices, {axis: counts[best] for axis, counts in units.items()}, float(scores[best]))]
    seconds = {
        size: {axis: table.axis_seconds(axis, size) for axis in table.units}
        for size in {int(crew.sum()) for crew in crews}
    }
    starts = [
        units for crew in crews for units in starts_of(table, crew[devices], seconds[int(crew.sum())], terms.caps)
    ]
    if not starts:
        return []
    scores = _score(table, {axis: np.stack([start[axis] for start in starts]) for axis in table.units}, terms)
    return [Draft(table, devices, start, float(score)) for start, score in zip(starts, scores, strict=True)]


def few_shares(setting: Setting, kinds: Iterable[LayerKind]) -> bool:
    """Return whether all shares of all kinds can be tried."""
    return all(_ways(setting, kind) <= ALL_WAYS for kind in kinds)


def undominated(setting: Setting, kind: LayerKind, room: Floats) -> list[Configuration]:
    """Return all layers of a kind that fit and of which none other is as fast and as light."""
    table = layer_table(setting, kind)
    units = _all_shares(table)
    seconds, held = table.seconds(units), table.held_bytes(units)
    order = np.lexsort((held.sum(1), seconds))
    kept: list[int] = []
    for number in order[(held[order] <= room).all(1)]:
        if not (held[kept] <= held[number]).all(1).any():
            kept.append(int(number))
    return [_layer(kind, units, seconds, held, number) for number in kept]


def redraft(setting: Setting, kind: LayerKind, units: Units, terms: Terms) -> Draft:
    """Return given shares as a draft, priced anew; of many devices only those that have a share can have one later."""
    devices = np.arange(setting.devices) if setting.devices <= JOINING else np.flatnonzero(taking(units))
    table = layer_table(setting.only(devices), kind)
    mine = {axis: counts[devices] for axis, counts in units.items()}
    return Draft(table, devices, mine, float(_score(table, mine, terms.only(devices))))


def improved(draft: Draft, terms: Terms, *, by_two: bool, axes: Collection[Axis] = tuple(Axis)) -> Draft:
    """Move units of these axes as long as that pays; where no move does, also two moves at a time if so asked."""
    table, units, best = draft.table, draft.units, draft.score
    terms = terms.only(draft.devices)
    while True:
        moves = _moves(table, units, axes)
        candidates = _after(units, moves)
        scores = _score(table, candidates, terms)
        if scores.min(initial=np.inf) >= best - 1e-12 and by_two:
            candidates = _after(units, _pairs(units, moves))
            scores = _score(table, candidates, terms)
        if scores.min(initial=np.inf) >= best - 1e-12:
            return Draft(table, draft.devices, units, best)
        winner = int(scores.argmin())
        best = float(scores[winner])
        units = {axis: counts[winner] for axis, counts in candidates.items()}


def neighbours(setting: Setting, layer: Configuration, terms: Terms, most: int) -> list[Configuration]:
    """Return the best `most` of the layers that one or two moves make of a layer, by seconds and charges."""
    table = layer_table(setting, layer.kind)
    moves = _moves(table, layer.units, tuple(Axis))
    if setting.devices <= FEW:
        moves = np.concatenate([moves, _pairs(layer.units, moves)])
    units = _after(layer.units, moves)
    seconds, held = table.seconds(units), table.held_bytes(units)
    near = np.argsort(seconds + terms.charge(held), kind="stable")[:most]
    return [_layer(layer.kind, units, seconds, held, number) for number in near.tolist()]


def finish(draft: Draft, terms: Terms, devices: int) -> Configuration | None:
    """Return a draft as a layer of all `devices`; None if it breaks a cap."""
    if not draft.fits(terms):
        return None
    table, units = draft.table, draft.units

    def spread(values: Any) -> Any:
        everyone = np.zeros(devices, values.dtype)
        everyone[draft.devices] = values
        return everyone

    everywhere = {axis: spread(counts) for axis, counts in units.items()}
    return Configuration(table.kind, everywhere, float(table.seconds(units)), spread(table.held_bytes(units)))


def _layer(kind: LayerKind, units: Units, seconds: Floats, held: Floats, number: int) -> Configuration:
    return Configuration(
        kind, {axis: counts[number] for axis, counts in units.items()}, float(seconds[number]), held[number]
    )


def _ways(setting: Setting, kind: LayerKind) -> int:
    """Return how many shares there are."""
    others, axes = setting.devices - 1, kind.axes(setting.spec.blocks)
    return math.prod(math.comb(unit_count(setting, axis) + others, others) for axis in axes)


def _all_shares(table: LayerTable) -> Units:
    """Return all shares that there are, [ways, p]."""
    single = [_compositions(total, table.setting.devices) for total in table.units.values()]
    places = np.indices([len(ways) for ways in single]).reshape(len(single), -1)
    return {axis: ways[place] for axis, ways, place in zip(table.units, single, places, strict=True)}


def _compositions(total: int, parts: int) -> Integers:
    """Return all ways to share `total` units among `parts`, [ways, parts]."""
    ways = list(combinations(range(total + parts - 1), parts - 1))
    bars = np.array(ways, np.int64).reshape(len(ways), parts - 1)
    edges = np.pad(bars, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, total + parts - 1)))
    return np.diff(edges) - 1


def _score(table: LayerTable, units: Units, terms: Terms) -> Floats:
    seconds = sum(end.max(-1) + SLACK * end.mean(-1) for end in table.step_ends(units))
    return np.asarray(seconds + terms.charge(table.held_bytes(units)))


def _moves(table: LayerTable, units: Units, axes: Collection[Axis]) -> Integers:
    """Return moves of units, [moves, axes, p], each a change of the counts that adds up to zero."""
    devices = table.setting.devices
    givers = takers = np.arange(devices)
    if devices > MANY:
        every_end = np.stack(table.step_ends(units))
        order = np.argsort(every_end, axis=1)
        givers, takers = np.unique(order[:, -4:]), np.unique(order[:, :4])
    listed = [
        (number, giver, taker, size)
        for number, (axis, counts) in enumerate(units.items())
        if axis in axes
        for giver in givers
        for size in _sizes(int(counts[giver]))
        for taker in takers
        if taker != giver
    ]
    moves = np.zeros((len(listed), len(units), devices), np.int64)
    for row, (number, giver, taker, size) in enumerate(listed):
        moves[row, number, giver], moves[row, number, taker] = -size, size
    return moves


def _sizes(have: int) -> list[int]:
    """Return how many units may move: powers of two, and all."""
    return sorted({1 << power for power in range(have.bit_length())} | {have}) if have else []


def _pairs(units: Units, moves: Integers) -> Integers:
    """Return all pairs of moves of one or two units, or of all that a device has."""
    counts = np.stack(list(units.values()))
    given = -moves.min(axis=(1, 2))
    emptied = ((counts + moves == 0) & (moves < 0)).any((1, 2))
    small = moves[(given <= 2) | emptied]
    one, other = np.triu_indices(len(small), 1)
    both = small[one] + small[other]
    return np.asarray(both[(counts + both >= 0).all((1, 2))])


def _after(units: Units, moves: Integers) -> dict[Axis, Integers]:
    """Return the counts after each of the moves, [moves, p]."""
    return {axis: counts + moves[:, number] for number, (axis, counts) in enumerate(units.items())}
