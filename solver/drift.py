"""How fast the devices and their links are now, against the profile: what requests measure, followed over time.

The profile's curves keep their shape; every device has one factor on its speed and one on its link's bandwidth. Within
their noise measurements move a factor slowly; beyond it, it waits whether they stay, and then moves at once. So a blip
moves nothing. A level that is left again soon makes the next change wait twice as long: what alternates faster than it
is worth following is not followed (a multiplicative back-off, as in Ethernet: Metcalfe and Boggs, CACM 19, 1976).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from solver.cluster import Cluster, Device, Link
from solver.cost import price, setting
from solver.curves import Curve, Curves, Floats
from solver.model import ModelSpec
from solver.plan import Plan

# A measurement this near the factor (a fifth, as a logarithm) is noise: in the lab a request's compute varies by 5 to
# 15 %, since a CPU quota comes in periods.
NOISE = math.log(1.2)
GAIN = 0.1  # of a measurement within the noise
# Requests after which the median says how fast a device is in a run: the profile knows no neighbours, and the first
# requests are slow. In the lab devices were 0.7 to 1.1 times as fast as their profile; the first request of a job took
# a third longer than the others.
FIRST = 5
PATIENCE, MOST_PATIENCE = 2, 32  # measurements in a row, beyond the noise on one side, that are a change
SOON = 12  # measurements within which a change back makes patience double
CALM = 50  # measurements within the noise after which patience is what it was
# The system counts how long a connection is busy in ticks of 4 ms: ten of them, on the busiest, make a rate.
WINDOW_S, TICK_S = 0.04, 0.004
FEW_BYTES = 0.1  # of a rank's largest flow: what smaller ones show is latency
# What flows show of a link varies with how they meet, by up to a half (two at once share it): this near it is whole.
# With 0.75 a link seemed narrow eight times in 76 requests of which the speeds, not the links, changed.
WHOLE_LINK = 0.45
LEARNT = 2  # windows, after which it is known how much of its links a plan shows
FALLS_ON = 0.25  # of what has fallen of a device's memory, at most of what is left
# Who waits longer than it computes has rested: a CPU quota, or a cool chip, makes it fast for a moment, and its pieces
# of work are few. Only much faster than it was means that it has recovered. In the lab pi-3, waiting for pi-1, seemed
# 1.7 and 0.4 times as fast as it was, pi-0 1.4 times.
RESTED = 1.5
LENGTHS = 32  # rows that are priced together: pricing takes milliseconds


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
        self._apart: list[float] = []
        self._patience = PATIENCE
        self._calm = 0
        self._left = 1.0  # the level before the last change

    def observe(self, measured: float) -> bool:
        """Take a measurement of the factor; return whether it was the last of a change."""
        self.since += 1
        if self._to_come:
            self._to_come -= 1
            self._first.append(measured)
            if not self._to_come:
                self.factor = statistics.median(self._first)
            return False
        distance = math.log(measured / self.factor)
        if abs(distance) <= NOISE:
            self.factor *= math.exp(GAIN * distance)
            self._apart.clear()
            self._calm += 1
            if self._calm == CALM:
                self._patience = PATIENCE
            return False
        self._calm = 0
        if self._apart and (self._apart[-1] > self.factor) != (measured > self.factor):
            self._apart.clear()
        self._apart.append(measured)
        if len(self._apart) < self._patience:
            return False
        self._move()
        return True

    @property
    def doubtful(self) -> bool:
        """Whether the last measurement was beyond the noise, and may be the first of a change."""
        return bool(self._apart)

    def _move(self) -> None:
        """Take on the level of the later half: the first may be of a request during which it changed."""
        level = statistics.median(self._apart[len(self._apart) // 2 :])
        back = abs(math.log(level / self._left)) < abs(math.log(level / self.factor))
        if self.changes and back and self.since <= SOON + self._patience:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._left, self.factor = self.factor, level
        self._apart.clear()
        self.changes += 1
        self.since = 0


class Drift:
    """What is known now of the devices of a profile.

    Parameters
    ----------
    spec
        The model that runs.
    profile
        The cluster that it was planned for.
    """

    def __init__(self, spec: ModelSpec, profile: Cluster) -> None:
        ranks = len(profile.devices)
        self.profile = profile
        self.compute = [Tracker(FIRST) for _ in range(ranks)]
        self.links = [Tracker() for _ in range(ranks)]
        self.memory = [device.memory_bytes for device in profile.devices]
        self._flowing: Plan | None = None
        self._shown: list[Floats] = []  # of the links, by the plan that is flowing
        self._bytes, self._busy_s = np.zeros((ranks, ranks)), np.zeros((ranks, ranks))
        # An instance's own cache: the plan changes seldom.
        self._expected = lru_cache(maxsize=64)(lambda plan, rows: _compute_s(spec, profile, plan, rows))

    def computed(self, plan: Plan, rows: int, compute_s: Sequence[float], wait_s: Sequence[float]) -> list[int]:
        """Take what every rank computed in a request; return the ranks whose speed has changed.

        Parameters
        ----------
        compute_s : [p] seconds
            Elapsed time without waiting; 0 where a rank had no share.
        wait_s : [p] seconds
            The waiting.
        """
        whole = -(-rows // LENGTHS) * LENGTHS
        expected = self._expected(plan, whole) * rows / whole
        changed = []
        for rank, (seconds, waited, due) in enumerate(zip(compute_s, wait_s, expected, strict=True)):
            if not (seconds > 0 and due > 0):
                continue
            factor = float(due) / seconds
            if waited > seconds:
                if factor < RESTED * self.compute[rank].factor:
                    continue
                factor = min(factor, max(1.0, self.compute[rank].factor))
            if self.compute[rank].observe(factor):
                changed.append(rank)
        return changed

    def probed(self, rank: int, factor: float) -> bool:
        """Take a probe of a device without a share: its speed against the profile; return whether it has changed."""
        return self.compute[rank].observe(factor)

    def carried(self, plan: Plan, flow_bytes: Floats, busy_s: Floats) -> list[int]:
        """Take what the ranks' connections carried; return the ranks whose link has changed.

        Parameters
        ----------
        plan
            What ran.
        flow_bytes, busy_s : [p, p]
            What each rank sent to each other since the last call, and for how long that connection was busy.
        """
        if plan is not self._flowing:
            self._flowing, self._shown = plan, []
            self._bytes[:], self._busy_s[:] = 0.0, 0.0
        self._bytes += flow_bytes
        self._busy_s += busy_s
        if self._busy_s.max() < WINDOW_S:
            return []
        seen = self._bytes >= FEW_BYTES * np.maximum(self._bytes.max(1, keepdims=True), 1.0)
        rates = np.where(seen, self._bytes / np.maximum(self._busy_s, TICK_S / 2), 0.0)
        self._bytes[:], self._busy_s[:] = 0.0, 0.0
        if len(self._shown) < LEARNT:
            # How fast a connection is depends on when the plan uses it. What it shows first is what its links are now.
            factors = np.array([tracker.factor for tracker in self.links])
            self._shown.append(rates / np.minimum.outer(factors, factors))
            return []
        usual = np.mean(self._shown, 0)
        shares = np.where((rates > 0) & (usual > 0), rates / np.where(usual > 0, usual, 1.0), 0.0)
        changed = []
        for rank in plan.stages[0].active:
            tracker = self.links[rank]
            share = _best(shares[rank], shares[:, rank])
            if share > 0 and tracker.observe(1.0 if share > WHOLE_LINK else share):
                changed.append(rank)
        return changed

    @property
    def doubtful(self) -> bool:
        """Whether a device seems to have changed: the next request shows whether it has."""
        return any(tracker.doubtful for tracker in self.compute)

    def free_memory(self, rank: int, free_bytes: int) -> None:
        """Take what a device has for the model now: its weights and buffers, and what is free beside them.

        What has fallen is taken to fall further, so that its share shrinks before the memory is gone.
        """
        usual = self.profile.devices[rank].memory_bytes
        fallen = max(0, usual - free_bytes)
        self.memory[rank] = usual - fallen - round(FALLS_ON * min(fallen, free_bytes))

    @property
    def cluster(self) -> Cluster:
        """The profile's devices as they are now."""
        return scaled(
            self.profile,
            [tracker.factor for tracker in self.compute],
            [tracker.factor for tracker in self.links],
            self.memory,
        )


def _best(outwards: Floats, inwards: Floats) -> float:
    """Return how good a link is, of the shares of their usual rates that its connections have, [p]; 0: not seen.

    A slow device slows down what others exchange with it, but not what they exchange with each other: the best of
    several connections counts, in the worse direction.
    """
    several = [shares.max() for shares in (outwards, inwards) if np.count_nonzero(shares) > 1]
    return float(min(several, default=max(outwards.max(), inwards.max())))


def scaled(cluster: Cluster, compute: Sequence[float], links: Sequence[float], memory: Sequence[int]) -> Cluster:
    """Return a cluster with factors on every device's speed and link, and other memory; curves keep their shape."""
    devices = tuple(
        Device(
            device.name,
            device.compute_flop_per_s * speed,
            memory_bytes,
            cluster.bandwidth(rank) * link,
            None if device.curves is None else _scaled_curves(device.curves, speed),
        )
        for rank, (device, speed, link, memory_bytes) in enumerate(
            zip(cluster.devices, compute, links, memory, strict=True)
        )
    )
    factor = dict(zip(cluster.names, links, strict=True))
    pairs = {
        pair: replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * min(factor[name] for name in pair))
        for pair, link in cluster.links.items()
    }
    # The network is what devices without a bandwidth of their own have; here all have one.
    return Cluster(devices, Link(cluster.network.bandwidth_bytes_per_s, cluster.network.latency_s), pairs)


def _scaled_curves(curves: Curves, speed: float) -> Curves:
    if speed == 1:
        return curves

    def slower(curve: Curve) -> Curve:
        return replace(curve, seconds=tuple(tuple(value / speed for value in row) for row in curve.seconds))

    return Curves(curves.head_dim, {kernel: slower(curve) for kernel, curve in curves.kernels.items()})


def _compute_s(spec: ModelSpec, cluster: Cluster, plan: Plan, rows: int) -> Floats:
    """Return the seconds that every device computes in the layers, [p]; rank 0 embeds before, which is not counted."""
    steps = price(setting(spec, cluster, rows), plan).steps[1:]
    return np.asarray(sum(step.repeats * step.times.compute for step in steps))
