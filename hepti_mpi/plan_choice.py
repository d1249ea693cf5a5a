"""Which plan a run begins with, and what it is made for."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hepti_mpi import defaults
from solver.cluster.cluster import Cluster
from solver.cluster.named import find_cluster
from solver.model.spec import ModelSpec
from solver.plan.changes import all_bytes
from solver.plan.file import read_plan
from solver.plan.plan import Plan
from solver.systems import DEFAULT, plan_that_fits
from solver.systems.hepti import solve_hepti

if TYPE_CHECKING:
    from solver.live.trials import Trials
    from solver.programs.planner import Solution

# What is planned for where nothing is known of the requests: standard input.
TYPICAL_ROWS = 128


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan, and what goes with it.

    Parameters
    ----------
    cluster
        What the plan is for; None where a file gave the plan alone.
    boards
        Whose seconds are predicted, in words.
    solution, spare
        Where devices that change may change the plan; the plan by rows whose weights ranks hold besides.
    trials
        Where batches of other lengths run under plans of their own, and several plans may be tried.
    """

    plan: Plan
    cluster: Cluster | None
    boards: str
    solution: Solution | None = None
    spare: Plan | None = None
    trials: Trials | None = None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """All plans that ranks hold weights for, the first to run in front."""
        if self.trials is not None:
            return self.trials.plans
        return (self.plan,) if self.spare is None else (self.plan, self.spare)


def choose(
    options: argparse.Namespace,
    spec: ModelSpec,
    rows: int,
    requests: int,
    ranks: int,
    measured: Cluster | None,
    say: Callable[[str], object],
) -> Choice:
    """Read or make the plan for so many requests of `rows` rows, 0 if unknown.

    `measured` is planned for if no file says more.

    Raises
    ------
    HeptiError
        If there is no plan, or it does not fit.
    """
    cluster, boards = measured, _boards(options, measured)
    if options.cluster is not None:
        whole = find_cluster(options.cluster)
        cluster = whole.first(ranks, options.cluster)
        if left := whole.names[ranks:]:
            say(f"note: {ranks} ranks, {len(whole.names)} devices in {options.cluster}: without {', '.join(left)}")
    if options.plan is not None:
        choice = Choice(read_plan(options.plan), cluster, boards)
    else:
        # Example boards have nothing that could change.
        may_change = options.replan != "off" and cluster is not None and ranks > 1
        if cluster is None:
            cluster = defaults.example_cluster(ranks)
            say("note: the shares are those of example boards, not of these hosts: give --model or --cluster")
        cluster = cluster.holding(options.precision)
        if may_change:
            choice = _living(spec, cluster, boards, rows or TYPICAL_ROWS, options)
        else:
            choice = _lasting(spec, cluster, boards, rows or TYPICAL_ROWS, requests, options)
            if options.plan_by == "measure" and len(choice.plans) == 1:
                say("note: --plan-by measure tries no other plan: none is likely to be faster, or memory holds none")
    choice.plan.check(spec, ranks)
    if choice.plan.in_one:
        options.wire.check_one_stage()
    return choice


def _boards(options: argparse.Namespace, measured: Cluster | None) -> str:
    """Return whose seconds are predicted: a cluster file may be of boards that are not there, as the example is."""
    if options.cluster is not None:
        return f"the boards of {options.cluster}"
    if options.plan is not None:
        return f"the boards of {options.plan}"
    if measured is not None:
        return "these hosts"
    return f"the example boards of {defaults.EXAMPLE}, not these hosts"


def _living(spec: ModelSpec, cluster: Cluster, boards: str, rows: int, options: argparse.Namespace) -> Choice:
    """Make a plan that may change."""
    from solver.live.first_plan import plan_to_begin_with  # the solvers are for rank 0 alone
    from solver.programs.planner import solve

    solution, spare = plan_to_begin_with(spec, cluster, solve(spec, cluster, rows, wire=options.wire))
    return Choice(solution.plan, cluster, boards, solution, spare)


def _lasting(
    spec: ModelSpec, cluster: Cluster, boards: str, rows: int, requests: int, options: argparse.Namespace
) -> Choice:
    """Make a plan that stays, or several of which one will, once they have been tried."""
    if options.system != DEFAULT:
        return Choice(plan_that_fits(options.system, spec, cluster, rows, options.wire), cluster, boards)
    from solver.live.trials import Trials, plans_to_try  # the solvers are for rank 0 alone
    from solver.live.turns import TURNS, pays

    plan, solution = solve_hepti(spec, cluster, rows, options.wire)
    if not plan.in_one or options.replan != "off":
        return Choice(plan, cluster, boards)
    plans = [plan]
    # To look for others takes a third of a second: not where two would have all requests for themselves.
    if solution is not None and (options.plan_by == "measure" or (options.plan_by is None and requests > 2 * TURNS)):
        plans = plans_to_try(spec, cluster, solution)
        if options.plan_by is None:
            ranks = range(len(cluster.devices))
            read_bytes = max(all_bytes(spec, plans, rank) - all_bytes(spec, plans[:1], rank) for rank in ranks)
            if not pays([plan.predicted_s for plan in plans], read_bytes / defaults.READ_BYTES_PER_S, requests):
                plans = [plan]
    return Choice(plan, cluster, boards, trials=Trials(spec, cluster, plans))
