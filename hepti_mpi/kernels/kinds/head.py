"""The head as nodes: logits of words."""

from __future__ import annotations

import numpy as np

from hepti_mpi.kernels.kinds.graph import PartGraph
from solver.model.kinds.head import Head
from solver.model.kinds.part import HIDDEN, WORD, Part, RankRegion


def add_sums(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add summands of all logits, of some columns of the stream."""
    n = graph.columns(graph.read(part, "final_norm"), "summed", region[HIDDEN].scaled(part.stream.unit))
    graph.product(n, part.writes.name, graph.matrix(part, _matrix(part), region))


def add_logits(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add the logits of some words; of their sums where these have been made."""
    assert isinstance(part.kind, Head)
    cap, logits = part.kind.softcap, part.writes.name
    if not part.tensors:
        raw = graph.value(part.reads[0])
        if not cap:
            graph.node("Identity", [raw], logits)
    else:
        n, raw = graph.read(part, "final_norm"), "raw" if cap else logits
        graph.product(n, raw, graph.matrix(part, _matrix(part), region))
    if cap:
        limit = graph.constant("cap", np.array(cap, np.float32))
        graph.node("Mul", [graph.node("Tanh", [graph.node("Div", [raw, limit], "part")], "bent"), limit], logits)


def _matrix(part: Part) -> str:
    return next(own.leaf for own in part.tensors if own.axis == WORD)
