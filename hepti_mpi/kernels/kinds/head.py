"""The head as nodes: logits of words."""

from __future__ import annotations

import numpy as np

from hepti_mpi.kernels.kinds.graph import PartGraph
from solver.model.kinds.head import Head
from solver.model.kinds.part import WORD, Part, RankRegion


def add_logits(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add the logits of some words."""
    assert isinstance(part.kind, Head)
    n = graph.read(part, "final_norm")
    tensor = next(own for own in part.tensors if own.axis == WORD)
    cap = part.kind.softcap
    logits = part.writes.name
    graph.product(n, "raw" if cap else logits, graph.matrix(part, tensor.leaf, region))
    if cap:
        limit = graph.constant("cap", np.array(cap, np.float32))
        graph.node("Mul", [graph.node("Tanh", [graph.node("Div", ["raw", limit], "part")], "bent"), limit], logits)
