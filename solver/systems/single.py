"""The whole model on one device, the fastest if none is named: what every split must beat."""

from __future__ import annotations

import numpy as np

from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan
from solver.schedule.encoders.cost import setting
from solver.systems.decoupled import decoupled_plan
from solver.systems.sequence import rows_plan


def plan_single(spec: ModelSpec, cluster: Cluster, rows: int, name: str = "") -> Plan:
    """Give every row, or every sub-block, to the device of that name, "" the fastest; the others hold nothing.

    Raises
    ------
    HeptiError
        If there is no device of that name.
    """
    system = f"single:{name}" if name else "single"
    if name and name not in cluster.names:
        raise HeptiError(f"--system {system}: there is no device {name!r}, there are {', '.join(cluster.names)}")
    fastest = max(range(len(cluster.devices)), key=lambda rank: cluster.devices[rank].compute_flop_per_s)
    chosen = cluster.names.index(name) if name else fastest
    if spec.groups:
        sub_blocks = np.array([spec.sub_blocks * (rank == chosen) for rank in range(len(cluster.devices))])
        return decoupled_plan(setting(spec, cluster, rows), cluster, system, sub_blocks, [chosen] * spec.groups)
    return rows_plan(system, spec, cluster, rows, [float(rank == chosen) for rank in range(len(cluster.devices))])
