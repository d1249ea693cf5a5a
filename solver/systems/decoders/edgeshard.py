"""EdgeShard's shards (Zhang et al., arXiv 2405.14371; `solver.systems.edgeshard`) of a language model.

Contiguous shards of whole layers on a chosen subset, for the least sum of compute and transfers of an answer's passes,
by its dynamic program over sets of devices. Of more than MOST devices it sees those whose layers take least time.
"""

from __future__ import annotations

import numpy as np

from solver.base.arrays import FLOAT_BYTES
from solver.cluster.cluster import Cluster
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import chunks, setting_of
from solver.systems.decoders.common import chain, layers_do_not_fit, whole_layers
from solver.systems.edgeshard import MOST, least_sum


def plan_edgeshard(model: Decoder, cluster: Cluster, asked: TokenRequest) -> DecoderPlan:
    """Choose shards by the dynamic program for latency."""
    whole, layers = whole_layers(setting_of(model, cluster, asked), cluster, asked), len(model.layers)
    holds = np.array(whole.holds(layers))
    ranks = sorted(np.flatnonzero(holds).tolist(), key=lambda rank: float(whole.seconds[rank]))[:MOST]
    rows = [1] * asked.tokens + [rows for rows, _ in chunks(asked.prompt)]

    def hop_s(one: int, other: int) -> float:
        if one == other:
            return 0.0
        link = cluster.link(one, other)
        return len(rows) * link.latency_s + FLOAT_BYTES * sum(rows) * model.hidden / link.bandwidth_bytes_per_s

    hops = np.array([[hop_s(u, v) for v in ranks] for u in (0, *ranks)])
    # What comes back from the last are candidates, not the stream.
    back = np.array([0.0 if u == 0 else len(rows) * cluster.link(u, 0).latency_s for u in ranks])
    found = least_sum(whole.seconds[ranks], holds[ranks], hops, back, layers) if ranks else None
    if found is None:
        raise layers_do_not_fit(model, cluster, "edgeshard", whole, holds.tolist())
    return chain(model, cluster, asked, [(ranks[v], count) for v, count in found[1]], "edgeshard")
