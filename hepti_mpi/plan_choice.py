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
from solver.plan.file import read_plan
from solver.plan.plan import Plan
from solver.systems import DEFAULT, plan_that_fits

if TYPE_CHECKING:
    from solver.programs.lengths import PlansByLength
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
    by_length
        Where batches of other lengths run under plans of their own.
    """

    plan: Plan
    cluster: Cluster | None
    boards: str
    solution: Solution | None = None
    spare: Plan | None = None
    by_length: PlansByLength | None = None


def choose(
    options: argparse.Namespace,
    spec: ModelSpec,
    rows: int,
    ranks: int,
    measured: Cluster | None,
    say: Callable[[str], object],
) -> Choice:
    """Read or make the plan for requests of `rows` rows, 0 if unknown; `measured` is planned for if no file says more.

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
            plan = plan_that_fits(options.system, spec, cluster, rows or TYPICAL_ROWS, options.wire)
            follows = options.replan == "off" and options.system == DEFAULT and plan.in_one
            choice = Choice(plan, cluster, boards, by_length=_by_length(spec, cluster, plan) if follows else None)
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


def _by_length(spec: ModelSpec, cluster: Cluster, plan: Plan) -> PlansByLength:
    from solver.programs.lengths import PlansByLength  # the solvers are for rank 0 alone

    return PlansByLength(spec, cluster, plan)
