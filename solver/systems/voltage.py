"""Voltage: Hu, Li, "When the Edge Meets Transformers: Distributed Inference with Transformer Models", ICDCS 2024.

Rows: every device has all weights and P of the S rows. One all-gather a layer makes its input full on every device,
(p - 1)/p S H elements each way, a quarter of tensor parallelism's; a device then computes K and V of all rows, but all
else of its own alone. The order of products is each device's own: (x_P W_Q W_K^T) X^T needs no K, and (weights X) W_V
no V, at less work per head where

    1/P - 1/S > 1/d - 1/H,

since then P d H + P S H < S H d + P S d, for V alike. The seconds of a device are t_i(P) = a_i + b_i(P), where a_i is K
and V of all S rows if it computes them, and the positions are shared out so that the slowest is as fast as can be
(bisection).

Open in what we know of the paper: biases (K's adds the same to all scores of a query, V's is added once, after the
weights, which add up to one), and who has the input first: here rank 0 hands out rows, and the first layer gathers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.spec import ModelSpec, encoder_blocks
from solver.plan.plan import Keys, Plan, layer_by_rows, uniform_plan
from solver.programs.first_shares import least_makespan
from solver.schedule.encoders.cost import setting
from solver.schedule.encoders.layer_table import kind_by_rows
from solver.schedule.encoders.memory import holds_all, no_device_holds_all
from solver.schedule.encoders.pricing import seconds_alone


def plan_voltage(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Share positions by the least makespan of t_i, among the devices that hold the model."""
    holds = holds_all(spec, cluster, rows)
    if not holds.any():
        raise no_device_holds_all("voltage", spec, cluster, rows)
    # Where the order changes, one row more may take less.
    seconds = np.maximum.accumulate(device_seconds(spec, cluster, rows))
    counts = least_makespan(seconds, np.where(holds, rows, 0), rows)
    attention, *others = layer_by_rows(spec.blocks, (counts / rows).tolist())
    keys = tuple(way_to_keys(spec, count, rows) for count in counts.tolist())
    return uniform_plan(
        spec, cluster.names, (replace(attention, keys=keys), *others),
        system="voltage", rows=rows, cluster_fingerprint=cluster.fingerprint,
    )  # fmt: skip


def way_to_keys(spec: ModelSpec, own: int, rows: int) -> Keys:
    """Return the order of products that is less work for so many of the rows."""
    attention, _ = encoder_blocks(spec)
    avoids = own > 0 and 1 / own - 1 / rows > 1 / attention.head_dim - 1 / spec.hidden
    return Keys.AVOIDED if avoids else Keys.PROJECTED


def device_seconds(spec: ModelSpec, cluster: Cluster, rows: int) -> Floats:
    """Return t_i(P) of one layer for P from 0 to S, [S + 1, p], in the order of less work; nothing for no rows."""
    s, positions = setting(spec, cluster, rows), np.arange(rows + 1.0)[:, None]
    own = [*replace(kind_by_rows(spec.blocks), input_gathered=True).steps(spec.blocks)]

    def seconds(way: Keys) -> Floats:
        return seconds_alone(s, positions, own, np.full(s.devices, way is Keys.AVOIDED))

    avoids = np.array([way_to_keys(spec, own, rows) is Keys.AVOIDED for own in range(rows + 1)])[:, None]
    return np.where(avoids, seconds(Keys.AVOIDED), seconds(Keys.PROJECTED))
