"""Every family: the converted tensors against the modules of transformers, taken attribute by attribute."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from solver.model.spec import ImageInput, TextInput, norm_of
from tests.sweeps import pairs
from weights.convert.convert import convert
from weights.file.store import WeightsFile

logging.getLogger("transformers").setLevel(logging.ERROR)

SIZES = {"hidden_size": 20, "intermediate_size": 23, "num_attention_heads": 5, "num_hidden_layers": 3}
TEXT = {"vocab_size": 50, "max_position_embeddings": 30, **SIZES}
IMAGE = {"image_size": [16, 24], "patch_size": 8, **SIZES}
DISTIL = {"vocab_size": 50, "max_position_embeddings": 30, "dim": 20, "hidden_dim": 23, "n_heads": 5, "n_layers": 3}
SETTINGS = {"Bert": TEXT, "Roberta": TEXT, "XLMRoberta": TEXT, "Camembert": TEXT, "DistilBert": DISTIL,
            "ViT": IMAGE, "DeiT": IMAGE}  # fmt: skip

Arrays = dict[str, np.ndarray]


def build(stem: str, head: str, **settings: Any) -> Any:
    """Build a model of random numbers; norms and biases too, which transformers begins with ones and zeros."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{stem}Config")(**{**SETTINGS[stem], **settings})
    model = getattr(transformers, f"{stem}{head}")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def arrays(**modules: Any) -> Arrays:
    """Return weights and biases under our names, a keyword `a__b` standing for `a/b`."""
    found = {}
    for name, module in modules.items():
        key = name.replace("__", "/")
        if isinstance(module, torch.Tensor):
            found[key] = module.detach().numpy()
        else:
            found |= {f"{key}/{leaf}": getattr(module, leaf).detach().numpy() for leaf in ("weight", "bias")}
    return found


def bert_arrays(model: Any, positions_from: int = 0) -> Arrays:
    base = model.base_model
    expected = arrays(
        embeddings__word=base.embeddings.word_embeddings.weight,
        embeddings__position=base.embeddings.position_embeddings.weight[positions_from:],
        embeddings__type=base.embeddings.token_type_embeddings.weight,
        embeddings__norm=base.embeddings.LayerNorm,
    )
    for number, layer in enumerate(base.encoder.layer):
        attention = layer.attention
        expected |= layer_arrays(
            number, attention.self.query, attention.self.key, attention.self.value, attention.output.dense,
            attention.output.LayerNorm, layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm,
        )  # fmt: skip
    return expected


def distilbert_arrays(model: Any) -> Arrays:
    base = model.base_model
    expected = arrays(
        embeddings__word=base.embeddings.word_embeddings.weight,
        embeddings__position=base.embeddings.position_embeddings.weight,
        embeddings__norm=base.embeddings.LayerNorm,
    )
    for number, layer in enumerate(base.transformer.layer):
        attention = layer.attention
        expected |= layer_arrays(
            number, attention.q_lin, attention.k_lin, attention.v_lin, attention.out_lin,
            layer.sa_layer_norm, layer.ffn.lin1, layer.ffn.lin2, layer.output_layer_norm,
        )  # fmt: skip
    return expected


def vit_arrays(model: Any) -> Arrays:
    base = model.base_model
    tokens = [base.embeddings.cls_token, getattr(base.embeddings, "distillation_token", None)]
    patch = base.embeddings.patch_embeddings.projection
    expected = arrays(
        embeddings__prefix=torch.cat([token[0] for token in tokens if token is not None]),
        embeddings__position=base.embeddings.position_embeddings[0],
        embeddings__patch__weight=patch.weight.flatten(1),
        embeddings__patch__bias=patch.bias,
        final_norm=base.layernorm,
    )
    for number, layer in enumerate(base.layers):
        attention = layer.attention
        expected |= layer_arrays(
            number, attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
            layer.layernorm_before, layer.mlp.fc1, layer.mlp.fc2, layer.layernorm_after,
        )  # fmt: skip
    return expected


def layer_arrays(number: int, *modules: Any) -> Arrays:
    names = ("attention/query", "attention/key", "attention/value", "attention/output", "attention/norm", "mlp/up",
             "mlp/down", "mlp/norm")  # fmt: skip
    found: Arrays = {}
    for name, module in zip(names, modules, strict=True):
        weight, bias = module.weight.detach().numpy(), module.bias
        found[f"layers/{number}/{name}/weight"] = weight.T if name in ("attention/output", "mlp/down") else weight
        found[f"layers/{number}/{name}/bias"] = np.zeros(len(weight)) if bias is None else bias.detach().numpy()
    return found


def assert_holds(path: Path, read_all: Callable[[Path], Arrays], expected: Arrays) -> None:
    found = read_all(path)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(found[name], values), name


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    def save(model: Any, **options: Any) -> Path:
        model.save_pretrained(tmp_path / "checkpoint", **options)
        return tmp_path / "checkpoint"

    return save


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "model.h5"


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification"])
def test_bert(saved, target, read_all, head):
    """With its pooler where it has one, and a classifier after the pooler."""
    model = build("Bert", head)
    expected = bert_arrays(model)
    pooler = model.base_model.pooler
    if pooler is not None:
        expected |= arrays(dense=pooler.dense)
    if head == "ForSequenceClassification":
        expected |= arrays(classifier=model.classifier)

    spec = convert(saved(model), target)

    assert_holds(target, read_all, expected)
    assert spec.input == TextInput(50, 30, 30, 2)
    assert {(norm_of(block.stream), block.stream.eps) for block in spec.blocks} == {("post", 1e-12)}
    assert (spec.norm_eps, spec.blocks[1].kind.activation, spec.pooling) == (1e-12, "gelu", "cls")
    assert (spec.dense, spec.dense_width) == (("tanh", 20) if pooler is not None else ("", 0))
    assert spec.labels == (("LABEL_0", "LABEL_1") if head == "ForSequenceClassification" else ())


def test_bert_without_pooler(saved, target, read_all):
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**TEXT), add_pooling_layer=False)

    spec = convert(saved(model), target)

    assert_holds(target, read_all, bert_arrays(model))
    assert spec.dense == ""


@pytest.mark.parametrize(
    ("stem", "head"),
    pairs(["Roberta", "XLMRoberta", "Camembert"], ["Model", "ForMaskedLM", "ForSequenceClassification"]),
)
def test_roberta_and_its_kin(saved, target, read_all, stem, head):
    """The first position is that after the padding token's number; the classifier has a dense layer of its own."""
    model = build(stem, head, pad_token_id=2, layer_norm_eps=1e-5, type_vocab_size=1)
    expected = bert_arrays(model, positions_from=3)
    if head == "Model":
        expected |= arrays(dense=model.pooler.dense)
    if head == "ForSequenceClassification":
        expected |= arrays(dense=model.classifier.dense, classifier=model.classifier.out_proj)

    spec = convert(saved(model), target)

    assert_holds(target, read_all, expected)
    assert spec.input == TextInput(50, 27, 27, 1, padding=2)
    assert {spec.norm_eps, *(block.stream.eps for block in spec.blocks)} == {1e-5}
    assert spec.dense == ("" if head == "ForMaskedLM" else "tanh")


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForSequenceClassification"])
def test_distilbert(saved, target, read_all, head):
    """No token types, no pooler; a classifier has a dense layer with ReLU before it."""
    model = build("DistilBert", head, sinusoidal_pos_embds=head == "Model")
    expected = distilbert_arrays(model)
    if head == "ForSequenceClassification":
        expected |= arrays(dense=model.pre_classifier, classifier=model.classifier)

    spec = convert(saved(model), target)

    assert_holds(target, read_all, expected)
    assert spec.input == TextInput(50, 30, 30, 0)
    assert (spec.dense, spec.dense_width) == (("relu", 20) if head == "ForSequenceClassification" else ("", 0))


@pytest.mark.parametrize(
    ("stem", "head", "names"),
    pairs(["ViT", "DeiT"], ["Model", "ForImageClassification"], ["as of old", "of transformers 5"]),
)
def test_vit_and_deit(saved, target, read_all, stem, head, names):
    """Both layouts of names that transformers writes."""
    model = build(stem, head)
    expected = vit_arrays(model)
    expected |= arrays(dense=model.pooler.dense) if head == "Model" else arrays(classifier=model.classifier)

    directory = saved(model, save_original_format=names == "as of old")
    spec = convert(directory, target)

    assert any(".q_proj." in key for key in load_file(directory / "model.safetensors")) == (names != "as of old")
    assert_holds(target, read_all, expected)
    assert spec.input == ImageInput(16, 24, 8, 3, prefix=2 if stem == "DeiT" else 1)
    assert {norm_of(block.stream) for block in spec.blocks} == {"pre"}
    assert (spec.final_norm, spec.embedding_norm) == (True, False)
    assert spec.dense == ("tanh" if head == "Model" else "")


def test_vit_options(saved, target, read_all):
    """No biases of query, key and value; a pooler of another size and activation; a tanh approximation."""
    model = build("ViT", "Model", qkv_bias=False, pooler_output_size=9, pooler_act="relu", hidden_act="gelu_new")

    spec = convert(saved(model), target)

    assert_holds(target, read_all, vit_arrays(model) | arrays(dense=model.pooler.dense))
    assert (spec.dense, spec.dense_width, spec.blocks[1].kind.activation) == ("relu", 9, "gelu_tanh")


def test_vit_for_masked_images_is_its_encoder(saved, target, read_all):
    model = build("ViT", "ForMaskedImageModeling", image_size=16)

    convert(saved(model), target)

    assert_holds(target, read_all, vit_arrays(model))


def test_deit_with_teacher_is_the_mean_of_two_classifiers(saved, target, read_all):
    model = build("DeiT", "ForImageClassificationWithTeacher", num_labels=4)
    first, second = model.cls_classifier, model.distillation_classifier
    expected = vit_arrays(model) | arrays(
        classifier__weight=torch.cat([first.weight, second.weight], dim=1) / 2,
        classifier__bias=(first.bias + second.bias) / 2,
    )

    spec = convert(saved(model), target)

    assert_holds(target, read_all, expected)
    assert (spec.classifier_rows, len(spec.labels)) == (2, 4)


@pytest.mark.parametrize(
    ("problem", "labels", "scores"),
    [
        (None, 3, "softmax"),
        (None, 1, "sigmoid"),
        ("single_label_classification", 3, "softmax"),
        ("multi_label_classification", 3, "sigmoid"),
        ("regression", 1, "identity"),
    ],
)
def test_labels_and_scores(saved, target, problem, labels, scores):
    """Names as config.json has them; scores as transformers' pipelines make them."""
    names = {number: f"name {number}" for number in range(labels)}
    model = build("Bert", "ForSequenceClassification", id2label=names, problem_type=problem)

    spec = convert(saved(model), target)

    assert spec.labels == tuple(names.values())
    assert spec.scores == scores


def test_names_of_the_first_checkpoints(saved, target, read_all):
    """LayerNorm.gamma and beta, and a position_ids buffer that is no weight."""
    model = build("Bert", "Model")
    directory = saved(model)
    tensors = load_file(directory / "model.safetensors")
    old = {f"bert.{key}".replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"):
           values for key, values in tensors.items()}  # fmt: skip
    save_file(old | {"bert.embeddings.position_ids": torch.arange(30)}, directory / "model.safetensors")

    convert(directory, target)

    assert_holds(target, read_all, bert_arrays(model) | arrays(dense=model.pooler.dense))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_become_float32(saved, target, read_all, dtype):
    model = build("Bert", "Model").to(dtype)
    directory = saved(model)

    convert(directory, target)

    model = model.float()
    assert_holds(target, read_all, bert_arrays(model) | arrays(dense=model.pooler.dense))


def test_stored_as_float16(saved, target, read_all):
    model = build("Bert", "Model")
    expected = bert_arrays(model) | arrays(dense=model.pooler.dense)

    convert(saved(model), target, "float16")

    rounded = {name: values.astype(np.float16).astype(np.float32) for name, values in expected.items()}
    assert_holds(target, read_all, rounded)


def test_sharded_checkpoints(saved, target, read_all):
    model = build("Bert", "Model")
    directory = saved(model, max_shard_size="4KB")
    assert len(list(directory.glob("model-*.safetensors"))) > 3

    convert(directory, target)

    assert_holds(target, read_all, bert_arrays(model) | arrays(dense=model.pooler.dense))


def test_the_name_is_the_folders_and_the_source_says_the_architecture(saved, target):
    spec = convert(saved(build("Bert", "Model")), target)

    with WeightsFile(target) as weights:
        assert (spec.name, weights.source) == ("checkpoint", "checkpoint (BertModel)")


@pytest.mark.parametrize(
    ("preprocessor", "expected"),
    [
        ({}, ImageInput(16, 24, 8)),
        (
            {"size": {"height": 16, "width": 24}, "resample": 3, "image_mean": [0.4, 0.5, 0.6],
             "image_std": [0.2, 0.2, 0.3], "rescale_factor": 0.5},
            ImageInput(16, 24, 8, mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3), rescale=0.5, resample="bicubic"),
        ),
        (
            {"do_resize": True, "size": 32, "do_center_crop": True, "crop_size": {"height": 16, "width": 24}},
            ImageInput(16, 24, 8, resize=(32, 32)),
        ),
        (
            {"do_normalize": False, "do_rescale": False, "do_resize": False, "size": 99, "crop_size": 77},
            ImageInput(16, 24, 8, mean=(0, 0, 0), std=(1, 1, 1), rescale=1),
        ),
    ],
)  # fmt: skip
def test_preprocessing_of_images(saved, target, preprocessor, expected):
    """In the words of old and new versions."""
    directory = saved(build("ViT", "Model"))
    (directory / "preprocessor_config.json").write_text(json.dumps(preprocessor))

    assert convert(directory, target).input == expected
