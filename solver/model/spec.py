"""`ModelSpec`: everything about an encoder but its numbers, and the tensors that follow from it.

Letters as in `hepti_mpi`: S rows, H hidden, F feed-forward width, A heads, d head width, L layers, p ranks.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from solver.base.errors import HeptiError, InfeasiblePlanError, explained
from solver.model.blocks import Block, check_types, one_of
from solver.model.kinds.attention import Attention, full_attention
from solver.model.kinds.every import KINDS
from solver.model.kinds.mlp import Mlp
from solver.model.kinds.part import PartTensor, Residual

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

POOLINGS = ("cls", "mean", "others", "max", "mean_sqrt_len", "weightedmean", "lasttoken")
SCORES = ("softmax", "sigmoid", "identity")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "tanh")
DEFAULT_ROWS = 256  # of a request that is planned for or measured, where nobody says how long it is
TYPICAL_ROWS = 128  # of a text where nothing is known of the requests
# Fields that the first versions did not have. Empty ones say nothing and are not written: files stay readable by those.
_LATER = {
    "pair_scores",
    "word_width",
    "prompt",
    "padding",
    "more_dense",
    "more_widths",
    "first_columns",
    "buckets",
    "on_white",
}
_SIZES = {"hidden", "vocab", "positions", "max_rows", "height", "width", "patch", "channels"}


@dataclass(frozen=True, slots=True)
class TextInput:
    """How token ids become rows: word + position (+ token type 0), then a norm."""

    vocab: int
    positions: int  # the longest input, in rows
    max_rows: int  # texts are cut to this many rows; at most `positions`
    token_types: int = 0  # 0: the model has no token-type embedding
    bos_rows: int = 1  # special tokens in front of a text, [CLS]
    eos_rows: int = 1  # and after it, [SEP]
    pair_types: bool = True  # of two texts at once the tokenizer's token types are read; else type 0 all the way
    word_width: int = 0  # of an embedding, from which a product makes the stream (ELECTRA); 0: it is as wide as that
    prompt: str = ""  # stands before every text
    padding: int = 0  # the token of which no positions are counted (RoBERTa); 0: all are

    def types_of(self, types: Sequence[int]) -> Sequence[int]:
        """Return the token types of a pair as the model reads them; none where it tells the texts not apart.

        Raises
        ------
        HeptiError
            If it does not have one of them.
        """
        if self.token_types < 2 or not self.pair_types:
            return ()
        for kind in types:
            if not 0 <= kind < self.token_types:
                raise HeptiError(f"token type {kind} is out of range: the model has {self.token_types}, from 0 on")
        return types


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
    resize: tuple[int, ...] | None = None  # before the crop: shorter side, or height and width; None: to the model's
    resample: str = "bilinear"
    on_white: bool = False  # the colour that an image calls transparent becomes white

    @property
    def rows(self) -> int:
        """Rows of one image."""
        return self.prefix + (self.height // self.patch) * (self.width // self.patch)


@dataclass(frozen=True, slots=True)
class Run:
    """Layers that are alike, one after the other.

    Parameters
    ----------
    layers
        How many.
    blocks
        Of a layer, in the order of computation.
    parts
        Of a decoupled layer: how many sub-blocks it has, which `blocks` describes, each of its own columns of the
        stream. 1: the layer is an original one.
    """

    layers: int
    blocks: tuple[Block, ...]
    parts: int = 1

    @property
    def tensors(self) -> tuple[PartTensor, ...]:
        """The tensors of a layer, or of one of its sub-blocks, in file order."""
        return tuple(tensor for block in self.blocks for tensor in block.tensors)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything about a model but its numbers: runs of alike layers, and what stands before and after them."""

    name: str
    hidden: int  # H, of the stream
    runs: tuple[Run, ...]
    input: TextInput | ImageInput
    norm_eps: float = 1e-12  # of the norms before and after the layers
    embedding_norm: bool = True  # after the embeddings
    final_norm: bool = False  # after the last layer
    pooling: str = "cls"  # which vector of a request the head reads; several side by side: "cls+max"
    dense: str = ""  # activation of the dense layer after the pooling; "": there is none
    dense_width: int = 0  # its outputs, where there is one
    more_dense: tuple[str, ...] = ()  # activations of further dense layers, one after the other
    more_widths: tuple[int, ...] = ()  # their outputs
    normalize: bool = False  # embeddings of length one
    first_columns: int = 0  # of an embedding that are kept, after it is normalised; 0: all
    labels: tuple[str, ...] = ()  # classifier outputs; (): no classifier
    classifier_rows: int = 1  # rows that the classifier reads, side by side (DeiT with teacher: 2)
    scores: str = "softmax"  # what makes scores of the classifier's outputs
    pair_scores: str = ""  # and, of one label, of that of a pair of texts; "": its file is older than pairs

    def __post_init__(self) -> None:
        for owner in (self, self.input):
            sizes = [field.name for field in dataclasses.fields(owner) if field.name in _SIZES]
            for field in sizes:
                if getattr(owner, field) < 1:
                    raise HeptiError(f"model {self.name}: {field} is {getattr(owner, field)}, must be at least 1")
        if self.layers < 1:
            raise HeptiError(f"model {self.name}: layers is {self.layers}, must be at least 1")
        try:
            for pooling in self.pooling.split("+"):
                one_of("pooling", pooling, POOLINGS)
            for dense in (self.dense, *self.more_dense):
                one_of("dense", dense, ("", "identity", *ACTIVATIONS))
            one_of("scores", self.scores, SCORES)
            one_of("pair_scores", self.pair_scores, ("", *SCORES))
            for run in self.runs:
                _check_run(run, self.hidden)
            _check_parts(self.runs)
        except HeptiError as error:
            raise HeptiError(f"model {self.name}: {error}") from error

    @property
    def layers(self) -> int:
        """How many layers it has, L."""
        return sum(run.layers for run in self.runs)

    @property
    def pooled_width(self) -> int:
        """Columns of what the head reads."""
        return self.hidden * len(self.pooling.split("+"))

    @property
    def embedding_width(self) -> int:
        """Numbers of an embedding."""
        width = (self.dense_width, *self.more_widths)[-1] if self.dense else self.pooled_width
        return min(width, self.first_columns or width)

    @property
    def starts(self) -> tuple[int, ...]:
        """The first layer of every run."""
        return tuple(accumulate((run.layers for run in self.runs[:-1]), initial=0))

    def run(self, layer: int) -> Run:
        """Return the run that a layer is of."""
        for run in self.runs:
            if layer < run.layers:
                return run
            layer -= run.layers
        raise HeptiError(f"model {self.name} has {self.layers} layers, none with number {layer + self.layers}")

    @property
    def blocks(self) -> tuple[Block, ...]:
        """What each of its layers consists of, or, of a model with decoupled layers, each original one.

        Raises
        ------
        InfeasiblePlanError
            If they are not alike.
        """
        first, *others = {run.blocks: None for run in self.runs if run.parts == 1}
        if others:
            raise InfeasiblePlanError(
                f"model {self.name} has layers of {1 + len(others)} sorts, and this needs layers that are alike: "
                f"--system sequence-weighted and megatron-weighted do not"
            )
        return first

    def only(self, start: int, stop: int) -> ModelSpec:
        """Return the model of its layers from one up to another."""
        within = (
            (run, min(stop, first + run.layers) - max(start, first))
            for first, run in zip(self.starts, self.runs, strict=True)
        )
        return replace(self, runs=tuple(replace(run, layers=count) for run, count in within if count > 0))

    @property
    def groups(self) -> int:
        """Groups of decoupled layers with one original layer after them, N_b; 0: no layer is decoupled."""
        return sum(run.layers for run in self.runs if run.parts == 1) if self.sub_blocks else 0

    @property
    def sub_blocks(self) -> int:
        """Sub-blocks of a decoupled layer, N_div; 0: no layer is decoupled."""
        return max((run.parts for run in self.runs if run.parts > 1), default=0)

    @property
    def part_blocks(self) -> tuple[Block, ...]:
        """What a sub-block of a decoupled layer consists of."""
        return next(run.blocks for run in self.runs if run.parts > 1)

    @property
    def max_positions(self) -> int:
        """The longest input, in rows."""
        return self.input.positions if isinstance(self.input, TextInput) else self.input.rows

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits of what a plan depends on: the shape of the layers."""
        shape: tuple[Any, ...]
        try:  # of an encoder as plan files have had it since the first version
            widths = encoder_widths(self)
            shape = tuple(widths[name] for name in ("hidden", "ffn", "heads", "layers"))
            shape += (self.groups, self.sub_blocks) if self.groups else ()
        except HeptiError:
            shape = tuple(
                (run.layers, run.parts, *((b.name, b.hidden, b.kind.inner_columns, b.inner) for b in run.blocks))
                for run in self.runs
            )
        return hashlib.sha256(repr(shape).encode()).hexdigest()[:12]

    def to_json(self) -> str:
        """Write as JSON: an encoder by its widths, as all versions read it, another model by its runs."""
        kind = "text" if isinstance(self.input, TextInput) else "image"
        source = {"kind": kind, **_fields(self.input)}
        if source.get("pair_types"):  # as it was before there were pairs
            del source["pair_types"]
        table = {**_fields(self), "input": source}
        with suppress(HeptiError):
            widths = encoder_widths(self)
            if widths["norm_eps"] == self.norm_eps:
                del table["runs"]
                return json.dumps(table | widths)
        table["runs"] = [
            {"layers": run.layers, "blocks": [_block_to_table(block) for block in run.blocks], "parts": run.parts}
            for run in self.runs
        ]
        return json.dumps(table)

    @classmethod
    def from_json(cls, text: str) -> ModelSpec:
        """Read what `to_json` wrote."""
        try:
            fields = _tuples(json.loads(text))
            source = fields.pop("input")
            kind: type[TextInput | ImageInput] = {"text": TextInput, "image": ImageInput}[source.pop("kind")]
            fields["input"] = kind(**source)
            if "runs" in fields:
                with explained(f"model {fields['name']}", HeptiError):
                    fields["runs"] = tuple(
                        Run(**{**run, "blocks": tuple(_block_of(**block) for block in run["blocks"])})
                        for run in fields["runs"]
                    )
            spec = cls(**fields) if "runs" in fields else encoder(**fields)
            blocks = [block for run in spec.runs for block in run.blocks]
            for value in (spec, spec.input, *spec.runs, *(own for b in blocks for own in (b.kind, b.stream))):
                check_types(value)
            return spec
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise HeptiError(f"model description is damaged or of a newer version: {error}") from error


def encoder(
    name: str, hidden: int, ffn: int, heads: int, layers: int, input: TextInput | ImageInput, *, norm: str = "post",
    norm_eps: float = 1e-12, activation: str = "gelu", groups: int = 0, sub_blocks: int = 0, buckets: int = 0,
    **facts: Any,
) -> ModelSpec:  # fmt: skip
    """Return the spec of a transformer encoder, whose layers are attention and MLP.

    Parameters
    ----------
    hidden, ffn, heads, layers
        H, F, A, L.
    norm, norm_eps
        Of all layers: "post", where the sum of a block and the stream is normed (BERT, RoBERTa, DistilBERT), or "pre",
        where what a block computes of is (ViT, DeiT); and what is added to the variance.
    activation
        As in `Mlp`, of all layers.
    groups, sub_blocks
        N_b and N_div, where the layers of every group but its last are decoupled: a sub-block sees H / N_div columns
        with A / N_div heads, and keeps the layer's parameters, 4 H² + 2 H F in all matrices, by a wider MLP,
        F + 2 H (1 - 1 / N_div) (DeTransformer, DATE 2024: 4224 for bert-base and N_div 4). 0: none is.
    buckets
        As in `Attention`, of all layers.
    facts
        Further fields of `ModelSpec`.
    """

    def blocks(H: int, F: int, A: int) -> tuple[Block, ...]:
        return attention_block(H, A, buckets, norm, norm_eps), mlp_block(H, F, activation, norm, norm_eps)

    with explained(f"model {name}", HeptiError):
        runs: tuple[Run, ...] = (Run(layers, blocks(hidden, ffn, heads)),)
    if groups or sub_blocks:
        if buckets:
            raise HeptiError(f"model {name}: decoupled layers have no buckets of distances, here {buckets}")
        _check_decoupled(name, layers, hidden, heads, groups, sub_blocks)
        part = blocks(hidden // sub_blocks, ffn + 2 * (hidden - hidden // sub_blocks), heads // sub_blocks)
        runs = (Run(layers // groups - 1, part, sub_blocks), Run(1, blocks(hidden, ffn, heads))) * groups
    return ModelSpec(name, hidden, runs, input, norm_eps, **facts)


def encoder_widths(spec: ModelSpec) -> dict[str, Any]:
    """Return the arguments with which `encoder` makes such layers; errors as `encoder_blocks`."""
    (attention, mlp), stream = encoder_blocks(spec), spec.blocks[-1].stream
    widths: dict[str, Any] = {
        "hidden": spec.hidden, "ffn": mlp.ffn, "heads": attention.heads, "layers": spec.layers,
        "norm": norm_of(stream), "norm_eps": stream.eps, "activation": mlp.activation,
        "groups": spec.groups, "sub_blocks": spec.sub_blocks,
    }  # fmt: skip
    widths |= {"buckets": attention.buckets} if attention.buckets else {}
    if encoder(name=spec.name, input=spec.input, **widths).runs != spec.runs:
        raise InfeasiblePlanError(f"model {spec.name} has layers that are no encoder's")
    return widths


def encoder_blocks(spec: ModelSpec) -> tuple[Attention, Mlp]:
    """Return what every layer, or every original one, of a transformer encoder consists of.

    Raises
    ------
    InfeasiblePlanError
        If the model is none.
    """
    match [block.kind for block in spec.blocks]:
        case [Attention() as attention, Mlp() as mlp]:
            return attention, mlp
    raise InfeasiblePlanError(
        f"model {spec.name} has layers of {', '.join(block.name for block in spec.blocks)}: this needs an encoder's, "
        f"of attention and mlp"
    )


def _check_run(run: Run, hidden: int) -> None:
    if run.layers < 1:
        raise HeptiError(f"a run has {run.layers} layers, must be at least 1")
    if not run.blocks:
        raise HeptiError("a layer has no blocks")
    for number, block in enumerate(run.blocks):
        if block.name in (other.name for other in run.blocks[:number]):
            raise HeptiError(f"a layer has two blocks of kind {block.name}: it can have one of each")
        _check_block(block)
        if block.hidden * run.parts != hidden:
            raise HeptiError(f"{block.name} is {block.hidden * run.parts} wide, the stream {hidden}")


def _check_block(block: Block) -> None:
    """Refuse widths that fit nothing, and what an encoder's block cannot be."""
    if block.hidden < 1:
        raise HeptiError(f"hidden is {block.hidden}, must be at least 1")
    match block.kind:
        case Attention() as own:
            _check_like(block, own, full_attention(block.hidden, own.heads, own.buckets))
        case Mlp() as own:
            one_of("activation", own.activation, ACTIVATIONS)
            _check_like(block, own, Mlp(ffn=own.ffn, activation=own.activation, gated=False, bias=True))
    _check_like(block, block.stream, residual(block.hidden, norm_of(block.stream), block.stream.eps))
    block.kind.check()


def _check_like(block: Block, own: DataclassInstance, encoders: DataclassInstance) -> None:
    """Refuse a field that an encoder's does not have so."""
    for field in dataclasses.fields(own):
        found, can_be = getattr(own, field.name), getattr(encoders, field.name)
        if found != can_be:
            raise HeptiError(f"{block.name}: {field.name} is {found!r}, must be {can_be!r} in an encoder")


def _check_parts(runs: Sequence[Run]) -> None:
    decoupled = {(run.parts, run.blocks) for run in runs if run.parts > 1}
    if len(decoupled) > 1:
        raise HeptiError(f"it has sub-blocks of {len(decoupled)} kinds: all must be alike")
    if all(run.parts > 1 for run in runs):
        raise HeptiError("all of its layers are decoupled: at least one must be original")


def _check_decoupled(name: str, layers: int, hidden: int, heads: int, groups: int, sub_blocks: int) -> None:
    if groups < 1 or sub_blocks < 2:
        raise HeptiError(f"model {name}: {groups} groups, {sub_blocks} sub-blocks in a layer: must be at least 1 and 2")
    for field, whole, parts in (
        ("layers", layers, groups),
        ("hidden", hidden, sub_blocks),
        ("heads", heads, sub_blocks),
    ):
        if whole % parts:
            kind = "groups" if field == "layers" else "sub-blocks"
            raise HeptiError(f"model {name}: {field} {whole} do not divide into {parts} {kind}")
    if layers == groups:
        raise HeptiError(f"model {name}: {layers} layers in {groups} groups: one is original, none is decoupled")


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return every tensor of a model, in file order, with its shape; how matrices lie says `solver.model.blocks`."""
    shapes: dict[str, tuple[int, ...]] = {}
    source, H = spec.input, spec.hidden
    if isinstance(source, TextInput):
        width = source.word_width or H
        shapes["embeddings/word"] = (source.vocab, width)
        shapes["embeddings/position"] = (source.positions, width)
        if source.token_types:
            shapes["embeddings/type"] = (source.token_types, width)
        if source.word_width:
            shapes |= {"embeddings/project/weight": (H, width), "embeddings/project/bias": (H,)}
    else:
        shapes["embeddings/patch/weight"] = (H, source.channels * source.patch**2)
        shapes["embeddings/patch/bias"] = (H,)
        shapes["embeddings/prefix"] = (source.prefix, H)
        shapes["embeddings/position"] = (source.rows, H)
    if spec.embedding_norm:
        shapes |= _norm("embeddings/norm", (source.word_width if isinstance(source, TextInput) else 0) or H)
    for layer in range(spec.layers):
        run = spec.run(layer)
        for prefix in layer_prefixes(run, layer):
            shapes |= {f"{prefix}/{tensor.name}": tensor.shape for tensor in run.tensors}
    if spec.final_norm:
        shapes |= _norm("final_norm", H)
    if spec.dense:
        shapes |= {"dense/weight": (spec.dense_width, spec.pooled_width), "dense/bias": (spec.dense_width,)}
    for number, (inner, outer) in enumerate(pairwise((spec.dense_width, *spec.more_widths)), start=1):
        shapes |= {f"dense/{number}/weight": (outer, inner), f"dense/{number}/bias": (outer,)}
    if spec.labels:
        width = (spec.dense_width if spec.dense else spec.pooled_width) * spec.classifier_rows
        shapes |= {"classifier/weight": (len(spec.labels), width), "classifier/bias": (len(spec.labels),)}
    return shapes


@lru_cache(maxsize=16)
def inputs_first(spec: ModelSpec) -> frozenset[str]:
    """Return the names of the tensors that lie as [in, out]."""
    runs = ((layer, spec.run(layer)) for layer in range(spec.layers))
    return frozenset(
        f"{prefix}/{tensor.name}"
        for layer, run in runs
        for prefix in layer_prefixes(run, layer)
        for tensor in run.tensors
        if tensor.weight.summed == 0
    )


def layer_prefixes(run: Run, layer: int) -> list[str]:
    """Return where the tensors of a layer stand, or those of each of its sub-blocks."""
    if run.parts == 1:
        return [f"layers/{layer}"]
    return [f"layers/{layer}/{number}" for number in range(run.parts)]


def with_layers(spec: ModelSpec, layers: int) -> ModelSpec:
    """Return a model of alike layers with another number of them."""
    return replace(spec, runs=(Run(layers, spec.blocks),))


def typical_rows(spec: ModelSpec) -> int:
    """Return what is planned for where nothing is known of the requests: of a service, and of standard input."""
    return spec.input.rows if isinstance(spec.input, ImageInput) else min(TYPICAL_ROWS, spec.input.max_rows)


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


def attention_block(hidden: int, heads: int, buckets: int = 0, norm: str = "post", norm_eps: float = 1e-12) -> Block:
    """Return an encoder's attention with its norm."""
    return Block(full_attention(hidden, heads, buckets), residual(hidden, norm, norm_eps))


def mlp_block(hidden: int, ffn: int, activation: str = "gelu", norm: str = "post", norm_eps: float = 1e-12) -> Block:
    """Return an encoder's MLP with its norm."""
    return Block(Mlp(ffn=ffn, activation=activation, gated=False, bias=True), residual(hidden, norm, norm_eps))


def residual(hidden: int, norm: str, eps: float) -> Residual:
    """Return an encoder's stream, whose blocks norm what they read, "pre", or the sum after them, "post"."""
    one_of("norm", norm, ("post", "pre"))
    return Residual(hidden, "layer", eps, pre_norms=norm == "pre", sum_norms=norm == "post", in_blocks=False)


def norm_of(stream: Residual) -> str:
    """Return where the norms of an encoder's blocks are, "pre" or "post"."""
    return "pre" if stream.pre_norms else "post"


def _block_to_table(block: Block) -> dict[str, Any]:
    """Return a block as weights files have it."""
    table = {
        "kind": block.name, "hidden": block.hidden, "norm": norm_of(block.stream), "norm_eps": block.stream.eps
    }  # fmt: skip
    match block.kind:
        case Attention() as own:
            return table | {"heads": own.heads} | ({"buckets": own.buckets} if own.buckets else {})
        case Mlp() as own:
            return table | {"ffn": own.ffn, "activation": own.activation}
    return {**table, **dataclasses.asdict(block.kind)}  # type: ignore[call-overload]


def _block_of(kind: str, **facts: Any) -> Block:
    """Return a block of what weights files have of it."""
    if kind in (Attention.name, Mlp.name):
        return (attention_block if kind == Attention.name else mlp_block)(**facts)
    stream = residual(*(facts.pop(name) for name in ("hidden", "norm", "norm_eps")))
    return Block(KINDS[kind](**facts), stream)


def _fields(value: ModelSpec | TextInput | ImageInput) -> dict[str, Any]:
    """Return the fields of a description; those that came later only where they say something."""
    return {name: field for name, field in dataclasses.asdict(value).items() if field or name not in _LATER}


def _tuples(value: Any) -> Any:
    """Turn JSON's lists back into tuples."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(value) if isinstance(value, list) else value
