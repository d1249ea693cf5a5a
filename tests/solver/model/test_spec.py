"""Model descriptions: JSON, the named architectures against transformers, and what is refused."""

import json
import math
from dataclasses import replace

import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st

from solver.base.errors import HeptiError
from solver.model.spec import (
    ACTIVATIONS,
    NAMED_MODELS,
    POOLINGS,
    SCORES,
    ImageInput,
    ModelSpec,
    TextInput,
    named_model,
    tensor_shapes,
)

SIZES = st.integers(1, 4096)
THREE = st.tuples(*[st.floats(-1, 1)] * 3)
TEXTS = st.builds(TextInput, SIZES, SIZES, SIZES, token_types=st.integers(0, 2))
IMAGES = st.builds(
    ImageInput, SIZES, SIZES, st.integers(1, 32), prefix=st.integers(0, 2), mean=THREE, std=THREE,
    resize=st.none() | st.tuples(SIZES, SIZES), resample=st.sampled_from(("bilinear", "bicubic", "lanczos", "nearest")),
)  # fmt: skip


@st.composite
def specs(draw):
    heads, dense = draw(st.integers(1, 16)), draw(st.sampled_from(["", "identity", *ACTIVATIONS]))
    return ModelSpec(
        draw(st.text(max_size=9)), heads * draw(st.integers(1, 64)), draw(SIZES), heads, draw(st.integers(1, 30)),
        draw(TEXTS | IMAGES),
        norm=draw(st.sampled_from(["pre", "post"])),
        norm_eps=draw(st.floats(1e-12, 1e-3)),
        activation=draw(st.sampled_from(ACTIVATIONS)),
        embedding_norm=draw(st.booleans()),
        final_norm=draw(st.booleans()),
        pooling=draw(st.sampled_from(POOLINGS)),
        dense=dense,
        dense_width=draw(SIZES) if dense else 0,
        normalize=draw(st.booleans()),
        labels=draw(st.lists(st.text(max_size=5), max_size=4).map(tuple)),
        classifier_rows=draw(st.integers(1, 2)),
        scores=draw(st.sampled_from(SCORES)),
    )  # fmt: skip


@given(specs())
def test_a_spec_survives_json(spec):
    assert ModelSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize("name", NAMED_MODELS)
def test_a_named_model_survives_json(name):
    assert ModelSpec.from_json(named_model(name).to_json()) == named_model(name)


@given(st.data())
def test_damaged_json_is_a_spec_or_refused(data):
    """Whatever field is dropped or replaced, the outcome is a spec or a HeptiError."""
    table = json.loads(named_model("bert-base").to_json())
    node = data.draw(st.sampled_from([table, table["input"]]))
    key = data.draw(st.sampled_from([*node, "unknown"]))
    value = data.draw(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([]) | st.just({}))
    node[key] = value
    try:
        spec = ModelSpec.from_json(json.dumps(table))
    except HeptiError:
        return
    assert spec.head_dim * spec.heads == spec.hidden
    assert all(isinstance(length, int) for shape in tensor_shapes(spec).values() for length in shape)
    assert ModelSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"input": 3}', '{"input": {"kind": "sound"}}', "[" * 100_000])
def test_json_that_is_no_spec_is_refused(text):
    with pytest.raises(HeptiError, match="model description is damaged or of a newer version"):
        ModelSpec.from_json(text)


def elements(spec):
    return sum(map(math.prod, tensor_shapes(spec).values()))


def transformers_parameters(name):
    """Return the parameters of the same architecture in transformers, counted without allocating them."""
    large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    roberta = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
    minilm = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    cls, config = {
        "bert-base": (hf.BertModel, hf.BertConfig()),
        "bert-large": (hf.BertModel, hf.BertConfig(**large)),
        "roberta-base": (hf.RobertaModel, hf.RobertaConfig(**roberta)),
        "roberta-large": (hf.RobertaModel, hf.RobertaConfig(**roberta, **large)),
        "distilbert": (hf.DistilBertModel, hf.DistilBertConfig()),
        "minilm-l6": (lambda config: hf.BertModel(config, add_pooling_layer=False), hf.BertConfig(**minilm)),
        "vit-base": (hf.ViTModel, hf.ViTConfig()),
        "vit-large": (hf.ViTModel, hf.ViTConfig(**large)),
    }[name]
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in cls(config).parameters())


@pytest.mark.parametrize("name", NAMED_MODELS)
def test_named_models_have_the_parameters_of_transformers(name):
    """RoBERTa's table has two more rows of positions, those of padding, that nothing reads."""
    spec = named_model(name)
    unread = 2 * spec.hidden if name.startswith("roberta") else 0

    assert elements(spec) + unread == transformers_parameters(name)


@pytest.mark.parametrize(
    ("name", "millions"),
    [("bert-base", 109.5), ("bert-large", 335.1), ("roberta-large", 355.4), ("distilbert", 66.4), ("minilm-l6", 22.6),
     ("vit-base", 86.4)],
)  # fmt: skip
def test_named_models_have_the_published_size(name, millions):
    assert round(elements(named_model(name)) / 1e6, 1) == millions


@given(specs())
def test_layers_differ_only_in_their_number(spec):
    """Every layer has the tensors of its blocks; their count is what the layer's formula says."""
    shapes, H, F = tensor_shapes(spec), spec.hidden, spec.ffn
    blocks = {tensor.name: tensor.shape for tensor in spec.layer_tensors}
    for layer in (0, spec.layers - 1):
        prefix = f"layers/{layer}/"
        own = {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
        assert own == blocks
    assert sum(map(math.prod, blocks.values())) == 4 * (H * H + H) + 2 * H * F + F + H + 4 * H


def test_optional_tensors_follow_from_the_spec():
    bert, vit = named_model("bert-base"), named_model("vit-base")
    deit = replace(
        vit, input=replace(vit.input, prefix=2), dense="", dense_width=0, labels=("a", "b"), classifier_rows=2
    )

    assert tensor_shapes(bert)["embeddings/type"] == (2, 768)
    assert tensor_shapes(bert)["dense/weight"] == (768, 768)
    assert "classifier/weight" not in tensor_shapes(bert)
    assert "embeddings/type" not in tensor_shapes(named_model("distilbert"))
    assert tensor_shapes(replace(bert, labels=("x", "y", "z")))["classifier/weight"] == (3, 768)
    assert tensor_shapes(vit)["embeddings/patch/weight"] == (768, 3 * 16 * 16)
    assert tensor_shapes(vit)["embeddings/position"] == (197, 768)
    assert "embeddings/norm/weight" not in tensor_shapes(vit)
    assert tensor_shapes(deit)["embeddings/position"] == (198, 768)
    assert tensor_shapes(deit)["classifier/weight"] == (2, 2 * 768)
    assert vit.max_positions == 197
    assert bert.max_positions == 512


def test_the_fingerprint_is_the_shape_of_the_layers():
    """A plan for a model fits its classifier, and not another depth, width or number of heads."""
    spec = named_model("bert-base")

    assert replace(spec, name="mine", labels=("x",)).fingerprint == spec.fingerprint
    others = [replace(spec, **{field: getattr(spec, field) * 2}) for field in ("hidden", "ffn", "heads", "layers")]
    assert len({other.fingerprint for other in [spec, *others]}) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 7}, "model bert-base: hidden 768 is not a multiple of heads 7"),
        ({"layers": 0}, "model bert-base: layers is 0, must be at least 1"),
        ({"ffn": -1}, "ffn is -1, must be at least 1"),
        ({"norm": "sandwich"}, "norm 'sandwich' is not one of post, pre"),
        ({"activation": "swish"}, "activation 'swish' is not one of gelu, gelu_tanh, relu, tanh"),
        ({"pooling": "median"}, "pooling 'median' is not one of cls, mean"),
        ({"dense": "swish"}, "dense 'swish' is not one of"),
        ({"scores": "argmax"}, "scores 'argmax' is not one of softmax, sigmoid, identity"),
        ({"input": TextInput(30522, 0, 512)}, "positions is 0, must be at least 1"),
        ({"input": ImageInput(224, 224, 0)}, "patch is 0, must be at least 1"),
    ],
)
def test_a_spec_that_no_model_has_is_refused(changes, message):
    with pytest.raises(HeptiError, match=message):
        replace(named_model("bert-base"), **changes)


def test_names_are_known_or_suggested():
    assert named_model("bert-large", layers=2).layers == 2
    assert named_model("bert-large").layers == 24
    with pytest.raises(HeptiError, match=r"unknown model bert-lrge: did you mean bert-large\?"):
        named_model("bert-lrge")
    with pytest.raises(HeptiError, match="unknown model xyz: known: bert-base, bert-large, distilbert"):
        named_model("xyz")
    with pytest.raises(HeptiError, match="layers is 0, must be at least 1"):
        named_model("bert-large", layers=0)
    with pytest.raises(HeptiError, match="bert-base-decoupled-4x2 is decoupled already"):
        named_model("bert-base-decoupled-4x2-decoupled")
