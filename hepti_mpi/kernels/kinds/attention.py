"""Attention of a language model as nodes: onnxruntime's operator keeps keys and values, and attends to them.

Besides rows of the stream a graph takes, for run r of `runs_of`, the cache `k{r}`, `v{r}` [batch, kv heads, context,
d], which it gives as `k{r}'`, `v{r}'` (bind them to the same memory); `last` [batch] int32, the place of a sequence's
last new row; `total` [1] int32, the rows of the longest; and where heads turn `cos`, `sin` [context, width / 2] and,
where the operator does not turn them itself, `places` [batch, rows] int64.

Where tokens are shared out, a graph makes queries, and new keys and values, for all who keep some. Another attends to
this rank's, with plain operators, since that one does not tell the sums of exponentials: of `k0` and `v0` [batch,
kv heads, room, d] a row sees what lies from `from` to `to` [batch, rows] int64, and nobody what is from `until` [1] on.
One more joins what comes of it.

Where the cache is int8, it takes besides for every run its channels' scales `k{r}.scale`, `v{r}.scale` [kv heads · d],
and can give `keys`, `values` [batch, rows, kv heads · d], of all runs, before they are rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from hepti_mpi.kernels.kinds.graph import PartGraph
from hepti_mpi.kernels.kinds.heads import UNSEEN, runs_of, wide
from hepti_mpi.kernels.kinds.held import Matrix
from hepti_mpi.kernels.ort import CONTRIBUTED
from solver.base.arrays import Array
from solver.base.spans import Span
from solver.model.kinds.attention import Attention
from solver.model.kinds.part import HEAD, KEY, KV, Part, RankRegion

KINDS = {"float32": TensorProto.FLOAT, "int8": TensorProto.INT8}  # of a cache
TURNED_MULTIPLE = 16  # and turns those of a multiple of so many itself, twice so many columns of them at a time


def turns_itself(attention: Attention) -> bool:
    """Return whether the operator turns heads."""
    rope = attention.rope
    return (
        rope is not None
        and not attention.dealt
        and not wide(attention) % TURNED_MULTIPLE
        and not rope.width % TURNED_MULTIPLE
    )


def add_new_keys(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add the keys and values of some heads, side by side, for all who keep some tokens."""
    attention, heads = _kind(part), region[KV]
    keys = _turned(graph, part, _heads(graph, part, region, "k", "key", heads), "k", heads)
    values = _heads(graph, part, region, "v", "value", heads)
    apart = graph.constant("new.apart", np.array([0, 0, heads.size, 1, attention.head_dim], np.int64))
    flat = graph.constant("new.flat", np.array([0, 0, -1], np.int64))
    both = [graph.node("Reshape", [x, apart], f"{x}.apart") for x in (keys, values)]
    graph.node("Reshape", [graph.node("Concat", both, "new.both", axis=3), flat], part.writes.name)


def add_keys(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add the keys and values of some heads, as they are kept but for the cache."""
    attention, heads = _kind(part), region[KV]
    keys = _turned(graph, part, _heads(graph, part, region, "k", "key", heads), "k", heads)
    values = _heads(graph, part, region, "v", "value", heads)
    if graph.cache == "int8":
        for name, value in (("keys", keys), ("values", values)):
            graph.node("Identity", [value], graph.gives(name, ["batch", "rows", heads.size * wide(attention)]))
    graph.heads |= {"k": keys, "v": values}


def add_queries(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add the queries of some heads."""
    heads = region[HEAD]
    graph.heads["q"] = _turned(graph, part, _heads(graph, part, region, "q", "query", heads), "q", heads)
    if part.writes.name in graph.leaves:
        graph.node("Identity", [graph.heads["q"]], part.writes.name)


def add_kept(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add nothing: what keeps them writes new keys and values before the graph runs (`hepti_mpi.program.state`)."""


def add_partial_contexts(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add contexts of the tokens that this rank keeps, each with the logarithm of its sum of exponentials."""
    attention, d, K, group = _kind(part), _kind(part).head_dim, _kind(part).kv_heads, _kind(part).group
    queries = _apart(graph, graph.value(part.reads[0]), "q", [0, 0, K, group, d], [0, 2, 3, 1, 4])
    queries = graph.node("Reshape", [queries, graph.constant("q.rows", np.array([0, K, -1, d], np.int64))], "q.grouped")
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
    both = graph.node(
        "Reshape", [both, graph.constant("both.apart", np.array([0, K, group, -1, d + 1], np.int64))], "both.apart."
    )
    both = graph.node("Transpose", [both], "both.rows", perm=[0, 3, 1, 2, 4])
    graph.node("Reshape", [both, graph.constant("both.flat", np.array([0, 0, -1], np.int64))], part.writes.name)


def add_joined_contexts(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add what contexts of some tokens each are together: a mean by their sums of exponentials."""
    attention, (partial,) = _kind(part), part.reads
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


def add_contexts(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add the operator, once for every run of heads."""
    attention, d = _kind(part), wide(_kind(part))
    runs = runs_of(attention, region[HEAD])
    counts = {"q": [run.query for run in runs], "k": [run.kv for run in runs], "v": [run.kv for run in runs]}
    parts = [_split(graph, graph.heads[name], name, [d * count for count in own]) for name, own in counts.items()]
    ends = [graph.takes("last", ["batch"], TensorProto.INT32), graph.takes("total", [1], TensorProto.INT32)]
    turning = _tables(graph, attention) if turns_itself(attention) else ["", ""]
    contexts = []
    for number, run in enumerate(runs):
        options: dict[str, Any] = {
            "num_heads": run.query, "kv_num_heads": run.kv, "scale": attention.scale or attention.head_dim**-0.5,
            "softcap": attention.softcap, "local_window_size": attention.window or -1,
            "do_rotary": int(turns_itself(attention)),
        }  # fmt: skip
        caches, shape, kind = [f"k{number}", f"v{number}"], ["batch", run.kv, "context", d], KINDS[graph.cache]
        for name in caches:
            graph.takes(name, shape, kind)
        inputs = [part[number] for part in parts] + [*caches, *ends, *turning]
        if graph.cache == "int8":
            inputs += ["", "", "", *(graph.takes(f"{name}.scale", [run.kv * d]) for name in caches)]
            options |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
        kept = [graph.gives(f"{name}'", shape, kind) for name in caches]
        contexts.append(f"context{number}")
        graph.node("GroupQueryAttention", inputs, [contexts[-1], *kept], CONTRIBUTED, **options)
    found = contexts[0] if len(contexts) == 1 else graph.node("Concat", contexts, "contexts", axis=-1)
    if part.writes.name in graph.leaves:
        found = graph.node("Identity", [_narrowed(graph, attention, found)], part.writes.name)
    graph.heads["c"] = found


def add_output(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add the product of the contexts of some heads."""
    (contexts,), matrix = part.reads, graph.matrix(part, "output/weight", region)
    here = contexts.name in graph.made
    if here and contexts.name not in graph.leaves:  # as wide as the operator gives them
        matrix = _widened(_kind(part), matrix, 0)
    graph.product(graph.heads["c"] if here else graph.value(contexts), part.writes.name, matrix)


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


def _kind(part: Part) -> Attention:
    assert isinstance(part.kind, Attention)
    return part.kind


def _heads(graph: PartGraph, part: Part, region: RankRegion, name: str, leaf: str, heads: Span) -> str:
    """Add the product that makes queries, keys or values, and their norm."""
    attention, n = _kind(part), graph.read(part)
    matrix, bias = graph.matrix(part, f"{leaf}/weight", region), graph.vector(part, f"{leaf}/bias", region)
    x = graph.product(
        n, name, _widened(attention, matrix, 1), None if bias is None else _widened_array(attention, bias, 0)
    )
    weight = graph.vector(part, f"{leaf}_norm/weight", {})
    if weight is None:
        return x
    if attention.whole_norms:  # of all heads; then come those that are this rank's
        x = graph.scaled(x, f"{name}.whole", weight, None, part.stream.eps)
        return graph.columns(x, f"{name}.own", heads.scaled(attention.head_dim))
    return _head_norm(graph, x, name, weight, attention.head_dim, part.stream.eps)


def _turned(graph: PartGraph, part: Part, x: str, name: str, heads: Span) -> str:
    """Add what turns heads, where the operator does not."""
    attention = _kind(part)
    rope = attention.rope
    if rope is None or turns_itself(attention):
        return x
    places = graph.takes("places", ["batch", "rows"], TensorProto.INT64)
    facts = {"num_heads": heads.size, "rotary_embedding_dim": rope.width if rope.width < wide(attention) else 0}
    return graph.node(
        "RotaryEmbedding", [x, places, *_tables(graph, attention)], f"{name}.turned", CONTRIBUTED, **facts
    )


def _tables(graph: PartGraph, attention: Attention) -> list[str]:
    assert attention.rope is not None
    return [graph.takes(name, ["context", attention.rope.width // 2]) for name in ("cos", "sin")]


def _narrowed(graph: PartGraph, attention: Attention, x: str) -> str:
    """Add contexts without the columns of zeros that heads were given."""
    d = attention.head_dim
    if d == wide(attention):
        return x
    apart = graph.constant("contexts.heads", np.array([0, 0, -1, wide(attention)], np.int64))
    flat = graph.constant("contexts.flat", np.array([0, 0, -1], np.int64))
    cut = graph.columns(graph.node("Reshape", [x, apart], "contexts.apart"), "contexts.cut", Span(0, d))
    return graph.node("Reshape", [cut, flat], "contexts.narrow")


def _widened(attention: Attention, matrix: Matrix, axis: int) -> Matrix:
    """Return a matrix with zeros after the columns of every head, as wide as the operator takes them."""
    if attention.head_dim == wide(attention):
        return matrix
    assert isinstance(matrix, np.ndarray)
    return _widened_array(attention, matrix, axis)


def _widened_array(attention: Attention, array: Array, axis: int) -> Array:
    d = attention.head_dim
    if d == wide(attention):
        return array
    before, after = array.shape[:axis], array.shape[axis + 1 :]
    found = np.zeros((*before, array.shape[axis] // d, wide(attention), *after), np.float32)
    found[(*[slice(None)] * (axis + 1), slice(d))] = array.reshape(*before, -1, d, *after)
    return found.reshape(*before, -1, *after)


def _head_norm(graph: PartGraph, x: str, name: str, weight: Array, d: int, eps: float) -> str:
    """Add a norm over every head's columns."""
    heads = graph.constant(f"{name}.heads", np.array([0, 0, -1, d], np.int64))
    flat = graph.constant(f"{name}.flat", np.array([0, 0, -1], np.int64))
    apart = graph.node("Reshape", [x, heads], f"{name}.apart")
    normed = graph.scaled(apart, f"{name}.own", weight, None, eps)
    return graph.node("Reshape", [normed, flat], f"{name}.normed")


def _split(graph: PartGraph, x: str, name: str, widths: Sequence[int]) -> list[str]:
    if len(widths) == 1:
        return [x]
    names = [f"{name}.{number}" for number in range(len(widths))]
    graph.node("Split", [x, graph.constant(f"{name}.widths", np.array(widths, np.int64))], names, axis=-1)
    return names
