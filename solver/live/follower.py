"""A plan follows its devices: who has become slower gets less to do.

All is measured beside the plan's price: what a unit, an image or a token, took over what it was to take. Prices may be
wrong by any factor, as those of boards that were only declared: what the first units took is usual, and what changes
slowly stays usual. A device that slows makes all others wait: a CUSUM over the seconds of units says when that has
happened, and who then computes longer than before, by more than all have in common, is the device. (What one device
computes says little by itself: who waits has rested, and is twice as fast for a moment under a CPU quota.) Where all
take longer alike, or none does, what units take now is usual. A device that has slowed and computes much faster than
that is back; a CUSUM of its own says so.

Then the plan is made anew, of prices that are as measured: every device's work times what it takes beside its price,
and exchanges so long that the plan that runs takes what it does. Units go on meanwhile, where that takes long. The plan
changes where the other one is faster by more than errors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from solver.cluster.cluster import Cluster, Device, Link
from solver.cluster.curves import Floats
from solver.live.decision import is_worth
from solver.live.observe import KEPT, NOISE, Cusum

SLOWED = math.log(1.5) / 2  # of what a device computes: what is less is none that has slowed
SLOWLY = 0.002  # as a logarithm: by so much at most a unit changes what is usual, by less where it is nearer
# Of what a device computes: it rests while it waits, and seems twice as fast for a moment under a CPU quota. With this
# sigma that adds nothing, and four times as fast is seen after two units.
RESTED_NOISE, RETURN_DELAY = 0.436, 2
AGAIN = 50  # units until a device that was left out is tried again
IDLE_S = 1e-4  # less than this is as good as nothing
SHORTEST = 1e-3  # of what exchanges were to take: they take something

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


@dataclass(frozen=True, slots=True, eq=False)
class Sought(Generic[AnyPlan]):
    """A plan that is sought.

    Parameters
    ----------
    plan
        What will be found.
    now
        The devices and links for which it is.
    why
        As a person reads it.
    before_s
        Of a unit under the plan that runs.
    tried
        Devices that are tried again, and what they are thought to take.
    """

    plan: Future[AnyPlan]
    now: Cluster
    why: str
    before_s: float
    tried: Mapping[int, float]


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
    # Of the seconds of units, as logarithms: their standard deviation in a lab, and after how many the least change is
    # seen. What an image takes is longer by half then.
    noise, delay = NOISE, 3
    to_come, change_s = math.inf, 0.0  # units that are expected, and seconds for which they wait for another plan
    unit: str  # what takes time: an image, a token
    shares: str  # what devices get more or less of

    def __init__(self, cluster: Cluster, plan: AnyPlan, *, changes: bool = True) -> None:
        self._cluster, self._changes = cluster, changes
        self.plan = plan
        # For how many units a device has been left out, and for how many it is.
        self._left_out = [(0, AGAIN) for _ in cluster.devices]
        self._factor = np.ones(len(cluster.devices))  # by which devices have slowed
        self._place = 0
        self._prices: dict[int, Floats] = {}  # of a unit in its place, [p + 1], of the plan that runs
        # What units took under this plan beside their price, [p + 1]: every rank's compute, and the seconds of all.
        self._units: list[Floats] = []
        self._usual: Floats | None = None  # of those
        self._tried: Mapping[int, float] = {}  # devices that are tried again, and what they are thought to take
        self._sought: Sought[AnyPlan] | None = None
        self._slows = Cusum(self.noise, self.delay)
        self._returns = [Cusum(RESTED_NOISE, RETURN_DELAY) for _ in cluster.devices]

    @property
    def devices(self) -> Sequence[Device]:
        """What was planned for."""
        return self._cluster.devices

    def slower(self, rank: int) -> float:
        """Return by what factor a device has slowed; 1 where it has not."""
        return float(self._factor[rank])

    def took(self, compute_s: Sequence[float], seconds: float, place: int = 0) -> PlanChange[AnyPlan] | None:
        """Take what every rank computed of a unit, and its seconds; return what was decided, if anything was.

        Units in different places have different prices.
        """
        self._place = place
        if self._sought is not None:
            return self._decided(self._sought)
        self._units = [*self._units[-KEPT:], np.maximum([*compute_s, seconds], IDLE_S) / self._price()]
        if self._usual is None:
            if len(self._units) < self.first:
                return None
            self._usual = np.median(self._units, axis=0)
            return self._judged(self._still_slow(), self._usual)
        longer, recent = np.log(self._units[-1] / self._usual), self._usual
        changed: dict[int, float] = {}
        shift = self._slows.take(float(longer[-1]))
        if shift is not None:
            recent = np.median(self._units[-len(shift.numbers) :], axis=0)
            if shift.mean > 0:
                changed = self._slowed(recent / self._usual, min(len(shift.numbers), len(self._units)))
        for rank in np.flatnonzero((self._factor > 1) & self._at_work).tolist():
            back = self._returns[rank].take(float(longer[rank]))
            if back is not None and back.mean < 0:
                changed[rank] = math.exp(back.mean)
        if shift is not None and not changed:
            self._forget()
            return None
        self._usual = self._usual * np.exp(SLOWLY * np.clip(2 * longer / self._slows.change, -1, 1))
        return self._judged(changed, recent, self._tried_again())

    @property
    def _at_work(self) -> list[bool]:
        return [self.at_work(rank) for rank in range(len(self.devices))]

    def _price(self) -> Floats:
        if self._place not in self._prices:
            self._prices[self._place] = self.priced(self._cluster, self.plan, self._place)
        # A device that has nothing to do takes nothing longer.
        return np.maximum(self._prices[self._place], IDLE_S)

    def _slowed(self, longer: Floats, units: int) -> dict[int, float]:
        """Return which devices take longer, by more than all that work have in common and so many units err by."""
        working = np.flatnonzero(self._at_work).tolist()
        common = max(1.0, float(longer[working].min())) if len(working) > 1 else 1.0
        least = common * math.exp(SLOWED + self.noise / math.sqrt(units))
        return {rank: float(longer[rank]) / common for rank in working if longer[rank] > least}

    def _still_slow(self) -> dict[int, float]:
        """Return which of the devices that were tried again are slow, and by how much."""
        assert self._usual is not None
        longer = np.ones(len(self.devices))
        for rank, times in self._tried.items():
            longer[rank] = self._usual[rank] / times
        self._tried = {}
        return self._slowed(longer, self.first)

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

    @abstractmethod
    def at_work(self, rank: int) -> bool:
        """Return whether a device has a share of the plan that runs."""

    @abstractmethod
    def slowed(self, device: Device, by: float) -> Device:
        """Return a device that takes so many times as long."""

    @abstractmethod
    def priced(self, cluster: Cluster, plan: AnyPlan, place: int) -> Floats:
        """Return the seconds that every device computes of a unit in its place, and those of all, [p + 1]."""

    @abstractmethod
    def sought(self, cluster: Cluster) -> Future[AnyPlan]:
        """Seek the plan for devices as they are."""

    def _judged(
        self, changed: dict[int, float], recent: Floats, tried: Collection[int] = ()
    ) -> PlanChange[AnyPlan] | None:
        """Decide about a plan for devices some of which have changed or are tried again, if any.

        Parameters
        ----------
        changed
            How many times as long they take.
        recent : [p + 1]
            What units take now, beside their price.
        """
        if not changed and not tried:
            return None
        assert self._usual is not None
        at_work = np.array(self._at_work)
        # Of who has nothing to do it is not known how wrong the price is: as wrong as those of the others.
        wrong = float(np.median((self._usual[:-1] / self._factor)[at_work]))
        why = [_said(self._cluster.names[rank], by) for rank, by in changed.items()]
        why += [f"{self._cluster.names[rank]} is tried again" for rank in tried]
        for rank, factor in changed.items():
            self._factor[rank] = max(self._factor[rank] * factor, 1.0)
        self._factor[list(tried)] = 1.0
        # Who waits has rested, and is no faster than it was.
        times = np.maximum(recent, self._usual)[:-1]
        for rank, factor in changed.items():
            times[rank] = self._usual[rank] * factor if factor < 1 else times[rank]
        times = np.where(at_work, times, wrong * self._factor)
        before_s = float(recent[-1] * self._price()[-1])
        now = self._as_measured(times, before_s)
        again = {rank: float(times[rank]) for rank in tried}
        self._sought = Sought(self.sought(now), now, ", ".join(why), before_s, again)
        return self._decided(self._sought)

    def _decided(self, sought: Sought[AnyPlan]) -> PlanChange[AnyPlan] | None:
        """Decide about the plan that was sought; None if it is not found yet."""
        if not sought.plan.done():
            return None
        found, self._sought = sought.plan.result(), None
        before_s = sought.before_s
        after_s = before_s * self._total(sought.now, found) / self._total(sought.now, self.plan)
        taken = self._changes and is_worth(before_s, after_s, self.to_come, self.change_s)
        if taken:
            self.plan = found
            self._prices.clear()
            self._tried = sought.tried
        self._forget()
        return PlanChange(found, sought.why, before_s, after_s, taken, self.unit, self.shares)

    def _as_measured(self, times: Floats, seconds: float) -> Cluster:
        """Return the devices and links as they are now.

        Parameters
        ----------
        times : [p]
            What every device takes beside its price.
        seconds
            What a unit takes under the plan that runs.
        """
        few_s, many_s = (self._total(self._now(times, messages), self.plan) for messages in (SHORTEST, 1.0))
        messages = 1.0
        if many_s > few_s and not math.isclose(many_s, few_s):  # else messages are nothing to a unit
            messages = max(SHORTEST, SHORTEST + (1 - SHORTEST) * (seconds - few_s) / (many_s - few_s))
        return self._now(times, messages)

    def _total(self, cluster: Cluster, plan: AnyPlan) -> float:
        return float(self.priced(cluster, plan, self._place)[-1])

    def _now(self, times: Floats, messages: float) -> Cluster:
        """Return the cluster with devices that take so many times as long, and messages, too."""
        cluster = self._cluster

        def link(link: Link) -> Link:
            return Link(link.bandwidth_bytes_per_s / messages, link.latency_s * messages)

        devices = tuple(
            replace(self.slowed(device, by), bandwidth_bytes_per_s=cluster.bandwidth(rank) / messages)
            for rank, (device, by) in enumerate(zip(cluster.devices, times.tolist(), strict=True))
        )
        links = {pair: link(own) for pair, own in cluster.links.items()}
        return replace(cluster, devices=devices, network=link(cluster.network), links=links)

    def _forget(self) -> None:
        """Learn anew what is usual."""
        self._units, self._usual = [], None
        for detector in (self._slows, *self._returns):
            detector.begin()


def _said(name: str, factor: float) -> str:
    return f"{name} takes {factor:.1f} times as long" if factor > 1 else f"{name} is {1 / factor:.1f} times as fast"
