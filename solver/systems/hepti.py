"""Hepti: Lee et al., "An Autonomous Parallelization of Transformer Model Inference on Heterogeneous Edge Devices".

ICS 2024. Three ways to cut a MatMul, chosen by what the devices' memory allows; nonuniform shares out of an
optimisation problem over profiled compute and links. Ours chooses per layer, prices what overlaps, and leaves out
devices that make things worse: `solver.programs.planner`. Where memory is scarce, stages that the path finds
(`solver.programs.path`) are priced, too, and taken where they answer a request sooner: on slow links all layers in turn
on boards that hold a part each, whole layers as EdgeShard chooses them, or half ones as PipeEdge does. For many
requests it may also choose replicas and stages: `solver.systems.hepti_throughput`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

from solver.base.errors import InfeasiblePlanError
from solver.cluster.cluster import Cluster
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan, Wire
from solver.programs.candidates import FEW
from solver.programs.tiles_and_routes import sent_and_predicted
from solver.schedule.encoders.memory import lacks
from solver.systems.edgeshard import plan_edgeshard
from solver.systems.pipeedge import plan_pipeedge

if TYPE_CHECKING:
    from solver.programs.planner import Solution


def plan_hepti(spec: ModelSpec, cluster: Cluster, rows: int, wire: Wire = Wire.FLOAT32) -> Plan:
    """Plan by the convex and the integer program, or in stages."""
    return solve_hepti(spec, cluster, rows, wire)[0]


def solve_hepti(
    spec: ModelSpec, cluster: Cluster, rows: int, wire: Wire = Wire.FLOAT32, *, thorough: bool = False
) -> tuple[Plan, Solution | None]:
    """Plan as `plan_hepti` does; also return how it was found, None where stages are faster.

    `thorough`: whether all that may lead to a better plan is tried.

    Raises
    ------
    InfeasiblePlanError
        If no plan fits, as `solver.programs.planner.solve` says it.
    """
    from solver.programs.planner import THOROUGHLY, USUALLY, solve  # only rank 0, which plans, needs the solvers

    try:
        solution = solve(spec, cluster, rows, wire=wire, tries=THOROUGHLY if thorough else USUALLY)
    except InfeasiblePlanError:
        wire.check_one_stage()
        other = None if spec.groups else _in_stages(spec, cluster, rows, wire)
        if other is None:
            raise
        return other, None
    # Where the fastest layer fits everywhere, no device by itself is faster; but stages may lead around a narrow link.
    other = None
    if solution.mix_bound_s or cluster.links:
        other = _in_stages(spec, cluster, rows, wire, scarce=bool(solution.mix_bound_s))
    if other is None or solution.plan.predicted_s <= other.predicted_s:
        return solution.plan, solution
    return other, None


def _in_stages(spec: ModelSpec, cluster: Cluster, rows: int, wire: Wire, *, scarce: bool = True) -> Plan | None:
    """Return the plan in stages that answers a request soonest; None if none fits.

    `scarce`: whether memory is; else of whole layers alone. Of some 110 random clusters with scarce memory stages are
    fastest on 7, by 0.1 to 7 %.
    """
    p = len(cluster.devices)
    planners = [partial(plan_edgeshard, spec, cluster, rows)]
    if scarce:
        # Who balances stages uses all devices: of few, all groups are tried.
        groups = [group for size in range(2, p) for group in combinations(range(p), size)] if p <= FEW else []
        groups.append(tuple(range(p)))
        planners += [partial(plan_pipeedge, spec, cluster.only(group), rows, wire) for group in groups]
    found = []
    for make in planners:
        with suppress(InfeasiblePlanError):
            plan = replace(
                make(), wire=wire, system="hepti", devices=cluster.names, cluster_fingerprint=cluster.fingerprint
            )
            plan = sent_and_predicted(spec, cluster, plan, rows)
            assert plan.predicted is not None
            if not lacks(spec, cluster, plan, plan.predicted.weights_bytes):
                found.append(plan)
    return min(found, key=lambda plan: plan.predicted_s, default=None)


def plan_hepti_throughput(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Plan for the most requests a second."""
    from solver.systems.hepti_throughput import solve_throughput

    return solve_throughput(spec, cluster, rows)
