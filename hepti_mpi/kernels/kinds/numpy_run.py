"""Parts in numpy, the reference of their nodes: simple, not fast. Its arithmetic is `weights.decoders.forward`'s.

A run takes and gives arrays of the same names and shapes as its graph does (`kernels.kinds.attention`). Matrices in
blocks stay as they are stored, and become float32 some columns at a time, while they are multiplied: a rank needs no
more memory than is planned for it. One x86 core makes 1.0 to 1.3 thousand million such numbers a second.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hepti_mpi.kernels.blocks import Blocks
from hepti_mpi.kernels.kinds.heads import UNSEEN, runs_of, wide
from hepti_mpi.kernels.kinds.held import Known, Matrix, TensorSource, rows_of
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span, tiles
from solver.model.kinds.attention import Attention
from solver.model.kinds.embedding import WORDS, Embedding
from solver.model.kinds.head import Head
from solver.model.kinds.mlp import Mlp
from solver.model.kinds.part import HEAD, HIDDEN, KEY, KV, WORD, Part, RankRegion
from weights.decoders.forward import bent, capped, contexts, normed, turned

BLOCK_NUMBERS = 1 << 17  # of a matrix in blocks, as float32 at a time: they stay in a cache
INT8 = np.iinfo(np.int8)

RunValues = dict[str, Numbers]  # what a run takes and has computed so far


@dataclass(frozen=True, slots=True, eq=False)
class HeldPart:
    """A part, what this rank computes of it, and what it holds for that: matrices and vectors by their leaves."""

    part: Part
    region: RankRegion
    tensors: Mapping[str, Matrix]

    @classmethod
    def of(cls, part: Part, region: RankRegion, source: TensorSource) -> HeldPart:
        """Read what a rank needs for a part."""
        tensors: dict[str, Matrix] = {}
        for tensor in part.tensors:
            read = source.vector if len(tensor.weight.shape) == 1 else source.matrix
            tensors[tensor.leaf] = read(tensor, rows_of(tensor, region))
        return cls(part, region, tensors)

    def vector(self, leaf: str) -> Array | None:
        """Return a vector; None where the part has none of this name."""
        found = self.tensors.get(leaf)
        assert not isinstance(found, Blocks)
        return found

    def product(self, x: Array, leaf: str) -> Array:
        """Return x · matrix + bias."""
        y, bias = multiplied(x, self.tensors[f"{leaf}/weight"]), self.vector(f"{leaf}/bias")
        return y if bias is None else y + bias

    def norm(self, x: Array, leaf: str) -> Array:
        """Return x normed; x where the part has no norm of this name."""
        weight = self.vector(f"{leaf}/weight")
        return x if weight is None else normed(x, weight, self.vector(f"{leaf}/bias"), self.part.stream.eps)

    def read(self, values: RunValues, leaf: str = "norm") -> Array:
        """Return the rows of the stream that the part reads, normed."""
        (value,) = self.part.reads
        return self.norm(values[value.name], leaf)


def multiplied(x: Array, matrix: Matrix) -> Array:
    """Return x · matrix, [..., in] -> [..., out]."""
    rows = x.reshape(-1, x.shape[-1])
    if not isinstance(matrix, Blocks):
        return (rows @ matrix).reshape(*x.shape[:-1], -1)
    y = np.empty((len(rows), matrix.out), np.float32)
    for some in tiles(Span(0, matrix.out), max(1, BLOCK_NUMBERS // matrix.summed)):
        y[:, some.slice] = rows @ matrix.numbers(some).T
    return y.reshape(*x.shape[:-1], -1)


def words(own: HeldPart, values: RunValues) -> None:
    """Compute the rows of tokens that are among some words; others are 0."""
    kind, here, table = own.part.kind, own.region[WORD], own.tensors[WORDS]
    assert isinstance(kind, Embedding)
    tokens = values[own.part.reads[0].name].reshape(-1).astype(np.int64)
    found = np.zeros((len(tokens), own.part.stream.hidden), np.float32)
    for row in np.flatnonzero((tokens >= here.start) & (tokens < here.stop)):
        word = int(tokens[row]) - here.start
        found[row] = table.numbers(Span(word, word + 1))[0] if isinstance(table, Blocks) else table[:, word]
    values[own.part.writes.name] = found * np.float32(kind.scale)


def keys(own: HeldPart, values: RunValues) -> None:
    """Compute keys and values of some heads, as they are kept but for the cache."""
    attention = _attention(own)
    made = {"keys": _turned(own, _heads(own, "key", own.region[KV], values), values)}
    made["values"] = _heads(own, "value", own.region[KV], values)
    for name, heads in made.items():
        missing = wide(attention) - attention.head_dim
        values[name] = np.pad(heads, [*[(0, 0)] * 3, (0, missing)]) if missing else heads


def new_keys(own: HeldPart, values: RunValues) -> None:
    """Compute keys and values of some heads, side by side, for all who keep some tokens."""
    made = (
        _turned(own, _heads(own, "key", own.region[KV], values), values),
        _heads(own, "value", own.region[KV], values),
    )
    values[own.part.writes.name] = np.stack(made, 3)


def queries(own: HeldPart, values: RunValues) -> None:
    """Compute the queries of some heads."""
    values["queries"] = values[own.part.writes.name] = _turned(
        own, _heads(own, "query", own.region[HEAD], values), values
    )


def kept(own: HeldPart, values: RunValues) -> None:
    """Compute nothing: what keeps them has written new keys and values before (`hepti_mpi.program.state`)."""


def attend_to_some(own: HeldPart, values: RunValues) -> None:
    """Compute contexts of the tokens that this rank keeps, each with the logarithm of its sum of exponentials."""
    attention, K, d = _attention(own), _attention(own).kv_heads, _attention(own).head_dim
    (until,) = values["until"].tolist()
    q = values[own.part.reads[0].name]
    q = q.reshape(*q.shape[:2], K, -1, d).transpose(0, 2, 3, 1, 4)  # [batch, kv heads, group, rows, d]
    k, v = (_numbers(values[name][:, :, None, :until], values.get(f"{name}.scale")) for name in ("k0", "v0"))
    tokens, (start, stop) = np.arange(until), (values[name][..., None] for name in ("from", "to"))
    hidden = np.where((start <= tokens) & (tokens < stop), np.float32(0), np.float32(UNSEEN))[:, None, None]
    scores = capped(q @ k.swapaxes(-1, -2) * np.float32(attention.scale or d**-0.5), attention.softcap) + hidden
    best = scores.max(-1, keepdims=True)
    powers = np.exp(scores - best)
    total = powers.sum(-1, keepdims=True)
    found = np.concatenate([powers @ v / total, best + np.log(total)], -1)
    values[own.part.writes.name] = found.transpose(0, 3, 1, 2, 4)  # [batch, rows, kv heads, group, d + 1]


def joined(own: HeldPart, values: RunValues) -> None:
    """Compute what contexts of some tokens each are together: a mean by their sums of exponentials."""
    both = values[own.part.reads[0].name]
    both = both.reshape(*both.shape[:2], own.region[KEY].size, own.region[HEAD].size, -1)
    found, log_sum = both[..., :-1], both[..., -1:]
    powers = np.exp(log_sum - log_sum.max(2, keepdims=True))
    values[own.part.writes.name] = ((found * powers).sum(2) / powers.sum(2)).reshape(*both.shape[:2], -1)


def attend(own: HeldPart, values: RunValues) -> None:
    """Keep keys and values, and compute the contexts of some heads, run by run of `runs_of`."""
    attention, q = _attention(own), values["queries"]
    found, head, kv = np.empty_like(q), 0, 0
    for number, run in enumerate(runs_of(attention, own.region[HEAD])):
        new = [values[name][:, :, kv : kv + run.kv] for name in ("keys", "values")]
        caches = [(values[f"{which}{number}"], values.get(f"{which}{number}.scale")) for which in "kv"]
        some = slice(head, head + run.query)
        for sequence, last in enumerate(values["last"].tolist()):
            kept = [
                _kept(cache[sequence], scale, own_new[sequence], last + 1)[..., : attention.head_dim]
                for (cache, scale), own_new in zip(caches, new, strict=True)
            ]
            found[sequence, :, some] = _contexts(attention, q[sequence, :, some], *kept)
        head, kv = head + run.query, kv + run.kv
    values[own.part.writes.name] = found.reshape(*found.shape[:2], -1)


def output(own: HeldPart, values: RunValues) -> None:
    """Compute the product of the contexts of some heads."""
    (read,) = own.part.reads
    values[own.part.writes.name] = own.product(values[read.name], "output")


def up(own: HeldPart, values: RunValues) -> None:
    """Compute some columns of an MLP."""
    mlp, n = own.part.kind, own.read(values)
    assert isinstance(mlp, Mlp)
    made = {leaf: own.product(n, leaf) for leaf in (("gate", "up") if mlp.gated else ("up",))}
    values[own.part.writes.name] = bent(mlp, made)


def down(own: HeldPart, values: RunValues) -> None:
    """Compute the product of some columns of an MLP."""
    (inner,) = own.part.reads
    values[own.part.writes.name] = own.product(values[inner.name], "down")


def join(own: HeldPart, values: RunValues) -> None:
    """Compute x + post_norm(s + bias)."""
    x, s = (values[value.name] for value in own.part.reads)
    biases = [own.vector(leaf) for leaf in own.tensors if not leaf.startswith("post_norm/")]
    for bias in biases:
        s = s + bias
    values[own.part.writes.name] = x + own.norm(s, "post_norm")


def sums(own: HeldPart, values: RunValues) -> None:
    """Compute summands of all logits, of some columns of the stream."""
    columns = own.region[HIDDEN].scaled(own.part.stream.unit)
    values[own.part.writes.name] = multiplied(own.read(values, "final_norm")[..., columns.slice], _words(own))


def logits(own: HeldPart, values: RunValues) -> None:
    """Compute the logits of some words; of their sums where these have been made."""
    head, (read,) = own.part.kind, own.part.reads
    assert isinstance(head, Head)
    made = multiplied(own.read(values, "final_norm"), _words(own)) if own.tensors else values[read.name]
    values[own.part.writes.name] = capped(made, head.softcap)


def _words(own: HeldPart) -> Matrix:
    return next(own.tensors[tensor.leaf] for tensor in own.part.tensors if tensor.axis == WORD)


# By a part's role.
NUMBERS: Mapping[str, Callable[[HeldPart, RunValues], None]] = {
    "words": words,
    "keys": keys,
    "new keys": new_keys,
    "queries": queries,
    "kept": kept,
    "contexts": attend,
    "partial contexts": attend_to_some,
    "joined contexts": joined,
    "output": output,
    "up": up,
    "down": down,
    "join": join,
    "sums": sums,
    "logits": logits,
}


TURNS = ("keys", "new keys", "queries")  # parts whose heads turn


class NumpyRun:
    """What a rank computes of some parts, one after the other, in numpy; `kernels.kinds.runs` has its graph.

    Parameters
    ----------
    run
        Parts, and this rank's region of each.
    leaves
        The names of the values that come out of it: any can.
    source
        Of the weights.
    cache
        What keys and values are kept in.
    """

    def __init__(
        self, run: Sequence[tuple[Part, RankRegion]], leaves: Collection[str], source: TensorSource, *, cache: str
    ) -> None:
        self._parts = [HeldPart.of(part, region, source) for part, region in run]
        self._cache = cache

    @property
    def inputs(self) -> Sequence[str]:
        """The names of what it takes."""
        made = {own.part.writes.name for own in self._parts}
        reads = [value.name for own in self._parts for value in own.part.reads if not value.state]
        names = [name for name in dict.fromkeys(reads) if name not in made]
        for own in self._parts:
            if own.part.recalls:
                names += self._state(own)
            if own.part.role in TURNS and _attention(own).rope:
                names += ["places", "cos", "sin"]
        return [*dict.fromkeys(names)]

    def _state(self, own: HeldPart) -> list[str]:
        """Return the names of what attention takes besides rows."""
        attention = _attention(own)
        caches = [f"{which}{run}" for run in range(len(runs_of(attention, own.region[HEAD]))) for which in "kv"]
        scales = [f"{name}.scale" for name in caches] if self._cache == "int8" else []
        return [*(["from", "to", "until"] if attention.dealt else ["last"]), *caches, *scales]

    def bound(
        self, inputs: Mapping[str, Numbers], outputs: Mapping[str, Numbers], known: Known
    ) -> Callable[[], object]:
        """Return a call that computes these arrays of those; a cache is written where it is taken from."""
        return partial(self._compute, inputs, {name: own for name, own in outputs.items() if not name.endswith("'")})

    def _compute(self, inputs: Mapping[str, Numbers], outputs: Mapping[str, Numbers]) -> None:
        values = dict(inputs)
        with np.errstate(all="ignore"):  # who gets an answer is told where it has no numbers
            for own in self._parts:
                NUMBERS[own.part.role](own, values)
        for name, array in outputs.items():
            array[...] = values[name].reshape(array.shape)


def _attention(own: HeldPart) -> Attention:
    assert isinstance(own.part.kind, Attention)
    return own.part.kind


def _heads(own: HeldPart, leaf: str, heads: Span, values: RunValues) -> Array:
    """Return queries, keys or values, normed, [batch, rows, heads, d]."""
    attention = _attention(own)
    x, d = own.product(own.read(values), leaf), attention.head_dim
    if attention.whole_norms and leaf != "value":  # of all heads; then come those that are this rank's
        return own.norm(x, f"{leaf}_norm")[..., heads.scaled(d).slice].reshape(*x.shape[:2], -1, d)
    return own.norm(x.reshape(*x.shape[:2], -1, d), f"{leaf}_norm")


def _turned(own: HeldPart, heads: Array, values: RunValues) -> Array:
    """Turn heads [batch, rows, heads, d] by their rows' places."""
    if _attention(own).rope is None:
        return heads
    cos, sin = (values[name][values["places"]][:, :, None] for name in ("cos", "sin"))
    return turned(heads, cos, sin)


def _kept(cache: Numbers, scale: Array | None, new: Array, stop: int) -> Array:
    """Write new rows [rows, kv heads, d] to a sequence's cache [kv heads, context, d]; return all until `stop`."""
    place = slice(stop - len(new), stop)
    if scale is None:
        cache[:, place] = new.swapaxes(0, 1)
        return cache[:, :stop]
    by_head = scale.reshape(len(cache), 1, -1)
    levels = np.rint(new.swapaxes(0, 1) / by_head)
    cache[:, place] = np.clip(levels, INT8.min, INT8.max)
    return cache[:, :stop] * by_head


def _numbers(cache: Numbers, scale: Array | None) -> Array:
    """Return what a cache [batch, kv heads, 1, tokens, d] has, in float32."""
    return cache if scale is None else cache * scale.reshape(cache.shape[1], 1, 1, -1)


def _contexts(attention: Attention, q: Array, k: Array, v: Array) -> Array:
    """Return contexts as queries lie, [rows, heads, d], of keys and values [kv heads, n, d]."""
    by_kv = q.reshape(len(q), len(k), -1, q.shape[-1])  # [rows, kv heads, group, d]
    found = [contexts(attention, by_kv[:, kv].swapaxes(0, 1), k[kv], v[kv]).swapaxes(0, 1) for kv in range(len(k))]
    return np.stack(found, 1).reshape(q.shape)
