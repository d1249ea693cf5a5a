"""A half layer of a language model as one onnxruntime graph.

Values are [batch, rows, width]. A graph takes the stream `x` and, but for the first of a stage, `s`, the sum of all
ranks' summands of the half layer before; it gives the stream `h` with that added, and this rank's summand `part`. The
sum is the exchange's (`comm.summands`): one graph serves any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from hepti_mpi.kernels.blocks import Blocks
from hepti_mpi.kernels.ort import ACTIVATIONS, CONTRIBUTED, Session, make_session
from solver.base.arrays import Array, Numbers
from solver.base.errors import HeptiError
from solver.base.spans import Span
from solver.model.decoder import BLOCK, Decoder, GatedMlp, GroupedAttention, Rope

OPSET = 18
KINDS = {"float32": TensorProto.FLOAT, "int8": TensorProto.INT8}  # of a cache
HEAD_MULTIPLE = 8  # the operator takes heads of a multiple of so many columns
TURNED_MULTIPLE = 16  # and turns those of a multiple of so many itself, twice so many columns of them at a time


Matrix = Array | Blocks  # an Array is [in, out], or such a view of one that lies as [out, in]


@dataclass(frozen=True, slots=True, eq=False)
class NormWeights:
    """A norm's weight, and its shift where it has one."""

    weight: Array
    shift: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Before:
    """What is left to do with the sum of the half layer before: its output's bias, and the norm behind it."""

    bias: Array | None = None
    norm: NormWeights | None = None


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWeights:
    """A rank's share of a layer's attention; `bias` is of query, key and value side by side."""

    norm: NormWeights | None
    projections: tuple[Matrix, Matrix, Matrix]  # query, key, value; of all heads where their norm is
    output: Matrix
    bias: Array | None = None
    query_norm: Array | None = None
    key_norm: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class MlpWeights:
    """A rank's share of a layer's MLP; `gate` is None where there is none, and a bias goes with each matrix."""

    norm: NormWeights | None
    gate: Matrix | None
    up: Matrix
    down: Matrix
    gate_bias: Array | None = None
    up_bias: Array | None = None


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads with equally many to a key and value head: one operator, and one cache."""

    query: int
    kv: int


def widened(model: Decoder, attention: GroupedAttention, precision: str) -> GroupedAttention:
    """Return attention with heads as wide as the operator takes them: columns of zeros change nothing.

    Raises
    ------
    HeptiError
        If the model cannot have them.
    """
    d = attention.head_dim
    if not d % HEAD_MULTIPLE:
        return attention
    if precision != "float32" or attention.qk_norm:
        what = "of normed heads" if attention.qk_norm else f"in {precision}"
        raise HeptiError(f"model {model.name}: a head is {d} wide, {what} it must be a multiple of {HEAD_MULTIPLE}")
    return replace(attention, head_dim=-(-d // HEAD_MULTIPLE) * HEAD_MULTIPLE, scale=attention.scale or d**-0.5)


def runs_of(attention: GroupedAttention, heads: Span) -> list[Heads]:
    """Return a span of query heads as runs of heads with equally many to a key and value head.

    Whole groups are one run; a group that is cut has its key and value head on both sides, and is a run of its own.
    """
    kv = attention.kv_span(heads)
    sizes = [
        Span(number * attention.group, (number + 1) * attention.group).intersect(heads).size
        for number in range(kv.start, kv.stop)
    ]
    return [Heads(size * (count := len(list(same))), count) for size, same in groupby(sizes)]


@dataclass(slots=True)
class _Graph:
    """A graph as it comes together."""

    model: Decoder
    nodes: list[NodeProto] = field(default_factory=list)
    small: list[TensorProto] = field(default_factory=list)
    large: dict[str, Numbers] = field(default_factory=dict)
    blocks: dict[str, Blocks] = field(default_factory=dict)  # by the product
    inputs: list[ValueInfoProto] = field(default_factory=list)
    outputs: list[ValueInfoProto] = field(default_factory=list)

    def value(self, name: str, shape: Sequence[Any], kind: int = TensorProto.FLOAT) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    def takes(self, name: str, shape: Sequence[Any], kind: int = TensorProto.FLOAT) -> str:
        self.inputs.append(self.value(name, shape, kind))
        return name

    def gives(self, name: str, shape: Sequence[Any], kind: int = TensorProto.FLOAT) -> str:
        self.outputs.append(self.value(name, shape, kind))
        return name

    def constant(self, name: str, array: Numbers) -> str:
        self.small.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, op: str, inputs: Sequence[str], outputs: str | Sequence[str], domain: str = "", **facts: Any) -> str:
        names = [outputs] if isinstance(outputs, str) else [*outputs]
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **facts))
        return names[0]

    def product(self, x: str, y: str, matrix: Matrix, bias: Array | None = None) -> str:
        """Add y = x · matrix + bias."""
        if isinstance(matrix, Blocks):
            symmetric = y if matrix.minima is None else f"{y}.symmetric"
            self.blocks[symmetric] = matrix
            biases = [] if bias is None else [self.constant(f"{y}.bias", bias)]
            self.nodes.append(matrix.node(x, symmetric, biases))
            return y if matrix.minima is None else self._with_minima(x, y, symmetric, matrix.minima, matrix.summed)
        # As it lies: a copy of the head's matrix the other way round was half of what its graph took to make.
        transposed = not matrix.flags.c_contiguous
        self.large[f"{y}.matrix"] = matrix.T if transposed else matrix
        product = y if bias is None else f"{y}.product"
        self.node("FusedMatMul", [x, f"{y}.matrix"], product, CONTRIBUTED, transB=int(transposed))
        return y if bias is None else self.node("Add", [product, self.constant(f"{y}.bias", bias)], y)

    def _with_minima(self, x: str, y: str, symmetric: str, minima: Numbers, summed: int) -> str:
        """Add to a product what minima make: of every block the sum of its numbers of x times its minimum."""
        sums, blocks = f"{x}.sums", -(-summed // BLOCK)
        if not any(sums in node.output for node in self.nodes):
            if missing := -summed % BLOCK:
                ends = self.constant(f"{x}.ends", np.array([0, 0, 0, 0, 0, missing], np.int64))
                x = self.node("Pad", [x, ends], f"{x}.filled")
            apart = self.constant(f"{sums}.shape", np.array([0, 0, blocks, BLOCK], np.int64))
            axis = self.constant(f"{sums}.axis", np.array([-1], np.int64))
            self.node("ReduceSum", [self.node("Reshape", [x, apart], f"{x}.apart"), axis], sums, keepdims=0)
        self.large[f"{y}.minima"] = minima
        return self.node("Add", [symmetric, self.node("MatMul", [sums, f"{y}.minima"], f"{y}.of_minima")], y)

    def norm(self, x: str, y: str, norm: NormWeights, eps: float | None = None) -> str:
        """Add a norm over the last axis; "rms" without a shift."""
        facts: dict[str, Any] = {"axis": -1, "epsilon": self.model.norm_eps if eps is None else eps}
        weight = self.constant(f"{y}.weight", norm.weight)
        if norm.shift is None:
            return self.node("SimplifiedLayerNormalization", [x, weight], y, **facts)
        return self.node("LayerNormalization", [x, weight, self.constant(f"{y}.shift", norm.shift)], y, **facts)

    def summand(self, before: Before) -> str:
        """Return the sum that came in as it is added to the stream, its bias aside where it has no norm."""
        if before.norm is None:
            return "s"
        s = "s"
        if before.bias is not None:
            s = self.node("Add", ["s", self.constant("before.bias", before.bias)], "s.biased")
        return self.norm(s, "s.normed", before.norm)

    def open(self, norm: NormWeights | None, before: Before | None) -> str:
        """Add what every half begins with: the stream, with what was computed before added to it, normed."""
        H = self.model.hidden
        self.takes("x", ["batch", "rows", H])
        if before is None:
            return "x" if norm is None else self.norm("x", "normed", norm)
        self.takes("s", ["batch", "rows", H])
        self.gives("h", ["batch", "rows", H])
        if norm is None:
            return self.added(before)
        inputs = ["x", self.summand(before), self.constant("norm.weight", norm.weight)]
        op = "SkipSimplifiedLayerNormalization"
        if norm.shift is not None:
            op = "SkipLayerNormalization"
            inputs.append(self.constant("norm.shift", norm.shift))
        if before.bias is not None and before.norm is None:
            inputs.append(self.constant("before.bias", before.bias))
        return self.node(op, inputs, ["normed", "", "", "h"], CONTRIBUTED, epsilon=self.model.norm_eps)

    def added(self, before: Before) -> str:
        """Add the sum of the stream and of what was computed before, "h"."""
        s = self.summand(before)
        if before.bias is not None and before.norm is None:
            s = self.node("Add", [s, self.constant("before.bias", before.bias)], "s.biased")
        return self.node("Add", ["x", s], "h")

    def session(self) -> Session:
        lent = {name: part.array for y, own in self.blocks.items() for name, part in own.parts(y).items()}
        session = make_session(
            self.nodes, self.inputs, self.outputs, self.small, self.large | lent, opset=OPSET, passes_memory_on=True,
            shares_constants=bool(lent),
        )  # fmt: skip
        for own in self.blocks.values():
            own.give_back()
        return session


def add_graph(model: Decoder, before: Before) -> Session:
    """Make the graph of a rank without a share of a half: the stream goes on with what was computed before."""
    graph, H = _Graph(model), model.hidden
    graph.takes("x", ["batch", "rows", H])
    graph.takes("s", ["batch", "rows", H])
    graph.gives("h", ["batch", "rows", H])
    graph.added(before)
    return graph.session()


def attention_graph(
    model: Decoder,
    attention: GroupedAttention,
    heads: Span,
    weights: AttentionWeights,
    before: Before | None,
    *,
    cache: str,
) -> Session:
    """Make the graph of some heads of attention.

    Besides `x` and `s` it takes, for run r of `runs_of`, the cache `k{r}`, `v{r}` [batch, kv heads, context, d], which
    it gives as `k{r}'`, `v{r}'` (bind them to the same memory); `last` [batch] int32, the place of a sequence's last
    new row; `total` [1] int32, the rows of the longest; and where heads turn `cos`, `sin` [context, width / 2] and,
    where the operator does not turn them itself, `places` [batch, rows] int64.

    Where the cache is int8, it takes besides for every run its channels' scales `k{r}.scale`, `v{r}.scale`
    [kv heads · d], and can give `keys`, `values` [batch, rows, kv heads · d], of all runs, before they are rounded.

    Parameters
    ----------
    cache
        What keys and values are kept in: float32 or int8.

    """
    d, H = attention.head_dim, model.hidden
    runs = runs_of(attention, heads)
    kv = attention.kv_span(heads)
    graph = _Graph(model)
    n = graph.open(weights.norm, before)
    widths = [heads.size * d, kv.size * d, kv.size * d]
    made = [attention.heads * d, attention.kv_heads * d, kv.size * d] if attention.whole_norms else widths
    rope = attention.rope
    turns_itself = rope is not None and not d % TURNED_MULTIPLE and not rope.width % TURNED_MULTIPLE
    turned = {}
    if rope is not None:
        turned = {name: graph.takes(name, ["context", rope.width // 2]) for name in ("cos", "sin")}
        if not turns_itself:
            graph.takes("places", ["batch", "rows"], TensorProto.INT64)
    values = []
    biases = [None] * 3 if weights.bias is None else np.split(weights.bias, np.cumsum(made)[:-1])
    for name, matrix, bias in zip("qkv", weights.projections, biases, strict=True):
        values.append(graph.product(n, name, matrix, bias))
    for place, (name, own) in enumerate((("q", weights.query_norm), ("k", weights.key_norm))):
        if own is not None and attention.whole_norms:
            normed = graph.norm(values[place], f"{name}.whole", NormWeights(own))
            values[place] = _columns(graph, normed, f"{name}.own", (kv if place else heads).scaled(d))
        elif own is not None:
            values[place] = _head_norm(graph, values[place], name, own, d)
        if rope is not None and not turns_itself:
            facts = {"num_heads": widths[place] // d, "rotary_embedding_dim": rope.width if rope.width < d else 0}
            inputs = [values[place], "places", "cos", "sin"]
            values[place] = graph.node("RotaryEmbedding", inputs, f"{name}.turned", CONTRIBUTED, **facts)
    if cache == "int8":
        for name, value in (("keys", values[1]), ("values", values[2])):
            graph.node("Identity", [value], graph.gives(name, ["batch", "rows", kv.size * d]))
    parts = [
        _split(graph, value, name, [count * d for count in counts])
        for name, value, counts in zip(
            "qkv", values, ([run.query for run in runs], *[[run.kv for run in runs]] * 2), strict=True
        )
    ]
    graph.takes("last", ["batch"], TensorProto.INT32)
    graph.takes("total", [1], TensorProto.INT32)
    contexts = []
    for number, run in enumerate(runs):
        options: dict[str, Any] = {
            "num_heads": run.query, "kv_num_heads": run.kv, "scale": attention.scale or d**-0.5,
            "softcap": attention.softcap, "local_window_size": attention.window or -1, "do_rotary": int(turns_itself),
        }  # fmt: skip
        caches = [f"k{number}", f"v{number}"]
        kind = KINDS[cache]
        for name in caches:
            graph.takes(name, ["batch", run.kv, "context", d], kind)
        inputs = [part[number] for part in parts] + [*caches, "last", "total"]
        inputs += [turned["cos"], turned["sin"]] if turns_itself else ["", ""]
        if cache == "int8":
            inputs += ["", "", "", *(graph.takes(f"{name}.scale", [run.kv * d]) for name in caches)]
            options |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
        kept = [graph.gives(f"{name}'", ["batch", run.kv, "context", d], kind) for name in caches]
        context = f"context{number}"
        graph.node("GroupQueryAttention", inputs, [context, *kept], CONTRIBUTED, **options)
        contexts.append(context)
    context = contexts[0] if len(contexts) == 1 else graph.node("Concat", contexts, "contexts", axis=-1)
    graph.product(context, graph.gives("part", ["batch", "rows", H]), weights.output)
    return graph.session()


def mlp_graph(model: Decoder, mlp: GatedMlp, weights: MlpWeights, before: Before) -> Session:
    """Make the graph of some columns of an MLP."""
    graph = _Graph(model)
    n = graph.open(weights.norm, before)
    up = graph.product(n, "up", weights.up, weights.up_bias)
    gate = up if weights.gate is None else graph.product(n, "gate", weights.gate, weights.gate_bias)
    inner = _activated(graph, mlp.activation, gate)
    if weights.gate is not None:
        inner = graph.node("Mul", [inner, up], "inner")
    graph.product(inner, graph.gives("part", ["batch", "rows", model.hidden]), weights.down)
    return graph.session()


def head_graph(model: Decoder, norm: NormWeights, words: Matrix, before: Before) -> Session:
    """Make the graph of some words' logits: `logits` [1, chosen, words] of the rows `chosen`, of all batches' rows."""
    graph, H = _Graph(model), model.hidden
    flat = graph.constant("flat", np.array([1, -1, H], np.int64))
    chosen = graph.takes("chosen", ["chosen"], TensorProto.INT64)
    rows = {}
    for name in ("x", "s"):
        graph.takes(name, ["batch", "rows", H])
        graph.node("Reshape", [name, flat], f"{name}.flat")
        rows[name] = graph.node("Gather", [f"{name}.flat", chosen], f"{name}.chosen", axis=1)
    s = rows["s"]
    if before.bias is not None:
        s = graph.node("Add", [s, graph.constant("before.bias", before.bias)], "s.biased")
    if before.norm is not None:
        s = graph.norm(s, "s.normed", before.norm)
    h = graph.node("Add", [rows["x"], s], "stream")
    n = graph.norm(h, "normed", norm)
    width = words.out if isinstance(words, Blocks) else words.shape[1]
    logits = graph.gives("logits", [1, "chosen", width])
    cap = model.head_softcap
    graph.product(n, "raw" if cap else logits, words)
    if cap:
        limit = graph.constant("cap", np.array(cap, np.float32))
        graph.node("Mul", [graph.node("Tanh", [graph.node("Div", ["raw", limit], "part")], "bent"), limit], logits)
    return graph.session()


def _head_norm(graph: _Graph, x: str, name: str, weight: Array, d: int) -> str:
    """Add a norm over every head's columns."""
    heads = graph.constant(f"{name}.heads", np.array([0, 0, -1, d], np.int64))
    flat = graph.constant(f"{name}.flat", np.array([0, 0, -1], np.int64))
    apart = graph.node("Reshape", [x, heads], f"{name}.apart")
    normed = graph.norm(apart, f"{name}.own", NormWeights(weight))
    return graph.node("Reshape", [normed, flat], f"{name}.normed")


def _columns(graph: _Graph, x: str, y: str, columns: Span) -> str:
    """Add some columns of x."""
    ends = {name: np.array([n], np.int64) for name, n in (("from", columns.start), ("to", columns.stop), ("axis", -1))}
    return graph.node("Slice", [x, *(graph.constant(f"{y}.{name}", end) for name, end in ends.items())], y)


def _split(graph: _Graph, x: str, name: str, widths: Sequence[int]) -> list[str]:
    if len(widths) == 1:
        return [x]
    names = [f"{name}.{number}" for number in range(len(widths))]
    graph.node("Split", [x, graph.constant(f"{name}.widths", np.array(widths, np.int64))], names, axis=-1)
    return names


def _activated(graph: _Graph, activation: str, x: str) -> str:
    if activation == "silu":
        return graph.node("QuickGelu", [x], "bent", CONTRIBUTED, alpha=1.0)
    operator, domain = ACTIVATIONS[activation]
    return graph.node(operator, [x], "bent", domain)


def turning_tables(rope: Rope, context: int) -> Mapping[str, Array]:
    """Return the tables by which heads turn, cosines and sines [context, width / 2]."""
    angles = np.arange(context)[:, None] * np.array(rope.frequencies)
    of = {"cos": np.cos(angles), "sin": np.sin(angles)}
    return {name: (table * rope.factor).astype(np.float32) for name, table in of.items()}
