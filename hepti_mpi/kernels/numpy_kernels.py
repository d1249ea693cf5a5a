"""The arithmetic of a transformer in numpy, small to large; float32 in, float32 out.

Constants are Python floats: a numpy scalar would lift the result to float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from solver.base.arrays import Array

# Elements that a chain of element-wise steps works on at a time: three such buffers fit a 512 KiB second-level cache.
TILE = 1 << 14

# Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26: erfc(z) = poly(t) exp(-z²), t = 1 / (1 + P z),
# z >= 0, with an absolute error below 1.5e-7, about float32's own.
ERFC_P = 0.3275911
ERFC_COEFFICIENTS = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def linear(x: Array, weight: Array, bias: Array, out: Array | None = None) -> Array:
    """Return x Wᵀ + b; x [rows, in], weight [out, in] -> [rows, out]."""
    y = np.matmul(x, weight.T, out=out)
    y += bias
    return y


def layer_norm(x: Array, weight: Array, bias: Array, eps: float, out: Array | None = None) -> Array:
    """Normalise every row of x [rows, H] to mean 0 and variance 1, then scale and shift; `out` may be x."""
    width = x.shape[1]
    mean = np.add.reduce(x, axis=1, keepdims=True)
    mean *= 1 / width
    y = np.subtract(x, mean, out=out)
    variance = np.einsum("rh,rh->r", y, y)[:, None]
    variance *= 1 / width
    variance += eps
    y *= np.reciprocal(np.sqrt(variance))
    y *= weight
    y += bias
    return y


def softmax(x: Array) -> Array:
    """Turn every row of x [rows, n] into weights that add up to one, in place."""
    x -= np.maximum.reduce(x, axis=1, keepdims=True)
    np.exp(x, out=x)
    x *= np.reciprocal(np.add.reduce(x, axis=1, keepdims=True))
    return x


def gelu(x: Array) -> Array:
    """Apply the exact GELU x Φ(x) in place, to a C-contiguous array.

    Written as max(x, 0) - |x| erfc(|x|/√2)/2, which has no cancellation for negative x. numpy has no erf, and scipy's
    costs 10.7 ms for [256, 4096] on one x86 core, a sixth of the layer's GEMMs; this costs 3 ms, because every step
    works on a tile in cache.
    """
    return _in_tiles(x, _gelu_tile)


def gelu_tanh(x: Array) -> Array:
    """Apply the tanh approximation of GELU in place ("gelu_new", "gelu_pytorch_tanh")."""
    return _in_tiles(x, _gelu_tanh_tile)


def relu(x: Array) -> Array:
    """Apply max(x, 0) in place."""
    return np.maximum(x, 0, out=x)


def tanh(x: Array) -> Array:
    """Apply tanh in place."""
    return np.tanh(x, out=x)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "tanh": tanh,
    "identity": lambda x: x,
}


def attend(
    q: Array, k: Array, v: Array, pieces: Iterable[tuple[slice, slice]], head_dim: int,
    added: Sequence[Array] = (), out: Array | None = None,
) -> Array:  # fmt: skip
    """Return softmax(q kᵀ / √d + added) v for every head and request.

    Parameters
    ----------
    q : [rows, heads d]
        Queries of this rank's rows.
    k, v : [keys, heads d]
        Keys and values of all rows that those rows attend to.
    pieces
        For every request its rows in q and its rows in k and v.
    head_dim
        d.
    added
        For every request what is added to its scores [heads, rows, keys]; empty: nothing is.
    out
        Where to put it.

    Returns
    -------
    [rows, heads d]
    """
    context = np.empty(q.shape, np.float32) if out is None else out
    scale = 1 / math.sqrt(head_dim)
    for number, (rows, keys) in enumerate(pieces):
        # One head at a time: its scores [rows, keys] stay in cache through product, softmax and product.
        for start in range(0, q.shape[1], head_dim):
            head = slice(start, start + head_dim)
            scores = q[rows, head] @ k[keys, head].T
            scores *= scale
            if added:
                scores += added[number][start // head_dim]
            np.matmul(softmax(scores), v[keys, head], out=context[rows, head])
    return context


@dataclass(frozen=True, slots=True, eq=False)
class KeyWeights:
    """K's and V's weights [H, H] as they lie in the file, and V's bias [H]."""

    key: Array
    value: Array
    value_bias: Array


def attend_without_keys(
    q: Array, x: Array, w: KeyWeights, pieces: Sequence[tuple[slice, slice]], head_dim: int,
    added: Sequence[Array] = (), out: Array | None = None,
) -> Array:  # fmt: skip
    """Attend without computing K and V: per head (q W_k) Xᵀ for the scores and (weights X) W_v (Voltage, ICDCS 2024).

    Parameters
    ----------
    q : [rows, H]
        Queries of all heads.
    x : [keys, H]
        The block's input at the keys' rows.
    w, pieces
        Weights, and for every request its rows and its keys.
    head_dim
        d.
    added, out
        As in `attend`.

    Returns
    -------
    [rows, H]
        The context.
    """
    H = x.shape[1]
    heads = [slice(start, start + head_dim) for start in range(0, H, head_dim)]
    context = np.empty(q.shape, np.float32) if out is None else out
    for number, (rows, keys) in enumerate(pieces):
        wide = np.stack([q[rows, head] @ w.key[head] for head in heads])  # [A, rows, H]
        scores = wide.reshape(-1, H) @ x[keys].T
        scores *= 1 / math.sqrt(head_dim)
        if added:
            scores.reshape(added[number].shape, copy=False)[...] += added[number]
        np.matmul(softmax(scores), x[keys], out=wide.reshape(-1, H, copy=False))
        for head, mixed in zip(heads, wide, strict=True):
            np.matmul(mixed, w.value[head].T, out=context[rows, head])
    context += w.value_bias
    return context


def attend_part(
    q: Array, k: Array, v: Array, head_dim: int, out: Array | None = None, added: Array | None = None
) -> tuple[Array, Array]:
    """Attend to some of the keys of one request; `merge` joins the parts.

    Parameters
    ----------
    q : [rows, heads d]
        Queries.
    k, v : [keys, heads d]
        Some of the keys and values that these rows attend to; may be none.
    head_dim
        d.
    out : [rows, heads d]
        Where to put the context.
    added : [heads, rows, keys]
        To the scores.

    Returns
    -------
    context : [rows, heads d]
        softmax(q kᵀ / √d) v over these keys alone, zero where there are none.
    lse : [rows, heads]
        log Σ exp(q kᵀ / √d), what the context weighs among the parts; -inf where there are no keys.
    """
    context = np.empty(q.shape, np.float32) if out is None else out
    lse = np.full((q.shape[0], q.shape[1] // head_dim), -math.inf, np.float32)
    if not len(k):
        context[...] = 0
        return context, lse
    scale = 1 / math.sqrt(head_dim)
    for number in range(lse.shape[1]):
        head = slice(number * head_dim, (number + 1) * head_dim)
        scores = q[:, head] @ k[:, head].T
        scores *= scale
        if added is not None:
            scores += added[number]
        largest = np.maximum.reduce(scores, axis=1)
        scores -= largest[:, None]
        np.exp(scores, out=scores)
        total = np.add.reduce(scores, axis=1)
        scores *= np.reciprocal(total)[:, None]
        np.matmul(scores, v[:, head], out=context[:, head])
        np.add(largest, np.log(total), out=lse[:, number])
    return context, lse


def merge(parts: Sequence[tuple[Array, Array]]) -> Array:
    """Join attention over disjoint parts of the keys to attention over all of them, exactly.

    Dao, Haziza, Massa and Sizov, "Flash-Decoding for long-context inference" (2023): a part's context counts as much as
    its keys' share of the softmax's sum, exp(lse - max lse).

    Parameters
    ----------
    parts
        What `attend_part` returned for each, [rows, heads d] and [rows, heads]; at least one with keys.

    Returns
    -------
    [rows, heads d]
    """
    weights = np.stack([lse for _, lse in parts])
    weights -= np.maximum.reduce(weights)
    np.exp(weights, out=weights)
    weights *= np.reciprocal(np.add.reduce(weights))
    rows, heads = weights.shape[1:]
    width = parts[0][0].shape[1]
    total = np.zeros((rows, heads, width // max(heads, 1)), np.float32)
    for (context, _), weight in zip(parts, weights, strict=True):
        total += context.reshape(total.shape) * weight[:, :, None]
    return total.reshape(rows, width)


def _in_tiles(x: Array, step: Callable[[Array, Array, Array], None]) -> Array:
    flat = x.reshape(-1, copy=False)
    one, two = np.empty((2, min(TILE, flat.size)), np.float32)
    for start in range(0, flat.size, TILE):
        tile = flat[start : start + TILE]
        step(tile, one[: tile.size], two[: tile.size])
    return x


def _gelu_tile(x: Array, a: Array, t: Array) -> None:
    np.abs(x, out=a)
    np.multiply(a, ERFC_P * math.sqrt(0.5), out=t)
    t += 1.0
    np.reciprocal(t, out=t)
    np.maximum(x, 0, out=x)
    # Half of erfc's polynomial, by Horner; then times |x| exp(-x²/2).
    poly = t * (ERFC_COEFFICIENTS[0] / 2)
    for coefficient in ERFC_COEFFICIENTS[1:]:
        poly += coefficient / 2
        poly *= t
    poly *= a
    np.square(a, out=a)
    a *= -0.5
    np.exp(a, out=a)
    poly *= a
    x -= poly


def _gelu_tanh_tile(x: Array, a: Array, t: Array) -> None:
    np.square(x, out=a)
    a *= 0.044715 * math.sqrt(2 / math.pi)
    a += math.sqrt(2 / math.pi)
    np.multiply(a, x, out=t)
    np.tanh(t, out=t)
    t += 1.0
    t *= 0.5
    x *= t
