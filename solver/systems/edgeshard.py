"""EdgeShard: Zhang et al., "EdgeShard: Efficient LLM Inference via Collaborative Edge Computing", arXiv 2405.14371.

Contiguous shards of layers on a chosen subset of the devices; for one request, the least sum of compute and transfers,
by a dynamic program over (layers done, devices used, last device), `solver.programs.path`:

    f(0, {}, source) = 0
    f(j, U + v, v) = min over i < j, u of f(i, U, u) + comm(u, v) + comp(v, i..j)    if v is not in U and i..j fit on v
    answer = min over U, u of f(L, U, u) + comm(u, source)

The source holds the requests, and keeps the first layer so that they never leave it: here that is the embedding, which
is rank 0's in every plan. comm counts latency and bytes of all rows over the link of the two. All layers are equal, so
the program has p^2 2^p steps on vectors of L: of more than MOST devices it sees the MOST whose layers and transfer
take least time. Where those do not hold the model, devices are filled in that order.
"""

from __future__ import annotations

import numpy as np

from solver.base.arrays import FLOAT_BYTES
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan
from solver.programs.path import Leg, alike_units, best_path
from solver.schedule.encoders.layer_table import Integers
from solver.schedule.encoders.memory import layers_do_not_fit, weights_room, whole_layer_bytes
from solver.schedule.encoders.stages import chain, layer_seconds

MOST = 8


def plan_edgeshard(spec: ModelSpec, cluster: Cluster, rows: int) -> Plan:
    """Choose shards by the dynamic program for latency."""
    seconds = layer_seconds(spec, cluster, rows)
    room = weights_room(spec, cluster, rows)
    holds = np.clip(room // whole_layer_bytes(spec), 0, spec.layers).astype(int)
    elements = rows * spec.hidden
    # A hop is worth the more, the more layers come after it.
    worth = {
        rank: seconds[rank] + _hop_s(cluster, 0, rank, elements) / holds[rank]
        for rank in np.flatnonzero(holds).tolist()
    }
    order = sorted(worth, key=lambda rank: float(worth[rank]))
    ranks = order[:MOST]
    if holds[ranks].sum() < spec.layers <= holds.sum():
        return chain(spec, cluster, _filled(order, holds, spec.layers), "edgeshard", rows)
    hops = np.array([[_hop_s(cluster, u, v, elements) for v in ranks] for u in (0, *ranks)])
    back = np.array([_hop_s(cluster, u, 0, elements) for u in ranks])
    found = least_sum(seconds[ranks], holds[ranks], hops, back, spec.layers) if ranks else None
    if found is None:
        raise layers_do_not_fit("edgeshard", spec, cluster, room, holds)
    return chain(spec, cluster, [(ranks[v], count) for v, count in found[1]], "edgeshard", rows)


def least_sum(
    seconds: Floats, holds: Integers, hops: Floats, back: Floats, layers: int
) -> tuple[float, list[tuple[int, int]]] | None:
    """Run the dynamic program.

    Parameters
    ----------
    seconds, holds : [p]
        Of one layer on every device; how many layers it holds.
    hops : [1 + p, p]
        Seconds from the source (row 0) or device u (row 1 + u) to device v.
    back : [p]
        Seconds from every device to the source.
    layers
        L.

    Returns
    -------
    (seconds, [(device, number of layers), ...]) or None
    """
    devices, count = np.eye(seconds.size, dtype=int).tolist(), np.arange(layers + 1)
    own = np.where(count <= np.array(holds)[:, None], count * seconds[:, None], np.inf)
    legs = [Leg(tuple(devices[v]), alike_units(own[v]), port=v) for v in range(seconds.size)]
    after_any = np.repeat(hops[1:, :, None], layers + 1, 2)
    found = best_path(legs, (1,) * seconds.size, after_any, start=hops[0], back=back)
    return None if found is None else (found.seconds, found.legs)


def _filled(order: list[int], holds: Integers, layers: int) -> list[tuple[int, int]]:
    parts, left = [], layers
    for rank in order:
        parts.append((rank, count := min(int(holds[rank]), left)))
        left -= count
        if not left:
            break
    return parts


def _hop_s(cluster: Cluster, one: int, other: int, elements: int) -> float:
    if one == other:
        return 0.0
    link = cluster.link(one, other)
    return link.latency_s + FLOAT_BYTES * elements / link.bandwidth_bytes_per_s
