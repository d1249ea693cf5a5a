"""When a plan is changed while it runs: what changed, what another plan would save, what changing to it costs.

A device's factors move (`solver.live.drift`); once they are far from those that the plan was last solved for, it is
solved again: at once for plans whose weights all ranks hold, and later, if the change has lasted, for all else; that
takes long, and goes on in another process while requests run (`solver.live.planning`). A plan is taken if what it saves
over the requests that are expected is more than the seconds that moving costs, and is worth the trouble at all.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace

import numpy as np

from solver.base.errors import InfeasiblePlanError
from solver.cluster.cluster import GIB, Cluster
from solver.cluster.curves import Floats
from solver.live.decision import LEAST_SAVED, Decision, is_worth, shares
from solver.live.drift import Drift
from solver.live.first_plan import among
from solver.live.observe import SLIGHT
from solver.live.planning import solved_again
from solver.model.spec import ModelSpec
from solver.plan.changes import Holdings, all_by_rows
from solver.plan.holdings import all_weights_bytes
from solver.plan.plan import Plan
from solver.programs.lengths import for_rows
from solver.programs.planner import Solution
from solver.schedule.encoders.cost import predict, request_seconds, setting
from solver.schedule.encoders.memory import holds_all, needed_bytes
from solver.schedule.exchange import Mask
from solver.systems.sequence import rows_plan

SHIFT = math.log(1.15)  # how far a factor has to be from where the plan was solved, for solving again
# The same for memory, relative, where a device has less than so many times what its share takes.
MEMORY_SHIFT, SCARCE = 0.1, 1.5
# Of a request's seconds: less is within what predictions err by. Four equal boards whose speeds seem to differ by 3 to
# 4 %, as averages of unsteady requests do, have a plan that seems 4 to 5 % faster.
# Half of that, `LEAST_SAVED`, is enough where a device is half as fast again or slower, and where what runs was taken
# for a guess, and would not have been for what is known now.
LEAST_GAIN = 0.06
NAMED = 2  # changes in a decision's line: the largest
# At least so many requests are expected to follow; of a change that has lasted longer, as many as it has.
LEAST_HORIZON = 20
# Requests after a change, until it is looked whether others could have all weights, and, where a factor has moved so
# far, for what is had at once: levels that were guesses are corrected by then. In the lab a device that had had few
# rows seemed to be back at 59 of its 70 GFLOP/s, for which rows seemed the best plan: 340 ms, where it is 295 as
# before.
AGAIN, CORRECTED = 5, math.log(1.05)
# Solutions that are kept: a device that has come back needs no other, and to solve takes rank 0, in the lab with 0.3 of
# a core, 220 to 280 ms, for which a request waits.
KNOWN = 8


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What a plan is sought for: the devices, who could run other rows at once, what changed, and how much."""

    now: Cluster
    factors: Floats
    at_once: Mask
    why: str
    shifted: bool
    lasted: bool
    moved: float


class Replanner:
    """Follows the devices and decides about plans; pure, for rank 0.

    Parameters
    ----------
    spec
        The model.
    cluster
        The profile that the first plan was made for.
    plan
        That plan.
    spare
        The plan by rows whose weights ranks hold besides.
    read_bytes_per_s : [p]
        How fast each rank gets weights, from its file or from rank 0.
    solves
        Runs what takes long: `solver.live.planning.PlanningProcess`.
    solution
        How the first plan was found; None where a file had it.
    """

    def __init__(
        self,
        spec: ModelSpec,
        cluster: Cluster,
        plan: Plan,
        spare: Plan | None,
        read_bytes_per_s: Sequence[float],
        solves: Executor,
        solution: Solution | None = None,
    ) -> None:
        self._spec, self._solves = spec, solves
        self._solving: tuple[Future[Solution], Change] | None = None
        self.drift = Drift(spec, cluster)
        # The latest first, with the logarithms of the factors that they were solved for.
        self._solutions: deque[tuple[Floats, Solution]] = deque(maxlen=KNOWN)
        if solution is not None:
            self._solutions.append((np.zeros((2, len(cluster.devices))), solution))
        self.plan = plan
        self._holdings = Holdings(plan, len(cluster.devices), spare)
        self._requests = 0
        self._again_at = 0.0  # how many requests make what was too dear worth another look; 0: nothing was
        self._read_bytes_per_s = read_bytes_per_s
        self._solved = self._factors()
        self._told = self._planned_for = self.drift.cluster

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

    def observe_part(
        self, plan: Plan, rows: int, compute_s: Sequence[float], wait_s: Sequence[float], done: Floats
    ) -> bool:
        """Take what a request measured so far, `done` of it, [p]; return whether a device's speed has changed."""
        return bool(self.drift.computed(plan, rows, compute_s, wait_s, done))

    def decide(self, aim: Plan | None = None, *, now_only: bool = False) -> Decision | None:
        """Solve again if a factor has moved far enough; None if none has, and as long as a solve is under way.

        Parameters
        ----------
        aim
            The plan that is being moved to, which another has to be better than.
        now_only
            Whether a request is under way: what is due because a change has lasted has to wait.

        Returns
        -------
        Decision
            The caller acts on it, and says so by `take` where the plan changes.
        """
        if self._solving is not None:
            return self._solved_for(*self._solving, aim)
        factors = self._factors()
        moved = float(np.abs(factors - self._solved).max())
        shifted = moved >= SHIFT or self._memory_shifted()
        lasted = self._since >= LEAST_HORIZON
        if not shifted and (now_only or not 0 < self._again_at <= self._requests):
            return None
        now = self.drift.cluster
        others_could = self._others_could(now)
        if not shifted and not others_could.any() and (self._is_known(factors) if lasted else moved < CORRECTED):
            self._again_at = 0 if lasted else self._requests + LEAST_HORIZON - self._since
            return None
        as_it_was = lasted and not shifted
        why = f"all as it was for {self._since} requests" if as_it_was else self._why(now, in_request=now_only)
        # A further change does not put off what is due after the first.
        due = min(self._again_at or math.inf, self._requests + AGAIN)
        self._told, self._again_at = now, 0
        at_once = holds_all(self._spec, now, self.plan.rows) & ~others_could
        at_work = np.isin(np.arange(at_once.size), self._active())
        if not (now_only and (at_once & ~at_work).any()):  # else there is more to decide after the request
            self._solved = factors
        if now_only:
            at_once &= at_work
        before_s = self._seconds(now, self.plan)
        if not shifted and (spare := self._spare(now, others_could)):
            self._again_at = self._requests + LEAST_HORIZON
            changes = "what else could run is got again"
            return Decision(self.plan, True, why, changes, before_s, before_s, self.moving_s(spare), spare=spare)
        change = Change(now, factors, at_once, why, shifted, lasted, moved)
        plan = self._at_once(change) if shifted or not lasted else None
        if not shifted and not lasted and others_could.any():
            plan = min(filter(None, (plan, self._among_all(now))), key=lambda plan: plan.predicted_s, default=None)
        if plan is not None:
            self._again_at = due if shifted else self._requests + LEAST_HORIZON
            return self._conclude(plan, before_s, aim, change)
        former = self._nearest(factors)
        before = None if former is None else former[1]
        solution = self._solves.submit(solved_again, self._spec, now, self.plan.rows, before, self.plan.wire)
        self._solving = solution, change
        return self._solved_for(solution, change, aim)

    def _solved_for(self, future: Future[Solution], change: Change, aim: Plan | None) -> Decision | None:
        """Decide about what the solve under way has found; None if it is not done.

        That is the best plan of all, or the best at once where that one is not worth it, and this is.
        """
        if not future.done():
            return None
        self._solving, before_s = None, self._seconds(change.now, self.plan)
        try:
            solution = future.result()
        except InfeasiblePlanError as error:
            return Decision(self.plan, False, f"{change.why} ({error})", "", before_s, before_s, 0.0)
        self._solutions.appendleft((change.factors, solution))
        plan = solution.plan
        if not self._is_worth(plan, before_s):
            held = self._at_once(change)
            plan = held if held is not None and self._is_worth(held, before_s) else plan
        return self._conclude(plan, before_s, aim, change)

    def _conclude(self, plan: Plan, before_s: float, aim: Plan | None, change: Change) -> Decision:
        """Decide whether a plan is taken; under what runs a request takes `before_s`."""
        now, short = change.now, self._short(change.now, self._held_bytes())
        least_gain = LEAST_GAIN if change.lasted or (change.shifted and change.moved < SLIGHT) else LEAST_SAVED
        taken = (self._is_worth(plan, before_s, least_gain) or bool(short)) and self._fits(plan, now)
        if aim is not None:
            aim_s, aim_fits = self._seconds(now, aim), self._fits(aim, now)
            taken = taken and (plan.predicted_s <= (1 - LEAST_GAIN) * aim_s or not aim_fits)
            if not taken and aim != self.plan and not (aim_fits and aim_s < before_s):
                return Decision(self.plan, True, change.why, "what was begun is given up", aim_s, before_s, 0.0)
        if not change.shifted and not taken and plan.predicted_s < (1 - LEAST_GAIN) * before_s:
            self._again_at = self._requests + self.horizon  # too dear so far
        cost_s = self.moving_s(plan)
        frees = tuple(self._short(now, self._held_bytes(plan)))
        changes = shares(self.plan, plan) if plan != self.plan else "what else could run is freed"
        return Decision(plan, taken, change.why, changes, before_s, plan.predicted_s, cost_s, frees)

    def _seconds(self, now: Cluster, plan: Plan) -> float:
        """Return what a request takes under a plan."""
        return request_seconds(setting(self._spec, now, plan.rows), plan)

    def _is_worth(self, plan: Plan, before_s: float, least_gain: float = LEAST_GAIN) -> bool:
        """Return whether a plan saves enough, and more than moving to it takes."""
        times = self.horizon - self._meanwhile(plan, before_s)
        return is_worth(before_s, plan.predicted_s, times, self.moving_s(plan), least_gain)

    def _nearest(self, factors: Floats) -> tuple[float, Solution] | None:
        """Return how far from some factors the nearest were for which there is a solution, and that one."""
        return min(self._apart(factors), key=lambda entry: entry[0], default=None)

    def _apart(self, factors: Floats) -> list[tuple[float, Solution]]:
        """Return all solutions, with how far from some factors they were solved."""
        return [(float(np.abs(factors - solved).max()), solution) for solved, solution in self._solutions]

    def _is_known(self, factors: Floats) -> bool:
        """Return whether what runs was found by solving for all as it is now; a plan by rows alone may be another."""
        nearest = self._nearest(factors)
        return nearest is not None and nearest[0] < SHIFT and all_by_rows(self.plan) == all_by_rows(nearest[1].plan)

    def _at_once(self, change: Change) -> Plan | None:
        """Return the best plan for which nobody lacks weights; None if none fits.

        The cuts that run, all by rows, or the other cuts that ranks hold: each with other shares of rows, of which
        those may have some, too, that have all weights. What was solved for nearly these speeds before, in place
        of what is hardly better.
        """
        now, whole = change.now, change.at_once
        others = [plan for plan in self._holdings.plans(0) if not all_by_rows(plan) and plan != self.plan]
        if whole.any():
            others.append(self._by_rows(now, whole))
        joining = np.flatnonzero(whole).tolist()
        found = []
        for plan in (*([] if all_by_rows(self.plan) else [self.plan]), *others):
            if self._lack(plan, range(len(now.devices))):
                continue
            # Without new ways to send, in a fifth of the time that a solve takes.
            other = for_rows(self._spec, now, plan, self.plan.rows, resend=False, joining=joining)
            # Who had a share before lacks nothing that other rows need.
            joined = {*other.stages[0].active} - {*plan.stages[0].active}
            if not self._lack(other, joined) and self._fits(other, now):
                found.append(other)
        best = min(found, key=lambda plan: plan.predicted_s, default=None)
        known = self._known(now, change.factors)
        hardly = known is not None and best is not None and best.predicted_s > (1 - LEAST_GAIN) * known.predicted_s
        return known if hardly else best

    def _known(self, now: Cluster, factors: Floats) -> Plan | None:
        """Return the best of the plans that were solved for nearly these factors and can run at once, if any."""
        found = (
            replace(solution.plan, predicted=predict(self._spec, now, solution.plan, self.plan.rows))
            for apart, solution in self._apart(factors)
            if apart < SLIGHT
            and not self._lack(solution.plan, range(len(now.devices)))
            and self._fits(solution.plan, now)
        )
        return min(found, key=lambda plan: plan.predicted_s, default=None)

    def _lack(self, plan: Plan, ranks: Collection[int]) -> bool:
        return any(self._holdings.lacking(self._spec, plan, rank) for rank in ranks)

    def _among_all(self, now: Cluster) -> Plan | None:
        """Return the best plan by rows among all that could have the weights; None where that is not what runs."""
        crew = holds_all(self._spec, now, self.plan.rows)
        if not (all_by_rows(self.plan) and crew.any()):
            return None
        return for_rows(self._spec, now, self._by_rows(now, crew), self.plan.rows, resend=False)

    def _spare(self, now: Cluster, others_could: Mask) -> Plan | None:
        """Return a plan by rows for which some lack weights, and all have room besides what runs, if any."""
        if all_by_rows(self.plan) or not others_could.any():
            return None
        spare = self._by_rows(now, holds_all(self._spec, now, self.plan.rows))
        return None if self._short(now, self._held_bytes(spare)) else spare

    def _others_could(self, now: Cluster) -> Mask:
        """Return who could hold all weights and does not, [p]."""
        everybody = self._by_rows(now, np.ones(len(now.devices), bool))
        lacks = [self._holdings.moved_bytes(self._spec, everybody, rank) > 0 for rank in range(len(now.devices))]
        return holds_all(self._spec, now, self.plan.rows) & lacks

    def _by_rows(self, now: Cluster, crew: Mask) -> Plan:
        """Return a plan by rows, shared among a crew by speed; tiles and routes are those of what runs, or has run."""
        known = [plan for plan in (self.plan, *self._holdings.plans(0)) if all_by_rows(plan)]
        if known:
            return among(known[0], now, crew)
        equal = rows_plan("hepti", self._spec, now, self.plan.rows, [1.0] * crew.size)
        return among(replace(equal, wire=self.plan.wire), now, crew)

    def _meanwhile(self, plan: Plan, before_s: float) -> float:
        """Return how many requests pass until ranks have what they lack for a plan.

        They run under the old plan. A rank that computes works on it for a layer's time after every request; one
        without a share all the time.
        """
        active = self._active()
        return max(
            seconds / before_s * (self._spec.layers if rank in active else 1)
            for rank, seconds in enumerate(self._reading_s(plan))
        )

    def take(self, plan: Plan, holdings: Holdings) -> None:
        """Go on with a plan: of a decision, or what there is of it so far; and with what ranks hold."""
        if plan != self.plan:
            self._planned_for = self._told
        self.plan, self._holdings = plan, holdings

    @property
    def horizon(self) -> int:
        """Requests that are expected to follow as things are: as many as since the last change, and some at least."""
        return max(LEAST_HORIZON, self._since)

    @property
    def _since(self) -> int:
        """Requests since a device's speed changed last."""
        return min(tracker.since for tracker in self.drift.compute)

    def moving_s(self, plan: Plan) -> float:
        """Return the seconds for which requests wait while ranks with a share get what they lack for another plan."""
        active = self._active()
        return max(seconds for rank, seconds in enumerate(self._reading_s(plan)) if rank in active)

    def _reading_s(self, plan: Plan) -> list[float]:
        """Return the seconds that every rank takes to get the weights that it lacks for another plan, [p]."""
        return [
            self._holdings.moved_bytes(self._spec, plan, rank) / rate
            for rank, rate in enumerate(self._read_bytes_per_s)
        ]

    def _active(self) -> tuple[int, ...]:
        return self.plan.stages[0].active

    def _factors(self) -> Floats:
        """Return the logarithms of the factors on speed and bandwidth, [2, p]."""
        return np.log([[tracker.factor for tracker in trackers] for trackers in (self.drift.compute, self.drift.links)])

    def _memory_shifted(self) -> bool:
        """Return whether a device's memory has become scarce, or has come back, since the last solve."""
        needs = needed_bytes(self._spec, self.drift.profile.precision, self.plan.rows, self._held_bytes())
        for now, told, need in zip(self.drift.memory, self._told.devices, needs, strict=True):
            scarce = now < SCARCE * need and abs(now / told.memory_bytes - 1) > MEMORY_SHIFT
            if scarce or now > SCARCE * told.memory_bytes:
                return True
        return False

    def _short(self, now: Cluster, weights_bytes: Sequence[int]) -> list[int]:
        """Return the ranks that lack memory for so many bytes of weights, [p]."""
        needs = needed_bytes(self._spec, self.drift.profile.precision, self.plan.rows, weights_bytes)
        return [rank for rank, device in enumerate(now.devices) if needs[rank] > device.memory_bytes]

    def _fits(self, plan: Plan, now: Cluster) -> bool:
        """Return whether all have memory for a plan, once they hold nothing else."""
        return not self._short(now, all_weights_bytes(self._spec, plan, self.drift.profile.precision))

    def _held_bytes(self, plan: Plan | None = None) -> list[int]:
        """Return the bytes of weights that every rank holds, or would once it has adopted a plan, [p]."""
        precision, ranks = self.drift.profile.precision, range(len(self.drift.profile.devices))
        if plan is None:
            return [self._holdings.held_bytes(self._spec, rank, precision) for rank in ranks]
        return [self._holdings.bytes_with(self._spec, plan, rank, precision) for rank in ranks]

    def _why(self, now: Cluster, *, in_request: bool = False) -> str:
        """Say what changed since the plan did, the largest first."""
        found: list[tuple[float, str]] = []
        least_memory = MEMORY_SHIFT if self._memory_shifted() else math.inf
        for rank, (device, was) in enumerate(zip(now.devices, self._planned_for.devices, strict=True)):
            changes = (
                (was.compute_flop_per_s, device.compute_flop_per_s, 1e9, "GFLOP/s", "went", SHIFT),
                (self._planned_for.bandwidth(rank), now.bandwidth(rank), 1e6 / 8, "Mbps", "'s link went", SHIFT),
                (was.memory_bytes, device.memory_bytes, GIB, "GiB free", "went", least_memory),
            )
            for before, after, unit, name, went, least in changes:
                size = abs(math.log(max(after, 1) / before))
                if size >= least:
                    subject = device.name + ("" if went.startswith("'") else " ") + went
                    found.append((size, f"{subject} from {before / unit:.3g} to {after / unit:.3g} {name}"))
        found.sort(reverse=True)
        if not found:
            return "slow drift"
        recent = min(tracker.since for tracker in (*self.drift.compute, *self.drift.links)) + 2
        when = "within this request" if in_request else f"{recent} requests ago"
        return f"{' and '.join(text for _, text in found[:NAMED])} {when}"
