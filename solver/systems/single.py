"""The whole model on the fastest device: what every split must beat."""

from __future__ import annotations

import numpy as np

from solver.cluster import Cluster
from solver.cost import setting
from solver.decoupled import decoupled_plan
from solver.model import ModelSpec
from solver.plan import BlockPlan, Cut, LayerPlan, Layout, Plan, uniform_plan


def plan_single(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Give every row, or every sub-block, to the fastest device; the others hold nothing."""
    fastest = max(cluster.devices, key=lambda device: device.compute_flop_per_s)
    if spec.groups:
        sub_blocks = np.array([spec.sub_blocks * (device is fastest) for device in cluster.devices])
        originals = [cluster.devices.index(fastest)] * spec.groups
        return decoupled_plan(setting(spec, cluster, rows), cluster, "single", sub_blocks, originals)
    shares = tuple(float(device is fastest) for device in cluster.devices)
    block = BlockPlan(Cut.ROWS, norm=Layout.ROWS, rows=shares)
    return uniform_plan(
        spec, cluster.names, LayerPlan(block, block),
        system="single", rows=rows, cluster_fingerprint=cluster.fingerprint,
    )  # fmt: skip
