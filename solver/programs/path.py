"""The path: which devices compute which part of a model, one after the other, by one dynamic program.

A plan of stages is a path through a model of L units: layers, or parts of them. Each leg of it takes units i to j to
some devices, which no other leg of the path has. With C of every resource used, of which leg g uses U_g, the port v
where a leg begins and ends, and o for + (the seconds of a request) or max (of the slowest stage or hop, of many),

    h(0, {}, v)       = start(v)
    h(j, C + U_g, w)  = min over i < j and legs g at v of  h(i, C, v) o seconds of g for i..j o hop(v, w) after j
    answer            = min over i and legs g at v of      h(i, C, v) o seconds of g for i..L, at the end, o back(v)

A resource is a device, or a type of which there are several. States are visited by how much of all is used: of paths
that are as good, one of the fewest devices is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, gt, sub

import numpy as np

from solver.cluster.curves import Floats
from solver.schedule.encoders.layer_table import Integers


@dataclass(frozen=True, slots=True, eq=False)
class Leg:
    """What a leg of a path may be.

    Parameters
    ----------
    uses
        How much of every resource.
    seconds : [L + 1, L + 1]
        Of the units i..j; infinite where it does not take them.
    port
        Where it begins and ends.
    last : [L + 1, L + 1]
        The same at the end of the path; None: as `seconds`.
    """

    uses: tuple[int, ...]
    seconds: Floats
    port: int = 0
    last: Floats | None = None


def alike_units(seconds: Floats) -> Floats:
    """Return the seconds of the units i..j, [L + 1, L + 1], by those of so many of them, [L + 1]; of none, infinite."""
    every = np.arange(seconds.size)
    count = every - every[:, None]
    return np.where(count > 0, seconds[count], np.inf)


@dataclass(frozen=True, slots=True, eq=False)
class FoundPath:
    """The best path: its seconds, and of every leg its number and how many units it takes."""

    seconds: float
    legs: list[tuple[int, int]]


Taken = tuple[int, ...]  # of every resource


@dataclass(frozen=True, slots=True, eq=False)
class WaysThere:
    """The best ways to have done so many units where the next leg begins at a port, [ports, L + 1] each.

    Their seconds, and by which leg, and from which unit on, they came.
    """

    seconds: Floats
    leg: Integers
    since: Integers

    def or_by(self, seconds: Floats, leg: int, since: Integers) -> WaysThere:
        """Return the better ones of these and of a leg's."""
        nearer = seconds < self.seconds
        return WaysThere(
            np.where(nearer, seconds, self.seconds), np.where(nearer, leg, self.leg),
            np.where(nearer, since, self.since),
        )  # fmt: skip


def best_path(
    legs: Sequence[Leg], free: Taken, hops: Floats, *, start: Floats, back: Floats, slowest: bool = False
) -> FoundPath | None:
    """Run the dynamic program; None where no path takes all units.

    Parameters
    ----------
    free
        How much there is of every resource.
    hops : [ports, ports, L + 1]
        The seconds from one port to another after so many units.
    start, back : [ports]
        The seconds to the first leg, and from the last one.
    slowest
        Whether the slowest leg or hop counts, not their sum.
    """
    along, done = np.maximum if slowest else np.add, np.arange(hops.shape[-1])
    nothing = np.zeros(hops.shape[1:], int)
    nowhere = WaysThere(np.full(nothing.shape, np.inf), nothing, nothing)
    begin = np.where(done == 0, start[:, None], np.inf)
    levels = [dict[Taken, WaysThere]() for _ in range(sum(free) + 1)]  # by how much of all is used
    levels[0][(0,) * len(free)] = nowhere.or_by(begin, 0, nothing)
    best, end = np.inf, None
    for level in levels:
        for used, ways in level.items():
            for number, leg in enumerate(legs):
                after, own = tuple(map(add, used, leg.uses)), ways.seconds[leg.port]
                if any(map(gt, after, free)) or not (own < best).any():
                    continue
                last = along(own, (leg.seconds if leg.last is None else leg.last)[:, -1])
                if (seconds := float(along(last.min(), back[leg.port]))) < best:
                    best, end = seconds, (used, number, int(last.argmin()))
                reached = along(own[:, None], leg.seconds)
                arrived = along(reached.min(0), hops[leg.port])
                arrived[(arrived >= best) | (done == done[-1])] = np.inf
                there = levels[sum(after)]
                there[after] = there.get(after, nowhere).or_by(arrived, number, reached.argmin(0))
    return None if end is None else FoundPath(best, _walked(legs, levels, *end))


def _walked(
    legs: Sequence[Leg], levels: Sequence[dict[Taken, WaysThere]], used: Taken, leg: int, since: int
) -> list[tuple[int, int]]:
    """Return the legs of a path by its last one, in order: their numbers, and how many units they take."""
    stop = len(legs[leg].seconds) - 1
    found = [(leg, stop - since)]
    while since:
        ways, stop, port = levels[sum(used)][used], since, legs[leg].port
        leg, since = int(ways.leg[port, stop]), int(ways.since[port, stop])
        used = tuple(map(sub, used, legs[leg].uses))
        found.append((leg, stop - since))
    return found[::-1]
