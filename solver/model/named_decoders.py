"""Published language models at their real sizes, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean
from solver.model.decoder import Decoder
from solver.model.kinds.attention import Attention, Rope
from solver.model.kinds.mlp import Mlp
from solver.model.named import MOST_LAYERS
from solver.model.rotary import rope_of


def named_decoder(name: str, layers: int | None = None) -> Decoder:
    """Return a well-known language model, with another layer count if asked.

    Raises
    ------
    HeptiError
        If the name is unknown, or the layers are absurdly many.
    """
    if name not in NAMED_DECODERS:
        raise HeptiError(f"unknown model {name}{did_you_mean(name, NAMED_DECODERS)}")
    if layers is None:
        return NAMED_DECODERS[name]
    if not 1 <= layers <= MOST_LAYERS:
        raise HeptiError(f"--layers is {layers}, must be at least 1 and at most {MOST_LAYERS}")
    model = NAMED_DECODERS[name]
    return replace(model, layers=(model.layers[0],) * layers)


def _decoder(
    name: str, layers: int, heads: int, kv_heads: int, head_dim: int, ffn: int, rope: Rope, *, qk_norm: bool = False,
    **facts: Any,
) -> Decoder:  # fmt: skip
    attention = Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, rope=rope, qk_norm=qk_norm)
    layer = attention, Mlp(ffn=ffn)
    return Decoder(name=name, layers=(layer,) * layers, **facts)


def _llama(name: str, hidden: int, layers: int, heads: int, ffn: int, factor: int, tied: bool) -> Decoder:
    scaling = {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1, "high_freq_factor": 4,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    head_dim = hidden // heads
    return _decoder(
        name, layers, heads, 8, head_dim, ffn, rope_of(head_dim, 500000, scaling), hidden=hidden, vocab=128256,
        positions=131072, tied=tied, bos=128000, eos=(128001, 128008, 128009),
    )  # fmt: skip


def _qwen3(name: str, hidden: int, layers: int, heads: int, ffn: int) -> Decoder:
    return _decoder(
        name, layers, heads, 8, 128, ffn, rope_of(128, 1e6), qk_norm=True, hidden=hidden, vocab=151936,
        positions=40960, norm_eps=1e-6, tied=True, eos=(151645, 151643),
    )  # fmt: skip


def _gpt2() -> Decoder:
    attention = Attention(heads=12, kv_heads=12, head_dim=64, bias=True, output_bias=True)
    mlp = Mlp(ffn=3072, activation="gelu_tanh", gated=False, bias=True)
    return Decoder(
        name="gpt2", hidden=768, vocab=50257, positions=1024, layers=((attention, mlp),) * 12,
        norm="layer", learned_positions=True, tied=True, eos=(50256,),
    )  # fmt: skip


NAMED_DECODERS: Mapping[str, Decoder] = {
    model.name: model
    for model in (
        _llama("llama-3.2-1b", 2048, 16, 32, 8192, factor=32, tied=True),
        _llama("llama-3.2-3b", 3072, 28, 24, 8192, factor=32, tied=True),
        _llama("llama-3.1-8b", 4096, 32, 32, 14336, factor=8, tied=False),
        _qwen3("qwen3-0.6b", 1024, 28, 16, 3072),
        _qwen3("qwen3-1.7b", 2048, 28, 16, 6144),
        _qwen3("qwen3-4b", 2560, 36, 32, 9728),
        _decoder(
            "smollm2-135m", 30, 9, 3, 64, 1536, rope_of(64, 1e5), hidden=576, vocab=49152, positions=8192, tied=True,
            eos=(0,),
        ),
        _gpt2(),
    )
}  # fmt: skip
