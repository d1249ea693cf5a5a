"""Sequence parallelism: Li et al., "Sequence Parallelism: Long Sequence Training from System Perspective".

arXiv 2105.13120: every device has all weights and a chunk of the rows; keys and values come round in a ring, so that
every device computes all heads of its own rows, and MLP and norms need no exchange. Per layer and device that is
2 (p - 1)/p S H elements each way, half of tensor parallelism's. The chunks are equal as published;
`sequence-weighted` is the usual answer to unequal devices, chunks in proportion to speed. Like every system it is
given the route that is best for its shares (`solver.programs.tiles_and_routes`): the published ring is one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from solver.cluster.cluster import Cluster
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan, block_by_rows, blockwise_plan


def plan_sequence(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Share rows equally, as published."""
    return rows_plan("sequence", spec, cluster, rows, [1.0] * len(cluster.devices))


def plan_sequence_weighted(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Share rows in proportion to speed."""
    weights = [device.compute_flop_per_s for device in cluster.devices]
    return rows_plan("sequence-weighted", spec, cluster, rows, weights)


def rows_plan(system: str, spec: ModelSpec, cluster: Cluster, rows: int, weights: Sequence[float]) -> Plan:
    """Cut all blocks of every layer by rows, shared out by these weights."""
    shares = [weight / sum(weights) for weight in weights]
    return blockwise_plan(
        spec, cluster.names, lambda block: block_by_rows(block, shares),
        system=system, rows=rows, cluster_fingerprint=cluster.fingerprint,
    )  # fmt: skip
