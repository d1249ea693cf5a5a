"""Published ways to make a plan: one small file each, and the table of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from solver.cluster import Cluster
from solver.errors import HeptiError
from solver.model import ModelSpec
from solver.plan import Plan
from solver.systems.megatron import plan_megatron, plan_megatron_weighted
from solver.systems.rows import plan_rows
from solver.systems.single import plan_single

Planner = Callable[[ModelSpec, Cluster, int], Plan]

PLANNERS: Mapping[str, Planner] = {
    "single": plan_single,
    "megatron": plan_megatron,
    "megatron-weighted": plan_megatron_weighted,
    "rows": plan_rows,
}


def make_plan(system: str, spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Plan requests of `rows` rows by the named system.

    Raises
    ------
    HeptiError
        If there is no such system, or the model has fewer positions than `rows`.
    """
    if system not in PLANNERS:
        near = get_close_matches(system, PLANNERS, n=1)
        raise HeptiError(
            f"unknown system {system!r}: " + (f"did you mean {near[0]}?" if near else f"known: {', '.join(PLANNERS)}")
        )
    if not 1 <= rows <= spec.max_positions:
        raise HeptiError(f"--rows is {rows}, model {spec.name} takes 1 to {spec.max_positions} rows")
    return PLANNERS[system](spec, cluster, rows)
