"""A plan follows its devices: who has become slower gets less to do.

A device that slows makes all others wait: a CUSUM over the seconds of units, images or tokens, says when that has
happened, and who computes longer than before is the device. (What one device computes says little by itself: who waits
has rested, and is twice as fast for a moment under a CPU quota.) A device that has slowed and computes much faster than
that is back; a CUSUM of its own says so. Then the plan is made anew, and changes where that is faster by more than
errors. What is usual is learnt from the first units under a plan.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from solver.cluster.cluster import Cluster, Device
from solver.cluster.curves import Floats
from solver.live.cusum import Cusum, Shift

KEPT = 20  # units that are remembered
UNITS = 1e5  # may pass without a change until one is seen, on average
CHANGE, NOISE = math.log(1.5), 0.15  # of a unit's seconds: what is looked for, and their standard deviation in a lab
RETURN, RESTED_NOISE = math.log(4.0), 0.35  # of what a device computes
LEAST_SAVED = 0.03  # of a unit's seconds, for which the plan changes
AGAIN = 50  # units until a device that was left out is tried again
IDLE_S = 1e-4  # less than this is as good as nothing

AnyPlan = TypeVar("AnyPlan")


@dataclass(frozen=True, slots=True)
class PlanChange(Generic[AnyPlan]):
    """Another plan from here on, why, and the seconds of a unit under the old and the new one."""

    plan: AnyPlan
    why: str
    before_s: float
    after_s: float
    taken: bool
    unit: str = "an image"
    shares: str = "rows"

    @property
    def line(self) -> str:
        """The change as a person reads it."""
        what = f"other {self.shares}" if self.taken else f"the {self.shares} stay"
        before, after = 1e3 * self.before_s, 1e3 * self.after_s
        return f"{self.why}: {what}; {before:.1f} ms {self.unit}, {after:.1f} with another plan"

    def to_table(self, number: int) -> dict[str, Any]:
        """Return the report's entry; `number` requests had been computed."""
        return {
            "after_requests": number, "why": self.why, "line": self.line, "taken": self.taken,
            "request_s": self.before_s, "gain_s": self.before_s - self.after_s,
        }  # fmt: skip


class DeviceFollower(ABC, Generic[AnyPlan]):
    """Decides whether the plan changes; on rank 0 only.

    Parameters
    ----------
    cluster, plan
        What was planned for, and the plan that runs.
    changes
        Whether the plan changes; else it is only said what would.
    """

    first = 5  # units by which it is known what is usual under a plan
    unit: str  # what takes time: an image, a token
    shares: str  # what devices get more or less of

    def __init__(self, cluster: Cluster, plan: AnyPlan, *, changes: bool = True) -> None:
        self._cluster, self._changes = cluster, changes
        self.plan = plan
        # For how many units a device has been left out, and for how many it is.
        self._left_out = [(0, AGAIN) for _ in cluster.devices]
        self._factor = np.ones(len(cluster.devices))  # by which devices have slowed
        self._units: list[Floats] = []  # what ranks computed of those under this plan, [p] and the seconds of all
        self._usual: Floats | None = None  # of those
        self._slows = Cusum(CHANGE, NOISE, UNITS)
        self._returns = [Cusum(RETURN, RESTED_NOISE, UNITS) for _ in cluster.devices]

    @property
    def devices(self) -> Sequence[Device]:
        """What was planned for."""
        return self._cluster.devices

    def slower(self, rank: int) -> float:
        """Return by what factor a device has slowed; 1 where it has not."""
        return float(self._factor[rank])

    def took(self, compute_s: Sequence[float], seconds: float) -> PlanChange[AnyPlan] | None:
        """Take what every rank computed of a unit, and its seconds; return what was decided, if anything was."""
        self._units = [*self._units[-KEPT:], np.maximum([*compute_s, seconds], IDLE_S)]
        if self._usual is None:
            if len(self._units) == self.first:
                self._usual = np.median(self._units, axis=0)
            return None
        longer = np.log(self._units[-1] / self._usual)
        changed = self._slowed(self._slows.take(float(longer[-1])))
        at_work = [self.at_work(rank) for rank in range(len(self._returns))]
        for rank in np.flatnonzero((self._factor > 1) & at_work).tolist():
            shift = self._returns[rank].take(float(longer[rank]))
            if shift is not None and shift.mean < 0:
                changed[rank] = math.exp(shift.mean)
        why = [_said(self._cluster.names[rank], by) for rank, by in changed.items()]
        for rank in self._tried_again():
            changed[rank] = 1 / float(self._factor[rank])
            why.append(f"{self._cluster.names[rank]} is tried again")
        if not changed:
            return None
        for rank, factor in changed.items():
            self._factor[rank] = max(self._factor[rank] * factor, 1.0)
        return self._decided(", ".join(why))

    def _tried_again(self) -> list[int]:
        """Return the devices that have slowed and been left out for long; every time it takes twice as long."""
        found = []
        for rank in np.flatnonzero(self._factor > 1).tolist():
            if not self.at_work(rank):
                units, most = self._left_out[rank]
                tries = units + 1 == most
                self._left_out[rank] = (0, 2 * most) if tries else (units + 1, most)
                found += [rank] * tries
        return found

    def _slowed(self, shift: Shift | None) -> dict[int, float]:
        """Return which devices make all take longer since a change, and by how much."""
        assert self._usual is not None
        if shift is None or shift.mean < 0:
            return {}
        longer = np.mean(self._units[-shift.numbers :], axis=0) / self._usual
        return {rank: float(by) for rank, by in enumerate(longer[:-1]) if math.log(by) > CHANGE / 2}

    @abstractmethod
    def at_work(self, rank: int) -> bool:
        """Return whether a device has a share of the plan that runs."""

    @abstractmethod
    def solved(self, factor: Floats) -> tuple[AnyPlan, float, float]:
        """Return the plan for devices that take so many times as long, [p], and a unit's seconds before and under it.

        The seconds before are of the plan that runs, on the same devices.
        """

    def pays(self, saved_s: float) -> bool:
        """Return whether so many seconds that a unit saves make up for the change."""
        return True

    def _decided(self, why: str) -> PlanChange[AnyPlan]:
        found, before_s, after_s = self.solved(self._factor)
        saves = after_s < (1 - LEAST_SAVED) * before_s
        taken = self._changes and saves and self.pays(before_s - after_s)
        if taken:
            self.plan = found
        # The factors have it now: against what was usual before, it would be multiplied in again and again.
        self._units, self._usual = [], None
        for detector in (self._slows, *self._returns):
            detector.begin()
        return PlanChange(found, why, before_s, after_s, taken, self.unit, self.shares)


def _said(name: str, factor: float) -> str:
    return f"{name} takes {factor:.1f} times as long" if factor > 1 else f"{name} is {1 / factor:.1f} times as fast"
