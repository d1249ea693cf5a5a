"""PipeEdge's stages (Hu et al., DSD 2022, arXiv 2110.14895; `solver.systems.pipeedge`) of a language model.

Contiguous stages of whole layers, one device each, so that the slowest stage or link is as fast as can be: tokens of
many sequences, not the next one of one. Its dynamic program runs over types of devices; those that are most alike count
as one type where there are too many.
"""

from __future__ import annotations

import numpy as np

from solver.base.arrays import FLOAT_BYTES
from solver.cluster.cluster import Cluster
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import setting_of
from solver.systems.decoders.common import chain, layers_do_not_fit, whole_layers
from solver.systems.pipeedge import Boards, StageUnits, best_stages, fewer_types


def plan_pipeedge(model: Decoder, cluster: Cluster, asked: TokenRequest) -> DecoderPlan:
    """Choose stages by the dynamic program over device types."""
    whole, layers = whole_layers(setting_of(model, cluster, asked), cluster, asked), len(model.layers)
    alike: dict[tuple[float, float, float], list[int]] = {}
    for rank in np.flatnonzero(whole.room > 0).tolist():
        kind = float(whole.seconds[rank]), cluster.bandwidth(rank), float(whole.room[rank])
        alike.setdefault(kind, []).append(rank)
    boards = [
        Boards(tuple(ranks), np.full(layers, seconds), bandwidth, room)
        for (seconds, bandwidth, room), ranks in alike.items()
    ]
    boards = fewer_types(boards, layers) if boards else []
    moved = np.full(layers + 1, float(FLOAT_BYTES * model.hidden * (asked.prompt + asked.tokens)))
    # Its buffers are a token's: next to nothing.
    units = StageUnits(np.full(layers, float(whole.size)), np.zeros(layers + 1), moved)
    found = best_stages(boards, units) if boards else None
    if found is None:
        raise layers_do_not_fit(model, cluster, "pipeedge", whole, whole.holds(layers))
    free = {number: iter(board.ranks) for number, board in enumerate(boards)}
    return chain(model, cluster, asked, [(next(free[kind]), count) for kind, count in found[1]], "pipeedge")
