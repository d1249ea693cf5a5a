"""Attention of a language model as nodes: onnxruntime's operator keeps keys and values, and attends to them.

Besides rows of the stream a graph takes, for run r of `runs_of`, the cache `k{r}`, `v{r}` [batch, kv heads, context,
d], which it gives as `k{r}'`, `v{r}'` (bind them to the same memory); `last` [batch] int32, the place of a sequence's
last new row; `total` [1] int32, the rows of the longest; and where heads turn `cos`, `sin` [context, width / 2] and,
where the operator does not turn them itself, `places` [batch, rows] int64.

Where the cache is int8, it takes besides for every run its channels' scales `k{r}.scale`, `v{r}.scale` [kv heads · d],
and can give `keys`, `values` [batch, rows, kv heads · d], of all runs, before they are rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from hepti_mpi.kernels.kinds.graph import PartGraph
from hepti_mpi.kernels.kinds.heads import runs_of, wide
from hepti_mpi.kernels.kinds.held import Matrix
from hepti_mpi.kernels.ort import CONTRIBUTED
from solver.base.arrays import Array
from solver.base.spans import Span
from solver.model.kinds.attention import Attention
from solver.model.kinds.part import HEAD, KV, Part, RankRegion

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


def add_keys(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add the keys and values of some heads, as they are kept but for the cache."""
    attention, heads = kind_of(part), region[KV]
    keys = turned(graph, part, heads_of(graph, part, region, "k", "key", heads), "k", heads)
    values = heads_of(graph, part, region, "v", "value", heads)
    if graph.cache == "int8":
        for name, value in (("keys", keys), ("values", values)):
            graph.node("Identity", [value], graph.gives(name, ["batch", "rows", heads.size * wide(attention)]))
    graph.heads |= {"k": keys, "v": values}


def add_queries(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add the queries of some heads."""
    heads = region[HEAD]
    graph.heads["q"] = turned(graph, part, heads_of(graph, part, region, "q", "query", heads), "q", heads)
    if part.writes.name in graph.leaves:
        graph.node("Identity", [graph.heads["q"]], part.writes.name)


def add_contexts(graph: PartGraph, part: Part, region: RankRegion) -> None:
    """Add the operator, once for every run of heads."""
    attention, d = kind_of(part), wide(kind_of(part))
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
        matrix = _widened(kind_of(part), matrix, 0)
    graph.product(graph.heads["c"] if here else graph.value(contexts), part.writes.name, matrix)


def kind_of(part: Part) -> Attention:
    """Return the attention whose part it is."""
    assert isinstance(part.kind, Attention)
    return part.kind


def heads_of(graph: PartGraph, part: Part, region: RankRegion, name: str, leaf: str, heads: Span) -> str:
    """Add the product that makes queries, keys or values, and their norm."""
    attention, n = kind_of(part), graph.read(part)
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


def turned(graph: PartGraph, part: Part, x: str, name: str, heads: Span) -> str:
    """Add what turns heads, where the operator does not."""
    attention = kind_of(part)
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
