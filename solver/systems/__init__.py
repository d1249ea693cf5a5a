"""Published ways to make a plan: one small file each, and the table of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches

from solver.cluster import Cluster
from solver.cost import predict
from solver.errors import HeptiError
from solver.model import ModelSpec
from solver.plan import Plan
from solver.systems.hepti import plan_hepti
from solver.systems.megatron import plan_megatron, plan_megatron_weighted
from solver.systems.rows import plan_rows
from solver.systems.single import plan_single

Planner = Callable[[ModelSpec, Cluster, int], Plan]

PLANNERS: Mapping[str, Planner] = {
    "hepti": plan_hepti,
    "single": plan_single,
    "megatron": plan_megatron,
    "megatron-weighted": plan_megatron_weighted,
    "rows": plan_rows,
}
DEFAULT = "hepti"


def make_plan(system: str, spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Plan requests of `rows` rows by the named system, and predict what they cost.

    Raises
    ------
    HeptiError
        If there is no such system, or it finds no plan.
    """
    if system not in PLANNERS:
        near = get_close_matches(system, PLANNERS, n=1)
        raise HeptiError(
            f"unknown system {system!r}: " + (f"did you mean {near[0]}?" if near else f"known: {', '.join(PLANNERS)}")
        )
    if not rows >= 1:
        raise HeptiError(f"--rows is {rows}, must be at least 1")
    plan = PLANNERS[system](spec, cluster, rows)
    return replace(plan, predicted=predict(spec, cluster, plan, rows))
