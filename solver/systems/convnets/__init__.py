"""Published ways to split a convolutional network: one small file each, and the table of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from solver.cluster.cluster import Cluster
from solver.model.convnet import ConvNet
from solver.plan.plan import Wire
from solver.plan.segments import SegmentPlan
from solver.programs.convnets.planner import solve_network
from solver.systems import PLANNERS
from solver.systems.convnets.aofl import plan_aofl
from solver.systems.convnets.coedge import plan_coedge
from solver.systems.convnets.deeperthings import plan_deeperthings
from solver.systems.convnets.deepthings import plan_deepthings
from solver.systems.convnets.edgeflow import plan_edgeflow
from solver.systems.convnets.edgeld import plan_edgeld
from solver.systems.convnets.modnn import plan_modnn
from solver.systems.convnets.single import plan_named, plan_single
from solver.systems.named import planner_named

NetPlanner = Callable[[ConvNet, Cluster, Wire], SegmentPlan]

SYSTEMS: Mapping[str, NetPlanner] = {
    "hepti": solve_network,
    "single": plan_single,
    "modnn": plan_modnn,
    "coedge": plan_coedge,
    "edgeflow": plan_edgeflow,
    "edgeld": plan_edgeld,
    "aofl": plan_aofl,
    "deepthings": plan_deepthings,
    "deeperthings": plan_deeperthings,
}


def plan_network(system: str, net: ConvNet, cluster: Cluster, wire: Wire = Wire.FLOAT32) -> SegmentPlan:
    """Plan by the named system, and predict what that costs.

    Raises
    ------
    HeptiError
        If there is no such system, it finds no plan, or a device lacks memory for its share.
    """
    return planner_of(system)(net, cluster, wire)


def planner_of(system: str) -> NetPlanner:
    """Return what plans by the named system.

    Raises
    ------
    HeptiError
        If there is none of that name.
    """
    return planner_named(system, SYSTEMS, plan_named, "networks", PLANNERS)
