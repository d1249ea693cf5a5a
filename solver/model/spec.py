"""`ModelSpec`: everything about a model but its numbers, and the tensors that follow from it.

Letters as in `hepti_mpi`: S rows, H hidden, F feed-forward width, A heads, d head width, L layers, p ranks.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from solver.base.errors import HeptiError
from solver.model.blocks import Block, Tensor, attention, mlp

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "tanh")
POOLINGS = ("cls", "mean", "max", "mean_sqrt_len", "lasttoken")
SCORES = ("softmax", "sigmoid", "identity")
MOST_LAYERS = 1000  # of a named architecture: nothing deeper was published (DeepNet, arXiv 2203.00555)
DEFAULT_ROWS = 256  # of a request that is planned for or measured, where nobody says how long it is
_SIZES = {"hidden", "ffn", "heads", "layers", "vocab", "positions", "max_rows", "height", "width", "patch", "channels"}


@dataclass(frozen=True, slots=True)
class TextInput:
    """How token ids become rows: word + position (+ token type 0), then a norm."""

    vocab: int
    positions: int  # the longest input, in rows
    max_rows: int  # texts are cut to this many rows; at most `positions`
    token_types: int = 0  # 0: the model has no token-type embedding
    bos_rows: int = 1  # special tokens in front of a text, [CLS]
    eos_rows: int = 1  # and behind it, [SEP]


@dataclass(frozen=True, slots=True)
class ImageInput:
    """How an image becomes rows: class tokens, then one row a patch, plus positions."""

    height: int  # pixels after resizing and cropping
    width: int
    patch: int
    channels: int = 3
    prefix: int = 1  # learned rows in front: [CLS], and DeiT's distillation token
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    rescale: float = 1 / 255
    resize: tuple[int, int] | None = None  # pixels before the crop; None: straight to height × width
    resample: str = "bilinear"

    @property
    def rows(self) -> int:
        """Rows of one image."""
        return self.prefix + (self.height // self.patch) * (self.width // self.patch)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything about a model but its numbers; all families are rows of this table."""

    name: str
    hidden: int  # H
    ffn: int  # F
    heads: int  # A
    layers: int  # L
    input: TextInput | ImageInput
    norm: str = "post"  # post: BERT, RoBERTa, DistilBERT; pre: ViT, DeiT
    norm_eps: float = 1e-12
    activation: str = "gelu"
    embedding_norm: bool = True  # after the embeddings
    final_norm: bool = False  # after the last layer
    pooling: str = "cls"  # which vector of a request the head reads
    dense: str = ""  # activation of the dense layer behind the pooling; "": there is none
    dense_width: int = 0  # its outputs, where there is one
    normalize: bool = False  # embeddings of length one
    labels: tuple[str, ...] = ()  # classifier outputs; (): no classifier
    classifier_rows: int = 1  # rows that the classifier reads, side by side (DeiT with teacher: 2)
    scores: str = "softmax"  # what makes scores of the classifier's outputs
    groups: int = 0  # N_b, each of decoupled layers and one original layer behind them; 0: all layers are original
    sub_blocks: int = 0  # N_div, of a decoupled layer

    def __post_init__(self) -> None:
        for owner in (self, self.input):
            sizes = [field.name for field in dataclasses.fields(owner) if field.name in _SIZES]
            for field in sizes:
                if getattr(owner, field) < 1:
                    raise HeptiError(f"model {self.name}: {field} is {getattr(owner, field)}, must be at least 1")
        if self.hidden % self.heads:
            raise HeptiError(f"model {self.name}: hidden {self.hidden} is not a multiple of heads {self.heads}")
        choices = (
            ("norm", self.norm, ("post", "pre")),
            ("activation", self.activation, ACTIVATIONS),
            ("pooling", self.pooling, POOLINGS),
            ("dense", self.dense, ("", "identity", *ACTIVATIONS)),
            ("scores", self.scores, SCORES),
        )
        for field, value, allowed in choices:
            if value not in allowed:
                raise HeptiError(f"model {self.name}: {field} {value!r} is not one of {', '.join(allowed)}")
        if self.groups or self.sub_blocks:
            self._check_decoupled()

    def _check_decoupled(self) -> None:
        if self.groups < 1 or self.sub_blocks < 2:
            raise HeptiError(
                f"model {self.name}: {self.groups} groups, {self.sub_blocks} sub-blocks in a layer: must be at least "
                f"1 and 2"
            )
        for field, whole, parts in (
            ("layers", self.layers, self.groups),
            ("hidden", self.hidden, self.sub_blocks),
            ("heads", self.heads, self.sub_blocks),
        ):
            if whole % parts:
                kind = "groups" if field == "layers" else "sub-blocks"
                raise HeptiError(f"model {self.name}: {field} {whole} do not divide into {parts} {kind}")
        if self.layers == self.groups:
            raise HeptiError(
                f"model {self.name}: {self.layers} layers in {self.groups} groups: one is original, none is decoupled"
            )

    def is_decoupled(self, layer: int) -> bool:
        """Return whether a layer consists of sub-blocks: all of a group but the last."""
        return bool(self.groups) and (layer + 1) % (self.layers // self.groups) > 0

    @property
    def sub_block(self) -> ModelSpec:
        """One sub-block of a decoupled layer as a model of its own.

        It sees H / N_div columns with A / N_div heads, and keeps the layer's parameters, 4 H² + 2 H F in all matrices,
        by a wider MLP, F + 2 H (1 - 1 / N_div) (DeTransformer, DATE 2024: 4224 for bert-base and N_div 4).
        """
        parts = self.sub_blocks
        ffn = self.ffn + 2 * (self.hidden - self.hidden // parts)
        return replace(self, hidden=self.hidden // parts, ffn=ffn, heads=self.heads // parts, groups=0, sub_blocks=0)

    @property
    def head_dim(self) -> int:
        """Head width d."""
        return self.hidden // self.heads

    @property
    def blocks(self) -> tuple[Block, Block]:
        """What a layer consists of, or a decoupled model's original one: attention and MLP."""
        return attention(self.hidden, self.heads), mlp(self.hidden, self.ffn)

    @property
    def layer_tensors(self) -> tuple[Tensor, ...]:
        """The tensors of these blocks, in file order."""
        return tuple(tensor for block in self.blocks for tensor in block.tensors)

    @property
    def max_positions(self) -> int:
        """The longest input, in rows."""
        return self.input.positions if isinstance(self.input, TextInput) else self.input.rows

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits of what a plan depends on: the shape of the layers."""
        shape: tuple[int, ...] = (self.hidden, self.ffn, self.heads, self.layers)
        shape += (self.groups, self.sub_blocks) if self.groups else ()
        return hashlib.sha256(repr(shape).encode()).hexdigest()[:12]

    def to_json(self) -> str:
        """Write as JSON."""
        kind = "text" if isinstance(self.input, TextInput) else "image"
        return json.dumps({**dataclasses.asdict(self), "input": {"kind": kind, **dataclasses.asdict(self.input)}})

    @classmethod
    def from_json(cls, text: str) -> ModelSpec:
        """Read what `to_json` wrote."""
        try:
            fields = _tuples(json.loads(text))
            source = fields.pop("input")
            kind: type[TextInput | ImageInput] = {"text": TextInput, "image": ImageInput}[source.pop("kind")]
            spec = cls(input=kind(**source), **fields)
            _check_types(spec)
            _check_types(spec.input)
            return spec
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise HeptiError(f"model description is damaged or of a newer version: {error}") from error


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return every tensor of a model, in file order, with its shape; how matrices lie says `solver.model.blocks`."""
    shapes: dict[str, tuple[int, ...]] = {}
    source, H = spec.input, spec.hidden
    if isinstance(source, TextInput):
        shapes["embeddings/word"] = (source.vocab, H)
        shapes["embeddings/position"] = (source.positions, H)
        if source.token_types:
            shapes["embeddings/type"] = (source.token_types, H)
    else:
        shapes["embeddings/patch/weight"] = (H, source.channels * source.patch**2)
        shapes["embeddings/patch/bias"] = (H,)
        shapes["embeddings/prefix"] = (source.prefix, H)
        shapes["embeddings/position"] = (source.rows, H)
    if spec.embedding_norm:
        shapes |= _norm("embeddings/norm", H)
    for layer in range(spec.layers):
        for prefix, part in layer_parts(spec, layer):
            shapes |= {f"{prefix}/{tensor.name}": tensor.shape for tensor in part.layer_tensors}
    if spec.final_norm:
        shapes |= _norm("final_norm", H)
    if spec.dense:
        shapes |= {"dense/weight": (spec.dense_width, H), "dense/bias": (spec.dense_width,)}
    if spec.labels:
        width = (spec.dense_width if spec.dense else H) * spec.classifier_rows
        shapes |= {"classifier/weight": (len(spec.labels), width), "classifier/bias": (len(spec.labels),)}
    return shapes


def layer_parts(spec: ModelSpec, layer: int) -> list[tuple[str, ModelSpec]]:
    """Return what a layer consists of, itself or its sub-blocks: where the tensors of each stand, and its widths."""
    if not spec.is_decoupled(layer):
        return [(f"layers/{layer}", spec)]
    part = spec.sub_block
    return [(f"layers/{layer}/{number}", part) for number in range(spec.sub_blocks)]


DECOUPLED_NAMES = "with decoupled layers NAME-decoupled, or NAME-decoupled-8x4 for 8 groups and 4 sub-blocks"


def named_model(name: str, layers: int | None = None) -> ModelSpec:
    """Return the spec of a well-known architecture, with another layer count if asked.

    NAME-decoupled is the same with two of every three layers decoupled into 4 sub-blocks, the least that was published
    for bert-base and bert-large; NAME-decoupled-8x2 has 8 groups, and decoupled layers of 2 sub-blocks.

    Raises
    ------
    HeptiError
        If the name is unknown, the layers are absurdly many, or cannot be decoupled so.
    """
    if layers is not None and not 1 <= layers <= MOST_LAYERS:
        raise HeptiError(f"--layers is {layers}, must be at least 1 and at most {MOST_LAYERS}")
    if (found := re.fullmatch(r"(.+)-decoupled(?:-(\d+)x(\d+))?", name)) is not None:
        base, groups, sub_blocks = found.groups()
        return decoupled(named_model(base, layers), *((int(groups), int(sub_blocks)) if groups else ()))
    if name not in NAMED_MODELS:
        near = get_close_matches(name, NAMED_MODELS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(NAMED_MODELS))}; {DECOUPLED_NAMES}"
        raise HeptiError(f"unknown model {name}: {hint}")
    spec = NAMED_MODELS[name]
    return replace(spec, layers=layers) if layers is not None else spec


def decoupled(spec: ModelSpec, groups: int | None = None, sub_blocks: int = 4) -> ModelSpec:
    """Return the decoupled model beside one of original layers; by default one of three layers stays original.

    Raises
    ------
    HeptiError
        If the model is decoupled, or its layers do not divide so.
    """
    if spec.groups:
        raise HeptiError(f"{spec.name} is decoupled already")
    if groups is None:
        groups = max(1, spec.layers // 3)
        name = f"{spec.name}-decoupled"
    else:
        name = f"{spec.name}-decoupled-{groups}x{sub_blocks}"
    return replace(spec, name=name, groups=groups, sub_blocks=sub_blocks)


def request_rows(spec: ModelSpec, asked: int | None) -> int:
    """Return the length of a request: the one asked for, that of an image, or the usual one.

    Raises
    ------
    HeptiError
        If the model cannot take as many rows.
    """
    if isinstance(spec.input, ImageInput):
        if asked not in (None, spec.input.rows):
            raise HeptiError(f"--rows is {asked}, an image is {spec.input.rows} rows to {spec.name}")
        return spec.input.rows
    if asked is not None and asked < 1:
        raise HeptiError(f"--rows is {asked}, must be at least 1")
    if asked is None:
        return min(DEFAULT_ROWS, spec.input.max_rows)
    if asked > spec.max_positions:
        raise HeptiError(f"--rows is {asked}, {spec.name} has {spec.max_positions} positions")
    return asked


def _norm(prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}/weight": (width,), f"{prefix}/bias": (width,)}


def _tuples(value: Any) -> Any:
    """Turn JSON's lists back into tuples."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _check_types(value: ModelSpec | TextInput | ImageInput) -> None:
    kinds = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,), "tuple[str, ...]": (tuple,)}
    for field in dataclasses.fields(value):
        found = getattr(value, field.name)
        if type(found) not in kinds.get(str(field.type), (type(found),)):
            raise TypeError(f"{field.name} is {found!r}, must be {field.type}")


_BERT_TEXT = TextInput(vocab=30522, positions=512, max_rows=512, token_types=2)
_VIT_IMAGE = ImageInput(height=224, width=224, patch=16)


def _bert(name: str, hidden: int, layers: int) -> ModelSpec:
    return ModelSpec(name, hidden, 4 * hidden, hidden // 64, layers, input=_BERT_TEXT, dense="tanh", dense_width=hidden)


def _roberta(name: str, hidden: int, layers: int) -> ModelSpec:
    source = TextInput(vocab=50265, positions=512, max_rows=512, token_types=1)
    return ModelSpec(
        name, hidden, 4 * hidden, hidden // 64, layers, input=source, norm_eps=1e-5, dense="tanh", dense_width=hidden
    )


def _vit(name: str, hidden: int, layers: int) -> ModelSpec:
    return ModelSpec(
        name, hidden, 4 * hidden, hidden // 64, layers, input=_VIT_IMAGE, norm="pre", norm_eps=1e-12,
        embedding_norm=False, final_norm=True, dense="tanh", dense_width=hidden,
    )  # fmt: skip


# Published architectures at their real sizes.
NAMED_MODELS = {
    spec.name: spec
    for spec in (
        _bert("bert-base", 768, 12),
        _bert("bert-large", 1024, 24),
        _roberta("roberta-base", 768, 12),
        _roberta("roberta-large", 1024, 24),
        ModelSpec("distilbert", 768, 3072, 12, 6, input=replace(_BERT_TEXT, token_types=0)),
        ModelSpec(
            "minilm-l6", 384, 1536, 12, 6, input=replace(_BERT_TEXT, max_rows=256), pooling="mean", normalize=True
        ),
        _vit("vit-base", 768, 12),
        _vit("vit-large", 1024, 24),
    )
}
