"""Megatron-LM: Shoeybi et al., "Training Multi-Billion Parameter Language Models Using Model Parallelism".

arXiv 1909.08053, section 3: query, key, value and the first MLP weight by columns (whole heads), the output projection
and the second MLP weight by rows; one all-reduce after attention and one after the MLP, norms repeated on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from solver.base.spans import Partition
from solver.cluster.cluster import Cluster
from solver.model.blocks import Block, Cut, inner_of
from solver.model.spec import ModelSpec
from solver.plan.plan import BlockPlan, Plan, blockwise_plan


def plan_megatron(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Share heads and F columns equally, as published."""
    return _plan("megatron", spec, cluster, rows, [1.0] * len(cluster.devices))


def plan_megatron_weighted(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Share heads and F columns in proportion to speed, rounded by the largest remainder."""
    return _plan("megatron-weighted", spec, cluster, rows, [device.compute_flop_per_s for device in cluster.devices])


def _plan(system: str, spec: ModelSpec, cluster: Cluster, rows: int, weights: Sequence[float]) -> Plan:
    def shared_out(block: Block) -> BlockPlan:
        return BlockPlan(block.name, Cut.BLOCK, Partition.of_shares(weights, inner_of(block, system).count))

    return blockwise_plan(
        spec, cluster.names, shared_out, system=system, rows=rows, cluster_fingerprint=cluster.fingerprint
    )
