"""`Decoder`: everything about a language model but its numbers, and the tensors that follow from it.

Letters: S new rows (tokens), H hidden, F feed-forward width, A query heads, K key and value heads, d head width,
L layers, V vocabulary, p ranks.

Every block of a layer adds to the stream what it computes of it: x + post_norm(block(norm(x))). Matrices lie so that
the axis that ranks share out is the first: query, key, value, gate, up, embedding and head as [out, in]; what sums over
shared columns (attention output, MLP down) as [in, out].
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from solver.base.errors import HeptiError
from solver.model.blocks import BlockKind, check_types, one_of, told
from solver.model.kinds.embedding import Embedding
from solver.model.kinds.every import KINDS
from solver.model.kinds.head import Head
from solver.model.kinds.part import ROW, Part, Residual, Value
from solver.model.kinds.weight import Weight
from solver.model.layers import parts_of_blocks

KIND = "decoder"  # of a model in a weights file
# Fields that came later: written where they say something, so that fingerprints of models from before stay.
_LATER = ("suppressed", "pre_norms")
NORMS = ("rms", "layer")
TOKENS = "tokens"  # the name of what a pass begins with


DecoderLayer = tuple[BlockKind, ...]  # blocks in order, any number of any kind
SomeKind = TypeVar("SomeKind", bound=BlockKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Everything about a language model but its numbers.

    Parameters
    ----------
    positions
        The longest context, in tokens.
    layers
        One after the other, each of blocks; they may differ (Gemma's windows).
    norm
        "rms", or "layer" with shifts (GPT-2), of all norms but those of queries and keys, which are "rms". Gemma's
        1 + weight is stored as the weight.
    pre_norms
        Whether a block begins with a norm of the stream (all but OLMo 2).
    post_norms
        Whether what a block computed is normed before it is added (Gemma, OLMo 2).
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
            for size in ("hidden", "vocab", "positions"):
                if getattr(self, size) < 1:
                    raise HeptiError(f"{size} is {getattr(self, size)}, must be at least 1")
            if not self.layers or not all(self.layers):
                raise HeptiError(f"{'blocks of a layer' if self.layers else 'layers'} is 0, must be at least 1")
            one_of("norm", self.norm, NORMS)
            for kind in dict.fromkeys(chain(*self.layers)):
                check_types(kind)
                kind.check()
                kind.check_in_decoder()
        except HeptiError as error:
            raise HeptiError(f"model {self.name}: {error}") from error

    @property
    def head(self) -> str:
        """The name of the matrix that makes logits."""
        return "embedding/weight" if self.tied else "head/weight"

    @property
    def embedding(self) -> Embedding:
        """What makes rows of the stream."""
        return Embedding(self.vocab, self.embedding_scale, self.positions * self.learned_positions)

    @property
    def head_block(self) -> Head:
        """What makes logits."""
        return Head(self.vocab, self.head_softcap, self.tied)

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
        table = told(self, _LATER)
        kinds = list(dict.fromkeys(self.layers))
        table["layers"] = [kinds.index(layer) for layer in self.layers]
        table["kinds"] = [{name: kind.to_table() for name, kind in named_blocks(layer).items()} for layer in kinds]
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


def _layer(table: Mapping[str, Mapping[str, Any]]) -> DecoderLayer:
    return tuple(KINDS[name.partition(".")[0]].from_table(block) for name, block in table.items())


def named_blocks(layer: DecoderLayer) -> dict[str, BlockKind]:
    """Return a layer's blocks by their names: that of the kind, with a number after it from the second one on."""
    found: dict[str, BlockKind] = {}
    for number, kind in enumerate(layer):
        before = sum(other.name == kind.name for other in layer[:number])
        found[f"{kind.name}.{before + 1}" if before else kind.name] = kind
    return found


def blocks_of(model: Decoder, kind: type[SomeKind]) -> list[SomeKind]:
    """Return all blocks of a kind, in order."""
    return [block for layer in model.layers for block in layer if isinstance(block, kind)]


def decoder_tensors(model: Decoder) -> dict[str, Weight]:
    """Return every tensor of a decoder, in file order."""
    stream = model.stream
    found = {tensor.name: tensor.weight for tensor in model.embedding.tensors("embedding", stream).values()}
    for number, layer in enumerate(model.layers):
        for name, kind in named_blocks(layer).items():
            tensors = kind.tensors(f"layers/{number}/{name}", stream)
            found |= {tensor.name: tensor.weight for tensor in tensors.values()}
    ends = model.head_block.tensors("head", stream).values()
    return found | {tensor.name: tensor.weight for tensor in ends if tensor.name not in found}


def embedding_part(model: Decoder, rows: int) -> Part:
    """Return the part that makes rows of the stream of so many tokens."""
    (part,) = model.embedding.parts("embedding", model.stream, Value(TOKENS, (ROW,), (rows,)))
    return part


def layer_parts(model: Decoder, number: int, x: Value, dealt: tuple[int, ...] = ()) -> tuple[list[Part], Value]:
    """Return the parts of a layer that reads these rows of the stream, and the stream after it.

    Parameters
    ----------
    dealt
        As of `BlockKind.among`; none: what is kept of tokens is not shared out.
    """
    blocks = (
        (f"layers/{number}/{what}", kind.among(dealt) if dealt else kind)
        for what, kind in named_blocks(model.layers[number]).items()
    )
    return parts_of_blocks(blocks, model.stream, x)


def head_parts(model: Decoder, x: Value, *, summed: bool = False) -> tuple[Part, ...]:
    """Return what makes logits of rows of the stream; `summed`: where ranks have summands of them."""
    head = model.head_block
    return (head.summed_parts if summed else head.parts)("head", model.stream, x)
