"""prima.cpp's windows (Li et al., arXiv 2504.08791; `solver.systems.prima`) of a language model.

Whole layers on devices in a ring, as many on each as Halda's integer program says; what it drops is left out. A window
is a stage, and a token goes once around.
"""

from __future__ import annotations

import numpy as np

from solver.cluster.cluster import Cluster
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import setting_of
from solver.systems.decoders.common import chain, layers_do_not_fit, whole_layers
from solver.systems.prima import halda


def plan_prima(model: Decoder, cluster: Cluster, asked: TokenRequest) -> DecoderPlan:
    """Choose windows by the integer program."""
    whole, layers = whole_layers(setting_of(model, cluster, asked), cluster, asked), len(model.layers)
    holds = np.array(whole.holds(layers))
    # A ring has at most L devices of one layer or more: of more, the fastest.
    able = sorted(np.flatnonzero(holds).tolist(), key=lambda rank: float(whole.seconds[rank]))
    ring = sorted(able[:layers])
    if holds[ring].sum() < layers:
        raise layers_do_not_fit(model, cluster, "prima", whole, holds.tolist())
    ranks, windows = halda(ring, whole.seconds[ring].tolist(), holds[ring].tolist(), layers)
    return chain(model, cluster, asked, list(zip(ranks, windows, strict=True)), "prima")
