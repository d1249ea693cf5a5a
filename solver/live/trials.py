"""Which plans of a transformer are tried in turn, with the shares of rows for every request's length."""

from __future__ import annotations

from collections.abc import Sequence

from solver.base.phrases import counted
from solver.cluster.cluster import Cluster
from solver.live.turns import ERROR, MOST, Turns
from solver.model.spec import ModelSpec
from solver.plan.changes import all_bytes
from solver.plan.plan import Plan
from solver.programs.lengths import PlansByLength
from solver.programs.planner import Solution, best_plan_of
from solver.schedule.encoders.cost import predict
from solver.schedule.encoders.layer_table import kind_of
from solver.schedule.encoders.memory import short_bytes
from solver.schedule.shortage import SLIP_BYTES


def plans_to_try(spec: ModelSpec, cluster: Cluster, solution: Solution) -> list[Plan]:
    """Return the plan of a solution, and the best of other kinds that may be faster, as far as memory holds all."""
    plans, limit_s = [solution.plan], (1 + 2 * ERROR) * solution.plan.predicted_s
    alone = solution.crew if len(solution.crew) == 1 else ()  # all kinds are one where a device computes alone
    used = {layer.kind.cuts for layer, _ in solution.runs}
    others = (
        best_plan_of(solution.setting, cluster, [(layer, spec.layers)])
        for layer in solution.kinds[: 2 * MOST]
        if layer.kind.cuts not in used and layer.crew != alone
    )
    for plan in sorted(others, key=lambda plan: plan.predicted_s):
        every = [*plans, plan]
        held = [all_bytes(spec, every, rank, cluster.precision) for rank in range(len(cluster.devices))]
        if plan.predicted_s <= limit_s and len(every) <= MOST and _fits(spec, cluster, every, held):
            plans = every
    return plans


def _fits(spec: ModelSpec, cluster: Cluster, plans: Sequence[Plan], held_bytes: Sequence[int]) -> bool:
    return all(short_bytes(spec, cluster, plan, held_bytes).max() <= SLIP_BYTES for plan in plans)


class Trials(Turns[Plan]):
    """Says under which of some plans the next request runs, with the shares of rows for its length.

    Parameters
    ----------
    spec, cluster
        What was planned for.
    plans
        As `Turns` says; for requests of the same rows.
    """

    def __init__(self, spec: ModelSpec, cluster: Cluster, plans: Sequence[Plan]) -> None:
        super().__init__(plans, cuts_of, f"{counted(plans[0].rows, 'row')} (norms: r on rows, f on full)")
        self._spec, self._cluster = spec, cluster
        self._by_length = [PlansByLength(spec, cluster, plan) for plan in plans]

    def lasting(self, rows: int) -> Plan:
        """Return the plan that runs, as far as is known, for requests of so many rows."""
        return self._by_length[self.stays].of(rows)

    def of(self, rows: int) -> Plan:
        """Return the plan for the next request, of so many rows."""
        return self._by_length[self.number].of(rows)

    def ran(self, rows: int, seconds: float) -> None:
        """Take how long the request of so many rows took for which `of` said the plan."""
        if not self.settled:
            self.took(seconds, predict(self._spec, self._cluster, self.of(rows), rows).seconds)


def cuts_of(plan: Plan) -> str:
    """Return in words how the blocks of a plan's first layer are cut, and where their norms are."""
    return str(kind_of(plan.layer(0)))
