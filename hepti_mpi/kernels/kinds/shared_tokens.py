"""Attention of a language model where ranks share out tokens, as nodes.

A graph makes queries, and new keys and values, for all who keep some tokens. Another attends to this rank's, with plain
operators, since onnxruntime's does not tell the sums of exponentials: of `k0` and `v0` [batch, kv heads, room, d] a row
sees what lies from `from` to `to` [batch, rows] int64, and nobody what is from `until` [1] on. If the cache is int8, it
takes `k0.scale` and `v0.scale`, too, [kv heads · d]. One more joins what comes of all (flash decoding).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from hepti_mpi.kernels.kinds.attention import KINDS, heads_of, kind_of, turned
from hepti_mpi.kernels.kinds.graph import PartGraph
from hepti_mpi.kernels.kinds.heads import UNSEEN
from hepti_mpi.kernels.ort import CONTRIBUTED
from solver.model.kinds.attention import Attention
from solver.model.kinds.part import HEAD, KEY, KV, Part, RankRegion


def add_new_keys(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add the keys and values of some heads, side by side, for all who keep some tokens."""
    attention, heads = kind_of(part), region[KV]
    keys = turned(graph, part, heads_of(graph, part, region, "k", "key", heads), "k", heads)
    values = heads_of(graph, part, region, "v", "value", heads)
    apart = graph.constant("new.apart", np.array([0, 0, heads.size, 1, attention.head_dim], np.int64))
    flat = graph.constant("new.flat", np.array([0, 0, -1], np.int64))
    both = [graph.node("Reshape", [x, apart], f"{x}.apart") for x in (keys, values)]
    graph.node("Reshape", [graph.node("Concat", both, "new.both", axis=3), flat], part.writes.name)


def add_kept(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add nothing: what keeps them writes new keys and values before the graph runs (`hepti_mpi.program.state`)."""


def add_partial_contexts(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add contexts of the tokens that this rank keeps, each with the logarithm of its sum of exponentials."""
    attention, d, K, group = kind_of(part), kind_of(part).head_dim, kind_of(part).kv_heads, kind_of(part).group
    queries = _apart(graph, graph.value(part.reads[0]), "q", [0, 0, K, group, d], [0, 2, 3, 1, 4])
    queries = _apart(graph, queries, "q.grouped", [0, K, -1, d])
    until = graph.takes("until", [1], TensorProto.INT64)
    keys, values = (_kept_numbers(graph, attention, name, until) for name in ("k0", "v0"))
    facts = {"transB": 1, "alpha": attention.scale or d**-0.5}
    scores = graph.node("FusedMatMul", [queries, keys], "scores.all", CONTRIBUTED, **facts)
    if attention.softcap:
        cap = graph.constant("scores.cap", np.array(attention.softcap, np.float32))
        bent = graph.node("Tanh", [graph.node("Div", [scores, cap], "scores.part")], "scores.bent")
        scores = graph.node("Mul", [bent, cap], "scores.capped")
    scores = graph.node("Add", [scores, _hidden(graph, until, group)], "scores")
    last = graph.constant("last.axis", np.array([-1], np.int64))
    best = graph.node("ReduceMax", [scores, last], "best")
    powers = graph.node("Exp", [graph.node("Sub", [scores, best], "scores.below")], "powers")
    total = graph.node("ReduceSum", [powers, last], "total.powers")
    contexts = graph.node("Div", [graph.node("MatMul", [powers, values], "contexts.sum"), total], "contexts.mean")
    log_sum = graph.node("Add", [best, graph.node("Log", [total], "total.log")], "log.sum")
    both = graph.node("Concat", [contexts, log_sum], "contexts.both", axis=-1)
    both = _apart(graph, both, "both", [0, K, group, -1, d + 1], [0, 3, 1, 2, 4])
    graph.node("Reshape", [both, graph.constant("both.flat", np.array([0, 0, -1], np.int64))], part.writes.name)


def add_joined_contexts(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add what contexts of some tokens each are together: a mean by their sums of exponentials."""
    attention, (partial,) = kind_of(part), part.reads
    shape = [0, 0, region[KEY].size, region[HEAD].size, attention.head_dim + 1]
    both = _apart(graph, graph.value(partial), "joined", shape)
    widths = graph.constant("joined.widths", np.array([attention.head_dim, 1], np.int64))
    graph.node("Split", [both, widths], ["joined.contexts", "joined.log"], axis=-1)
    keepers = graph.constant("joined.axis", np.array([2], np.int64))
    best = graph.node("ReduceMax", ["joined.log", keepers], "joined.best")
    powers = graph.node("Exp", [graph.node("Sub", ["joined.log", best], "joined.below")], "joined.powers")
    weighed = graph.node("Mul", ["joined.contexts", powers], "joined.weighed")
    sums = [graph.node("ReduceSum", [x, keepers], f"{x}.sum", keepdims=0) for x in (weighed, powers)]
    flat = graph.constant("joined.flat", np.array([0, 0, -1], np.int64))
    graph.heads["c"] = graph.node("Reshape", [graph.node("Div", sums, "joined.mean"), flat], part.writes.name)


def _apart(graph: PartGraph, x: str, name: str, shape: Sequence[int], order: Sequence[int] | None = None) -> str:
    """Add x in another shape, and then its axes in another order."""
    x = graph.node("Reshape", [x, graph.constant(f"{name}.shape", np.array(shape, np.int64))], f"{name}.apart")
    return x if order is None else graph.node("Transpose", [x], f"{name}.ordered", perm=order)


def _kept_numbers(graph: PartGraph, attention: Attention, name: str, until: str) -> str:
    """Add what a cache has until there, in float32."""
    shape = ["batch", attention.kv_heads, "room", attention.head_dim]
    kept = graph.takes(name, shape, KINDS[graph.cache])
    first, axis = (graph.constant(f"{name}.{end}", np.array([n], np.int64)) for end, n in (("from", 0), ("axis", 2)))
    some = graph.node("Slice", [kept, first, until, axis], f"{name}.some")
    if graph.cache != "int8":
        return some
    scale = graph.takes(f"{name}.scale", [attention.kv_heads * attention.head_dim])
    by_head = _apart(graph, scale, f"{name}.scale", [attention.kv_heads, 1, attention.head_dim])
    return graph.node(
        "Mul", [graph.node("Cast", [some], f"{name}.cast", to=TensorProto.FLOAT), by_head], f"{name}.numbers"
    )


def _hidden(graph: PartGraph, until: str, group: int) -> str:
    """Add what hides from rows what they do not see, to be added to scores: [batch, 1, group · rows, until]."""
    zero, one = (graph.constant(f"hidden.{n}", np.array(n, np.int64)) for n in (0, 1))
    stop = graph.node("Squeeze", [until], "hidden.until")
    tokens = graph.node("Range", [zero, stop, one], "hidden.tokens")
    last = graph.constant("hidden.last", np.array([-1], np.int64))
    ends = [
        graph.node("Unsqueeze", [graph.takes(name, ["batch", "rows"], TensorProto.INT64), last], f"{name}.last")
        for name in ("from", "to")
    ]
    sees = graph.node(
        "And",
        [
            graph.node("GreaterOrEqual", [tokens, ends[0]], "hidden.after"),
            graph.node("Less", [tokens, ends[1]], "hidden.before"),
        ],
        "hidden.sees",
    )
    numbers = [graph.constant(f"hidden.{name}", np.array(n, np.float32)) for name, n in (("none", 0), ("all", UNSEEN))]
    hidden = graph.node("Where", [sees, *numbers], "hidden")
    heads = graph.node("Unsqueeze", [hidden, graph.constant("hidden.heads", np.array([1], np.int64))], "hidden.rows")
    return heads if group == 1 else graph.node("Concat", [heads] * group, "hidden.grouped", axis=2)
