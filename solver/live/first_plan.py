"""The plan to begin with where it may change later, and what ranks hold besides.

A device that has all weights takes any share of the rows at once: nothing has to be read, and no request waits. So the
best plan runs, and ranks hold all weights besides; where memory is too small for both, a plan by rows runs, unless the
best is much faster.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solver.cluster.cluster import Cluster
from solver.model.spec import ModelSpec
from solver.plan.changes import Holdings, all_by_rows
from solver.plan.plan import Plan, Wire
from solver.programs.lengths import for_rows
from solver.schedule.encoders.memory import holds_all, short_bytes
from solver.schedule.exchange import Mask
from solver.systems.sequence import rows_plan

# To change from one plan that is not by rows to another takes seconds.
WORTH = 0.15


def plan_to_begin_with(spec: ModelSpec, cluster: Cluster, plan: Plan) -> tuple[Plan, Plan | None]:
    """Return what runs where a plan is the best, and the plan by rows whose weights ranks hold besides, if any."""
    by_rows = None if all_by_rows(plan) else plan_by_rows(spec, cluster, plan.rows, plan.wire)
    if by_rows is None:
        return plan, None
    spare = among(by_rows, cluster, holds_all(spec, cluster, plan.rows))
    holdings = Holdings(plan, len(cluster.devices), spare)
    both = [holdings.held_bytes(spec, rank, cluster.precision) for rank in range(len(cluster.devices))]
    if not short_bytes(spec, cluster, spare, both).any():
        return plan, spare
    return (by_rows if by_rows.predicted_s <= (1 + WORTH) * plan.predicted_s else plan), None


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
    layers = tuple((span, tuple(replace(block, rows=shares) for block in layer)) for span, layer in stage.layers)
    return replace(plan, stages=(replace(stage, layers=layers),), predicted=None)
