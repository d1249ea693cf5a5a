"""Moves of units between devices, each a change of the counts of all axes, [axes, p], that adds up to zero.

Between two devices, on one axis or on several at once; between one and all others, in proportion to what these have;
and of who takes part: a device hands over to another, swaps with one, leaves or joins, on several axes at once. Of such
moves the best is made until none pays, by the descent of all families (`descend`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, cycle, product
from typing import Protocol, TypeVar

import numpy as np

from solver.cluster.curves import Floats
from solver.schedule.encoders.layer_table import Integers
from solver.schedule.exchange import Mask

JOINS_WITH = np.array([1, 1 / 2, 1 / 4, 1 / 8])  # of an equal share


def pairs(
    counts: Integers, chosen: Sequence[int], givers: Iterable[int], takers: Iterable[int], *, coarse: bool = False
) -> Integers:
    """Return moves on some axes from a giver to a taker, [moves, axes, p].

    Parameters
    ----------
    coarse
        Whether fewer numbers of units are tried.
    """
    giving, taking = [*map(int, givers)], [*map(int, takers)]
    listed = [
        (axis, giver, taker, size)
        for axis in chosen
        for giver in giving
        for size in _sizes(int(counts[axis, giver]), coarse)
        for taker in taking
        if taker != giver
    ]
    axis, giver, taker, size = np.array(listed, np.int64).reshape(-1, 4).T
    moves, every = np.zeros((size.size, *counts.shape), np.int64), np.arange(size.size)
    moves[every, axis, giver] = -size
    moves[every, axis, taker] = size
    return moves


def spreads(counts: Integers, chosen: Sequence[int]) -> Iterator[Integers]:
    """Yield moves on an axis between one device and all others, in proportion to what these have, [moves, axes, p]."""
    every = np.arange(counts.shape[1])
    for number in chosen:
        own = counts[number]
        listed = [(device, -size) for device in every for size in _sizes(int(own[device]))]
        listed += [(device, size) for device in every for size in _sizes(int(own.sum() - own[device]) // 2)]
        device, size = np.array(listed, np.int64).reshape(-1, 2).T
        others = np.where(every == device[:, None], 0, own)
        some = others.any(1)
        device, size, others = device[some], size[some], others[some]
        after = in_proportion(others, others.sum(1) - size)
        after[np.arange(device.size), device] = own[device] + size
        moved = np.zeros((device.size, *counts.shape), np.int64)
        moved[:, number] = after - own
        yield moved


def together(counts: Integers) -> Integers:
    """Return moves of a unit on two axes or more between two devices, any way on each, [moves, axes, p]."""
    ways = [way for way in product((-1, 0, 1), repeat=len(counts)) if np.count_nonzero(way) > 1]
    found = np.zeros((0, *counts.shape), np.int64)
    for one, other in combinations(np.flatnonzero(counts.any(0)).tolist(), 2):
        moved = np.zeros((len(ways), *counts.shape), np.int64)
        moved[:, :, one] = np.array(ways, np.int64).reshape(-1, len(counts))
        moved[:, :, other] = -moved[:, :, one]
        found = np.concatenate([found, moved])
    return found[((counts + found) >= 0).all((1, 2))]


def crew_moves(counts: Integers) -> Iterator[Integers]:
    """Yield moves on several axes at once, [moves, axes, p]: who takes part changes; `counts` is [axes, p].

    A device hands all that it has over to another; or swaps with it; or leaves some axes, where the others have more
    in proportion to what they have; or joins them, with an equal share, or a part of one.
    """
    totals, devices = counts.sum(1), np.arange(counts.shape[1])
    has: Mask = np.asarray(counts.any(0))
    for giver in np.flatnonzero(has):
        others = devices[devices != giver]
        moved = np.zeros((others.size, *counts.shape), np.int64)
        moved[:, :, giver] = -counts[:, giver]
        moved[np.arange(others.size), :, others] = counts[:, giver]
        yield moved
    for one, other in combinations(np.flatnonzero(has).tolist(), 2):
        order = devices.copy()
        order[[one, other]] = other, one
        yield (counts[:, order] - counts)[None]
    for axes in (list(some) for size in range(2, len(counts) + 1) for some in combinations(range(len(counts)), size)):
        own, total = counts[axes], totals[axes]
        leaving = np.flatnonzero(own.all(0))
        rest = np.where(devices == leaving[:, None, None], 0, own)
        rest = rest[np.all(rest.any(2), axis=1)]
        if len(rest):
            yield _changed(counts, axes, in_proportion(rest, np.broadcast_to(total, rest.shape[:2])))
        joining = np.flatnonzero(~own.any(0))
        if joining.size:
            shares = (JOINS_WITH[:, None] * total / (own.any(0).sum() + 1)).astype(np.int64)
            others = in_proportion(np.broadcast_to(own, (len(shares), *own.shape)), total - shares)
            after = others + shares[..., None] * (devices == joining[:, None, None, None])
            yield _changed(counts, axes, after.reshape(-1, *own.shape))


def least_changes(counts: Integers, able: Mask) -> Integers:
    """Return moves on an axis each, [moves, axes, p], after which one device more or less has some of it.

    Who has least leaves it to the others who have some, in proportion, or to one of them; or a device that has none, of
    those able, [p], takes one unit from one that has several.
    """
    found, every = [], np.eye(counts.shape[1], dtype=np.int64)
    for number, own in enumerate(counts):
        some, several = np.flatnonzero(own), np.flatnonzero(own > 1)
        afters = [own + every[rank] - every[giver] for rank in np.flatnonzero((own == 0) & able) for giver in several]
        for rank in some[own[some] == own[some].min()] if some.size > 1 else ():
            rest = own - own[rank] * every[rank]
            afters.append(in_proportion(rest, own.sum()))
            afters += [rest + own[rank] * every[taker] for taker in some if taker != rank]
        for after in afters:
            moved = np.zeros(counts.shape, np.int64)
            moved[number] = after - own
            found.append(moved)
    return np.array(found, np.int64).reshape(-1, *counts.shape)


Step = TypeVar("Step", contravariant=True)


class Bettered(Protocol[Step]):
    """What moves make better: shares of a model in units, runs of layers, a network's plan."""

    @property
    def places(self) -> int:
        """At how many places moves are made."""

    def takes(self, step: Step, place: int) -> bool:
        """Make one of the moves of a step at a place, if one pays; return whether one does."""


def descend(what: Bettered[Step], steps: Sequence[Step]) -> None:
    """Make moves as long as one pays: of one step after the other at every place, again where one did.

    What a move is, what it saves and which of several is made is known to what is bettered: where a price is that of
    many shares at once the best of all is made, where it is that of one plan the first that pays.
    """
    kept = 0  # how many steps and places in a row had no move that pays
    for step in cycle(steps):
        place = 0
        while place < what.places and kept < len(steps) * what.places:
            paid = what.takes(step, place)
            place, kept = (place, 0) if paid else (place + 1, kept + 1)
        if kept >= len(steps) * what.places:
            return


AllMoves = Callable[[Integers], Integers]  # shares as they are, [axes, p], and after every move, [n, axes, p]


@dataclass(slots=True)
class MovedShares:
    """Shares in units, all moves of which are priced at once.

    Parameters
    ----------
    units : [axes, p]
        To begin with.
    cost, fits
        What any such shares cost, and whether they can be, [n, axes, p]: [n].
    worth
        The part of the cost that a move has to save.
    now, least
        What the units cost among the last moves, and the least of that so far: in another set of shares the same ones
        may be priced a little otherwise.
    """

    units: Integers
    cost: Callable[[Integers], Floats]
    fits: Callable[[Integers], Mask]
    worth: float
    now: float = np.inf
    least: float = np.inf

    @property
    def places(self) -> int:
        """One: a move is of all units."""
        return 1

    def takes(self, step: AllMoves, place: int = 0) -> bool:
        """Make the best of all moves, if it pays."""
        after = step(self.units)
        costs = self.cost(after)
        self.now = float(costs[0])
        self.least = min(self.least, self.now)
        better = np.flatnonzero(costs < (1 - self.worth) * self.least)
        cheapest_first = after[better[np.argsort(costs[better], kind="stable")]]
        one = next((own for own in cheapest_first if self.fits(own[None])[0]), None)
        if one is None:
            return False
        self.units = one
        return True


def _changed(counts: Integers, axes: Sequence[int], after: Integers) -> Integers:
    """Return the moves to other counts on some axes, [moves, axes, p]."""
    moved = np.zeros((len(after), *counts.shape), np.int64)
    moved[:, axes] = after - counts[axes]
    return moved


def in_proportion(counts: Integers, totals: Integers) -> Integers:
    """Return whole counts of these totals, [...], in proportion to `counts`, [..., p]; the largest remainders count."""
    exact = counts * (totals / np.maximum(counts.sum(-1), 1))[..., None]  # of nothing nothing
    whole = np.floor(exact).astype(np.int64)
    order = np.argsort(whole - exact, axis=-1, kind="stable")
    rank = np.argsort(order, axis=-1, kind="stable")
    return np.asarray(whole + (rank < (totals - whole.sum(-1))[..., None]))


def _sizes(have: int, coarse: bool = False) -> list[int]:
    """Return how many units may move: powers of two, coarsely of four, and all."""
    step = 2 if coarse else 1
    return sorted({1 << power for power in range(0, have.bit_length(), step)} | {have}) if have else []
