"""`Decoder`: everything about a language model but its numbers, and the tensors that follow from it.

Letters: S new rows (tokens), H hidden, F feed-forward width, A query heads, K key and value heads, d head width,
L layers, V vocabulary, p ranks.

Every half layer adds to the stream what it computes of it: x + post_norm(half(norm(x))). Matrices lie so that the axis
that ranks share out is the first: query, key, value, gate, up, embedding and head as [out, in]; what sums over shared
columns (attention output, MLP down) as [in, out].
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from solver.base.errors import HeptiError
from solver.base.spans import Span
from solver.model.blocks import one_of
from solver.model.precision import FLOAT32, Precision

KIND = "decoder"  # of a model in a weights file
# Fields that came later, and what they are without a word: written where they say something else, so that fingerprints
# of models from before stay.
_LATER = {"suppressed": (), "pre_norms": True, "whole_norms": False}
NORMS = ("rms", "layer")
ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu")
CACHES = ("float32", "int8")  # what keys and values are kept in
BLOCK = 32  # numbers along the summed axis of a matrix that share a scale
# What matrices are held in: a scale for every 32 numbers that a product sums over, stored as float16, held as float32;
# symmetric but those with a minimum.
PRECISIONS: Mapping[str, Precision] = {
    "float32": FLOAT32,
    "int8": Precision("int8", bits=8, group=BLOCK, scale_bytes=4),
    "int4": Precision("int4", bits=4, group=BLOCK, scale_bytes=4),
    # A minimum for every scale: numbers of Q4_1, and words of Q8_0 beside them, as they are.
    "int4m": Precision(
        "int4m", bits=4, group=BLOCK, scale_bytes=8, minima=True,
        words=Precision("int8m", bits=8, group=BLOCK, scale_bytes=8, minima=True),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary positions: columns i and i + width / 2 of a head turn by position times `frequencies[i]`.

    Parameters
    ----------
    frequencies
        width / 2 of them, radians a position, scaled as the checkpoint says (llama3, linear, yarn); a head's columns
        from `width` on stay as they are.
    factor
        Of cosines and sines (longrope, yarn).
    """

    frequencies: tuple[float, ...]
    factor: float = 1.0

    @property
    def width(self) -> int:
        """Columns of a head that turn."""
        return 2 * len(self.frequencies)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention:
    """Causal attention whose query heads share keys and values in groups of A / K."""

    heads: int  # A
    kv_heads: int  # K
    head_dim: int  # d
    rope: Rope | None = None
    window: int = 0  # a row sees so many last rows, itself among them; 0: all
    softcap: float = 0.0  # c of c tanh(scores / c); 0: none
    scale: float = 0.0  # of scores; 0: 1 / sqrt(d)
    bias: bool = False  # of query, key and value
    output_bias: bool = False
    qk_norm: bool = False  # RMS norm over d of every head's query and key, before they turn
    whole_norms: bool = False  # of these norms: over all heads' queries, and all keys, at once (OLMo 2)

    @property
    def group(self) -> int:
        """Query heads that share a key and value head."""
        return self.heads // self.kv_heads

    def kv_span(self, heads: Span) -> Span:
        """Return the key and value heads that some query heads need."""
        if not heads.size:
            return Span(0, 0)
        return Span(heads.start // self.group, -(-heads.stop // self.group))

    def check(self) -> None:
        """Refuse widths that fit nothing."""
        if self.heads % self.kv_heads:
            raise HeptiError(f"{self.heads} heads are no multiple of {self.kv_heads} key and value heads")
        if self.rope is not None and not 0 < self.rope.width <= self.head_dim:
            raise HeptiError(f"{self.rope.width} columns of a head turn, it has {self.head_dim}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedMlp:
    """down(activation(gate(x)) * up(x)), or without a gate down(activation(up(x)))."""

    ffn: int  # F
    activation: str = "silu"
    gated: bool = True
    bias: bool = False

    def check(self) -> None:
        """Refuse an activation that is none."""
        one_of("activation", self.activation, ACTIVATIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """Attention, then MLP."""

    attention: GroupedAttention
    mlp: GatedMlp


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Everything about a language model but its numbers.

    Parameters
    ----------
    positions
        The longest context, in tokens.
    layers
        One behind the other; they may differ (Gemma's windows).
    norm
        "rms", or "layer" with shifts (GPT-2), of all norms but those of queries and keys, which are "rms". Gemma's
        1 + weight is stored as the weight.
    pre_norms
        Whether a half layer begins with a norm of the stream (all but OLMo 2).
    post_norms
        Whether what a half layer computed is normed before it is added (Gemma, OLMo 2).
    embedding_scale
        Of the embedded rows, not of the head (Gemma).
    learned_positions
        Whether a table of positions is added to the embedding (GPT-2).
    head_softcap
        c of c tanh(logits / c); 0: none.
    tied
        Whether the head is the embedding.
    bos
        The token that begins every text; None: none does.
    eos
        The tokens that end an answer.
    suppressed
        The tokens that are never said.
    """

    name: str
    hidden: int
    vocab: int
    positions: int
    layers: tuple[DecoderLayer, ...]
    norm: str = "rms"
    norm_eps: float = 1e-5
    pre_norms: bool = True
    post_norms: bool = False
    embedding_scale: float = 1.0
    learned_positions: bool = False
    head_softcap: float = 0.0
    tied: bool = False
    bos: int | None = None
    eos: tuple[int, ...] = ()
    suppressed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        try:
            for owner in (self, *(half for layer in self.layers for half in (layer.attention, layer.mlp))):
                for size in ("hidden", "vocab", "positions", "heads", "kv_heads", "head_dim", "ffn"):
                    if getattr(owner, size, 1) < 1:
                        raise HeptiError(f"{size} is {getattr(owner, size)}, must be at least 1")
            if not self.layers:
                raise HeptiError("layers is 0, must be at least 1")
            one_of("norm", self.norm, NORMS)
            for layer in self.layers:
                layer.attention.check()
                layer.mlp.check()
        except HeptiError as error:
            raise HeptiError(f"model {self.name}: {error}") from error

    @property
    def head(self) -> str:
        """The name of the matrix that makes logits."""
        return "embedding/weight" if self.tied else "head/weight"

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits of what a plan depends on."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    def to_json(self) -> str:
        """Write as JSON; layers that are alike stand in it once."""
        table = _told(self)
        kinds = list(dict.fromkeys(self.layers))
        table["layers"] = [kinds.index(layer) for layer in self.layers]
        table["kinds"] = [{"attention": _told(kind.attention), "mlp": _told(kind.mlp)} for kind in kinds]
        return json.dumps({"kind": KIND, **table})

    @classmethod
    def from_json(cls, text: str) -> Decoder:
        """Read what `to_json` wrote."""
        try:
            table = json.loads(text)
            if table.pop("kind") != KIND:
                raise ValueError("it is no decoder")
            kinds = [_layer(kind) for kind in table.pop("kinds")]
            table["layers"] = tuple(kinds[number] for number in table["layers"])
            ends = {name: tuple(table[name]) for name in ("eos", "suppressed") if name in table}
            return cls(**{**table, **ends})
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise HeptiError(f"model description is damaged or of a newer version: {error}") from error


def _told(owner: Decoder | GroupedAttention | GatedMlp) -> dict[str, Any]:
    """Return the fields of an owner, those that came later only where they say something."""
    fields = dataclasses.asdict(owner)
    return {name: value for name, value in fields.items() if name not in _LATER or value != _LATER[name]}


def _layer(table: Mapping[str, Any]) -> DecoderLayer:
    attention = dict(table["attention"])
    if attention["rope"] is not None:
        rope = attention["rope"]
        attention["rope"] = Rope(frequencies=tuple(rope["frequencies"]), factor=rope["factor"])
    return DecoderLayer(attention=GroupedAttention(**attention), mlp=GatedMlp(**table["mlp"]))


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of a decoder.

    Parameters
    ----------
    shape
        As it lies, where it is float32.
    summed
        The axis that its product sums over, 0 or 1; None: it is no product's matrix, and float32 in any precision.
    words
        Whether it is the embedding or the head, which may be held in another precision than the layers.
    """

    shape: tuple[int, ...]
    summed: int | None = None
    words: bool = False

    def held_in(self, precision: Precision) -> Precision:
        """Return what it is held in under a model's precision."""
        return FLOAT32 if self.summed is None else precision.of_words if self.words else precision

    def stored(self, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what is stored for it, by what stands behind its name.

        In blocks, b = ceil(summed / 32): of [out, in] "" is [out, b, bytes] uint8 and "/scale" [out, b] float16; of
        [in, out] "" is [b, out, bytes] and "/scale" [b, out]. `bytes` are a block's numbers in order: 32 int8 with
        zero at 128, or 16 of two int4 each, the first in the low bits, with zero at 8. Where a precision has minima,
        "/scale" is [..., 2], scale and minimum: a number is scale · level + minimum, of int4 from level 0 on, of int8
        from 128 on.
        """
        own = self.held_in(precision)
        if self.summed is None or own is FLOAT32:
            return {"": self.shape}
        shape = list(self.shape)
        shape[self.summed] = -(-shape[self.summed] // BLOCK)
        return {"": (*shape, BLOCK * own.bits // 8), "/scale": (*shape, 2) if own.minima else tuple(shape)}


def decoder_tensors(model: Decoder) -> dict[str, Weight]:
    """Return every tensor of a decoder, in file order."""
    H, found = model.hidden, {}
    found["embedding/weight"] = Weight((model.vocab, H), 1, words=True)
    if model.learned_positions:
        found["positions/weight"] = Weight((model.positions, H))
    for number, layer in enumerate(model.layers):
        prefix = f"layers/{number}"
        found |= {
            f"{prefix}/attention/{name}": weight for name, weight in attention_tensors(model, layer.attention).items()
        }
        found |= {f"{prefix}/mlp/{name}": weight for name, weight in mlp_tensors(model, layer.mlp).items()}
    found |= _norm(model, "final_norm")
    if not model.tied:
        found["head/weight"] = Weight((model.vocab, H), 1, words=True)
    return found


def attention_tensors(model: Decoder, attention: GroupedAttention) -> dict[str, Weight]:
    """Return the tensors of an attention half; of a share of one, with its heads and those that they need."""
    H, d = model.hidden, attention.head_dim
    found = _norm(model, "norm") if model.pre_norms else {}
    for name, heads in (("query", attention.heads), ("key", attention.kv_heads), ("value", attention.kv_heads)):
        found[f"{name}/weight"] = Weight((heads * d, H), 1)
        if attention.bias:
            found[f"{name}/bias"] = Weight((heads * d,))
    if attention.qk_norm:
        normed = (attention.heads * d, attention.kv_heads * d) if attention.whole_norms else (d, d)
        found |= {"query_norm/weight": Weight(normed[:1]), "key_norm/weight": Weight(normed[1:])}
    found["output/weight"] = Weight((attention.heads * d, H), 0)
    if attention.output_bias:
        found["output/bias"] = Weight((H,))
    return found | (_norm(model, "post_norm") if model.post_norms else {})


def mlp_tensors(model: Decoder, mlp: GatedMlp) -> dict[str, Weight]:
    """Return the tensors of an MLP half; of a share of one, with its columns."""
    H, found = model.hidden, _norm(model, "norm") if model.pre_norms else {}
    for name in ("gate", "up") if mlp.gated else ("up",):
        found[f"{name}/weight"] = Weight((mlp.ffn, H), 1)
        if mlp.bias:
            found[f"{name}/bias"] = Weight((mlp.ffn,))
    found["down/weight"] = Weight((mlp.ffn, H), 0)
    if mlp.bias:
        found["down/bias"] = Weight((H,))
    return found | (_norm(model, "post_norm") if model.post_norms else {})


def _norm(model: Decoder, name: str) -> dict[str, Weight]:
    found = {f"{name}/weight": Weight((model.hidden,))}
    if model.norm == "layer":
        found[f"{name}/bias"] = Weight((model.hidden,))
    return found
