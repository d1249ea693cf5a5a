"""Small language models of awkward sizes with random weights, and a reference of them in plain numpy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from solver.base.spans import Partition, Span
from solver.model.decoder import Decoder, decoder_tensors, named_blocks
from solver.model.kinds.attention import Attention, Rope
from solver.model.kinds.mlp import Mlp
from solver.model.kinds.part import FFN, HEAD
from tests.kit.in_memory import InMemory


def frequencies(width, theta=10000.0):
    return tuple(theta ** (-2 * i / width) for i in range(width // 2))


def small_model(name="small", layers=3, heads=6, kv_heads=2, d=24, hidden=40, ffn=96, vocab=50, **facts):
    """Return a model; `facts` are of the decoder, `attention` and `mlp` of its blocks, `windows` a layer's."""
    attention, mlp = facts.pop("attention", {}), facts.pop("mlp", {})
    windows = facts.pop("windows", [0] * layers)
    rope = None if facts.get("learned_positions") else Rope(frequencies=frequencies(attention.pop("turned", d)))
    return Decoder(
        name=name, hidden=hidden, vocab=vocab, positions=facts.pop("positions", 512),
        layers=tuple(
            (
                Attention(heads=heads, kv_heads=kv_heads, head_dim=d, rope=rope, window=window, **attention),
                Mlp(ffn=ffn, **mlp),
            )
            for window in windows
        ),
        **facts,
    )  # fmt: skip


MODELS = {
    "llama": small_model(),
    "one-kv-head": small_model(heads=5, kv_heads=1, tied=True),
    "qwen2": small_model(attention={"bias": True}, d=16),
    "qwen3": small_model(attention={"qk_norm": True}, d=16, kv_heads=3),
    "gemma2": small_model(
        attention={"softcap": 5.0, "scale": 0.3}, windows=[4, 0, 4], post_norms=True, head_softcap=3.0,
        embedding_scale=math.sqrt(40), mlp={"activation": "gelu_tanh"}, tied=True,
    ),
    "gpt2": small_model(
        heads=4, kv_heads=4, d=8, norm="layer", learned_positions=True, tied=True,
        attention={"bias": True, "output_bias": True}, mlp={"activation": "gelu_tanh", "gated": False, "bias": True},
    ),
    "olmo2": small_model(
        heads=6, kv_heads=3, d=16, attention={"qk_norm": True, "whole_norms": True}, pre_norms=False, post_norms=True,
    ),
    "narrow": small_model(heads=5, kv_heads=5, d=12, attention={"bias": True}),
    "partial": small_model(attention={"turned": 12}, d=24, windows=[0, 5, 0]),
}  # fmt: skip
MODELS["smollm3"] = replace(
    MODELS["llama"],
    layers=tuple(
        (attention if number != 1 else replace(attention, rope=None), mlp)
        for number, (attention, mlp) in enumerate(MODELS["llama"].layers)
    ),
)


class Weights:
    """Random float32 weights of a model, read as a weights file is."""

    def __init__(self, model, seed=0):
        rng = np.random.default_rng(seed)
        self.model = model
        self.arrays = {}
        for name, weight in decoder_tensors(model).items():
            scale = 1.0 if weight.summed is None else weight.shape[weight.summed] ** -0.5
            array = rng.standard_normal(weight.shape) * scale
            if "norm/weight" in name:
                array = 1 + 0.2 * array
            self.arrays[name] = array.astype(np.float32)

    def read(self, name, rows: Span | None = None):
        array = self.arrays[name]
        return array[rows.slice].copy() if rows is not None else array.copy()

    def read_pieces(self, piece, bytes_limit, out=None):
        """Give a slice as a weights file does."""
        return InMemory(self.arrays.__getitem__).read_pieces(piece, bytes_limit, out)


def logits(weights, tokens):
    """Return the logits [tokens, V] of a text, in float64 as the papers write it."""
    model, read = weights.model, lambda name: weights.arrays[name].astype(np.float64)
    tokens = list(tokens)
    x = read("embedding/weight")[tokens] * model.embedding_scale
    if model.learned_positions:
        x = x + read("positions/weight")[: len(tokens)]

    def norm(x, name):
        if model.norm == "layer":
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + model.norm_eps) * read(f"{name}/weight")
        return x + read(f"{name}/bias") if model.norm == "layer" else x

    def bias(name):
        return read(f"{name}/bias") if f"{name}/bias" in weights.arrays else 0.0

    for number, layer in enumerate(model.layers):
        for name, kind in named_blocks(layer).items():
            prefix = f"layers/{number}/{name}"
            rows = norm(x, f"{prefix}/norm") if model.pre_norms else x
            made = BLOCKS[kind.name](rows, prefix, kind, model, read, bias)
            x = x + (norm(made, f"{prefix}/post_norm") if model.post_norms else made)
    found = norm(x, "final_norm") @ read(model.head).T
    cap = model.head_softcap
    return cap * np.tanh(found / cap) if cap else found


def _attention(n, prefix, attention, model, read, bias):
    S, d = len(n), attention.head_dim
    heads = {}
    for name in ("query", "key", "value"):
        x = n @ read(f"{prefix}/{name}/weight").T + bias(f"{prefix}/{name}")
        x = x if attention.whole_norms else x.reshape(S, -1, d)
        if attention.qk_norm and name != "value":
            x = x / np.sqrt((x * x).mean(-1, keepdims=True) + model.norm_eps) * read(f"{prefix}/{name}_norm/weight")
        x = x.reshape(S, -1, d)
        if attention.rope is not None and name != "value":
            half = attention.rope.width // 2
            angle = np.outer(np.arange(S), attention.rope.frequencies)[:, None]
            a, b = x[..., :half], x[..., half : 2 * half]
            turned = [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle), x[..., 2 * half :]]
            x = np.concatenate(turned, -1)
        heads[name] = x
    q, k, v = heads["query"], *(np.repeat(heads[name], attention.group, 1) for name in ("key", "value"))
    scores = np.einsum("shd,thd->hst", q, k) * (attention.scale or d**-0.5)
    if attention.softcap:
        scores = attention.softcap * np.tanh(scores / attention.softcap)
    apart = np.arange(S)[:, None] - np.arange(S)
    hidden = apart < 0
    if attention.window:
        hidden |= apart >= attention.window
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    context = np.einsum("hst,thd->shd", weights, v).reshape(S, -1)
    return context @ read(f"{prefix}/output/weight") + bias(f"{prefix}/output")


def _mlp(n, prefix, mlp, model, read, bias):
    def up(name):
        return n @ read(f"{prefix}/{name}/weight").T + bias(f"{prefix}/{name}")

    gate = up("gate" if mlp.gated else "up")
    if mlp.activation == "silu":
        inner = gate / (1 + np.exp(-gate))
    else:
        inner = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    if mlp.gated:
        inner = inner * up("up")
    return inner @ read(f"{prefix}/down/weight") + bias(f"{prefix}/down")


BLOCKS = {Attention.name: _attention, Mlp.name: _mlp}  # what a block computes of normed rows


def shares(heads, columns):
    """Return who has what of a stage of attention and MLP."""
    return {HEAD: Partition.of_counts(heads), FFN: Partition.of_counts(columns)}
