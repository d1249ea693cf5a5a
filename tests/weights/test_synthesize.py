from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.base.spans import Span
from solver.model.decoder import decoder_tensors
from solver.model.named import NAMED_MODELS, named_model
from solver.model.named_decoders import named_decoder
from solver.model.spec import tensor_shapes
from tests.kit import inside
from weights.cli import main
from weights.decoders.file import DecoderFile, DecoderWriter
from weights.file.store import WeightsFile
from weights.synthesize import BLOCK_ROWS, encoder_spread, synthesize, synthetic_rows

SHAPE = (3 * BLOCK_ROWS + 11, 5)
NAME = "layers/0/mlp/down/weight"


@given(st.lists(st.integers(0, SHAPE[0]), min_size=2, max_size=2).map(sorted), st.integers(0, 2**40))
def test_any_span_is_that_of_the_whole_tensor(bounds, seed):
    """However ranks cut a tensor, they get the same numbers."""
    whole = synthetic_rows(NAME, SHAPE, Span(0, SHAPE[0]), 1.0, seed)
    part = synthetic_rows(NAME, SHAPE, Span(*bounds), 1.0, seed)

    assert part.dtype == np.float32
    assert np.array_equal(part, whole[slice(*bounds)])


def test_seeds_names_and_blocks_differ():
    whole = synthetic_rows(NAME, SHAPE, Span(0, SHAPE[0]), 1.0)
    others = [
        synthetic_rows(NAME, SHAPE, Span(0, SHAPE[0]), 1.0, seed=1),
        synthetic_rows("layers/1/mlp/down/weight", SHAPE, Span(0, SHAPE[0]), 1.0),
    ]

    assert not any(np.isin(other, whole).any() for other in others)
    assert len(np.unique(whole)) > 0.99 * whole.size


def test_a_file_holds_what_any_rank_would_make(tmp_path, text_spec, image_spec, read_all):
    for spec in (text_spec, image_spec):
        synthesize(tmp_path / "model.h5", spec, seed=5)

        for name, values in read_all(tmp_path / "model.h5").items():
            spread = encoder_spread(spec, name, values.shape)
            assert np.array_equal(values, synthetic_rows(name, values.shape, Span(0, len(values)), spread, seed=5))
        with WeightsFile(tmp_path / "model.h5") as weights:
            assert weights.source == f"synthesized {spec.name}, seed 5"
            assert weights.tokenizer is None


def test_the_same_seed_makes_the_same_file(tmp_path, text_spec):
    fingerprints = []
    for seed in (3, 3, 4):
        synthesize(tmp_path / "model.h5", text_spec, seed)
        with WeightsFile(tmp_path / "model.h5") as weights:
            fingerprints.append(weights.fingerprint)

    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


@pytest.mark.parametrize("name", sorted(NAMED_MODELS))
def test_numbers_are_of_a_size_that_shows(name):
    """Norms vary around one, biases are not zero, a matrix with 1024 inputs has a spread of 0.02."""
    spec = named_model(name, layers=1)
    for tensor, shape in tensor_shapes(spec).items():
        rows = synthetic_rows(tensor, shape, Span(0, min(128, shape[0])), encoder_spread(spec, tensor, shape))
        assert np.isfinite(rows).all()
        assert rows.std() > 0.009
        if tensor.endswith("norm/weight"):
            assert 0.9 < rows.mean() < 1.1
        elif tensor.startswith("layers/") and len(shape) == 2:
            inputs = shape[0] if tensor.endswith(("output/weight", "down/weight")) else shape[1]
            assert rows.std() == pytest.approx(0.02 * (1024 / inputs) ** 0.5, rel=0.05)


class TestTokenizer:
    """`synthesize --tokenizer MODEL.h5` gives a random model the words of another."""

    @pytest.fixture
    def words(self, tmp_path):
        """Return a language model's weights file with words."""
        text = '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "</s>": 2}, "merges": []}}'
        model = replace(named_decoder("smollm2-135m", 1), vocab=40, bos=1, eos=(2,))
        with DecoderWriter(
            tmp_path / "words.h5", model, "test", tokenizer=text, chat_template="{{ m }}", special={"eos_token": "</s>"}
        ) as weights:
            for name, weight in decoder_tensors(model).items():
                weights.write(name, 0, np.zeros(weight.shape, np.float32))
        return tmp_path / "words.h5"

    def test_a_language_model_gets_words_template_and_ends(self, words, tmp_path):
        done = inside.run(main, "synthesize", "gpt2", tmp_path / "gpt2.h5", "--layers", 1, "--tokenizer", words)

        assert done.returncode == 0, done.stderr
        with DecoderFile(tmp_path / "gpt2.h5") as made:
            assert (made.model.vocab, made.model.bos, made.model.eos) == (40, 1, (2,))
            assert '"</s>": 2' in made.tokenizer
            assert (made.chat_template, made.special) == ("{{ m }}", {"eos_token": "</s>"})

    def test_an_encoder_gets_words(self, words, tmp_path):
        assert inside.run(main, "synthesize", "minilm-l6", tmp_path / "m.h5", "--tokenizer", words).returncode == 0

        with WeightsFile(tmp_path / "m.h5") as made:
            assert (made.spec.input.vocab, made.tokenizer is None) == (40, False)

    @pytest.mark.parametrize(
        ("name", "said"), [("resnet18", "is a convolutional network"), ("vit-base", "reads images")]
    )
    def test_what_reads_no_text_is_refused(self, words, tmp_path, name, said):
        done = inside.run(main, "synthesize", name, tmp_path / "m.h5", "--tokenizer", words)

        assert (done.returncode, said in done.stderr) == (2, True)

    def test_a_file_without_words_is_refused(self, tmp_path):
        inside.run(main, "synthesize", "smollm2-135m", tmp_path / "none.h5", "--layers", 1, "--precision", "int4")

        done = inside.run(main, "synthesize", "gpt2", tmp_path / "m.h5", "--tokenizer", tmp_path / "none.h5")

        assert (done.returncode, "without words" in done.stderr) == (2, True)
