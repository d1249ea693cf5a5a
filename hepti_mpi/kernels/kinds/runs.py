"""Which nodes a part adds: the graph of a run of parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hepti_mpi.kernels.kinds import attention, head, join, mlp, shared_tokens
from hepti_mpi.kernels.kinds.graph import AddNodes, PartGraph
from hepti_mpi.kernels.kinds.held import TensorSource
from hepti_mpi.kernels.ort import Session
from solver.model.kinds.part import Part, RankRegion

# By a part's role.
NODES: Mapping[str, AddNodes] = {
    "keys": attention.add_keys,
    "new keys": shared_tokens.add_new_keys,
    "queries": attention.add_queries,
    "kept": shared_tokens.add_kept,
    "contexts": attention.add_contexts,
    "partial contexts": shared_tokens.add_partial_contexts,
    "joined contexts": shared_tokens.add_joined_contexts,
    "output": attention.add_output,
    "up": mlp.add_up,
    "down": mlp.add_down,
    "join": join.add_join,
    "sums": head.add_sums,
    "logits": head.add_logits,
}


def session_of(
    run: Sequence[tuple[Part, RankRegion]], leaves: Collection[str], source: TensorSource, *, cache: str
) -> Session:
    """Return the graph of what a rank computes of some parts, one after the other.

    Parameters
    ----------
    leaves
        The names of the values that come out of it.
    cache
        What keys and values are kept in.
    """
    graph = PartGraph(source, frozenset(leaves), cache)
    for part, region in run:
        NODES[part.role](graph, part, region)
        if part.writes.name not in graph.sums:
            graph.made.add(part.writes.name)
    for part, _ in run:
        if part.writes.name in leaves:
            graph.gives(graph.value(part.writes), ["batch", "rows", f"{part.name} columns"])
    return graph.session()
