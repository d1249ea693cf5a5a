"""Model descriptions: JSON, the named architectures against transformers, and what is refused."""

import json
import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st

from solver.base.errors import HeptiError
from solver.model.kinds.attention import Attention
from solver.model.named import NAMED_MODELS, named_model
from solver.model.spec import (
    ACTIVATIONS,
    POOLINGS,
    SCORES,
    ImageInput,
    ModelSpec,
    Run,
    TextInput,
    attention_block,
    encoder,
    mlp_block,
    tensor_shapes,
    with_layers,
)
from tests.kit import refused
from tests.kit.plans import joined, like

SIZES = st.integers(1, 4096)
THREE = st.tuples(*[st.floats(-1, 1)] * 3)
TEXTS = st.builds(TextInput, SIZES, SIZES, SIZES, token_types=st.integers(0, 2))
IMAGES = st.builds(
    ImageInput, SIZES, SIZES, st.integers(1, 32), prefix=st.integers(0, 2), mean=THREE, std=THREE,
    resize=st.none() | st.tuples(SIZES, SIZES), resample=st.sampled_from(("bilinear", "bicubic", "lanczos", "nearest")),
)  # fmt: skip
WAYS = {"norm": st.sampled_from(["pre", "post"]), "norm_eps": st.floats(1e-12, 1e-3)}
ATTENTION, MLP = attention_block(64, 4), mlp_block(64, 96)
PART = attention_block(16, 4), mlp_block(16, 96)
TWO_KINDS = joined(
    "two kinds",
    encoder("narrow", 64, 64, 4, 2, input=TextInput(50, 32, 32), pooling="mean"),
    encoder("wide", 64, 128, 8, 3, input=TextInput(50, 32, 32)),
)

# As the first version wrote them into weights files.
BERT_BASE_1 = {
    "name": "bert-base", "hidden": 768, "ffn": 3072, "heads": 12, "layers": 12,
    "input": {
        "kind": "text", "vocab": 30522, "positions": 512, "max_rows": 512, "token_types": 2, "bos_rows": 1,
        "eos_rows": 1,
    },
    "norm": "post", "norm_eps": 1e-12, "activation": "gelu", "embedding_norm": True, "final_norm": False,
    "pooling": "cls", "dense": "tanh", "dense_width": 768, "normalize": False, "labels": [], "classifier_rows": 1,
    "scores": "softmax", "groups": 0, "sub_blocks": 0,
}  # fmt: skip
DECOUPLED_1 = BERT_BASE_1 | {"name": "bert-base-decoupled", "groups": 4, "sub_blocks": 4}
VIT_1 = {
    "name": "a vit", "hidden": 60, "ffn": 90, "heads": 6, "layers": 3,
    "input": {
        "kind": "image", "height": 24, "width": 24, "patch": 8, "channels": 3, "prefix": 1, "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5], "rescale": 0.00392156862745098, "resize": [32, 32], "resample": "bicubic",
    },
    "norm": "pre", "norm_eps": 1e-06, "activation": "gelu_tanh", "embedding_norm": False, "final_norm": True,
    "pooling": "cls", "dense": "", "dense_width": 0, "normalize": False, "labels": ["a", "b"], "classifier_rows": 1,
    "scores": "sigmoid", "groups": 0, "sub_blocks": 0,
}  # fmt: skip

# As plan files of the first version have them.
FINGERPRINTS = {
    "bert-base": "b8da2014a029",
    "bert-large": "e3b2cb9f7941",
    "roberta-base": "b8da2014a029",
    "roberta-large": "e3b2cb9f7941",
    "distilbert": "eb2568d2cb92",
    "minilm-l6": "0e3f37412920",
    "vit-base": "b8da2014a029",
    "vit-large": "e3b2cb9f7941",
    "bert-base-decoupled": "130e5b1d64d6",
    "bert-large-decoupled": "9558ff3d907d",
    "distilbert-decoupled": "3686c7f3b5d5",
    "minilm-l6-decoupled": "f8712f4bd435",
    "bert-base-decoupled-4x2": "0b3e5469bff9",
}


@st.composite
def specs(draw):
    heads, dense = draw(st.integers(1, 16)), draw(st.sampled_from(["", "identity", *ACTIVATIONS]))
    return encoder(
        draw(st.text(max_size=9)), heads * draw(st.integers(1, 64)), draw(SIZES), heads, draw(st.integers(1, 30)),
        draw(TEXTS | IMAGES),
        norm=draw(WAYS["norm"]),
        norm_eps=draw(WAYS["norm_eps"]),
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


@st.composite
def of_unlike_layers(draw):
    """Draw a spec whose runs differ in all that blocks may differ in, some of one block, some of two in any order."""
    spec = like(draw(specs()), hidden=24, heads=1)
    heads = st.sampled_from([1, 2, 3, 8, 24])
    attention = st.builds(attention_block, hidden=st.just(24), heads=heads, **WAYS)
    mlp = st.builds(mlp_block, hidden=st.just(24), ffn=SIZES, activation=st.sampled_from(ACTIVATIONS), **WAYS)
    blocks = st.one_of(*map(st.tuples, (attention, mlp)), st.tuples(attention, mlp), st.tuples(mlp, attention))
    return replace(spec, runs=tuple(draw(st.lists(st.builds(Run, st.integers(1, 5), blocks), min_size=1, max_size=4))))


@given(specs() | of_unlike_layers())
def test_a_spec_survives_json(spec):
    assert ModelSpec.from_json(spec.to_json()) == spec


def test_a_model_of_unlike_layers_survives_json():
    found = ModelSpec.from_json(TWO_KINDS.to_json())

    assert found == TWO_KINDS
    assert [(run.layers, *run.blocks) for run in found.runs] == [
        (2, attention_block(64, 4), mlp_block(64, 64)),
        (3, attention_block(64, 8), mlp_block(64, 128)),
    ]


@pytest.mark.parametrize(
    ("table", "spec"),
    [
        (BERT_BASE_1, named_model("bert-base")),
        (DECOUPLED_1, named_model("bert-base-decoupled")),
        (
            VIT_1,
            encoder(
                "a vit", hidden=60, ffn=90, heads=6, layers=3, norm="pre", norm_eps=1e-6, activation="gelu_tanh",
                input=ImageInput(24, 24, 8, resize=(32, 32), resample="bicubic"), embedding_norm=False, final_norm=True,
                labels=("a", "b"), scores="sigmoid",
            ),
        ),
    ],
    ids=lambda given: given["name"] if isinstance(given, dict) else "",
)  # fmt: skip
def test_encoders_are_read_and_written_as_in_the_first_version(table, spec):
    """By their widths: older weights files, and programs on other boards."""
    assert ModelSpec.from_json(json.dumps(table)) == spec
    assert json.loads(spec.to_json()) == table


def test_norms_outside_the_layers_keep_their_own_epsilon():
    spec = replace(named_model("vit-base"), norm_eps=1e-5)

    assert ModelSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize("name", NAMED_MODELS)
def test_a_named_model_survives_json(name):
    assert ModelSpec.from_json(named_model(name).to_json()) == named_model(name)


@pytest.mark.parametrize("table", [BERT_BASE_1, json.loads(TWO_KINDS.to_json())], ids=["first version", "runs"])
@given(data=st.data())
def test_damaged_json_is_a_spec_or_refused(table, data):
    """Whatever field is dropped or replaced, the outcome is a spec or a HeptiError."""
    table = deepcopy(table)
    runs = table.get("runs", [])
    node = data.draw(
        st.sampled_from([table, table["input"], *runs, *(block for run in runs for block in run["blocks"])])
    )
    key = data.draw(st.sampled_from([*node, "unknown"]))
    value = data.draw(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([]) | st.just({}))
    node[key] = value
    try:
        spec = ModelSpec.from_json(json.dumps(table))
    except HeptiError:
        return
    attentions = [block for run in spec.runs for block in run.blocks if isinstance(block.kind, Attention)]
    assert all(block.kind.head_dim * block.kind.heads == block.hidden == spec.hidden for block in attentions)
    assert all(isinstance(length, int) for shape in tensor_shapes(spec).values() for length in shape)
    assert ModelSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"input": 3}', '{"input": {"kind": "sound"}}', "[" * 100_000])
def test_json_that_is_no_spec_is_refused(text):
    with pytest.raises(HeptiError, match="damaged or of a newer version"):
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
    shapes, H, F = tensor_shapes(spec), spec.hidden, spec.blocks[1].kind.ffn
    blocks = {tensor.name: tensor.shape for tensor in spec.run(0).tensors}
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
    others = [like(spec, **change) for change in ({"hidden": 1536}, {"ffn": 6144}, {"heads": 24}, {"layers": 24})]
    assert len({other.fingerprint for other in [spec, *others]}) == 5


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_the_fingerprint_is_the_one_that_plan_files_have(name):
    assert named_model(name).fingerprint == FINGERPRINTS[name]


def test_models_with_unlike_layers_have_fingerprints_of_their_own():
    """By what their layers are, how many of each there are, and in which order."""
    narrow, wide = (TWO_KINDS.only(*ends) for ends in ((0, 2), (2, 5)))
    alike = [with_layers(narrow, 5), with_layers(wide, 5)]
    orders = [joined("other", wide, narrow), joined("other", with_layers(narrow, 3), with_layers(wide, 2))]
    fewer_heads = joined("other", narrow, like(wide, heads=2))

    found = [TWO_KINDS, narrow, wide, *alike, *orders, fewer_heads]

    assert len({spec.fingerprint for spec in found}) == len(found)
    assert replace(TWO_KINDS, name="mine", labels=("x",)).fingerprint == TWO_KINDS.fingerprint


def test_what_a_layer_of_a_model_of_two_kinds_has(kept):
    assert (TWO_KINDS.layers, [TWO_KINDS.run(layer).blocks[1].kind.ffn for layer in range(5)]) == (
        5,
        [64, 64, 128, 128, 128],
    )
    shapes = tensor_shapes(TWO_KINDS)
    assert [shapes[f"layers/{layer}/mlp/up/weight"] for layer in range(5)] == [(64, 64)] * 2 + [(128, 64)] * 3
    middle = TWO_KINDS.only(1, 4)
    assert [(run.layers, run.blocks) for run in middle.runs] == [
        (1, TWO_KINDS.run(1).blocks),
        (2, TWO_KINDS.run(2).blocks),
    ]
    kept(refused.said(lambda: TWO_KINDS.blocks, [()]))
    kept(refused.said(TWO_KINDS.run, [5]))


def test_a_spec_that_no_model_has_is_refused(kept):
    cases = [
        {"heads": 7},
        {"layers": 0},
        {"ffn": -1},
        {"norm": "sandwich"},
        {"activation": "swish"},
        {"pooling": "median"},
        {"dense": "swish"},
        {"scores": "argmax"},
        {"input": TextInput(30522, 0, 512)},
        {"input": ImageInput(224, 224, 0)},
    ]

    kept(refused.said(lambda changes: like(named_model("bert-base"), **changes), cases))


def test_layers_that_no_model_has_are_refused(kept):
    alike = encoder("odd", 64, 96, 4, 2, input=TextInput(50, 32, 32))
    cases = [
        (ATTENTION, MLP, ATTENTION),
        (),
        (attention_block(32, 4), MLP),
        (ATTENTION, mlp_block(128, 96)),
        (replace(ATTENTION, kind=replace(ATTENTION.kind, heads=5)), MLP),
        (ATTENTION, mlp_block(64, 0)),
        (replace(ATTENTION, kind=replace(ATTENTION.kind, causal=True)), MLP),
        (replace(ATTENTION, kind=replace(ATTENTION.kind, kv_heads=2)), MLP),
        (ATTENTION, replace(MLP, kind=replace(MLP.kind, gated=True))),
        (ATTENTION, replace(MLP, stream=replace(MLP.stream, norm="rms"))),
    ]

    kept(refused.said(lambda *blocks: replace(alike, runs=(*alike.runs, Run(1, blocks))), cases))


def test_runs_that_no_model_has_are_refused(kept):
    cases = [
        [],
        [Run(0, (ATTENTION, MLP))],
        [Run(-1, (ATTENTION, MLP)), Run(3, (ATTENTION, MLP))],
        [Run(2, PART, parts=4)],
        [Run(2, PART, parts=0), Run(1, (ATTENTION, MLP))],
        [Run(1, PART, parts=4), Run(1, (attention_block(32, 4),), parts=2), Run(1, (ATTENTION, MLP))],
    ]

    kept(refused.said(lambda runs: ModelSpec("odd", 64, tuple(runs), TextInput(50, 32, 32)), cases))


def test_groups_that_are_unlike_have_a_fingerprint_of_their_own():
    """As many groups, layers and sub-blocks, but others of them are original."""
    spec = named_model("bert-base-decoupled-2x4", 6)
    part, whole = spec.runs[:2]

    uneven = replace(spec, runs=(replace(part, layers=1), whole, replace(part, layers=3), whole))

    assert (uneven.layers, uneven.groups, uneven.sub_blocks) == (spec.layers, spec.groups, spec.sub_blocks)
    assert uneven.fingerprint != spec.fingerprint
    assert ModelSpec.from_json(uneven.to_json()) == uneven


def test_the_blocks_of_a_sub_block_are_as_wide_as_its_part_of_the_stream(kept):
    alike = encoder("odd", 64, 96, 4, 2, input=TextInput(50, 32, 32))

    assert replace(alike, runs=(Run(1, PART, parts=4), *alike.runs)).part_blocks == PART
    kept(refused.said(lambda parts: replace(alike, runs=(Run(1, PART, parts=parts), *alike.runs)), [2]))


def test_names_are_known_or_suggested(kept):
    assert named_model("bert-large", layers=2).layers == 2
    assert named_model("bert-large").layers == 24
    kept(refused.said(named_model, ["bert-lrge", "xyz", ("bert-large", 0), "bert-base-decoupled-4x2-decoupled"]))
