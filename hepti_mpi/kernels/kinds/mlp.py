"""The MLP of a language model as nodes."""

from __future__ import annotations

from hepti_mpi.kernels.kinds.graph import PartGraph
from solver.model.kinds.mlp import Mlp
from solver.model.kinds.part import Part, RankRegion


def add_up(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add some columns."""
    assert isinstance(part.kind, Mlp)
    n, products = graph.read(part), {}
    for leaf in ("up", "gate") if part.kind.gated else ("up",):
        matrix, bias = graph.matrix(part, f"{leaf}/weight", region), graph.vector(part, f"{leaf}/bias", region)
        products[leaf] = graph.product(n, f"{part.block}/{leaf}", matrix, bias)
    name = part.writes.name
    if not part.kind.gated:
        graph.activated(part.kind.activation, products["up"], name)
    else:
        bent = graph.activated(part.kind.activation, products["gate"], f"{part.block}/bent")
        graph.node("Mul", [bent, products["up"]], name)


def add_down(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add the product of some columns."""
    (inner,) = part.reads
    graph.product(graph.value(inner), part.writes.name, graph.matrix(part, "down/weight", region))
