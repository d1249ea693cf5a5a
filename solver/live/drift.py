"""How fast the devices and their links are now, against the profile: what requests measure, followed over time.

The profile's curves keep their shape; every device has one factor on its speed and one on its link's bandwidth
(`solver.live.observe`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.live.observe import FIRST, Level
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan, Stage
from solver.schedule.encoders.cost import price, setting

# The system counts how long a connection is busy in ticks of 4 ms: ten of them, on the busiest, make a rate.
WINDOW_S, TICK_S = 0.04, 0.004
FEW_BYTES = 0.25  # of the largest flow: what smaller ones show is latency
# What flows show of a link varies with how they meet, by up to a half (two at once share it): this near it is whole.
# With 0.75 a link seemed narrow eight times in 76 requests of which the speeds, not the links, changed.
WHOLE_LINK = 0.45
LEARNT = 2  # windows, after which it is known how fast a plan's connections are
# Times what a link is thought to carry: what carries more is whole again. In the lab connections over a link of 240
# Mbps carried 80 to 190, over one of 940 the best of a device's 220 to 800.
CARRIES = 1.2
# Where a plan shows one connection of a rank alone, others that end where it ends leave it less, now and then: the best
# of so many windows counts. In the lab, with all heads on pi-1, the three others' links seemed narrow by turns.
ALONE = 4
FALLS_ON = 0.25  # of what is left of a device's memory: at most so much may be gone by the next reading
# Who waits much, in seconds of its compute, has rested: a CPU quota, or a cool chip, makes it fast for a moment. Only
# much faster than it was means that it has recovered. Who waits longer than it computes has few pieces of work, which
# say nothing. In the lab pi-3, waiting for pi-1, seemed 1.7 and 0.4 times as fast as it was, pi-0 1.4 times; pi-2,
# which computed half of the time, 1.7 times.
REST, RESTED = 0.3, 1.5
PLANS = 16  # of which it is remembered how fast their connections are: twice those that `Replanner` keeps
LENGTHS = 32  # rows that are priced together: pricing takes milliseconds


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
        self.compute = [Level(FIRST) for _ in range(ranks)]
        self.links = [Level() for _ in range(ranks)]
        self.memory = [device.memory_bytes for device in profile.devices]
        self._free = list(self.memory)  # as read last
        self._falls = [(0, 0)] * len(self.memory)  # by how much the last two readings fell
        self._plan: Plan | None = None  # of which the last measurements are
        # Bytes a second of a plan's connections over whole links, of how many windows; kept for when it comes back, of
        # the plans that ran last, the latest last.
        self._usual: dict[tuple[Stage, ...], tuple[Floats, Floats]] = {}
        self._lately = [deque[float](maxlen=ALONE) for _ in range(ranks)]  # shares of links, by the same
        self._bytes, self._busy_s = np.zeros((ranks, ranks)), np.zeros((ranks, ranks))
        self._looked: tuple[Floats, Floats, Floats] | None = None  # the last look at the request under way
        self._unsure: set[int] = set()  # ranks of which a part of it showed a change
        # An instance's own cache: the plan changes seldom.
        self._expected = lru_cache(maxsize=64)(lambda plan, rows: _compute_s(spec, profile, plan, rows))

    def computed(
        self,
        plan: Plan,
        rows: int,
        compute_s: Sequence[float],
        wait_s: Sequence[float],
        done: Floats | None = None,
    ) -> list[int]:
        """Take what every rank has computed of a request so far; return the ranks whose speed has changed.

        Of a request that showed a change on the way its last part counts, of any other the whole.

        Parameters
        ----------
        compute_s : [p] seconds
            Elapsed time without waiting; 0 where a rank had no share.
        wait_s : [p] seconds
            The waiting.
        done : [p]
            How much of its compute every rank has done; None: the request is over.
        """
        self._turn_to(plan)
        whole = -(-rows // LENGTHS) * LENGTHS
        expected = self._expected(plan, whole) * rows / whole
        none = np.zeros(len(compute_s))
        before, compute_before, wait_before = self._looked or (none, none, none)
        so_far = np.ones(none.size) if done is None else done
        computes, waits = np.asarray(compute_s, float), np.asarray(wait_s, float)
        changed = []
        for rank, due in enumerate(expected):
            seconds, waited, part = computes[rank], waits[rank], 1.0
            if done is not None or rank in self._unsure:
                seconds, waited = seconds - compute_before[rank], waited - wait_before[rank]
                part = float(so_far[rank] - before[rank])
            if not (seconds > 0 and due > 0 and part > 0):
                continue
            tracker, factor = self.compute[rank], float(part * due / seconds)
            if waited > REST * seconds and factor > tracker.factor:
                # A guess may be corrected; else only what is much faster has changed.
                faster = tracker.guesses or factor >= RESTED * tracker.factor
                factor = min(factor, max(1.0, tracker.factor)) if faster else tracker.factor
            elif waited > seconds:
                continue
            if part < 1 and tracker.beyond(factor, part):
                self._unsure.add(rank)
            if tracker.observe(factor, part):
                changed.append(rank)
        self._looked = None if done is None else (done, computes, waits)
        if done is None:
            self._unsure.clear()
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
        self._turn_to(plan)
        self._bytes += flow_bytes
        self._busy_s += busy_s
        if self._busy_s.max() < WINDOW_S:
            return []
        seen = self._bytes >= FEW_BYTES * self._bytes.max()
        rates = np.where(seen, self._bytes / np.maximum(self._busy_s, TICK_S / 2), 0.0)
        self._bytes[:], self._busy_s[:] = 0.0, 0.0
        # How fast a connection is depends on when the plan uses it.
        usual, windows = self._usual.pop(plan.stages, (np.zeros_like(rates), np.zeros_like(rates)))
        self._usual[plan.stages] = usual, windows
        if len(self._usual) > PLANS:
            del self._usual[next(iter(self._usual))]
        whole = np.array([tracker.factor > WHOLE_LINK for tracker in self.links])
        known = windows == LEARNT
        learns = (rates > 0) & ~known & np.logical_and.outer(whole, whole)
        usual[learns] += rates[learns] / LEARNT
        windows[learns] += 1
        shares = np.where(known, rates / np.where(known, usual, 1.0), 0.0)
        changed = []
        for rank in plan.stages[0].active:
            tracker = self.links[rank]
            # What is slow to where the link is narrow says nothing of this one.
            says = whole | ~whole[rank]
            share = _best(shares[rank] * says, shares[:, rank] * says)
            carries = CARRIES * tracker.factor * self.profile.bandwidth(rank)
            if not whole[rank] and max(rates[rank].max(), rates[:, rank].max()) > carries:
                share = 1.0
            if not share:
                continue
            lately = self._lately[rank]
            lately.append(share)
            if np.count_nonzero(shares[rank] + shares[:, rank]) == 1:
                if len(lately) < ALONE:
                    continue
                share = max(lately)
            if tracker.observe(1.0 if share > WHOLE_LINK else share):
                changed.append(rank)
        return changed

    def _turn_to(self, plan: Plan) -> None:
        """Begin anew with what depends on the plan, where it is another than that of the last measurements."""
        if plan is self._plan:
            return
        self._plan = plan
        for tracker in self.compute:
            tracker.restart()
        for lately in self._lately:
            lately.clear()
        self._bytes[:], self._busy_s[:] = 0.0, 0.0

    @property
    def doubtful(self) -> bool:
        """Whether a device seems to have changed: the next request shows whether it has."""
        return any(tracker.doubtful for tracker in self.compute)

    def free_memory(self, rank: int, free_bytes: int) -> None:
        """Take what a device has for the model now: its weights and buffers, and what is free beside them.

        What falls is taken to fall as much again, so that its share shrinks before the memory is gone. One fall alone
        is a new cap, or a program that has started: in the lab a share that was given up for that, and still had room,
        cost half of the speed until its weights were read again.
        """
        if free_bytes != self._free[rank]:
            self._falls[rank] = self._falls[rank][1], max(0, self._free[rank] - free_bytes)
            self._free[rank] = free_bytes
        falls_on = min(*self._falls[rank], round(FALLS_ON * free_bytes))
        self.memory[rank] = min(free_bytes, self.profile.devices[rank].memory_bytes) - falls_on

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
        replace(
            device,
            compute_flop_per_s=device.compute_flop_per_s * speed,
            memory_bytes=memory_bytes,
            bandwidth_bytes_per_s=cluster.bandwidth(rank) * link,
            curves=device.curves and device.curves.slowed(1 / speed),
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
    return replace(cluster, devices=devices, links=pairs)


def _compute_s(spec: ModelSpec, cluster: Cluster, plan: Plan, rows: int) -> Floats:
    """Return the seconds that every device computes in the layers, [p]; rank 0 embeds before, which is not counted."""
    steps = price(setting(spec, cluster, rows), plan).steps[1:]
    return np.asarray(sum(step.repeats * step.times.compute for step in steps))
