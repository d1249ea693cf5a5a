"""One factor that follows measurements of it.

Within their noise measurements move a factor slowly; beyond it, it waits whether they stay, and then moves at once. So
a blip moves nothing. A level that is left again soon makes the next change wait twice as long: what alternates faster
than it is worth following is not followed (a multiplicative back-off, as in Ethernet: Metcalfe and Boggs, CACM 19,
1976).
"""

from __future__ import annotations

import math
import statistics

# What a measurement errs by, relative: in the lab a request's compute varies by 5 to 25 %, since a CPU quota comes in
# periods. That is a stretch of time: the smaller the part of a request, the more of it. Of a quarter all is noise that
# is less than 2.2 times as fast or slow as before.
NOISE = 0.3
# Of a measurement within the noise, at least: soon after a change, of the level or of the plan, it is their mean that
# counts. What a device seems to do depends on its share: in the lab pi-3 did 10.9 GFLOP/s with 6 rows and 9.2 with 13,
# and kept these for 19 requests of 650 ms, until its factor had followed.
GAIN = 0.1
# Requests after which the median says how fast a device is in a run: the profile knows no neighbours, and the first
# requests are slow. In the lab devices were 0.7 to 1.1 times as fast as their profile; the first request of a job took
# a third longer than the others. After five, pi-1 once seemed to do 57 GFLOP/s, a few later 63: between them was the
# decision for another plan, which was slower.
FIRST = 9
PATIENCE, MOST_PATIENCE = 2, 32  # measurements in a row, beyond the noise on one side, that are a change
# A change by less than this asks for as many, unless there was another just before, whose level is a guess: it costs
# less to wait, and on a machine that others share a second at 0.7 of the speed is no rare thing (pi4x4, 200 requests of
# 0.4 s without a change: two of them).
SLIGHT, SLIGHT_PATIENCE = math.log(1.5), 5
SWING = math.log(1.5)  # least change back that counts as one: what is less mends the level
REST_OF_WAY = 1 / 2  # as logarithms: what comes so near the level that it was faster at is back there
SOON = 8  # measurements within which a change back makes patience double: following it costs one or two of them
CALM = 50  # measurements within the noise after which patience is what it was


class Tracker:
    """One factor that follows measurements of it; 1 is as in the profile.

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
        self._held = 0  # since the last one that was no mend: mends of a level do not make it short-lived
        self._apart: list[tuple[float, float]] = []  # with the part of a request that each is of
        self._patience = PATIENCE
        self._calm = 0
        self._left = 1.0  # the level before the last change that was no mend
        self._mended = 0.0  # by how much, as a logarithm, the last change mended the one before; 0: it did not

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
        if not self.beyond(measured):
            distance = math.log(measured / self.factor)
            self.factor *= math.exp(max(GAIN, 1 / (self._averaged + PATIENCE)) * distance)
            self._apart.clear()
            self._calm += 1
            if self._calm == CALM:
                self._patience = PATIENCE
            return False
        return self._strayed(measured)

    def restart(self) -> None:
        """Let the measurements that follow count more: they are of another share."""
        self._averaged = 0

    def beyond(self, measured: float, part: float = 1.0) -> bool:
        """Return whether a measurement is beyond the noise of what is measured of so large a part of a request.

        Nothing is before it is known where the factor begins.
        """
        return not self._to_come and abs(math.log(measured / self.factor)) > math.log(1 + NOISE / part)

    @property
    def guesses(self) -> bool:
        """Whether there was a change so lately that the level may yet be mended."""
        return self.changes > 0 and self.since <= SOON

    @property
    def doubtful(self) -> bool:
        """Whether the last measurement was beyond the noise, and may be the first of a change."""
        return bool(self._apart)

    def _observe_part(self, measured: float, part: float) -> bool:
        if self.beyond(measured, part):
            return self._strayed(measured, part)
        # What a whole request has shown, no part takes back.
        if self._apart and self._apart[-1][1] < 1 and not self.beyond(measured):
            self._apart.clear()
        return False

    def _strayed(self, measured: float, part: float = 1.0) -> bool:
        """Take a measurement beyond the noise; return whether it was the last of a change.

        Two parts of a request are enough, but for a slight change; where what alternates made it wait longer, it waits
        for as many requests.
        """
        self._calm = 0
        if self._apart and (self._apart[-1][0] > self.factor) != (measured > self.factor):
            self._apart.clear()
        self._apart.append((measured, part))
        if len(self._apart) < PATIENCE:
            return False
        # The later half: the first may be of a request during which it changed.
        level = statistics.median(measured for measured, _ in self._apart[len(self._apart) // 2 :])
        slight = abs(math.log(level / self.factor)) < SLIGHT and not self.guesses
        patience = max(self._patience, SLIGHT_PATIENCE if slight else 0)
        if patience > PATIENCE and sum(part for _, part in self._apart) < patience:
            return False
        self._move(level)
        return True

    def _move(self, level: float) -> None:
        """Take on another level.

        One near that before the last change, or short of it after most of the way back up, is that: the first
        measurements say little. In the lab a device that was back at 70 GFLOP/s from 17, with the few rows of a slow
        one, seemed to do 35 to 58, for which another plan is the best.

        What is mended one way and then the other is put between: what a device seems to do depends on its share. In the
        lab one of 17 GFLOP/s had 20 rows for 12, seemed to do 21, had 35 for that, seemed to do 14, and so on.
        """
        way, rest = math.log(self._left / self.factor), math.log(self._left / level)
        near = abs(rest) < math.log(1 + NOISE) or 0 < rest < REST_OF_WAY * way
        if self.changes and near:
            level = self._left
        step = math.log(level / self.factor)
        back = abs(step) > max(SWING, abs(math.log(level / self._left)))
        mends = self.guesses and not back
        if mends and step * self._mended < 0:
            step /= 2
        if self.changes and back and self._held <= SOON + self._patience:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        if not mends:
            self._left, self._held = self.factor, 0
        self.factor *= math.exp(step)
        self._mended = step if mends else 0.0
        self._apart.clear()
        self.changes += 1
        self.since = self._averaged = 0
