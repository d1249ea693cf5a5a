"""Voltage: Hu, Li, "When the Edge Meets Transformers: Distributed Inference with Transformer Models", ICDCS 2024.

Rows: every device has all weights and P of the S rows. Per layer the input is full everywhere, each device computes K
and V of all rows but all else of its own rows alone, and one all-gather of the layer's output makes it full again:
(p - 1)/p S H elements each way, a quarter of tensor parallelism's. The seconds of a device are

    t_i(P) = a_i + b_i(P)      a_i K and V of all S rows, b_i all else, for P rows

and the positions are shared out so that the slowest is as fast as can be (bisection, systems.md 8.2).

What is missing: the engine's attention by rows computes K and V of its own rows and gathers those, which sends twice as
much and computes less; it cannot yet gather the input and compute K and V of all rows, nor Voltage's other order of
products, (x_P W_Q W_K^T) X^T, cheaper per head where 1/P - 1/S > 1/d - 1/H. So the shares here are Voltage's, its
exchange is not.
"""

from __future__ import annotations

import numpy as np

from solver.cluster import Cluster
from solver.cost import setting, weights_room
from solver.curves import Floats, Kernel
from solver.errors import InfeasiblePlanError
from solver.kinds import LayerKind, layer_table
from solver.model import ModelSpec
from solver.pipeline import whole_layer_bytes
from solver.plan import Cut, Layout, Plan
from solver.starts import least_makespan
from solver.steps import Axis
from solver.systems.sequence import rows_plan


def plan_voltage(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Share positions by the least makespan of t_i, among the devices that hold the model."""
    holds = weights_room(spec, cluster, rows) >= spec.layers * whole_layer_bytes(spec)
    if not holds.any():
        raise InfeasiblePlanError(f"{spec.name} fits on no device whole, as cutting by rows needs")
    seconds = device_seconds(spec, cluster, rows)
    counts = least_makespan(seconds, np.where(holds, rows, 0), rows)
    return rows_plan("voltage", spec, cluster, rows, counts.tolist())


def device_seconds(spec: ModelSpec, cluster: Cluster, rows: int) -> Floats:
    """Return t_i(P) of one layer for P from 0 to S, [S + 1, p]; nothing for no rows."""
    s, H = setting(spec, cluster, rows), spec.hidden
    table = layer_table(s, LayerKind(Cut.ROWS, Layout.ROWS, Cut.ROWS, Layout.ROWS))
    own = table.axis_seconds(Axis.ROWS, owners=1)
    positions = np.arange(rows + 1.0)[:, None]
    keys_values = s.machine.bank.seconds(Kernel.PROJECT, positions, 2 * H * H)
    return np.asarray(np.where(positions > 0, own - keys_values + keys_values[-1], 0.0))
