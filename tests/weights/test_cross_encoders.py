"""What sentence-transformers' settings say of a cross-encoder's scores is in its weights file, or refused by name."""

import json

import pytest

from solver.base.errors import HeptiError
from tests.kit.checkpoints import make_checkpoint
from weights.convert.convert import open_encoder

TORCH = "torch.nn.modules"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    make_checkpoint("bert-classifier", folder, layers=1, labels=1)
    return folder


def opened(folder, **files):
    """Return the spec of a checkpoint whose JSON files say something besides."""
    before = {}
    for name, more in files.items():
        path = folder / f"{name}.json"
        before[path] = path.read_text() if path.exists() else None
        path.write_text(json.dumps(json.loads(before[path] or "{}") | more))
    try:
        with open_encoder(folder) as checkpoint:
            return checkpoint.spec
    finally:
        for path, text in before.items():
            path.unlink() if text is None else path.write_text(text)


@pytest.mark.parametrize(
    ("files", "scores"),
    [
        ({}, "sigmoid"),
        ({"config": {"problem_type": "regression"}}, "sigmoid"),
        ({"config": {"sentence_transformers": {"activation_fn": f"{TORCH}.linear.Identity"}}}, "identity"),
        ({"config": {"sbert_ce_default_activation_function": f"{TORCH}.linear.Identity"}}, "identity"),
        ({"config_sentence_transformers": {"activation_fn": f"{TORCH}.linear.Identity"}}, "identity"),
        (
            {
                "config": {"sentence_transformers": {"activation_fn": f"{TORCH}.linear.Identity"}},
                "config_sentence_transformers": {"activation_fn": f"{TORCH}.activation.Sigmoid"},
            },
            "sigmoid",
        ),
    ],
)
def test_the_activation_is_the_library_s(folder, files, scores):
    assert opened(folder, **files).pair_scores == scores


@pytest.mark.parametrize(
    ("settings", "types"),
    [
        ({}, True), ({"tokenizer_class": "BertTokenizerFast"}, True),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, False),
        ({"model_input_names": ["input_ids", "attention_mask"]}, False),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "token_type_ids"]}, True),
    ],
)  # fmt: skip
def test_token_types_are_read_where_the_library_s_tokenizer_hands_them_on(folder, settings, types):
    source = opened(folder, tokenizer_config=settings).input

    assert source.pair_types == types
    assert source.types_of([0, 1]) == ([0, 1] if types else ())


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config": {"sentence_transformers": {"activation_fn": f"{TORCH}.activation.Tanh"}}}, "activation.Tanh"),
        ({"config_sentence_transformers": {"default_prompt_name": "query"}}, "default_prompt_name is 'query'"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(folder, files, words):
    with pytest.raises(HeptiError, match=words):
        opened(folder, **files)


def test_a_classifier_of_several_labels_has_no_score_of_pairs(tmp_path):
    make_checkpoint("bert-classifier", tmp_path, layers=1, labels=3)

    assert opened(tmp_path).pair_scores == ""
