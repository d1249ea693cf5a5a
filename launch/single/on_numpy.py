"""The layers of a model in plain numpy, as one writes them down."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from launch.single.command import Array, LayerWeights, Run
from solver.base.errors import HeptiError
from solver.model.spec import ModelSpec


def prepare(spec: ModelSpec, layers: Sequence[LayerWeights], precision: str) -> Run:
    """Return the program [S, H] -> [S, H]."""
    if precision != "float32":
        raise HeptiError(f"numpy has no {precision} products: take onnxruntime")
    activation = ACTIVATIONS[spec.activation]

    def mlp(x: Array, w: LayerWeights) -> Array:
        return activation(x @ w["up"] + w["up_bias"]) @ w["down"] + w["down_bias"]

    def run(x: Array) -> Array:
        for w in layers:
            if spec.norm == "pre":
                x = x + attention(norm(x, w, "attention_norm", spec.norm_eps), w, spec.heads)
                x = x + mlp(norm(x, w, "mlp_norm", spec.norm_eps), w)
            else:
                x = norm(x + attention(x, w, spec.heads), w, "attention_norm", spec.norm_eps)
                x = norm(x + mlp(x, w), w, "mlp_norm", spec.norm_eps)
        return x

    return run


def attention(x: Array, w: LayerWeights, heads: int) -> Array:
    """Return softmax(Q Kᵀ / √d) V W + b, [S, H] -> [S, H]."""
    S, H = x.shape
    qkv = (x @ w["qkv"] + w["qkv_bias"]).reshape(S, 3, heads, H // heads)
    q, k, v = qkv.transpose(1, 2, 0, 3)  # each [A, S, d]
    scores = q @ k.transpose(0, 2, 1)
    scores *= 1 / math.sqrt(H // heads)
    scores -= scores.max(axis=2, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=2, keepdims=True)
    context = (scores @ v).transpose(1, 0, 2).reshape(S, H)
    return np.asarray(context @ w["out"] + w["out_bias"])


def norm(x: Array, w: LayerWeights, name: str, eps: float) -> Array:
    """Normalise every row of x [S, H]."""
    y = x - x.mean(axis=1, keepdims=True)
    y /= np.sqrt(np.square(y).mean(axis=1, keepdims=True) + eps)
    return np.asarray(y * w[name] + w[f"{name}_bias"])


def gelu(x: Array) -> Array:
    """Return the exact GELU; numpy has no erf: Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26."""
    z = np.abs(x) * math.sqrt(0.5)
    t = 1 / (1 + 0.3275911 * z)
    poly = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    erf = np.copysign(1 - poly * np.exp(-z * z), x)
    return np.asarray(0.5 * x * (1 + erf))


def gelu_tanh(x: Array) -> Array:
    """Return the tanh approximation of GELU."""
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
}
