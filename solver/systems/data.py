"""Data parallelism: every device that can hold the whole model answers requests of its own.

The baseline of every claim of throughput ("Communication-Efficient Model Parallelism for Distributed In-Situ
Transformer Inference", DATE 2024, compares with it). With t_i the seconds of the model on device i, requests are dealt
out in proportion to 1 / t_i (the engine gives the next to whoever is free first), and throughput is the sum of 1 / t_i.
Nothing travels but a request's rows and its result; one request is no faster, and no device needs less memory. The
fastest replica stands first: a request that is alone goes to it.
"""

from __future__ import annotations

import numpy as np

from solver.cluster.cluster import Cluster
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan
from solver.schedule.encoders.memory import holds_all, no_device_holds_all
from solver.schedule.encoders.stages import chain, layer_seconds


def plan_data(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Make a replica of every device that holds the model, the fastest first."""
    holding = np.flatnonzero(holds_all(spec, cluster, rows))
    if not holding.size:
        raise no_device_holds_all("data", spec, cluster, rows)
    seconds = layer_seconds(spec, cluster, rows)
    fastest_first = sorted(holding.tolist(), key=lambda rank: float(seconds[rank]))
    return chain(spec, cluster, [(rank, spec.layers) for rank in fastest_first], "data", rows)
