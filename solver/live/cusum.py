"""A two-sided CUSUM: says when the mean of numbers that vary has changed (Page, "Continuous inspection schemes", 1954).

It adds up by how much numbers are above half of the change that is looked for, and begins anew below zero; where the
sum passes a threshold, the mean has risen. Below, alike. The threshold follows from how rarely it may be wrong: with
k half of the change, h the threshold and b = h / sigma + 1.166 it is wrong once in (exp(2 k b / sigma) - 2 k b /
sigma - 1) / (2 (k / sigma)^2) numbers on each side (Siegmund, "Sequential Analysis", 1985, section 10).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

OVERSHOOT = 1.166  # by how many standard deviations a sum passes the threshold, twice (Siegmund)


@dataclass(frozen=True, slots=True)
class Shift:
    """A change: the mean since it came, and how many numbers ago that was."""

    mean: float
    numbers: int


class Cusum:
    """Looks for changes of one mean from zero.

    Parameters
    ----------
    change
        The least that is looked for.
    sigma
        The standard deviation of the numbers.
    wrong_once_in
        How many numbers without a change may pass until it says there was one, on average.
    """

    def __init__(self, change: float, sigma: float, wrong_once_in: float) -> None:
        self._half = change / 2
        self._threshold = threshold(self._half, sigma, 2 * wrong_once_in)  # of each of two sides
        self.begin()

    def begin(self) -> None:
        """Forget what came."""
        self._sums, self._since = [0.0, 0.0], [list[float](), list[float]()]

    def take(self, number: float) -> Shift | None:
        """Take a number; return the change that it bears out, if there was one, and begin anew."""
        for side, sign in enumerate((1, -1)):
            self._sums[side] = max(0.0, self._sums[side] + sign * number - self._half)
            self._since[side] = [*self._since[side], number] if self._sums[side] else []
            if self._sums[side] > self._threshold:
                found = Shift(math.fsum(self._since[side]) / len(self._since[side]), len(self._since[side]))
                self.begin()
                return found
        return None


def threshold(half: float, sigma: float, wrong_once_in: float) -> float:
    """Return the threshold of one side, by bisection: the larger it is, the more rarely it is passed."""
    drift = half / sigma
    low, high = 0.0, 1e3 * sigma
    for _ in range(100):
        middle = (low + high) / 2
        exponent = min(2 * drift * (middle / sigma + OVERSHOOT), 700.0)
        often = (math.exp(exponent) - exponent - 1) / (2 * drift**2)
        low, high = (middle, high) if often < wrong_once_in else (low, middle)
    return high
