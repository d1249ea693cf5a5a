"""Checkpoints that cannot be converted: one line that names what is wrong, and nothing left behind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from solver.base.errors import HeptiError
from weights.convert.convert import convert

BERT = {
    "architectures": ["BertForSequenceClassification"], "model_type": "bert", "vocab_size": 50, "type_vocab_size": 2,
    "max_position_embeddings": 30, "hidden_size": 20, "intermediate_size": 23, "num_attention_heads": 5,
    "num_hidden_layers": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
}  # fmt: skip
VIT = {
    "architectures": ["ViTModel"], "model_type": "vit", "image_size": 16, "patch_size": 8, "hidden_size": 20,
    "intermediate_size": 23, "num_attention_heads": 5, "num_hidden_layers": 2,
}  # fmt: skip


def bert_tensors() -> dict[str, np.ndarray]:
    """Return the tensors of `BERT` as transformers names them."""
    generator = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "bert.embeddings.word_embeddings.weight": (50, 20),
        "bert.embeddings.position_embeddings.weight": (30, 20),
        "bert.embeddings.token_type_embeddings.weight": (2, 20),
        "bert.embeddings.LayerNorm.weight": (20,),
        "bert.embeddings.LayerNorm.bias": (20,),
        "bert.pooler.dense.weight": (20, 20),
        "bert.pooler.dense.bias": (20,),
        "classifier.weight": (3, 20),
        "classifier.bias": (3,),
    }
    sizes = {"attention.self.query": (20, 20), "attention.self.key": (20, 20), "attention.self.value": (20, 20),
             "attention.output.dense": (20, 20), "intermediate.dense": (23, 20), "output.dense": (20, 23)}  # fmt: skip
    for layer in range(2):
        for name, shape in sizes.items():
            shapes[f"bert.encoder.layer.{layer}.{name}.weight"] = shape
            shapes[f"bert.encoder.layer.{layer}.{name}.bias"] = shape[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"bert.encoder.layer.{layer}.{name}.{leaf}": (20,) for leaf in ("weight", "bias")}
    return {name: generator.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a whole and proper checkpoint."""
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(BERT))
    save_file(bert_tensors(), directory / "model.safetensors")
    return directory


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., str]:
    """Convert and return the error, which is one line; nothing is left behind."""
    out = tmp_path / "out"
    out.mkdir()

    def convert_in_vain(directory: Path, **options: Any) -> str:
        with pytest.raises(HeptiError) as caught:
            convert(directory, out / "model.h5", **options)
        assert list(out.iterdir()) == []
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return convert_in_vain


def change(checkpoint: Path, **settings: Any) -> None:
    (checkpoint / "config.json").write_text(json.dumps(BERT | settings))


def test_the_whole_checkpoint_converts(checkpoint, tmp_path):
    """Or else the other tests say nothing."""
    assert convert(checkpoint, tmp_path / "model.h5").labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_no_directory(tmp_path, refused):
    assert "no checkpoint directory" in refused(tmp_path / "nowhere")


def test_no_config(checkpoint, refused, kept):
    (checkpoint / "config.json").unlink()

    kept(refused(checkpoint))


@pytest.mark.parametrize("text", ["{", "", "[1]", "\xff"])
def test_a_config_that_is_no_object(checkpoint, refused, text):
    (checkpoint / "config.json").write_bytes(text.encode("latin-1"))

    assert str(checkpoint / "config.json") in refused(checkpoint)


@pytest.mark.parametrize(
    "settings",
    [
        {"architectures": ["AlbertModel"], "model_type": "albert"},
        {"architectures": ["BertForQuestionAnswering"]},
        {"architectures": ["BertForQuestionAnswering"], "model_type": "roberta"},
        {"architectures": None, "model_type": None},
    ],
)
def test_an_unknown_architecture_and_the_known_ones_are_named(checkpoint, refused, settings):
    change(checkpoint, **settings)

    message = refused(checkpoint)
    assert f"unknown architecture {(settings['architectures'] or ['nothing'])[0]}" in message
    assert "DistilBertForSequenceClassification" in message


def test_an_architecture_that_is_not_said_is_the_plain_model(checkpoint, tmp_path):
    change(checkpoint, architectures=None)

    assert convert(checkpoint, tmp_path / "model.h5").layers == 2


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("position_embedding_type", "relative_key"),
        ("hidden_act", "silu"),
        ("pruned_heads", {"0": [1]}),
        ("quantization_config", {"bits": 8}),
        ("hidden_size", None),
        ("hidden_size", "20"),
        ("vocab_size", 50.5),
        ("num_hidden_layers", 0),
        ("num_attention_heads", 3),
    ],
)
def test_a_setting_that_is_not_computed_is_named(checkpoint, refused, setting, value):
    change(checkpoint, **{setting: value})

    message = refused(checkpoint)
    assert setting.removeprefix("num_").removeprefix("hidden_l").removeprefix("attention_") in message


@pytest.mark.parametrize("size", [0, 4, 100, -1000])
def test_safetensors_cut_short(checkpoint, refused, size):
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])

    assert f"cannot read {path}: Error while deserializing" in refused(checkpoint)


def test_a_missing_tensor(checkpoint, refused):
    tensors = bert_tensors()
    del tensors["bert.encoder.layer.1.output.dense.bias"]
    save_file(tensors, checkpoint / "model.safetensors")

    assert "has no tensor for layers/1/mlp/down/bias" in refused(checkpoint)


def test_a_tensor_of_another_shape_with_both_shapes(checkpoint, refused):
    tensors = bert_tensors()
    tensors["bert.encoder.layer.1.output.dense.weight"] = np.zeros((20, 24), np.float32)
    save_file(tensors, checkpoint / "model.safetensors")

    assert "layers/1/mlp/down/weight is (24, 20), config.json makes it (23, 20)" in refused(checkpoint)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers(checkpoint, refused, value):
    tensors = bert_tensors()
    tensors["bert.encoder.layer.1.output.dense.weight"][3, 4] = value
    save_file(tensors, checkpoint / "model.safetensors")

    assert "layers/1/mlp/down/weight of checkpoint (BertForSequenceClassification) has NaN" in refused(checkpoint)


def test_quantized_weights(checkpoint, refused):
    tensors = bert_tensors()
    tensors["bert.encoder.layer.1.output.dense.weight"] = np.zeros((20, 23), np.int8)
    save_file(tensors, checkpoint / "model.safetensors")

    assert "tensor bert.encoder.layer.1.output.dense.weight is I8" in refused(checkpoint)


def test_only_a_pickle(checkpoint, refused, kept):
    """Says how to make safetensors of it."""
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")

    message = refused(checkpoint)
    assert "only pytorch_model.bin" in message
    kept(message)


def test_no_weights_at_all(checkpoint, refused):
    (checkpoint / "model.safetensors").unlink()

    assert "neither model.safetensors nor model.safetensors.index.json" in refused(checkpoint)


@pytest.mark.parametrize("index", ['{"weight_map": {"a": "missing.safetensors"}}', "{}", "[]", '{"weight_map": 3}'])
def test_a_sharded_index_that_leads_nowhere(checkpoint, refused, index):
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors.index.json").write_text(index)

    message = refused(checkpoint)
    assert "missing.safetensors" in message or "index.json has no weight_map" in message or "not an object" in message


def test_an_output_folder_that_is_missing(checkpoint, tmp_path):
    with pytest.raises(HeptiError, match="there is no folder"):
        convert(checkpoint, tmp_path / "nowhere" / "model.h5")


def test_numbers_above_float16(checkpoint, refused):
    tensors = bert_tensors()
    tensors["classifier.bias"][1] = 1e5
    save_file(tensors, checkpoint / "model.safetensors")

    assert "tensor classifier/bias" in refused(checkpoint, dtype="float16")


@pytest.mark.parametrize(
    ("config", "preprocessor"),
    [
        ({"image_size": 17}, {}),
        ({"patch_size": [8, 4]}, {}),
        ({"image_size": "large"}, {}),
        ({}, {"size": 32}),
        ({}, {"size": {"shortest_edge": 16}}),
        ({}, {"size": {"shortest_edge": 16, "longest_edge": 20}}),
        ({}, {"size": 16, "resample": 9}),
        ({}, {"size": 16, "do_flip_channel_order": True}),
        ({}, {"size": 16, "image_processor_type": "PixtralImageProcessor"}),
        ({}, {"size": 16, "image_mean": [0.5]}),
        ({}, []),
    ],
)
def test_images_that_do_not_fit(checkpoint, refused, config, preprocessor, kept):
    (checkpoint / "config.json").write_text(json.dumps(VIT | config))
    (checkpoint / "preprocessor_config.json").write_text(json.dumps(preprocessor))

    kept(refused(checkpoint))
