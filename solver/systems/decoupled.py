"""Plans of models with decoupled layers: sub-blocks that see only their own columns of the stream.

DeTransformer, "Communication-Efficient Model Parallelism for Distributed In-Situ Transformer Inference", DATE 2024. In
the decoupled layers of a group nothing is sent: every device computes its sub-blocks, one layer after the other. An
original layer that is cut `whole` is computed by everybody.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver.base.spans import Partition, Span, largest_remainder
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.blocks import Axis, Block, Cut
from solver.plan.plan import BlockPlan, LayerPlan, Plan, Stage, StreamLayout, layer_by_rows
from solver.schedule.encoders.layer_table import Integers
from solver.schedule.encoders.pricing import block_seconds
from solver.schedule.encoders.setting import Setting
from solver.schedule.exchange import Mask

# How an original layer is computed, where not on one device.
WHOLE, TENSOR_PARALLEL = -2, -1


def seconds_on_one(s: Setting, blocks: Sequence[Block]) -> Floats:
    """Return the seconds in which every device computes a layer, or a sub-block of one, alone, [p]."""
    return np.asarray(sum(block_seconds(s, block) for block in blocks))


def tensor_shares(s: Setting, taking: Mask) -> dict[Axis, list[int]]:
    """Return heads and MLP columns in proportion to the speeds of the devices that take part."""
    speeds = (taking / seconds_on_one(s, s.spec.blocks)).tolist()
    axes = [block.inner for block in s.spec.blocks if block.inner is not None]
    return {inner.axis: largest_remainder(speeds, inner.count) for inner in axes}


def decoupled_plan(s: Setting, cluster: Cluster, system: str, sub_blocks: Integers, originals: Sequence[int]) -> Plan:
    """Lay a plan out.

    Parameters
    ----------
    s, cluster, system
        What it is for, and who makes it.
    sub_blocks : [p]
        Of every device, in all groups.
    originals
        For every original layer the rank that computes it alone, or `WHOLE` or `TENSOR_PARALLEL`.
    """
    spec, size = s.spec, s.spec.layers // s.spec.groups
    names = [block.name for block in spec.blocks]
    own = Partition.of_counts(sub_blocks.tolist())
    parts = tuple(BlockPlan(name, Cut.SUB_BLOCKS, own, norm=StreamLayout.COLS) for name in names)
    runs: list[tuple[Span, LayerPlan]] = []
    for group, how in enumerate(originals):
        if how == TENSOR_PARALLEL:
            shares = [Partition.of_counts(counts) for counts in tensor_shares(s, sub_blocks > 0).values()]
            layer = tuple(BlockPlan(name, Cut.BLOCK, share) for name, share in zip(names, shares, strict=True))
        elif how == WHOLE:
            layer = tuple(BlockPlan(name, Cut.WHOLE) for name in names)
        else:
            layer = layer_by_rows(spec.blocks, [float(rank == how) for rank in range(s.devices)])
        end = (group + 1) * size
        runs += [(Span(end - size, end - 1), parts), (Span(end - 1, end), layer)]
    return Plan(
        (Stage(cluster.names, tuple(runs)),), spec.name, spec.fingerprint, cluster.fingerprint, system, s.rows,
    )  # fmt: skip
