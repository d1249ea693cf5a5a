"""Attention: keys and values, queries, contexts, and the product of the contexts.

Letters as in `solver.model.decoder`. A language model's is causal, and its keys and values are kept; an encoder's sees
all rows of its request (`full_attention`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from solver.base.errors import HeptiError
from solver.base.spans import Span
from solver.model.blocks import Axis, BlockKind, Inner
from solver.model.kinds.part import (
    HEAD,
    HIDDEN,
    KEY,
    KV,
    NUMBER,
    PAIR,
    ROW,
    Part,
    PartTensor,
    Reaching,
    Region,
    Residual,
    Spans,
    TensorUse,
    Value,
    as_they_are,
)
from solver.model.kinds.weight import Weight

CACHES = ("float32", "int8")  # what keys and values are kept in
SEEN_ROWS = 32  # that attend at a time to tokens that are shared out: of all heads and tokens there are scores
FROM = f"{KEY} from"  # the first of some keepers
PARTIAL = "partial contexts"  # of who keeps some tokens
# Roles of parts where every row sees all rows of its request, and nothing is kept.
FULL_KEYS, FULL_CONTEXTS = "full keys", "full contexts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary positions: columns i and i + width / 2 of a head turn by position times `frequencies[i]`.

    Parameters
    ----------
    frequencies
        width / 2 of them, radians a position, scaled as the checkpoint says (llama3, linear, yarn); a head's columns
        from `width` on stay as they are.
    factor
        Of cosines and sines (longrope, yarn).
    """

    frequencies: tuple[float, ...]
    factor: float = 1.0

    @property
    def width(self) -> int:
        """Columns of a head that turn."""
        return 2 * len(self.frequencies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(BlockKind):
    """Attention whose query heads share keys and values in groups of A / K."""

    name: ClassVar[str] = "attention"
    curve: ClassVar[str] = "attention"
    axis: ClassVar[str] = HEAD
    later: ClassVar[tuple[str, ...]] = ("whole_norms", "causal", "buckets", "dealt", "requests")

    heads: int  # A
    kv_heads: int  # K
    head_dim: int  # d
    rope: Rope | None = None
    window: int = 0  # a row sees so many last rows, itself among them; 0: all
    softcap: float = 0.0  # c of c tanh(scores / c); 0: none
    scale: float = 0.0  # of scores; 0: 1 / sqrt(d)
    bias: bool = False  # of query, key and value
    output_bias: bool = False
    qk_norm: bool = False  # RMS norm over d of every head's query and key, before they turn
    whole_norms: bool = False  # of these norms: over all heads' queries, and all keys, at once (OLMo 2)
    causal: bool = True  # whether a row sees none that follow it
    buckets: int = 0  # of distances between rows, each with a number that a head adds to scores (MPNet); 0: none is
    dealt: tuple[int, ...] = ()  # of every so many tokens how many each keeper has of a plan that shares them out
    requests: tuple[int, ...] = ()  # of a batch: how many rows each has, one after the other; (): all are one's

    @property
    def group(self) -> int:
        """Query heads that share a key and value head."""
        return self.heads // self.kv_heads

    def kv_span(self, heads: Span) -> Span:
        """Return the key and value heads that some query heads need."""
        return Span(*self._kv_ends(heads.start, heads.stop)) if heads.size else Span(0, 0)

    def resized(self, total: int) -> Self:
        """Return such an attention of so many query heads, whole groups."""
        return replace(self, heads=total, kv_heads=total // self.group)

    def among(self, dealt: tuple[int, ...]) -> Self:
        """Return such an attention whose keys and values are shared out by tokens."""
        return replace(self, dealt=dealt)

    def asked(self, requests: tuple[int, ...]) -> Self:
        """Return such an attention over a batch of so many rows a request."""
        return replace(self, requests=requests)

    def kept_by(self, keeper: int, tokens: Any) -> Any:
        """Return how many of the first tokens a keeper has; also of many, [...]."""
        if not self.dealt:
            return tokens
        before, own, every = sum(self.dealt[:keeper]), self.dealt[keeper], sum(self.dealt)
        return tokens // every * own + np.clip(tokens % every - before, 0, own)

    def units(self, share: Span) -> dict[str, int]:
        """Return how many query heads, and key and value heads, a share of query heads needs."""
        return {HEAD: share.size, KV: self.kv_span(share).size}

    def made_columns(self, units: Mapping[str, int]) -> int:
        """Return those of queries, keys and values: of all heads where a norm goes over all."""
        made = units[HEAD] + 2 * units[KV]
        if self.whole_norms and units[HEAD]:
            made += self.heads + self.kv_heads
        return made * self.head_dim

    def kept_numbers(self, units: Mapping[str, int]) -> int:
        """Return how many numbers of a row's keys and values are kept."""
        return 2 * units[KV] * self.head_dim

    def recalled(self, units: Mapping[str, int], rows: int, behind: int) -> float:
        """Return how many columns of query heads rows have, each as often as it sees a token.

        Where tokens are shared out, `units` says who keeps them: so many keepers from `FROM` on.
        """
        if self.dealt:
            places = behind + np.arange(1, rows + 1)
            hidden = np.maximum(places - self.window, 0) * bool(self.window)
            keepers = range(units[FROM], units[FROM] + units[KEY])
            seen = sum(int((self.kept_by(own, places) - self.kept_by(own, hidden)).sum()) for own in keepers)
            return float(seen) * units[HEAD] * self.head_dim
        return rows * self.seen(rows, behind) * units[HEAD] * self.head_dim

    def seen(self, rows: int, behind: int) -> float:
        """Return how many tokens a row sees on average, itself among them, after so many."""
        if not self.window or behind + rows <= self.window:
            return behind + (rows + 1) / 2
        return float(np.minimum(behind + np.arange(1, rows + 1), self.window).mean())

    @property
    def inner(self) -> Inner:
        """Heads, each of d columns."""
        return Inner(Axis.HEADS, Axis.CONTEXT, self.heads, self.head_dim)

    @property
    def work_columns(self) -> int:
        """Queries, keys, values and contexts."""
        return 2 * (self.heads + self.kv_heads) * self.head_dim

    def check(self) -> None:
        """Refuse widths that fit nothing."""
        BlockKind.check(self)
        if self.heads % self.kv_heads:
            raise HeptiError(f"{self.heads} heads are no multiple of {self.kv_heads} key and value heads")
        if self.rope is not None and not 0 < self.rope.width <= self.head_dim:
            raise HeptiError(f"{self.rope.width} columns of a head turn, it has {self.head_dim}")

    def check_in_decoder(self) -> None:
        """Refuse what sees rows that follow, or adds distances to scores."""
        for field, must_be in (("causal", True), ("buckets", 0), ("dealt", ()), ("requests", ())):
            if (found := getattr(self, field)) != must_be:
                raise HeptiError(f"attention: {field} is {found}, must be {must_be} in a language model")

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Read what a language model's file has of it."""
        rope = table["rope"]
        if rope is not None:
            rope = Rope(frequencies=tuple(rope["frequencies"]), factor=rope["factor"])
        return cls(**{**table, "rope": rope})

    def tensors(self, name: str, stream: Residual) -> dict[str, PartTensor]:
        """Return its tensors by their leaves, in file order; most are cut by heads.

        Where a norm goes over all heads at once, everyone who has some makes all queries and keys, as transformers' own
        plan for tensor parallelism has it: an exchange between norm and scores would cost more than that on slow links.
        """
        H, d, found = stream.hidden, self.head_dim, list[PartTensor]()
        for leaf, axis, heads in (
            ("query", HEAD, self.heads),
            ("key", KV, self.kv_heads),
            ("value", KV, self.kv_heads),
        ):
            shared = (axis, heads) if leaf == "value" or not self.whole_norms else ("", 1)
            found.append(PartTensor(f"{name}/{leaf}/weight", Weight((heads * d, H), 1), TensorUse.INTO, *shared))
            if self.bias:
                found.append(PartTensor(f"{name}/{leaf}/bias", Weight((heads * d,)), TensorUse.INTO, *shared))
        if self.qk_norm:
            normed = (self.heads * d, self.kv_heads * d) if self.whole_norms else (d, d)
            for leaf, width in zip(("query_norm", "key_norm"), normed, strict=True):
                found.append(PartTensor(f"{name}/{leaf}/weight", Weight((width,)), TensorUse.NORM))
        output = Weight((self.heads * d, H), 0)
        found.append(PartTensor(f"{name}/output/weight", output, TensorUse.OUT, HEAD, self.heads))
        if self.output_bias:
            found.append(PartTensor(f"{name}/output/bias", Weight((H,)), TensorUse.OUT))
        tensors = stream.with_norms(name, found)
        if not self.buckets:
            return tensors
        # A vector, which all have who take part: it is small, and goes with no heads of a file.
        relative = PartTensor(f"{name}/relative", Weight((self.heads * self.buckets,)), TensorUse.RELATIVE)
        return {**tensors, relative.leaf: relative}

    def parts(self, name: str, stream: Residual, x: Value) -> tuple[Part, ...]:
        """Return the parts of attention that reads rows of the stream."""
        rows, d = x.shape[0], self.head_dim
        tensors, before = self.tensors(name, stream), ("norm",) * stream.pre_norms

        def some(*leaves: str) -> tuple[PartTensor, ...]:
            return tuple(tensor for leaf, tensor in tensors.items() if leaf.partition("/")[0] in leaves)

        kept = Value(f"{name}/cache", (KV,), (self.kv_heads,), state=True)
        queries = Value(f"{name}/queries", (ROW, HEAD, NUMBER), (rows, self.heads, d))
        contexts = Value(f"{name}/contexts", (ROW, HEAD, NUMBER), (rows, self.heads, d))
        heads, kv = {ROW: rows, HEAD: self.heads}, {ROW: rows, KV: self.kv_heads}
        into, reach = some(*before, "key", "value", "key_norm"), {(kept.name, KV): self._kv_of}
        output = Part(f"{name}/output", self, stream, "output", heads | {HIDDEN: x.shape[1]}, (contexts,),
                      stream.value(name, rows), some("output")[:1], cut=True)  # fmt: skip
        asked = some(*before, "query", "query_norm")
        if not self.causal:
            made = Value(f"{name}/{PAIR}", (ROW, PAIR, KV, NUMBER), (rows, 2, self.kv_heads, d), scaled=2)
            edges = np.cumsum((0, *(self.requests or (rows,))))
            seen: dict[tuple[str, str], Reaching] = {
                (made.name, KV): self._kv_of,
                (made.name, ROW): partial(_asked_with, edges),
            }
            relative = tuple(tensor for tensor in tensors.values() if tensor.use is TensorUse.RELATIVE)
            queries, contexts = replace(queries, scaled=2), replace(contexts, scaled=2)
            return (
                Part(f"{name}/keys", self, stream, FULL_KEYS, kv, (x,), made, into),
                Part(f"{name}/queries", self, stream, "queries", heads, (x,), queries, asked),
                Part(f"{name}/contexts", self, stream, FULL_CONTEXTS, heads, (queries, made), contexts, relative, seen),
                replace(output, reads=(contexts,)),
            )
        if not self.dealt:
            return (
                Part(f"{name}/keys", self, stream, "keys", kv, (x,), kept, into),
                Part(f"{name}/queries", self, stream, "queries", heads, (x,), queries, asked),
                Part(f"{name}/contexts", self, stream, "contexts", heads, (queries, kept), contexts, (), reach),
                output,
            )
        # Who keeps some tokens gets all queries, and new keys and values; contexts of some tokens each come with the
        # logarithm of their sum of exponentials, and are joined where they are read.
        new = Value(f"{name}/new keys", (ROW, KV, PAIR, NUMBER), (rows, self.kv_heads, 2, d))
        keepers = heads | {KEY: len(self.dealt)}
        of_some = Value(f"{name}/{PARTIAL}", (ROW, KEY, HEAD, NUMBER), (rows, len(self.dealt), self.heads, d + 1))
        return (
            Part(f"{name}/new keys", self, stream, "new keys", kv, (x,), new, into, along=(KV, HEAD, self._kv_spans)),
            Part(f"{name}/queries", self, stream, "queries", heads, (x,), queries, asked,
                 along=(HEAD, HEAD, as_they_are)),
            Part(f"{name}/kept", self, stream, "kept", kv, (new,), kept),
            Part(f"{name}/{PARTIAL}", self, stream, PARTIAL, keepers, (queries, kept), of_some, (), reach,
                 along=(KEY, KEY, as_they_are)),
            Part(f"{name}/joined contexts", self, stream, "joined contexts", keepers, (of_some,), contexts),
            output,
        )  # fmt: skip

    def _kv_of(self, region: Region) -> Spans:
        return self._kv_spans(region[HEAD])

    def _kv_spans(self, heads: Spans) -> Spans:
        start, stop = heads[..., 0], heads[..., 1]
        return np.stack(self._kv_ends(start, stop), -1) * (stop > start)[..., None]

    def _kv_ends(self, start: Any, stop: Any) -> tuple[Any, Any]:
        """Return between which key and value heads those of query heads lie; also of many, [...]."""
        return start // self.group, -(-stop // self.group)


def _asked_with(edges: NDArray[np.int64], region: Region) -> Spans:
    """Return the rows of all requests that a region touches; they lie between these edges."""
    start, stop = region[ROW][..., 0], region[ROW][..., 1]
    first, last = np.searchsorted(edges, start, "right") - 1, np.searchsorted(edges, stop, "left")
    return np.stack([edges[first], edges[last]], -1)


def full_attention(hidden: int, heads: int, buckets: int = 0) -> Attention:
    """Return an encoder's attention over a stream of this width: every row sees all rows, and all products have a bias.

    Raises
    ------
    HeptiError
        If the width is no multiple of the heads.
    """
    if heads > 0 and hidden % heads:
        raise HeptiError(f"hidden {hidden} is not a multiple of heads {heads}")
    return Attention(
        heads=heads, kv_heads=heads, head_dim=hidden // max(heads, 1), bias=True, output_bias=True, causal=False,
        buckets=buckets,
    )  # fmt: skip
