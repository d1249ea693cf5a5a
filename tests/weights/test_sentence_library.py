"""Sentence encoders as sentence-transformers saves them: our embeddings are those that it computes of them."""

import json
import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from hepti_mpi.__main__ import main
from solver.base.errors import HeptiError
from tests.kit import inside
from tests.kit.checkpoints import make_checkpoint, write_json
from weights.convert.convert import convert, open_encoder

TEXT = "Board at home splits a model over its slow network"
MEAN = {"pooling_mode": "mean"}
# What follows the encoder, how its text is read, and what the whole says.
SORTS = {
    "two dense modules": (
        lambda: [Pooling(40, "mean"), Dense(40, 23), Dense(23, 17, bias=False, activation_function=None), Normalize()],
        {}, {},
    ),
    "three poolings side by side": (
        lambda: [Pooling(40, ["cls", "max", "weightedmean"]), Dense(120, 23, activation_function=torch.nn.GELU())],
        {}, {},
    ),
    "a prompt by default": (
        lambda: [Pooling(40, "mean"), Normalize()], {},
        {"prompts": {"q": "the small "}, "default_prompt_name": "q"},
    ),
    "prompts that nobody asks for": (lambda: [Pooling(40, "mean")], {}, {"prompts": {"q": "the small "}}),
    "fewer columns, not normalised again": (
        lambda: [Pooling(40, "mean_sqrt_len_tokens"), Normalize()], {}, {"truncate_dim": 7}
    ),
    "cut and lower-cased": (lambda: [Pooling(40, "lasttoken")], {"do_lower_case": True, "max_seq_length": 6}, {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    make_checkpoint("bert", folder)
    return folder


@pytest.fixture
def saved(base, tmp_path):
    """Save a sentence encoder with its library; return the folder and what the library computes of `TEXT`."""

    def save(behind, encoder, whole):
        torch.manual_seed(0)
        model = SentenceTransformer(modules=[Transformer(str(base), **encoder), *behind()], device="cpu", **whole)
        model.save(str(tmp_path / "saved"))
        return tmp_path / "saved"

    return save


def embedding(folder, path):
    convert(folder, path)
    done = inside.run(main, "--model", path, "--text", TEXT, "--output", path.with_suffix(".jsonl"))
    assert done.returncode == 0, done.stderr
    return np.array(json.loads(path.with_suffix(".jsonl").read_text())["embedding"])


@pytest.mark.parametrize("sort", SORTS)
def test_embeddings_are_the_librarys(saved, tmp_path, sort):
    folder = saved(*SORTS[sort])

    wanted = SentenceTransformer(str(folder), device="cpu").encode(TEXT)

    np.testing.assert_allclose(embedding(folder, tmp_path / "model.h5"), wanted, atol=2e-6)


@pytest.mark.parametrize(
    ("file", "said", "words"),
    [
        ("config_sentence_transformers", {"surprise": 1}, "does not know the key surprise"),
        ("config_sentence_transformers", {"model_type": "SparseEncoder"}, "model_type is 'SparseEncoder'"),
        ("config_sentence_transformers", {"default_prompt_name": "q"}, "default_prompt_name 'q'"),
        ("sentence_bert_config", {"query_expansion": {"length": 4}}, "query_expansion is"),
        ("sentence_bert_config", {"processor_kwargs": {"do_lower_case": False}}, "processor_kwargs is"),
        ("sentence_bert_config", {"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask'"),
        ("sentence_bert_config", {"module_output_name": "sentence_embedding"}, "module_output_name is"),
        ("1_Pooling/config", {**MEAN, "surprise": 1}, "does not know the key surprise"),
        ("2_Dense/config", {"module_input_name": "token_embeddings"}, "module_input_name is"),
        ("2_Dense/config", {"use_residual": True}, "use_residual is True"),
        ("2_Dense/config", {"activation_function": "my.Tanh"}, "activation_function my.Tanh"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(saved, file, said, words):
    folder = saved(lambda: [Pooling(40, "mean"), Dense(40, 23)], {}, {})
    present = json.loads((folder / f"{file}.json").read_text())
    write_json(folder / f"{file}.json", {**present, **said})

    with pytest.raises(HeptiError, match=words), open_encoder(folder):
        pass


def test_a_prompt_that_does_not_count_in_the_pooling_is_refused(saved):
    prompt = {"prompts": {"q": "the small "}, "default_prompt_name": "q"}
    folder = saved(lambda: [Pooling(40, "mean", include_prompt=False)], {}, prompt)

    with pytest.raises(HeptiError, match="include_prompt is False"), open_encoder(folder):
        pass
