"""Shares are bettered: by the program of shares, begun anew with what it finds, then by a descent on the exact price.

What a program cannot see is tried by the descent: that shares are whole, that a second row needs packed weights, and
who takes part. Of all moves (`solver.programs.moves`) the best is made, until none pays. All are priced at once.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from solver.base.spans import largest_remainder
from solver.cluster.curves import Floats
from solver.programs.moves import MovedShares, crew_moves, descend, pairs, spreads, together
from solver.programs.shares import ClockProgram, FoundShares
from solver.schedule.encoders.layer_table import Integers
from solver.schedule.exchange import Mask

TURNS = 3  # of a program, which begins anew with what it has found
GAINED = 1e-4  # of the seconds: less is not begun anew for
WORTH = 1e-5  # of the seconds: less is not moved for
FEW_UNITS = 32  # of an axis, that a program keeps whole: a rounded one of more is hardly worse
FEW = 5  # devices, of more of which fewer sizes of moves are tried


class Parted(Protocol):
    """What is shared out, in units of some axes, [axes, p]: what shares of it take, whatever it is."""

    def seconds(self, units: Integers) -> Floats:
        """Return the seconds of an answer by any of these shares, [n, axes, p]: [n]."""

    def fits(self, units: Integers) -> Mask:
        """Return for which of them memory has room, [n]."""

    def program(self, units: Integers) -> ClockProgram:
        """Return the program of shares around some, [axes, p]."""


def by_program(
    parted: Parted, units: Integers, limit_s: float = np.inf, *, whole: bool = True
) -> tuple[float, Integers]:
    """Return the shares that the program finds from those given, with their seconds: these, if none are better.

    Of shares that do not fit, and lead to none that do, the seconds are infinite.

    Parameters
    ----------
    limit_s
        Where even fractions of units take longer, whole ones are not looked for.
    whole
        Whether few units stay whole in the program; else they are rounded.
    """
    few = [axis for axis, own in enumerate(units) if whole and own.sum() <= FEW_UNITS]
    seconds = float(parted.seconds(units[None])[0])
    if not parted.fits(units[None])[0]:
        seconds = np.inf
    for _ in range(TURNS if np.count_nonzero(units.any(0)) > 1 else 0):
        program = parted.program(units)
        fractions = program.solve()
        if fractions is None or not fractions.fits or fractions.seconds > limit_s:
            break
        other = rounded((program.solve(few) if few else None) or fractions, units.sum(1))
        if not parted.fits(other[None])[0] and (all_whole := program.solve(range(len(units)))) is not None:
            other = rounded(all_whole, units.sum(1))
        now = float(parted.seconds(other[None])[0])
        if now > (1 - GAINED) * seconds or not parted.fits(other[None])[0]:
            break
        units, seconds = other, now
    return seconds, units


def rounded(found: FoundShares, totals: Integers) -> Integers:
    """Return what a program found in whole units, [axes, p], the nearest that add up to these."""
    every = zip(np.maximum(found.units, 0.0).tolist(), totals.tolist(), strict=True)
    return np.array([largest_remainder(own, total) if total else [0] * len(own) for own, total in every], np.int64)


def by_clocks(parted: Parted, units: Integers, least_s: float = np.inf) -> MovedShares:
    """Return shares as moves better them by clocks; none pays that takes as long as `least_s`."""
    return MovedShares(units, parted.seconds, parted.fits, WORTH, least=least_s)


def polished(parted: Parted, units: Integers) -> tuple[float, Integers]:
    """Return shares of the same devices that are better by clocks, or those given, with their seconds."""

    def after(own: Integers) -> Integers:
        found = moved(own)
        return np.asarray(found[((found > 0) == (own > 0)).all((1, 2))])

    shares = by_clocks(parted, units)
    descend(shares, [after])
    return shares.now, shares.units


def with_other_crew(parted: Parted, units: Integers) -> Integers:
    """Return the best of the shares that one move makes after which others have some of an axis, or those given."""
    after = moved(units)
    other = ((after > 0) != (units > 0)).any((1, 2)) & parted.fits(after)
    after = after[_or_as_it_is(other)]
    best: Integers = after[int(parted.seconds(after).argmin())]
    return best


def _or_as_it_is(some: Mask) -> Mask:
    """Return some shares, and the first of them in any case."""
    return np.asarray(some | (np.arange(some.size) == 0))


def moved(units: Integers) -> Integers:
    """Return the units as they are, then after every move, [moves + 1, axes, p]."""
    axes, devices = range(len(units)), range(units.shape[1])
    coarse = len(devices) > FEW
    changes = [pairs(units, axes, devices, devices, coarse=coarse), *spreads(units, axes), *crew_moves(units)]
    if not coarse:
        changes.append(together(units))
    after = np.concatenate([units[None], *(units + own for own in changes)])
    _, first = np.unique(after, axis=0, return_index=True)
    return after[np.sort(first)]
