"""Data parallelism: every device that can hold the whole model answers requests of its own.

The baseline of every claim of throughput ("Communication-Efficient Model Parallelism for Distributed In-Situ
Transformer Inference", DATE 2024, compares with it). With t_i the seconds of the model on device i, requests are dealt
out in proportion to 1 / t_i (the engine gives the next to whoever is free first), and throughput is the sum of 1 / t_i.
Nothing travels but a request's rows and its result; one request is no faster, and no device needs less memory. The
fastest replica stands first: a request that is alone goes to it.
"""

from __future__ import annotations

import math

import numpy as np

from solver.cluster import MIB, Cluster
from solver.errors import InfeasiblePlanError
from solver.memory import packing, weights_room, whole_layer_bytes
from solver.model import ModelSpec
from solver.pipeline import chain, layer_seconds
from solver.plan import Plan


def plan_data(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Make a replica of every device that holds the model, the fastest first."""
    needed, room = spec.layers * whole_layer_bytes(spec), weights_room(spec, cluster, rows)
    holding = np.flatnonzero(room >= needed)
    if not holding.size:
        most = int(room.argmax())
        raise InfeasiblePlanError(
            f"{spec.name} fits on no device alone: {cluster.names[most]}, which has the most room, "
            f"lacks {math.ceil((needed - room[most]) / packing(spec, cluster) / MIB)} MiB"
        )
    seconds = layer_seconds(spec, cluster, rows)
    fastest_first = sorted(holding.tolist(), key=lambda rank: float(seconds[rank]))
    return chain(spec, cluster, [(rank, spec.layers) for rank in fastest_first], "data", rows)
