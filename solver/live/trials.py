"""The first requests run under several plans in turn, and the fastest measured stays.

Of many plans the one that is predicted to be the fastest is the one that the profile's errors flatter most. Every plan
gives the same answers, so trying costs next to nothing: "measure" in FFTW (Frigo and Johnson, "The Design and
Implementation of FFTW3", Proceedings of the IEEE 93, 2005, section IV).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from solver.base.phrases import counted
from solver.cluster.cluster import Cluster
from solver.model.spec import ModelSpec
from solver.plan.changes import all_bytes
from solver.plan.plan import Plan
from solver.programs.lengths import PlansByLength
from solver.programs.planner import Solution, best_plan_of
from solver.schedule.cost import predict
from solver.schedule.layer_table import kind_of
from solver.schedule.memory import SLIP_BYTES, short_bytes

ERROR = 0.07  # of a prediction, on average of many measured points: what differs by less than twice that may be faster
MOST = 3  # plans; with `TURNS` the tenth request runs under the best
TURNS = 3  # of every plan, the first of which warms it up


def plans_to_try(spec: ModelSpec, cluster: Cluster, solution: Solution) -> list[Plan]:
    """Return the plan of a solution, and the best of other kinds that may be faster, as far as memory holds all."""
    plans, limit_s = [solution.plan], (1 + 2 * ERROR) * solution.plan.predicted_s
    alone = solution.crew if len(solution.crew) == 1 else ()  # all kinds are one where a device computes alone
    used = {layer.kind.cuts for layer, _ in solution.runs}
    others = (
        best_plan_of(solution.setting, cluster, [(layer, spec.layers)], resend=True)
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


class Trials:
    """Says under which of some plans the next request runs, with the shares of rows for its length.

    Parameters
    ----------
    spec, cluster
        What was planned for.
    plans
        In the order in which they are tried, for requests of the same rows; one alone is not tried, but runs.
    """

    def __init__(self, spec: ModelSpec, cluster: Cluster, plans: Sequence[Plan]) -> None:
        self._spec, self._cluster, self.plans = spec, cluster, tuple(plans)
        self._by_length = [PlansByLength(spec, cluster, plan) for plan in plans]
        self._ratios: list[list[float]] = [[] for _ in plans]  # of measured to predicted seconds

    @property
    def several(self) -> bool:
        """Whether there is more than one plan."""
        return len(self.plans) > 1

    @property
    def settled(self) -> bool:
        """Whether all plans have had their turns."""
        return not self.several or min(map(len, self._ratios)) >= TURNS

    @property
    def number(self) -> int:
        """Which plan the next request runs under: in turn, and in the end the fastest."""
        turns = [len(ratios) for ratios in self._ratios]
        if not self.settled:
            return turns.index(min(turns))
        return min(range(len(turns)), key=self._seconds) if self.several else 0

    @property
    def stays(self) -> int:
        """Which plan is the one that runs, as far as is known: the first one, until all have had their turns."""
        return self.number if self.settled else 0

    @property
    def plan(self) -> Plan:
        """That plan, as it is for the rows that all were made for."""
        return self.plans[self.stays]

    def lasting(self, rows: int) -> Plan:
        """Return that plan for requests of so many rows."""
        return self._by_length[self.stays].of(rows)

    def of(self, rows: int) -> Plan:
        """Return the plan for the next request, of so many rows."""
        return self._by_length[self.number].of(rows)

    def ran(self, rows: int, seconds: float) -> None:
        """Take how long the request of so many rows took for which `of` said the plan."""
        if not self.settled:
            predicted = predict(self._spec, self._cluster, self.of(rows), rows)
            self._ratios[self.number].append(seconds / predicted.seconds)

    def to_table(self) -> list[dict[str, Any]]:
        """Return the report's entries: the cuts of every plan, and its seconds as predicted and as measured."""
        return [
            {
                "cuts": cuts_of(plan),
                "predicted_s": plan.predicted_s,
                "seconds": self._seconds(number) if len(self._ratios[number]) > 1 else None,
                "turns": len(self._ratios[number]),
                "stays": self.settled and number == self.number,
            }
            for number, plan in enumerate(self.plans)
        ]

    @property
    def line(self) -> str:
        """What came of it, as a person reads it."""
        tried = ", ".join(
            f"{entry['cuts']} {_ms(entry['seconds'])} (predicted {_ms(entry['predicted_s'])})"
            for entry in self.to_table()
        )
        if not self.settled:
            stays = "too few requests to say which is the fastest"
        else:
            stays = f"{cuts_of(self.plan)} stays; times of all requests are with the first {TURNS * len(self.plans)}"
        rows = counted(self.plans[0].rows, "row")
        return f"{counted(len(self.plans), 'plan')} tried in turn, ms for {rows}: {tried}; {stays}"

    def _seconds(self, number: int) -> float:
        """Return what requests took under a plan, of the rows that it was made for: the least but for the first.

        What disturbs a request makes it longer, never shorter.
        """
        return min(self._ratios[number][1:]) * self.plans[number].predicted_s


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.1f}"


def cuts_of(plan: Plan) -> str:
    """Return in words how the blocks of a plan's first layer are cut, and where their norms are."""
    return str(kind_of(plan.layer(0)))
