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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from solver.base.errors import HeptiError
from solver.model.blocks import one_of
from solver.model.kinds.attention import Attention, Rope
from solver.model.kinds.mlp import Mlp
from solver.model.kinds.part import Part, PartTensor, Residual, Value
from solver.model.kinds.stream import Head, Join
from solver.model.kinds.weight import Weight

KIND = "decoder"  # of a model in a weights file
# Fields that came later, and what they are without a word: written where they say something else, so that fingerprints
# of models from before stay.
_LATER = {"suppressed": (), "pre_norms": True, "whole_norms": False, "causal": True, "buckets": 0}
NORMS = ("rms", "layer")
STREAM = "stream"  # the name of what a pass begins with


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """Attention, then MLP."""

    attention: Attention
    mlp: Mlp


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
                for field, must_be in (("causal", True), ("buckets", 0)):
                    if (found := getattr(layer.attention, field)) != must_be:
                        raise HeptiError(f"attention: {field} is {found}, must be {must_be} in a language model")
        except HeptiError as error:
            raise HeptiError(f"model {self.name}: {error}") from error

    @property
    def head(self) -> str:
        """The name of the matrix that makes logits."""
        return "embedding/weight" if self.tied else "head/weight"

    @property
    def stream(self) -> Residual:
        """What blocks add to."""
        return Residual(self.hidden, self.norm, self.norm_eps, self.pre_norms, self.post_norms)

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


def _told(owner: Decoder | Attention | Mlp) -> dict[str, Any]:
    """Return the fields of an owner, those that came later only where they say something."""
    fields = dataclasses.asdict(owner)
    return {name: value for name, value in fields.items() if name not in _LATER or value != _LATER[name]}


def _layer(table: Mapping[str, Any]) -> DecoderLayer:
    attention = dict(table["attention"])
    if attention["rope"] is not None:
        rope = attention["rope"]
        attention["rope"] = Rope(frequencies=tuple(rope["frequencies"]), factor=rope["factor"])
    return DecoderLayer(attention=Attention(**attention), mlp=Mlp(**table["mlp"]))


def decoder_tensors(model: Decoder) -> dict[str, Weight]:
    """Return every tensor of a decoder, in file order."""
    H, stream = model.hidden, model.stream
    found = {"embedding/weight": Weight((model.vocab, H), 1, words=True)}
    if model.learned_positions:
        found["positions/weight"] = Weight((model.positions, H))
    ends = [tensor for tensor in _head(model).tensors("final_norm", model.head, stream) if tensor.name not in found]
    layers = (tensor for number in range(len(model.layers)) for tensor in _layer_tensors(model, number))
    return found | {tensor.name: tensor.weight for tensor in (*layers, *ends)}


def _layer_tensors(model: Decoder, number: int) -> Iterator[PartTensor]:
    layer, stream = model.layers[number], model.stream
    yield from layer.attention.tensors(f"layers/{number}/attention", stream).values()
    yield from layer.mlp.tensors(f"layers/{number}/mlp", stream).values()


def _head(model: Decoder) -> Head:
    return Head(model.vocab, model.head_softcap)


def layer_parts(model: Decoder, number: int, x: Value) -> tuple[list[Part], Value]:
    """Return the parts of a layer that reads these rows of the stream, and the stream after it."""
    layer, stream, parts = model.layers[number], model.stream, []
    for what, half, last in (("attention", layer.attention, "output"), ("mlp", layer.mlp, "down")):
        name = f"layers/{number}/{what}"
        own = half.parts(name, stream, x)
        after = (f"{last}/bias", "post_norm/weight", "post_norm/bias")
        added = tuple(tensor for leaf, tensor in half.tensors(name, stream).items() if leaf in after)
        joined = Join().parts(name, stream, x, own[-1].writes, added)
        parts += [*own, *joined]
        x = joined[-1].writes
    return parts, x


def head_parts(model: Decoder, x: Value) -> tuple[Part, ...]:
    """Return the part that makes logits of rows of the stream."""
    head = _head(model)
    return head.parts("head", model.stream, x, head.tensors("final_norm", model.head, model.stream))
