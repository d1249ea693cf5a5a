"""The oracle equals transformers for every family, through the real converter and the weights file."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.kit import reference
from tests.kit.checkpoints import (
    CLASSIFIERS,
    FAMILIES,
    POOLINGS,
    expected,
    make_checkpoint,
    random_request,
    token_ids,
    write_json,
)
from tests.sweeps import pairs
from weights.convert.convert import convert
from weights.file.store import WeightsFile
from weights.inputs.tokenize import Tokenizer

TOLERANCE = 1e-5


def compare(family, folder, rows=9, dtype="float32", tolerance=TOLERANCE, **shape):
    """Convert a random checkpoint and compare the oracle with transformers; return the spec."""
    model = make_checkpoint(family, folder / "checkpoint", **shape)
    return compare_with(model, family, folder, rows, dtype, tolerance)


def compare_with(model, family, folder, rows=9, dtype="float32", tolerance=TOLERANCE):
    convert(folder / "checkpoint", folder / "model.h5", dtype=dtype)
    spec, tensors = reference.load(folder / "model.h5")
    request = random_request(model, family, rows)
    wanted = expected(model, family, request)
    hidden = reference.forward(spec, tensors, request)
    head = reference.head(spec, tensors, hidden)

    assert hidden.dtype == np.float32
    assert hidden.shape == wanted["hidden"].shape
    np.testing.assert_allclose(hidden, wanted["hidden"], atol=tolerance, rtol=0)
    assert head.keys() == ({"logits"} if family in CLASSIFIERS else {"embedding"})
    for name, value in head.items():
        assert value.shape == wanted[name].shape
        np.testing.assert_allclose(value, wanted[name], atol=tolerance, rtol=0)
    return spec


@pytest.mark.parametrize("family", FAMILIES)
def test_the_oracle_equals_transformers(family, tmp_path):
    compare(family, tmp_path)


@pytest.mark.parametrize(("rows", "family"), pairs([1, 2, 64], ["bert", "roberta-classifier", "distilbert"]))
def test_any_length_up_to_the_last_position(family, rows, tmp_path):
    compare(family, tmp_path, rows=rows)


@pytest.mark.parametrize(
    ("family", "activation"),
    [("bert", "gelu_new"), ("bert", "relu"), ("vit", "gelu_pytorch_tanh"), ("distilbert", "relu")],
)
def test_other_activations(family, activation, tmp_path):
    compare(family, tmp_path, activation=activation)


@pytest.mark.parametrize(("modern", "pooling"), pairs([False, True], POOLINGS))
def test_every_pooling_of_sentence_transformers(pooling, modern, tmp_path):
    """Pooling and length one are as the files say; the checkpoint's own pooler is not used."""
    spec = compare("sentence", tmp_path, pooling=pooling, modern=modern)

    assert (spec.pooling, spec.normalize) == (pooling, True)
    assert not spec.dense


def test_a_sentence_encoder_may_keep_its_length(tmp_path):
    assert not compare("sentence", tmp_path, normalize=False).normalize


def test_a_sentence_encoder_may_have_a_dense_layer(tmp_path):
    assert compare("sentence", tmp_path, dense=7).dense_width == 7


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_a_checkpoint_in_several_files(family, tmp_path):
    compare(family, tmp_path, shard="40KB")

    assert len(list((tmp_path / "checkpoint").glob("*.safetensors"))) > 1


@pytest.mark.parametrize("family", ["bert", "vit-classifier"])
def test_half_precision_is_close(family, tmp_path):
    """float16 has 11 bits: weights of size one are off by up to 2⁻¹²."""
    compare(family, tmp_path, dtype="float16", tolerance=0.02)


@pytest.mark.parametrize(("dtype", "family"), pairs([torch.float16, torch.bfloat16], ["bert-classifier", "vit"]))
def test_a_checkpoint_in_half_precision(family, dtype, tmp_path):
    """What is stored in 16 bits is computed in float32."""
    model = make_checkpoint(family, tmp_path / "checkpoint")
    model.to(dtype).save_pretrained(tmp_path / "checkpoint")

    compare_with(model.float(), family, tmp_path)


def test_a_checkpoint_with_the_names_of_2018(tmp_path):
    """As bert-base-uncased is published: `bert.` in front, gamma and beta, and tensors of a head that is not ours."""
    model = make_checkpoint("bert", tmp_path / "checkpoint")
    file = tmp_path / "checkpoint" / "model.safetensors"
    tensors = {
        f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in load_file(file).items()
    }
    extra = {"bert.embeddings.position_ids": torch.arange(64)[None], "cls.predictions.bias": torch.zeros(211)}
    save_file(tensors | extra, file)
    config = json.loads((file.parent / "config.json").read_text())
    write_json(file.parent / "config.json", config | {"architectures": ["BertForMaskedLM"]})

    compare_with(model, "bert", tmp_path)


@pytest.mark.parametrize(("layers", "heads", "hidden", "ffn"), [(1, 7, 7, 1), (2, 1, 12, 5), (5, 7, 63, 101)])
def test_awkward_shapes(layers, heads, hidden, ffn, tmp_path):
    compare("roberta", tmp_path, layers=layers, heads=heads, hidden=hidden, ffn=ffn)


def test_images_of_another_shape(tmp_path):
    spec = compare("deit-classifier", tmp_path, image=(24, 12), patch=4)

    assert (spec.input.height, spec.input.width, spec.input.rows) == (24, 12, 2 + 6 * 3)


@pytest.mark.thorough("the same at the sizes of real models")
@pytest.mark.parametrize(("family", "rows"), [("bert", 33), ("vit", None)])
def test_real_sizes(family, rows, tmp_path):
    """Widths of bert-base and vit-base; two layers show what twelve would."""
    compare(family, tmp_path, rows, layers=2, hidden=768, heads=12, ffn=3072, vocab=3000, positions=512,
            image=(224, 224), patch=16)  # fmt: skip


def test_labels_travel_with_the_model(tmp_path):
    assert compare("distilbert-classifier", tmp_path).labels == ("calm", "breeze", "storm")


@pytest.mark.parametrize("family", ["bert", "roberta", "sentence"])
def test_texts_are_limited_as_the_checkpoint_says(family, tmp_path):
    """The limit is the model's, not the length that a stray tokenizer.json cuts and pads to."""
    text = "The small board splits a model over its slow network, and it is warm at home tonight!"
    spec = compare(family, tmp_path, rows=20)
    with WeightsFile(tmp_path / "model.h5") as weights:
        tokenizer = Tokenizer(weights.tokenizer, spec.input.max_rows)

    assert spec.input.max_rows == (32 if family == "sentence" else 64)
    for words in (text, 9 * text):
        tokens = tokenizer(words)
        assert list(tokens.ids) == token_ids(tmp_path / "checkpoint", words, spec.input.max_rows)
        assert len(tokens.ids) > 8
    assert tokens.truncated
    assert len(tokens.ids) == spec.input.max_rows


def test_kernels_by_hand():
    """GELU, softmax and layer norm where the answer is known."""
    assert reference.gelu(np.array(1.0)) == pytest.approx(0.8413447460685429)
    assert reference.gelu_tanh(np.array(1.0)) == pytest.approx(0.8411919906082768)
    assert reference.softmax(np.array([1e4, 1e4])) == pytest.approx([0.5, 0.5])
    assert reference.layer_norm(np.array([1.0, 3.0]), 2.0, 1.0, 0.0) == pytest.approx([-1.0, 3.0])


def test_an_image_is_cut_into_patches_row_by_row():
    """Each patch is channel, then row, then column, as a convolution's weight lies."""
    pixels = np.arange(2 * 4 * 6.0).reshape(2, 4, 6)
    tensors = {
        "patch/weight": np.eye(8),
        "patch/bias": np.zeros(8),
        "prefix": np.zeros((1, 8)),
        "position": np.zeros(8),
    }
    rows = reference.embed_image(pixels, tensors, 2)

    assert rows.shape == (1 + 2 * 3, 8)
    assert rows[2].tolist() == [2, 3, 8, 9, 26, 27, 32, 33]
