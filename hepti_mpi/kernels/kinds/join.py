"""The join as nodes: what a block computed is added to the stream."""

from __future__ import annotations

from hepti_mpi.kernels.kinds.graph import PartGraph
from solver.model.kinds.part import Part, RankRegion


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
