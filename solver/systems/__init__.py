"""Published ways to make a plan: one small file each, and the table of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from solver.base.errors import HeptiError, InfeasiblePlanError
from solver.cluster.cluster import Cluster
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan, Wire
from solver.programs.tiles_and_routes import sent_and_predicted
from solver.schedule.encoders.memory import short_bytes
from solver.schedule.shortage import SLIP_BYTES, does_not_fit
from solver.systems.data import plan_data
from solver.systems.detransformer import plan_detransformer
from solver.systems.edgeshard import plan_edgeshard
from solver.systems.galaxy import plan_galaxy
from solver.systems.grid2d import plan_grid2d
from solver.systems.hepti import plan_hepti, plan_hepti_throughput
from solver.systems.hepti_additive import plan_hepti_additive
from solver.systems.megatron import plan_megatron, plan_megatron_weighted
from solver.systems.named import ALONE, planner_named
from solver.systems.pipeedge import plan_pipeedge
from solver.systems.prima import plan_prima
from solver.systems.sequence import plan_sequence, plan_sequence_weighted
from solver.systems.single import plan_single
from solver.systems.voltage import plan_voltage

Planner = Callable[[ModelSpec, Cluster, int], Plan]

PLANNERS: Mapping[str, Planner] = {
    "hepti": plan_hepti,
    "hepti-throughput": plan_hepti_throughput,
    "hepti-additive": plan_hepti_additive,
    "single": plan_single,
    "megatron": plan_megatron,
    "megatron-weighted": plan_megatron_weighted,
    "sequence": plan_sequence,
    "sequence-weighted": plan_sequence_weighted,
    "voltage": plan_voltage,
    "galaxy": plan_galaxy,
    "grid2d": plan_grid2d,
    "pipeedge": plan_pipeedge,
    "edgeshard": plan_edgeshard,
    "prima": plan_prima,
    "data": plan_data,
    "detransformer": plan_detransformer,
}
DEFAULT = "hepti"
THROUGHPUT = "hepti-throughput"  # for many requests
DECOUPLED = "detransformer"  # plans models with decoupled layers, and no others

SYSTEMS = f"{', '.join(PLANNERS)}; {ALONE}DEVICE"  # as a person reads what can be asked for


def plans_for(spec: ModelSpec) -> tuple[str, ...]:
    """Return the systems that plan for a model."""
    return (DECOUPLED, "single") if spec.groups else tuple(name for name in PLANNERS if name != DECOUPLED)


def plan_that_fits(system: str, spec: ModelSpec, cluster: Cluster, rows: int, wire: Wire = Wire.FLOAT32) -> Plan:
    """Plan as `make_plan` does what is to be run: few published systems ask what memory the devices have.

    Raises
    ------
    HeptiError
        As `make_plan`, or if a device lacks memory for its share: which, and how much.
    """
    plan = make_plan(system, spec, cluster, rows, wire)
    assert plan.predicted is not None
    short = short_bytes(spec, cluster, plan, plan.predicted.weights_bytes)
    if short.max() > SLIP_BYTES:
        raise does_not_fit(f"{spec.name} by {system}", cluster, short)
    return plan


def make_plan(system: str, spec: ModelSpec, cluster: Cluster, rows: int, wire: Wire = Wire.FLOAT32) -> Plan:
    """Plan requests of `rows` rows by the named system, and predict what they cost, whether or not memory suffices.

    Every system is given the tiles and routes that are best for its shares.

    Raises
    ------
    HeptiError
        If there is no such system, or it finds no plan.
    """
    planner = planner_of(system)
    if not rows >= 1:
        raise HeptiError(f"--rows is {rows}, must be at least 1")
    if spec.groups and system not in plans_for(spec) and not system.startswith(ALONE):
        raise InfeasiblePlanError(f"{spec.name} has decoupled layers: {system} has no plan for them, {DECOUPLED} has")
    if system == DEFAULT:
        return plan_hepti(spec, cluster, rows, wire)
    pipes = system == "pipeedge"  # whose stages depend on what they send
    plan = plan_pipeedge(spec, cluster, rows, wire) if pipes else planner(spec, cluster, rows)
    if plan.in_one:
        wire.check_one_stage()
    return sent_and_predicted(spec, cluster, replace(plan, wire=wire), rows)


def planner_of(system: str) -> Planner:
    """Return what plans by the named system.

    Raises
    ------
    HeptiError
        If there is none of that name.
    """
    return planner_named(system, PLANNERS, plan_single)
