"""The whole model on one device, the one that answers first if none is named: what every split must beat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan
from solver.schedule.encoders.cost import setting
from solver.schedule.encoders.memory import holds_all
from solver.schedule.encoders.stages import predict_plan
from solver.systems.decoupled import decoupled_plan
from solver.systems.sequence import rows_plan


def plan_single(spec: ModelSpec, cluster: Cluster, rows: int, name: str = "") -> Plan:
    """Give every row, or every sub-block, to the device of that name; the others hold nothing.

    To that which answers first, if none is named, of those that hold the model, or of all if none does.

    Raises
    ------
    HeptiError
        If there is no device of that name.
    """
    if name and name not in cluster.names:
        names = ", ".join(cluster.names)
        raise HeptiError(f"--system single:{name}: there is no device {name!r}, there are {names}")
    if name:
        return _alone(spec, cluster, rows, cluster.names.index(name), f"single:{name}")
    fitting = np.flatnonzero(holds_all(spec, cluster, rows)).tolist() or range(len(cluster.devices))
    plans = [_alone(spec, cluster, rows, rank, "single") for rank in _unlike(cluster, fitting)]
    return min(plans, key=lambda plan: predict_plan(spec, cluster, plan, rows).seconds)


def _unlike(cluster: Cluster, ranks: Sequence[int]) -> list[int]:
    """Return of ranks that are as fast, with links to rank 0 that are, the first: a thousand may be of a kind."""
    found = dict[tuple[object, ...], int]()
    for rank in ranks:
        device = cluster.devices[rank]
        speed = device.compute_flop_per_s, id(device.curves), device.jitter_s, device.rest_s
        found.setdefault((rank == 0, speed, cluster.link(0, rank)), rank)
    return [*found.values()]


def _alone(spec: ModelSpec, cluster: Cluster, rows: int, chosen: int, system: str) -> Plan:
    """Give everything to a rank."""
    if spec.groups:
        sub_blocks = np.array([spec.sub_blocks * (rank == chosen) for rank in range(len(cluster.devices))])
        return decoupled_plan(setting(spec, cluster, rows), cluster, system, sub_blocks, [chosen] * spec.groups)
    return rows_plan(system, spec, cluster, rows, [float(rank == chosen) for rank in range(len(cluster.devices))])
