"""Says when what is measured has changed: a two-sided CUSUM (Page, "Continuous inspection schemes", Biometrika, 1954).

It adds up by how much numbers are above half of the change that is looked for, and begins anew below zero; where the
sum passes a threshold, their mean has risen. Below, alike. Two promises say what both are, of numbers that vary by
`sigma`: how rarely it is wrong, and after how many numbers it sees the change. Only sigma and this delay differ between
what is followed.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

# Numbers without a change, on average, until one is seen: a day of a request a second, and no more than two wrong
# plans, each of which is put right by the next look.
WRONG_ONCE_IN = 1e5
STATES = 80  # of a sum: twice as many change what follows by less than 1 %
KEPT = 20  # numbers that are remembered: levels are medians of the last ones

# Of requests in a lab, as logarithms: compute varies by 5 to 25 %, since a CPU quota comes in periods.
NOISE = 0.15
# Two requests show a change by 1.63, seven one by 1.31. Of what lies between 0.7 of the speed takes five: on a machine
# that others share a second of that is no rare thing (pi4x4, 200 requests of 0.4 s without a change: two of them).
DELAYS = 2, 7
# Of a measurement within the noise, at least: soon after a change, of the level or of the plan, it is their mean that
# counts. What a device seems to do depends on its share: in the lab pi-3 did 10.9 GFLOP/s with 6 rows and 9.2 with 13,
# and kept these for 19 requests of 650 ms, until its factor had followed.
GAIN = 0.1
# Requests after which the median says how fast a device is in a run: the profile knows no neighbours, and the first
# requests are slow. In the lab devices were 0.7 to 1.1 times as fast as their profile; the first request of a job took
# a third longer than the others. After five, pi-1 once seemed to do 57 GFLOP/s, a few later 63: between them was the
# decision for another plan, which was slower.
FIRST = 9
REST_OF_WAY = 1 / 2  # as logarithms: what comes so near the level that it was faster at is back there
SOON = 8  # measurements within which a change back is a swing: to follow one costs one or two of them
# By less than this a change is slight: what is known of speeds that differ no more says much of these.
SLIGHT = math.log(1.5)
CALM = 50  # measurements within the noise after which sigma is what it was


@dataclass(frozen=True, slots=True)
class Shift:
    """A change: the numbers since it came."""

    numbers: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return statistics.fmean(self.numbers)


class Cusum:
    """Looks for changes of one mean from zero.

    Parameters
    ----------
    sigma
        The standard deviation of the numbers.
    delay
        After how many numbers the least change is seen.
    wrong_once_in
        How many numbers without a change may pass until it says there was one, on average.

    Attributes
    ----------
    change
        The least change that is seen after `delay` numbers; half of it is never seen.
    """

    def __init__(self, sigma: float, delay: float, wrong_once_in: float = WRONG_ONCE_IN) -> None:
        self.change = sigma * _least_change(delay, wrong_once_in)
        self._threshold = delay * self.change / 2
        self._limit = _limit(self.change, self._threshold)
        self.begin()

    def begin(self, ahead: float = 0.0) -> None:
        """Forget what came; begin `ahead` of zero, as a part of the threshold, where a change is likely.

        (A fast initial response: Lucas and Crosier, Technometrics 24, 1982.)
        """
        self._sums, self._since = [ahead * self._threshold] * 2, [list[float](), list[float]()]

    @property
    def doubtful(self) -> bool:
        """Whether one more number may be a change."""
        return max(self._sums) + self._limit > self._threshold

    def take(self, number: float, part: float = 1.0) -> Shift | None:
        """Take a number, or that part of one; return the change that it bears out, if any, and begin anew."""
        for side, sign in enumerate((1, -1)):
            excess = min(sign * number - self.change / 2, self._limit)
            self._sums[side] = max(0.0, self._sums[side] + part * excess)
            self._since[side] = [*self._since[side], number] if self._sums[side] else []
            if self._sums[side] > self._threshold:
                found = Shift(tuple(self._since[side]))
                self.begin()
                return found
        return None


def _cusums(sigma: float) -> tuple[Cusum, ...]:
    return tuple(Cusum(sigma, delay, len(DELAYS) * WRONG_ONCE_IN) for delay in DELAYS)


def _limit(change: float, threshold: float) -> float:
    """Return what one number counts at most.

    It is as much as one of twice the change does; and less than the threshold: one alone is no change, however large.
    Two in a row are one, also where it came during the first, and two with one between that is usual are none.
    """
    return min(3 / 2 * change, 2 / 3 * threshold)


@lru_cache
def _least_change(delay: float, wrong_once_in: float) -> float:
    """Return the least change, in standard deviations, for which both promises hold, by bisection."""
    low, high = 0.01, 10.0
    for _ in range(40):
        change = (low + high) / 2
        low, high = (change, high) if _wrong_once_in(change, delay * change / 2) < wrong_once_in else (low, change)
    return high


def _wrong_once_in(change: float, threshold: float) -> float:
    """Return how many numbers pass, on average, until either side's sum passes its threshold without a change.

    The sum is a Markov chain of `STATES` (Brook and Evans, "An approach to the probability distribution of CUSUM run
    length", Biometrika 59, 1972); numbers are normal, of standard deviation 1.
    """
    width, limit, states = threshold / (STATES - 1 / 2), _limit(change, threshold), np.arange(STATES)
    # How likely the sum grows by no more than that, from any state.
    grows = [(by + 1 / 2) * width for by in range(1 - STATES, STATES)]
    likely = [1.0 if by >= limit else (1 + math.erf((by + change / 2) / math.sqrt(2))) / 2 for by in grows]
    goes = np.diff(np.array(likely)[states - states[:, None] + STATES - 1], axis=1, prepend=0)  # [from, to]
    numbers = np.linalg.solve(np.eye(STATES) - goes, np.ones(STATES))[0]
    return float(abs(numbers)) / 2  # what is rarer than floats can tell from never is as large, of either sign


class Level:
    """One factor that follows measurements of it; 1 is as in the profile.

    Within their noise measurements move it slowly; a change moves it at once. What alternates faster than it is worth
    following shows that measurements vary more than was thought: sigma doubles (a multiplicative back-off, as in
    Ethernet: Metcalfe and Boggs, CACM 19, 1976).

    Parameters
    ----------
    first
        Of so many measurements the median is where it begins.
    """

    def __init__(self, first: int = 0) -> None:
        self.factor = 1.0
        self.changes = 0
        self._first: list[float] = []
        self._to_come = first
        self.since = 0  # measurements since the last change
        self._averaged = 0  # since the last change or restart
        self._held = 0  # since the last one that corrected no guess: a level that was corrected has not changed anew
        self._sigma = NOISE
        self._cusums = _cusums(NOISE)
        self._noise = self._cusums[-1].change  # what differs by less is averaged
        self._recent = deque[float](maxlen=KEPT)
        self._part = 1.0  # of a request that the last measurement was of
        self._calm = 0
        self._left = 1.0  # the level before the last change that corrected no guess
        self._corrected = 0.0  # by so much, as a logarithm, the last change corrected the one before; or 0

    def observe(self, measured: float, part: float = 1.0) -> bool:
        """Take a measurement of the factor; return whether it was the last of a change.

        Where it is of a `part` of a request only, it may speak of a change, and else says nothing: what is within the
        noise of requests is averaged of whole ones.
        """
        if part < 1:
            return self._observe_part(measured, part)
        self.since += 1
        self._averaged += 1
        self._held += 1
        if self._to_come:
            self._to_come -= 1
            self._first.append(measured)
            if not self._to_come:
                self.factor = statistics.median(self._first)
            return False
        if self.beyond(measured):
            self._calm = 0
        else:
            self._calm += 1
            if self._calm == CALM:
                self._vary(NOISE)
        if self._takes(measured):
            return True
        if not self.beyond(measured):
            self.factor *= math.exp(max(GAIN, 1 / (self._averaged + 2)) * math.log(measured / self.factor))
        return False

    def restart(self) -> None:
        """Let the measurements that follow count more: they are of another share."""
        self._averaged = 0

    def beyond(self, measured: float, part: float = 1.0) -> bool:
        """Return whether a measurement is beyond the noise of what is measured of so large a part of a request.

        What it errs by is a stretch of time: the smaller the part, the more of it. Of a quarter all is noise that is
        less than 2.2 times as fast or slow as before. Nothing is beyond before it is known where the factor begins.
        """
        noise = math.log(1 + math.expm1(self._noise) / part)
        return not self._to_come and abs(math.log(measured / self.factor)) > noise

    @property
    def guesses(self) -> bool:
        """Whether there was a change so lately that the level may yet be corrected."""
        return self.changes > 0 and self.since <= SOON

    @property
    def doubtful(self) -> bool:
        """Whether the next measurement may be the last of a change."""
        return any(cusum.doubtful for cusum in self._cusums)

    def _observe_part(self, measured: float, part: float) -> bool:
        if self.beyond(measured, part):
            self._calm = 0
            return self._takes(measured, part)
        # What a whole request has shown, no part takes back.
        if self._part < 1 and not self.beyond(measured):
            self._begin()
        return False

    def _takes(self, measured: float, part: float = 1.0) -> bool:
        """Take a measurement that may be of a change; return whether it was the last of one.

        Two parts of a request are enough; where what alternates made it wait longer, it waits for whole requests.
        """
        self._recent.append(measured)
        self._part = part
        number, part = math.log(measured / self.factor), part if self._sigma > NOISE else 1.0
        shifts = [shift for cusum in self._cusums if (shift := cusum.take(number, part)) is not None]
        if not shifts:
            return False
        # The later half: the first may be of a request during which it changed.
        recent = [*self._recent][-len(shifts[0].numbers) :]
        self._move(statistics.median(recent[len(recent) // 2 :]), len(recent))
        return True

    def _begin(self, ahead: float = 0.0) -> None:
        for cusum in self._cusums:
            cusum.begin(ahead)

    def _vary(self, sigma: float) -> None:
        """Let measurements vary so much."""
        if sigma != self._sigma:
            self._sigma, self._cusums = sigma, _cusums(sigma)

    def _move(self, level: float, numbers: int) -> None:
        """Take on another level, which so many measurements showed.

        One near that before the last change, or short of it after most of the way back up, is that: the first
        measurements say little. In the lab a device that was back at 70 GFLOP/s from 17, with the few rows of a slow
        one, seemed to do 35 to 58, for which another plan is the best.

        What is corrected one way and then the other is put between: what a device seems to do depends on its share. In
        the lab one of 17 GFLOP/s had 20 rows for 12, seemed to do 21, had 35 for that, seemed to do 14, and so on.
        """
        way, rest = math.log(self._left / self.factor), math.log(self._left / level)
        if self.changes and (abs(rest) < self._noise or 0 < rest < REST_OF_WAY * way):
            level = self._left
        step = math.log(level / self.factor)
        back = abs(step) > abs(math.log(self._left / level))
        corrects = self.guesses and not back
        if corrects and step * self._corrected < 0:
            level, step = math.sqrt(level * self.factor), step / 2
        if self.changes and back and self._held <= SOON + numbers:
            self._vary(2 * self._sigma)
        if not corrects:
            self._left, self._held = self.factor, 0
        self.factor = level
        self._corrected = step if corrects else 0.0
        self.changes += 1
        self.since = self._averaged = 0
        self._begin(1 / 2)  # the level is a guess: two more measurements correct it
