"""What a plan costs: the only source of seconds and bytes.

First version: compute is FLOP over a device's speed, an exchange is bytes over its slowest link, nothing overlaps.
"""

from __future__ import annotations

import math

from solver.cluster import Cluster
from solver.model import ModelSpec
from solver.plan import BlockPlan, Cut, LayerPlan, Layout, Plan, Prediction
from solver.shares import layer_slices, rank_slices

FLOAT_BYTES = 4


def predict(spec: ModelSpec, cluster: Cluster, plan: Plan, rows: int) -> Prediction:
    """Return what a request of `rows` rows costs under `plan`."""
    compute_s = exchange_s = 0.0
    wire_bytes = 0
    for stage in plan.stages:
        for span, layer in stage.layers:
            compute, exchange, sent = _layer(spec, cluster, layer, rows)
            compute_s += span.size * compute
            exchange_s += span.size * exchange
            wire_bytes += span.size * sent
    weights = tuple(device_weights_bytes(spec, plan, rank) for rank in range(len(plan.devices)))
    return Prediction(compute_s + exchange_s, compute_s, exchange_s, weights, wire_bytes)


def device_weights_bytes(spec: ModelSpec, plan: Plan, rank: int) -> int:
    """Return the float32 bytes that `rank` holds: `shares.weights_bytes`, but one layer of each run stands for all."""
    first = sum(
        math.prod(piece.shape) for piece in rank_slices(spec, plan, rank) if not piece.name.startswith("layers/")
    )
    runs = (
        span.size * sum(math.prod(piece.shape) for piece in layer_slices(spec, plan, span.start, rank))
        for stage in plan.stages
        for span, _ in stage.layers
    )
    return FLOAT_BYTES * (first + sum(runs))


def _layer(spec: ModelSpec, cluster: Cluster, layer: LayerPlan, rows: int) -> tuple[float, float, int]:
    """Return the seconds of compute and exchange and the bytes sent of one layer."""
    H, S = spec.hidden, rows
    flop = {"attention": 8 * S * H**2 + 4 * S**2 * H, "mlp": 4 * S * H * spec.ffn}
    compute_s = exchange_s = 0.0
    wire_bytes = 0
    for name, block in (("attention", layer.attention), ("mlp", layer.mlp)):
        parts = _parts(block, rows)
        compute_s += max(
            flop[name] * part / sum(parts) / device.compute_flop_per_s
            for part, device in zip(parts, cluster.devices, strict=True)
        )
        active = [rank for rank, part in enumerate(parts) if part]
        sent = _sent_elements(spec, block, name, parts, rows)
        slowest = min(
            (cluster.link(i, j).bandwidth_bytes_per_s for i in active for j in active if i < j), default=math.inf
        )
        exchange_s += FLOAT_BYTES * max(sent) / slowest
        wire_bytes += FLOAT_BYTES * sum(sent)
    return compute_s, exchange_s, wire_bytes


def _parts(block: BlockPlan, rows: int) -> tuple[int, ...]:
    if block.cut is Cut.ROWS:
        partition = block.row_partition(rows)
        assert partition is not None
        return partition.counts
    assert block.inner is not None
    return block.inner.counts


def _sent_elements(spec: ModelSpec, block: BlockPlan, name: str, parts: tuple[int, ...], rows: int) -> list[int]:
    """Return what each rank sends for one block."""
    others = sum(1 for part in parts if part) - 1
    if block.cut is Cut.ROWS:
        width = 2 * spec.hidden if name == "attention" else 0  # K and V
        return [others * part * width for part in parts]
    if block.cut is Cut.COLUMNS:
        assert block.columns is not None
        width = spec.head_dim if name == "attention" else 1
        return [
            others * rows * (part * width + columns) for part, columns in zip(parts, block.columns.counts, strict=True)
        ]
    volume = 1 if block.norm is Layout.ROWS else 2  # a reduce-scatter, or with an all-gather behind it
    return [volume * rows * spec.hidden * others // (others + 1) if part else 0 for part in parts]
