"""Which plan a run begins with, and what it is made for."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hepti_mpi.report.alone import predicted_for
from hepti_mpi.session import defaults
from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster
from solver.live.turns import NO_OTHER, TURNS, pays
from solver.model.precision import FLOAT32
from solver.model.spec import ModelSpec, typical_rows
from solver.plan.changes import all_bytes
from solver.plan.file import check_plan, read_plan, sent_as
from solver.plan.plan import Plan
from solver.schedule.encoders.cost import predict
from solver.schedule.encoders.memory import lacks
from solver.systems import DEFAULT, plan_that_fits
from solver.systems.hepti import solve_hepti

if TYPE_CHECKING:
    from solver.live.trials import Trials
    from solver.programs.planner import Solution


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan, and what goes with it.

    Parameters
    ----------
    cluster
        What the plan is for; None where a file gave the plan alone.
    may_change
        Whether devices that change may change the plan.
    solution, spare
        Then how it was found, if not in a file, and the plan by rows whose weights ranks hold besides.
    trials
        Where batches of other lengths run under plans of their own, and several plans may be tried.
    """

    plan: Plan
    cluster: Cluster | None
    may_change: bool = False
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
    cluster: Cluster | None,
    say: Callable[[str], object],
) -> Choice:
    """Read or make the plan for so many requests of `rows` rows, 0 if unknown, on the boards of `cluster`, if known.

    Raises
    ------
    HeptiError
        If there is no plan, or it does not fit.
    """
    precision = options.precision or FLOAT32.name
    notes = []  # told when nothing is refused any more
    if options.cluster is not None and cluster is not None and cluster.precision.name != precision:
        notes.append(predicted_for(cluster.precision.name, options.cluster, f"--precision {precision}"))
    # Example boards have nothing that could change.
    may_change = options.replan != "off" and cluster is not None and ranks > 1
    if options.plan is not None:
        plan = sent_as(read_plan(options.plan, Plan), options.wire)
        plan = replace(plan, rows=plan.rows or rows or typical_rows(spec))
        check_plan(options.plan, plan, spec, ranks)
        notes += [f"{options.plan}: {text}" for text in plan.unheeded]
        if may_change:
            assert cluster is not None
            choice = _going_on(spec, cluster.holding(precision), plan, options)
        else:
            choice = Choice(plan, cluster)
    else:
        if cluster is None:
            cluster = defaults.example_cluster(ranks)
            notes.append(
                "this try-out measures nothing: shares and prediction are for example boards, not these hosts; "
                "with --model FILE they are measured first"
            )
        cluster = cluster.holding(precision)
        if may_change:
            choice = _living(spec, cluster, rows or typical_rows(spec), options)
        else:
            choice = _lasting(spec, cluster, rows or typical_rows(spec), requests, options)
            if options.plan_by == "measure" and len(choice.plans) == 1:
                notes.append(NO_OTHER)
    choice.plan.check(spec, ranks)
    for note in notes:
        say(f"note: {note}")
    return choice


def _living(spec: ModelSpec, cluster: Cluster, rows: int, options: argparse.Namespace) -> Choice:
    """Make a plan that may change."""
    from solver.live.first_plan import plan_to_begin_with  # the solvers are for rank 0 alone
    from solver.programs.planner import solve

    solution = solve(spec, cluster, rows, wire=options.wire)
    plan, spare = plan_to_begin_with(spec, cluster, solution.plan)
    return Choice(plan, cluster, True, replace(solution, plan=plan), spare)


def _going_on(spec: ModelSpec, cluster: Cluster, plan: Plan, options: argparse.Namespace) -> Choice:
    """Begin with a plan of a file, which may change."""
    from solver.live.first_plan import plan_to_begin_with  # the solvers are for rank 0 alone

    if not plan.in_one:
        raise HeptiError(f"--replan {options.replan} changes plans of one stage, {options.plan} has {len(plan.stages)}")
    plan = replace(plan, predicted=predict(spec, cluster, plan, plan.rows))
    assert plan.predicted is not None
    if lacking := lacks(spec, cluster, plan, plan.predicted.weights_bytes):
        raise HeptiError(f"{options.plan} {lacking}")
    plan, spare = plan_to_begin_with(spec, cluster, plan)
    return Choice(plan, cluster, may_change=True, spare=spare)


def _lasting(spec: ModelSpec, cluster: Cluster, rows: int, requests: int, options: argparse.Namespace) -> Choice:
    """Make a plan that stays, or several of which one will, once they have been tried."""
    if options.system != DEFAULT:
        return Choice(plan_that_fits(options.system, spec, cluster, rows, options.wire), cluster)
    from solver.live.trials import Trials, plans_to_try  # the solvers are for rank 0 alone

    plan, solution = solve_hepti(spec, cluster, rows, options.wire)
    if not plan.in_one or options.replan != "off":
        return Choice(plan, cluster)
    plans = [plan]
    # To look for others takes a third of a second: not where two would have all requests for themselves.
    if solution is not None and (options.plan_by == "measure" or (options.plan_by is None and requests > 2 * TURNS)):
        plans = plans_to_try(spec, cluster, solution)
        if options.plan_by is None:
            ranks = range(len(cluster.devices))
            read_bytes = max(all_bytes(spec, plans, rank) - all_bytes(spec, plans[:1], rank) for rank in ranks)
            if not pays([plan.predicted_s for plan in plans], read_bytes / defaults.READ_BYTES_PER_S, requests):
                plans = [plan]
    return Choice(plan, cluster, trials=Trials(spec, cluster, plans))
