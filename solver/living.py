"""The plan to begin with where it may change later: by rows, unless another is much faster.

A device that has all weights takes any share of the rows at once: nothing has to be read, and no request waits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solver.cluster import Cluster
from solver.exchange import Mask
from solver.lengths import for_rows
from solver.memory import holds_all
from solver.model import ModelSpec
from solver.plan import LayerPlan, Plan, Wire
from solver.planner import Solution
from solver.systems.sequence import rows_plan

# In the lab (mixed4, bert-large of 8 layers, 128 rows) the best plan by rows takes 2 to 7 % longer than the best of
# all, where 10 to 15 % are predicted; to change from one of these to another takes seconds.
WORTH = 0.15


def living(spec: ModelSpec, cluster: Cluster, solution: Solution) -> Solution:
    """Return a solution with the best plan by rows in place of its own, if that is nearly as fast."""
    plan = solution.plan
    by_rows = plan_by_rows(spec, cluster, plan.rows, plan.wire)
    if by_rows is None or by_rows.predicted_s > (1 + WORTH) * plan.predicted_s:
        return solution
    return replace(solution, plan=by_rows)


def plan_by_rows(spec: ModelSpec, cluster: Cluster, rows: int, wire: Wire = Wire.FLOAT32) -> Plan | None:
    """Return the best plan that cuts all by rows, among the devices that can hold all weights; None if none can."""
    able = holds_all(spec, cluster, rows)
    equal = rows_plan("hepti", spec, cluster, rows, [1.0] * able.size)
    return for_rows(spec, cluster, among(replace(equal, wire=wire), cluster, able), rows) if able.any() else None


def among(plan: Plan, cluster: Cluster, crew: Mask) -> Plan:
    """Return a plan by rows with the rows shared among a crew, [p], by speed; tiles and routes stay."""
    weights = np.array([device.compute_flop_per_s for device in cluster.devices]) * crew
    shares = tuple((weights / weights.sum()).tolist())
    (stage,) = plan.stages
    layers = tuple(
        (span, LayerPlan(replace(layer.attention, rows=shares), replace(layer.mlp, rows=shares)))
        for span, layer in stage.layers
    )
    return replace(plan, stages=(replace(stage, layers=layers),), predicted=None)
