"""The model families: how each names its settings and its tensors, and which of its settings are computed.

One `Family` a `model_type`. Its table of replacements turns a checkpoint's names into those of
`solver.model.spec.tensor_shapes`: from top to bottom, then every dot that is left becomes a slash; names that come out
unknown (language model heads, position buffers) belong to nothing that is computed.

A checkpoint of any family may have decoupled layers (`solver.model.spec.Run.parts`): config.json then says
`num_decoupled_groups` and `num_sub_blocks`, and sub-block 2 of layer 0 has the names of a layer under the layer's, as
`encoder.layer.0.2.attention.self.query.weight` for BERT: what a list of lists of the library's own layers is saved as.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from solver.base.errors import HeptiError
from solver.model.spec import ImageInput, ModelSpec, TextInput, encoder
from weights.convert.checkpoint import StoredTensor
from weights.inputs.preprocessing import image_input

Config = Mapping[str, Any]

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
}
# Settings that change what a model computes, with the values that Hepti computes.
_COMPUTED: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "position_embedding_type": ("absolute", None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "use_swiglu_ffn": (False, None),
}


@dataclass(frozen=True, slots=True)
class Family:
    """What one `model_type` calls things.

    Parameters
    ----------
    stem
        What its architectures' names begin with: Bert for BertModel.
    base
        What its tensors' names begin with below a head.
    table
        Replacements from a checkpoint's names to ours.
    heads
        What its architectures' names end with.
    text
        Reads text (True) or images.
    pooler
        Activation of the dense layer before a classifier or after the encoder, where there is one.
    settings
        Its name of a setting, where it differs from BERT's.
    skip_pads
        Position rows up to the padding token's number are never used.
    interpolates
        Whether positions fit themselves to the size that the processor makes (DINOv2).
    defaults
        Of settings that its class has, where they are not BERT's.
    fixed
        Settings that its class does not ask config.json for.
    """

    stem: str
    base: str
    table: tuple[tuple[str, str], ...]
    heads: tuple[str, ...] = ("Model", "ForMaskedLM", "ForSequenceClassification")
    text: bool = True
    pooler: str = "tanh"
    settings: tuple[tuple[str, str], ...] = ()
    skip_pads: bool = False
    interpolates: bool = False
    defaults: tuple[tuple[str, Any], ...] = ()
    fixed: tuple[tuple[str, Any], ...] = ()

    def rename(self, key: str) -> str:
        """Return our name of a checkpoint's tensor."""
        name = key.removeprefix(self.base)
        for theirs, ours in self.table:
            name = name.replace(theirs, ours)
        return name.replace(".", "/")

    @property
    def architectures(self) -> tuple[str, ...]:
        """The classes of transformers whose checkpoints convert."""
        return tuple(f"{self.stem}{head}" for head in self.heads)


_BERT_TABLE = (
    ("LayerNorm.gamma", "LayerNorm.weight"),  # the first checkpoints, converted from TensorFlow
    ("LayerNorm.beta", "LayerNorm.bias"),
    ("embeddings.word_embeddings.weight", "embeddings/word"),
    ("embeddings.position_embeddings.weight", "embeddings/position"),
    ("embeddings.token_type_embeddings.weight", "embeddings/type"),
    ("embeddings.LayerNorm", "embeddings/norm"),
    ("encoder.layer.", "layers/"),
    (".attention.self.", "/attention/"),
    (".attention.output.dense.", "/attention/output/"),
    (".attention.output.LayerNorm.", "/attention/norm/"),
    (".intermediate.dense.", "/mlp/up/"),
    (".output.dense.", "/mlp/down/"),
    (".output.LayerNorm.", "/mlp/norm/"),
    ("pooler.dense.", "dense/"),
)
_ROBERTA_TABLE = (*_BERT_TABLE, ("classifier.dense.", "dense/"), ("classifier.out_proj.", "classifier/"))
_DISTILBERT_TABLE = (
    *_BERT_TABLE[:6],
    ("transformer.layer.", "layers/"),
    (".q_lin.", ".query."),
    (".k_lin.", ".key."),
    (".v_lin.", ".value."),
    (".out_lin.", ".output."),
    (".sa_layer_norm.", "/attention/norm/"),
    (".ffn.lin1.", "/mlp/up/"),
    (".ffn.lin2.", "/mlp/down/"),
    (".output_layer_norm.", "/mlp/norm/"),
    ("pre_classifier.", "dense/"),
)
_VIT_TABLE = (
    ("embeddings.cls_token", "embeddings/prefix/0"),
    ("embeddings.distillation_token", "embeddings/prefix/1"),
    ("embeddings.position_embeddings", "embeddings/position"),
    ("embeddings.patch_embeddings.projection.", "embeddings/patch/"),
    ("encoder.layer.", "layers/"),
    (".attention.attention.", "/attention/"),
    (".attention.output.dense.", "/attention/output/"),
    (".intermediate.dense.", "/mlp/up/"),
    (".output.dense.", "/mlp/down/"),
    # transformers 5 has these names in memory, and in files with save_original_format=False
    (".q_proj.", ".query."),
    (".k_proj.", ".key."),
    (".v_proj.", ".value."),
    (".o_proj.", ".output."),
    (".mlp.fc1.", "/mlp/up/"),
    (".mlp.fc2.", "/mlp/down/"),
    (".layernorm_before.", "/attention/norm/"),
    (".layernorm_after.", "/mlp/norm/"),
    ("layernorm.", "final_norm/"),
    ("pooler.dense.", "dense/"),
    ("cls_classifier.", "classifier/0/"),
    ("distillation_classifier.", "classifier/1/"),
)
_ELECTRA_TABLE = (("embeddings_project.", "embeddings/project/"), *_ROBERTA_TABLE)
_MPNET_TABLE = (
    (".attention.attn.q.", "/attention/query/"),
    (".attention.attn.k.", "/attention/key/"),
    (".attention.attn.v.", "/attention/value/"),
    (".attention.attn.o.", "/attention/output/"),
    (".attention.LayerNorm.", "/attention/norm/"),
    ("encoder.relative_attention_bias.weight", "relative"),
    *_ROBERTA_TABLE,
)
_DINOV2_TABLE = (
    (".norm1.", "/attention/norm/"),
    (".norm2.", "/mlp/norm/"),
    (".layer_scale1.lambda1", "/attention/scale"),
    (".layer_scale2.lambda1", "/mlp/scale"),
    *_VIT_TABLE,
)
_DISTILBERT_SETTINGS = (
    ("hidden_size", "dim"),
    ("intermediate_size", "hidden_dim"),
    ("num_attention_heads", "n_heads"),
    ("num_hidden_layers", "n_layers"),
    ("hidden_act", "activation"),
)

_VIT_HEADS = ("Model", "ForMaskedImageModeling", "ForImageClassification")

FAMILIES = {
    "bert": Family(
        "Bert", "bert.", _BERT_TABLE, ("Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification")
    ),
    "roberta": Family("Roberta", "roberta.", _ROBERTA_TABLE, skip_pads=True),
    "xlm-roberta": Family("XLMRoberta", "roberta.", _ROBERTA_TABLE, skip_pads=True),
    "camembert": Family("Camembert", "roberta.", _ROBERTA_TABLE, skip_pads=True),
    "distilbert": Family(
        "DistilBert",
        "distilbert.",
        _DISTILBERT_TABLE,
        pooler="relu",
        settings=_DISTILBERT_SETTINGS,
        fixed=(("layer_norm_eps", 1e-12),),
    ),
    "electra": Family(
        "Electra",
        "electra.",
        _ELECTRA_TABLE,
        ("Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification"),
        pooler="gelu",
    ),
    "mpnet": Family("MPNet", "mpnet.", _MPNET_TABLE, skip_pads=True, fixed=(("pad_token_id", 1),)),
    "dinov2": Family(
        "Dinov2",
        "dinov2.",
        _DINOV2_TABLE,
        ("Model", "ForImageClassification"),
        text=False,
        interpolates=True,
        defaults=(("layer_norm_eps", 1e-6), ("mlp_ratio", 4), ("patch_size", 14)),
    ),
    "vit": Family("ViT", "vit.", _VIT_TABLE, _VIT_HEADS, text=False),
    "deit": Family("DeiT", "deit.", _VIT_TABLE, (*_VIT_HEADS, "ForImageClassificationWithTeacher"), text=False),
}


def find_family(config: Config) -> tuple[Family, str]:
    """Return the family and the architecture that a config.json names.

    Raises
    ------
    HeptiError
        If it is unknown, or has a setting that is not computed.
    """
    family = FAMILIES.get(str(config.get("model_type")))
    architecture = (config.get("architectures") or [f"{family.stem}Model" if family else "nothing"])[0]
    if family is None or architecture not in family.architectures:
        known = ", ".join(name for one in FAMILIES.values() for name in one.architectures)
        raise HeptiError(
            f"unknown architecture {architecture} (model_type {config.get('model_type')!r}), known are: {known}"
        )
    for setting, allowed in _COMPUTED.items():
        if config.get(setting) not in allowed:
            raise HeptiError(f"config.json: {setting} is {config[setting]!r}, Hepti computes only {allowed[0]!r}")
    return family, architecture


def skipped_positions(family: Family, config: Config) -> int:
    """Return how many rows of the position table come before that of the first token."""
    return _number({**config, **dict(family.fixed)}, "pad_token_id") + 1 if family.skip_pads else 0


def build_spec(
    name: str, family: Family, config: Config, images: Config, tensors: Mapping[str, StoredTensor]
) -> ModelSpec:
    """Describe a model, with its head if it has one.

    Parameters
    ----------
    name
        What the model is called in messages.
    family
        Of the model.
    config
        Its config.json.
    images
        Its preprocessor_config.json; empty where there is none.
    tensors
        Its tensors under our names; they tell whether there is a pooler and how many labels there are.

    Raises
    ------
    HeptiError
        If a setting is missing or not computed.
    """
    names = dict(family.settings)
    for ours, theirs in family.settings:
        if ours in config and config[ours] != config.get(theirs):
            raise HeptiError(
                f"config.json: {ours} is {config[ours]!r}, {theirs} {config.get(theirs)!r}, which are one: take one out"
            )
    config = {**dict(family.defaults), **config, **dict(family.fixed)}

    def number(setting: str) -> int:
        return _number(config, names.get(setting, setting))

    def activation(setting: str, default: str) -> str:
        value = config.get(names.get(setting, setting), default)
        if value not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            raise HeptiError(f"config.json: {names.get(setting, setting)} is {value!r}, Hepti computes {known}")
        return _ACTIVATIONS[value]

    source: TextInput | ImageInput
    if family.text:
        positions = number("max_position_embeddings") - skipped_positions(family, config)
        types = number("type_vocab_size") if "embeddings/type" in tensors else 0
        width = _number(config, "embedding_size", 0) if "embeddings/project/weight" in tensors else 0
        source = TextInput(
            number("vocab_size"), positions, positions, types, word_width=width,
            padding=max(skipped_positions(family, config) - 1, 0),
        )  # fmt: skip
    else:
        prefix = 2 if "embeddings/prefix/1" in tensors else 1
        source = image_input(config, images, prefix=prefix, interpolates=family.interpolates)
    labels = _labels(config, tensors)
    dense = "dense/weight" in tensors
    return encoder(
        name,
        hidden=number("hidden_size"),
        ffn=int(number("hidden_size") * config["mlp_ratio"]) if "mlp_ratio" in config else number("intermediate_size"),
        heads=number("num_attention_heads"),
        layers=number("num_hidden_layers"),
        input=source,
        norm="post" if family.text else "pre",
        norm_eps=float(config.get("layer_norm_eps", 1e-12)),
        activation=activation("hidden_act", "gelu"),
        embedding_norm=family.text,
        final_norm=not family.text,
        dense=activation("pooler_act", family.pooler) if dense else "",
        dense_width=tensors["dense/weight"].shape[0] if dense else 0,
        labels=labels,
        pooling="cls+others" if family.interpolates and labels else "cls",
        classifier_rows=2 if "classifier/1/weight" in tensors else 1,
        scores=_scores(config, len(labels)),
        groups=_number(config, "num_decoupled_groups", 0),
        sub_blocks=_number(config, "num_sub_blocks", 0),
        buckets=tensors["relative"].shape[0] if "relative" in tensors else 0,
    )


def _number(config: Config, setting: str, default: int | None = None) -> int:
    value = config.get(setting, default)
    if not isinstance(value, int):
        raise HeptiError(f"config.json: {setting} is {value!r}, must be a whole number")
    return value


def _labels(config: Config, tensors: Mapping[str, StoredTensor]) -> tuple[str, ...]:
    """Return the labels by their numbers; transformers leaves out those of a classifier with two."""
    for name in ("classifier/weight", "classifier/0/weight"):
        if name in tensors:
            given = config.get("id2label") or {}
            return tuple(str(given.get(str(row), f"LABEL_{row}")) for row in range(tensors[name].shape[0]))
    return ()


def _scores(config: Config, labels: int) -> str:
    """Return what turns a classifier's outputs into scores, as transformers' pipelines choose it."""
    problem = config.get("problem_type")
    if problem == "regression":
        return "identity"
    return "sigmoid" if problem == "multi_label_classification" or labels == 1 else "softmax"
