"""When a plan is changed while it runs: what changed, what another plan would save, what changing to it costs.

A device's factors move (`solver.drift`); once they are far from those that the plan was last solved for, it is solved
again. Two plans are considered: the best one, and the best one that needs no weights moved. A plan is taken if what it
saves over the requests that are expected is more than the seconds that moving costs, and is worth the trouble at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from solver.cluster import GIB, Cluster
from solver.cost import predict, weights_bytes, work_bytes
from solver.curves import Floats
from solver.drift import Drift
from solver.errors import InfeasiblePlanError
from solver.lengths import for_rows
from solver.model import ModelSpec
from solver.moves import moved_bytes
from solver.plan import BlockPlan, Plan
from solver.planner import Solution, solve

SHIFT = math.log(1.15)  # how far a factor has to be from where the plan was solved, for solving again
# The same for memory, relative, where a device has less than so many times what its share takes.
MEMORY_SHIFT, SCARCE = 0.1, 1.5
LEAST_GAIN = 0.04  # of a request's seconds: less is within what predictions err by
NAMED = 2  # changes in a decision's line: the largest
# At least so many requests are expected to follow; of a change that has lasted longer, as many as it has.
LEAST_HORIZON = 20
AGAIN = 5  # requests after a change, until a better plan than other rows is looked for


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """What to do after a change.

    Parameters
    ----------
    plan
        What was found; it is to run if `taken`.
    why, shares
        What changed, and whose shares become what, in words.
    before_s, after_s
        Seconds of a request under the plan so far, and under the other.
    cost_s
        Seconds that moving takes, on the slowest rank.
    """

    plan: Plan
    taken: bool
    why: str
    shares: str
    before_s: float
    after_s: float
    cost_s: float

    @property
    def line(self) -> str:
        """The decision as a person reads it."""
        saves = f"saves {_ms(self.before_s - self.after_s)} of {_ms(self.before_s)} ms per request"
        costs = f"costs {_ms(self.cost_s)} ms"
        if self.taken:
            return f"{self.why}: {self.shares}; {saves}, {costs}"
        return f"{self.why}: the plan stays; another {saves}, {costs}"

    def to_table(self, number: int, seconds: float) -> dict[str, Any]:
        """Return the report's entry; `number` requests and `seconds` had passed."""
        return {
            "after_requests": number,
            "after_seconds": seconds,
            "why": self.why,
            "line": self.line,
            "taken": self.taken,
            "gain_s": self.before_s - self.after_s,
            "request_s": self.before_s,
            "cost_s": self.cost_s,
            "shares": self.shares,
        }


class Replanner:
    """Follows the devices and decides about plans; pure, for rank 0.

    Parameters
    ----------
    spec
        The model.
    cluster
        The profile that the first plan was made for.
    solution
        That plan, and how it was found.
    read_bytes_per_s : [p]
        How fast each rank gets weights, from its file or from rank 0.
    """

    def __init__(
        self, spec: ModelSpec, cluster: Cluster, solution: Solution, read_bytes_per_s: Sequence[float]
    ) -> None:
        self._spec = spec
        self.drift = Drift(spec, cluster)
        self._latest = solution  # where the next solve begins
        self.plan = solution.plan
        self._requests = 0
        self._again_at = 0  # how many requests make what was too dear worth another look; 0: nothing was
        self._read_bytes_per_s = read_bytes_per_s
        self._solved = self._factors()
        self._told = self.drift.cluster

    def observe(
        self,
        plan: Plan,
        rows: int,
        compute_s: Sequence[float],
        wait_s: Sequence[float],
        flow_bytes: Floats,
        busy_s: Floats,
    ) -> None:
        """Take what a request of `rows` rows measured under a plan, as `Drift` does."""
        self._requests += 1
        self.drift.computed(plan, rows, compute_s, wait_s)
        self.drift.carried(plan, flow_bytes, busy_s)

    def decide(self, aim: Plan | None = None) -> Decision | None:
        """Solve again if a factor has moved far enough; None if none has.

        Parameters
        ----------
        aim
            The plan that is being moved to, which another has to be better than.

        Returns
        -------
        Decision
            The caller acts on it, and says so by `take` where the plan changes.
        """
        factors = self._factors()
        shifted = (np.abs(factors - self._solved) >= SHIFT).any() or self._memory_shifted()
        if not shifted and not 0 < self._again_at <= self._requests:
            return None
        now = self.drift.cluster
        why = self._why(now) if shifted else f"nothing has changed for {self._since} requests"
        self._solved, self._told, self._again_at = factors, now, 0
        before_s = predict(self._spec, now, self.plan, self.plan.rows).seconds
        overdrawn = self._overdrawn(self.plan, now)
        if shifted and not overdrawn:
            # Rows alone move nothing and take half the time to share; what is better is looked for when it has lasted.
            plan = for_rows(self._spec, now, self.plan, self.plan.rows)
            self._again_at = self._requests + AGAIN
        else:
            try:
                self._latest = solve(self._spec, now, self.plan.rows, self._latest, self.plan.wire)
            except InfeasiblePlanError as error:
                return Decision(self.plan, False, f"{why} ({error})", "", before_s, before_s, 0.0)
            plan = self._latest.plan
        worth = _seconds(plan) <= (1 - LEAST_GAIN) * before_s and self._net_s(plan, before_s) > 0
        taken = (worth or overdrawn) and not self._overdrawn(plan, now)
        if aim is not None:
            aim_s = predict(self._spec, now, aim, aim.rows).seconds
            taken = taken and (_seconds(plan) <= (1 - LEAST_GAIN) * aim_s or self._overdrawn(aim, now))
        if not shifted and not taken and _seconds(plan) < (1 - LEAST_GAIN) * before_s:
            self._again_at = self._requests + self.horizon  # too dear so far
        cost_s = self.moving_s(plan)
        return Decision(plan, taken, why, self._shares(plan), before_s, _seconds(plan), cost_s)

    def _net_s(self, plan: Plan, before_s: float) -> float:
        """Return what a plan saves over the requests that are expected, less what moving to it takes.

        Requests wait for it at most one layer's time each, and run under the old plan until it is done.
        """
        requests = self.horizon - self._meanwhile(plan, before_s)
        return requests * (before_s - _seconds(plan)) - self.moving_s(plan)

    def _meanwhile(self, plan: Plan, before_s: float) -> float:
        """Return how many requests pass until ranks have what they lack for a plan."""
        return self.moving_s(plan) * self._spec.layers / before_s

    def take(self, plan: Plan) -> None:
        """Go on with a plan: of a decision, or what there is of it so far."""
        self.plan = plan

    @property
    def horizon(self) -> int:
        """Requests that are expected to follow as things are: as many as since the last change, and some at least."""
        return max(LEAST_HORIZON, self._since)

    @property
    def _since(self) -> int:
        """Requests since a device's speed changed last."""
        return min(tracker.since for tracker in self.drift.compute)

    def moving_s(self, plan: Plan) -> float:
        """Return the seconds that the slowest rank takes to get the weights that it lacks for another plan."""
        return max(
            moved_bytes(self._spec, self.plan, plan, rank) / rate for rank, rate in enumerate(self._read_bytes_per_s)
        )

    def _factors(self) -> Floats:
        """Return the logarithms of the factors on speed and bandwidth, [2, p]."""
        return np.log([[tracker.factor for tracker in trackers] for trackers in (self.drift.compute, self.drift.links)])

    def _memory_shifted(self) -> bool:
        """Return whether a device's memory has become scarce, or has come back, since the last solve."""
        for rank, (now, told) in enumerate(zip(self.drift.memory, self._told.devices, strict=True)):
            need = self._need(self.plan, rank)
            scarce = now < SCARCE * need and abs(now / told.memory_bytes - 1) > MEMORY_SHIFT
            if scarce or now > SCARCE * told.memory_bytes:
                return True
        return False

    def _overdrawn(self, plan: Plan, now: Cluster) -> bool:
        """Return whether a device lacks memory for what it holds and computes under a plan."""
        return any(self._need(plan, rank) > device.memory_bytes for rank, device in enumerate(now.devices))

    def _need(self, plan: Plan, rank: int) -> int:
        return weights_bytes(self._spec, plan, rank) + work_bytes(self._spec, plan.rows)

    def _why(self, now: Cluster) -> str:
        """Say what changed since the last decision, the largest first."""
        found: list[tuple[float, str]] = []
        least_memory = MEMORY_SHIFT if self._memory_shifted() else math.inf
        for rank, (device, was) in enumerate(zip(now.devices, self._told.devices, strict=True)):
            changes = (
                (was.compute_flop_per_s, device.compute_flop_per_s, 1e9, "GFLOP/s", "went", SHIFT),
                (self._told.bandwidth(rank), now.bandwidth(rank), 1e6 / 8, "Mbps", "'s link went", SHIFT),
                (was.memory_bytes, device.memory_bytes, GIB, "GiB free", "went", least_memory),
            )
            for before, after, unit, name, went, least in changes:
                size = abs(math.log(max(after, 1) / before))
                if size >= least:
                    subject = device.name + ("" if went.startswith("'") else " ") + went
                    found.append((size, f"{subject} from {before / unit:.3g} to {after / unit:.3g} {name}"))
        found.sort(reverse=True)
        recent = min(tracker.since for tracker in (*self.drift.compute, *self.drift.links)) + 2
        return " and ".join(text for _, text in found[:NAMED]) + f" {recent} requests ago" if found else "slow drift"

    def _shares(self, plan: Plan) -> str:
        """Say whose shares of the first layer change most, attention before MLP."""
        before, after = self.plan.layer(0), plan.layer(0)
        parts = []
        for name, old, new in (("attention", before.attention, after.attention), ("MLP", before.mlp, after.mlp)):
            mine, theirs = _counts(old, self.plan.rows), _counts(new, self.plan.rows)
            if mine[0] != theirs[0]:
                parts.append(f"{name} by {theirs[0]} instead of {mine[0]}: {' '.join(map(str, theirs[1]))}")
            elif mine[1] != theirs[1]:
                parts.append(f"{name} {mine[0]} {' '.join(map(str, mine[1]))} → {' '.join(map(str, theirs[1]))}")
        if len(parts) == 2 and parts[0].removeprefix("attention") == parts[1].removeprefix("MLP"):
            return parts[0].removeprefix("attention ")
        return ", ".join(parts) or "other layers"


def _seconds(plan: Plan) -> float:
    assert plan.predicted is not None
    return plan.predicted.seconds


def _counts(block: BlockPlan, rows: int) -> tuple[str, tuple[int, ...]]:
    if block.inner is not None:
        return ("heads or columns", block.inner.counts)
    partition = block.row_partition(rows)
    assert partition is not None
    return "rows", partition.counts


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}"
