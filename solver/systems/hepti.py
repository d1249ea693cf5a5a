"""Hepti: Lee et al., "An Autonomous Parallelization of Transformer Model Inference on Heterogeneous Edge Devices".

ICS 2024. Three ways to cut a MatMul, chosen by what the devices' memory allows; nonuniform shares out of an
optimisation problem over profiled compute and links. Ours chooses per layer, prices what overlaps, and leaves out
devices that make things worse: `solver.planner`. For many requests it may also choose replicas and stages:
`solver.throughput`.
"""

from __future__ import annotations

from solver.cluster import Cluster
from solver.model import ModelSpec
from solver.plan import Plan, Wire


def plan_hepti(spec: ModelSpec, cluster: Cluster, rows: int, wire: Wire = Wire.FLOAT32) -> Plan:
    """Plan by the convex and the integer program."""
    from solver.planner import solve  # only who plans needs the solvers: rank 0, not the others

    return solve(spec, cluster, rows, wire=wire).plan


def plan_hepti_throughput(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Plan for the most requests a second."""
    from solver.throughput import solve_throughput

    return solve_throughput(spec, cluster, rows)
