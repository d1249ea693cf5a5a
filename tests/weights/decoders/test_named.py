"""Published sizes, rotary positions, and weights of random numbers."""

import math

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from solver.base.errors import HeptiError
from solver.model.decoder import Decoder, decoder_tensors
from solver.model.kinds.attention import Attention
from solver.model.kinds.mlp import Mlp
from solver.model.named_decoders import NAMED_DECODERS, named_decoder
from solver.model.rotary import rope_of
from weights.decoders.file import DecoderFile
from weights.decoders.forward import logits
from weights.synthesize import synthesize_decoder

# As the model cards count them.
MILLIONS = {
    "llama-3.2-1b": 1236, "llama-3.2-3b": 3213, "llama-3.1-8b": 8030, "qwen3-0.6b": 596, "qwen3-1.7b": 1721,
    "qwen3-4b": 4022, "smollm2-135m": 135, "gpt2": 124,
}  # fmt: skip


class TestNames:
    @pytest.mark.parametrize("name", NAMED_DECODERS)
    def test_have_the_parameters_that_are_published(self, name):
        weights = decoder_tensors(named_decoder(name)).values()

        assert round(sum(math.prod(weight.shape) for weight in weights) / 1e6) == MILLIONS[name]

    def test_may_have_fewer_layers(self):
        assert len(named_decoder("qwen3-4b", 2).layers) == 2

    @pytest.mark.parametrize(
        ("name", "layers"),
        [
            ("qwen3-4", None),
            ("gpt2", 0),
            ("gpt2", 1001),
        ],
    )
    def test_that_are_none_are_refused(self, name, layers, kept):
        with pytest.raises(HeptiError) as raised:
            named_decoder(name, layers)
        kept(raised.value)


class TestRotary:
    @pytest.mark.parametrize(
        "settings",
        [
            {"rope_type": "linear", "factor": 4.0},
            {
                "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            {
                "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "mscale": 1.2,
                "mscale_all_dim": 0.7, "beta_fast": 16, "beta_slow": 2, "truncate": False,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "attention_factor": 1.5},
            {"rope_type": "dynamic", "factor": 2.0},
            {
                "rope_type": "longrope", "short_factor": [1 + i / 10 for i in range(32)], "long_factor": [2.0] * 32,
                "original_max_position_embeddings": 4096,
            },
        ],
    )  # fmt: skip
    def test_positions_turn_as_in_transformers(self, settings):
        config = LlamaConfig(
            hidden_size=512, num_attention_heads=8, max_position_embeddings=131072,
            rope_parameters={**settings, "rope_theta": 500000.0},
        )  # fmt: skip
        frequencies, factor = ROPE_INIT_FUNCTIONS[settings["rope_type"]](config)

        found = rope_of(64, 500000.0, settings, 131072)

        np.testing.assert_allclose(found.frequencies, frequencies.numpy(), rtol=3e-7)
        assert found.factor == pytest.approx(factor)

    def test_of_an_unknown_kind_is_refused(self, kept):
        with pytest.raises(HeptiError) as raised:
            rope_of(64, 1e4, {"rope_type": "spiral"})
        kept(raised.value)


@pytest.fixture
def small():
    """Return what is like Llama, small enough for a test and large enough to say something."""
    attention = Attention(heads=4, kv_heads=2, head_dim=32, rope=rope_of(32, 1e4))
    layer = attention, Mlp(ffn=256)
    return Decoder(name="small", hidden=128, vocab=5000, positions=256, layers=(layer,) * 6, tied=True)


class TestRandomNumbers:
    def test_make_tokens_that_vary_and_depend_on_all_before(self, small, tmp_path):
        """A tied head must not say the last token again."""
        synthesize_decoder(tmp_path / "model.h5", small, seed=3, precision="int8")
        tokens = [17, 4000, 256, 99]

        with DecoderFile(tmp_path / "model.h5") as weights:
            for _ in range(12):
                tokens.append(int(logits(small, weights.read, tokens)[-1].argmax()))
            one = logits(small, weights.read, tokens)
            other = logits(small, weights.read, [18, *tokens[1:]])

        answers = tokens[4:]
        assert len(set(answers)) >= 10
        assert sum(now == before for before, now in zip(tokens[3:], answers, strict=False)) <= 1
        assert 1 < one.std() < 4
        assert np.abs(one[-1] - other[-1]).max() > 0.01

    def test_are_the_same_in_every_precision_before_they_are_rounded(self, small, tmp_path):
        for precision in ("float32", "int4"):
            synthesize_decoder(tmp_path / f"{precision}.h5", small, seed=3, precision=precision)

        with DecoderFile(tmp_path / "float32.h5") as exact, DecoderFile(tmp_path / "int4.h5") as rounded:
            for name in exact.tensors:
                one, other = exact.read(name), rounded.read(name)
                assert np.linalg.norm(one - other) <= 0.1 * np.linalg.norm(one)
            assert exact.source == "synthesized small, seed 3"

    def test_differ_by_their_seed(self, small, tmp_path):
        marks = set()
        for seed in (1, 2):
            synthesize_decoder(tmp_path / "model.h5", small, seed, "int4")
            with DecoderFile(tmp_path / "model.h5") as weights:
                marks.add(weights.fingerprint)

        assert len(marks) == 2
