"""Small odd language models, and weights files of random numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from solver.model.decoder import Decoder, decoder_tensors
from solver.model.kinds.attention import Attention, Rope
from solver.model.kinds.mlp import Mlp
from weights.decoders.file import DecoderWriter

Tensors = dict[str, np.ndarray]


@pytest.fixture
def odd_decoder() -> Decoder:
    """Return sizes that are multiples of nothing: 5 heads of 24 with one key, 83 columns, 90 words, hidden 52."""
    rope = Rope(frequencies=tuple(10000.0 ** (-i / 8) for i in range(8)))
    attention = Attention(heads=5, kv_heads=1, head_dim=24, rope=rope, bias=True, qk_norm=True)
    layer = attention, Mlp(ffn=83)
    return Decoder(name="odd", hidden=52, vocab=90, positions=64, layers=(layer,) * 3, bos=1, eos=(2, 3))


@pytest.fixture
def decoder_numbers() -> Callable[[Decoder], Tensors]:
    def make(model: Decoder) -> Tensors:
        generator = np.random.default_rng(7)
        return {
            name: generator.standard_normal(weight.shape, dtype=np.float32) * 0.1
            for name, weight in decoder_tensors(model).items()
        }

    return make


@pytest.fixture
def write_decoder(tmp_path: Path) -> Callable[..., Path]:
    """Write tensors as a language model's weights file."""

    def write(model: Decoder, tensors: Tensors, name: str = "model.h5", **options: object) -> Path:
        path = tmp_path / name
        with DecoderWriter(path, model, "test", **options) as weights:
            for key, values in tensors.items():
                weights.write(key, 0, values)
        return path

    return write
