"""A language model in plain numpy: what quantised weights, and every other way to compute it, are held against.

Letters as in `solver.model.decoder`; all rows at once, without a cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from solver.base.arrays import Array
from solver.base.spans import Span
from solver.model.blocks import BlockKind
from solver.model.decoder import Decoder, named_blocks
from solver.model.kinds.attention import Attention, Rope
from solver.model.kinds.mlp import Mlp

RowReader = Callable[[str, Span | None], Array]  # a tensor by its name, or some rows of it
WORDS = 4096  # of the head at a time


def logits(model: Decoder, read: RowReader, tokens: Sequence[int]) -> Array:
    """Return [S, V]: for every row how the words are liked that may follow it."""
    x = embed(model, read, tokens)
    for number in range(len(model.layers)):
        x = layer(model, number, read, x)
    return np.concatenate([part for _, part in logit_parts(model, read, x)], axis=1)


def embed(model: Decoder, read: RowReader, tokens: Sequence[int]) -> Array:
    """Return the stream before the first layer, [S, H]."""
    x = np.concatenate([read("embedding/weight", Span(token, token + 1)) for token in tokens])
    x *= np.float32(model.embedding_scale)
    return x + read("positions/weight", Span(0, len(x))) if model.learned_positions else x


def layer(model: Decoder, number: int, read: RowReader, x: Array) -> Array:
    """Return the stream after a layer, [S, H] -> [S, H]."""
    for name, kind in named_blocks(model.layers[number]).items():

        def tensor(leaf: str, block: str = f"layers/{number}/{name}") -> Array:
            return read(f"{block}/{leaf}", None)

        rows = norm(model, tensor, "norm", x) if model.pre_norms else x
        rows = COMPUTED[type(kind)](kind, tensor, rows, model.norm_eps)
        x = x + (norm(model, tensor, "post_norm", rows) if model.post_norms else rows)
    return x


def logit_parts(model: Decoder, read: RowReader, x: Array) -> Iterator[tuple[Span, Array]]:
    """Yield the logits of some words after the other, [S, words]."""
    x = norm(model, lambda name: read(name, None), "final_norm", x)
    for start in range(0, model.vocab, WORDS):
        words = Span(start, min(start + WORDS, model.vocab))
        yield words, capped(x @ read(model.head, words).T, model.head_softcap)


def norm(model: Decoder, tensor: Callable[[str], Array], name: str, x: Array) -> Array:
    """Return normed rows, of the model's kind of norm."""
    shift = tensor(f"{name}/bias") if model.norm == "layer" else None
    return normed(x, tensor(f"{name}/weight"), shift, model.norm_eps)


def normed(x: Array, weight: Array, shift: Array | None, eps: float) -> Array:
    """Return rows normed over the last axis; "rms" without a shift."""
    if shift is None:
        return _rms(x, eps) * weight
    return _rms(x - x.mean(axis=-1, keepdims=True), eps) * weight + shift


def attend(attention: Attention, tensor: Callable[[str], Array], x: Array, eps: float) -> Array:
    """Return what attention makes of normed rows, [S, H] -> [S, H]."""
    S, d = len(x), attention.head_dim
    heads = {}
    for name in ("query", "key", "value"):
        rows = x @ tensor(f"{name}/weight").T
        if attention.bias:
            rows += tensor(f"{name}/bias")
        has_norm = attention.qk_norm and name != "value"
        if has_norm and attention.whole_norms:
            rows = normed(rows, tensor(f"{name}_norm/weight"), None, eps)
        rows = rows.reshape(S, -1, d).swapaxes(0, 1)  # [heads, S, d]
        if has_norm and not attention.whole_norms:
            rows = normed(rows, tensor(f"{name}_norm/weight"), None, eps)
        heads[name] = turned(rows, *_turns(attention.rope, S)) if attention.rope and name != "value" else rows
    answers = np.empty((S, attention.heads * d), np.float32)
    for head in range(attention.heads):
        key, value = (heads[name][head // attention.group] for name in ("key", "value"))
        answers[:, head * d : (head + 1) * d] = contexts(attention, heads["query"][head], key, value)
    out = answers @ tensor("output/weight")
    return out + tensor("output/bias") if attention.output_bias else out


def contexts(attention: Attention, queries: Array, keys: Array, values: Array) -> Array:
    """Return what the last S rows of n see of all, [..., S, d], [n, d], [n, d] -> [..., S, d]."""
    n, S = len(keys), queries.shape[-2]
    behind = np.arange(n - S, n)[:, None] - np.arange(n)
    seen = (behind >= 0) & (behind < (attention.window or n))
    scale = attention.scale or 1 / math.sqrt(attention.head_dim)
    scores = np.where(seen, capped(queries @ keys.T * scale, attention.softcap), -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    found: Array = scores / scores.sum(axis=-1, keepdims=True) @ values
    return found


def feed(mlp: Mlp, tensor: Callable[[str], Array], x: Array, eps: float) -> Array:
    """Return what the MLP makes of normed rows, [S, H] -> [S, H]."""
    made = {}
    for name in ("gate", "up") if mlp.gated else ("up",):
        made[name] = x @ tensor(f"{name}/weight").T
        if mlp.bias:
            made[name] += tensor(f"{name}/bias")
    out = bent(mlp, made) @ tensor("down/weight")
    return out + tensor("down/bias") if mlp.bias else out


def bent(mlp: Mlp, made: Mapping[str, Array]) -> Array:
    """Return the columns between an MLP's products, of what its first products made, by their names."""
    activation = _ACTIVATIONS[mlp.activation]
    return activation(made["gate"]) * made["up"] if mlp.gated else activation(made["up"])


def turned(heads: Array, cos: Array, sin: Array) -> Array:
    """Turn the first columns of heads [..., d], by cosines and sines [..., half of the columns that turn]."""
    half = cos.shape[-1]
    one, other = heads[..., :half], heads[..., half : 2 * half]
    return np.concatenate([one * cos - other * sin, other * cos + one * sin, heads[..., 2 * half :]], axis=-1)


def capped(x: Array, cap: float) -> Array:
    """Return cap · tanh(x / cap); x where there is no cap."""
    return cap * np.tanh(x / cap) if cap else x


def _turns(rope: Rope, rows: int) -> tuple[Array, Array]:
    """Return cosines and sines of the first rows, each [rows, width / 2]."""
    angles = np.arange(rows, dtype=np.float32)[:, None] * np.array(rope.frequencies, np.float32)
    return np.cos(angles) * np.float32(rope.factor), np.sin(angles) * np.float32(rope.factor)


def _rms(x: Array, eps: float) -> Array:
    size: Array = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
    return x / size


def _erf(x: Array) -> Array:
    return np.fromiter(map(math.erf, x.ravel()), np.float32, x.size).reshape(x.shape)


# What a block makes of normed rows, [S, H] -> [S, H]: of its kind, its tensors by their leaves, and the norms' epsilon.
COMPUTED: dict[type[BlockKind], Callable[[Any, Callable[[str], Array], Array, float], Array]] = {
    Attention: attend,
    Mlp: feed,
}
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x * math.sqrt(0.5))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
}
