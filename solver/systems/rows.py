"""Rows in proportion to speed, K and V gathered; all weights on every rank.

Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198 (the row axis as
"sequence parallelism"); the proportional shares are the usual answer to unequal devices.
"""

from __future__ import annotations

import math

from solver.cluster import Cluster
from solver.model import ModelSpec
from solver.plan import BlockPlan, Cut, LayerPlan, Layout, Plan, uniform_plan


def plan_rows(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Cut both blocks of every layer by rows, in proportion to the devices' speed."""
    total = math.fsum(device.compute_flop_per_s for device in cluster.devices)
    shares = tuple(device.compute_flop_per_s / total for device in cluster.devices)
    block = BlockPlan(Cut.ROWS, norm=Layout.ROWS, rows=shares)
    return uniform_plan(
        spec, cluster.names, LayerPlan(block, block),
        system="rows", rows=rows, cluster_fingerprint=cluster.fingerprint,
    )  # fmt: skip
