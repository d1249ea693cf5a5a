"""What lies between blocks as nodes: what they computed is added to the stream; and words at its end."""

from __future__ import annotations

import numpy as np

from hepti_mpi.kernels.kinds.graph import PartGraph
from solver.model.kinds.part import HIDDEN, WORD, Part, RankRegion
from solver.model.kinds.stream import Head


def add_join(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add x + post_norm(s + bias): with the norm of who reads it, where one does."""
    x, s = (graph.value(value) for value in part.reads)
    biases = [own for own in part.tensors if not own.leaf.startswith("post_norm/")]
    bias = graph.vector(part, biases[0].leaf, region) if biases else None
    if graph.tensor(part, "post_norm/weight") is not None:
        if bias is not None:
            s = graph.node("Add", [s, graph.constant(f"{s}.bias", bias)], f"{s}.biased")
        s, bias = graph.norm(s, f"{s}.normed", part, "post_norm"), None
    graph.sums[part.writes.name] = x, s, bias


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
