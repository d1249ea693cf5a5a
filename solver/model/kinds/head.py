"""The head: rows of the stream become logits of words, after the last layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from solver.model.blocks import BlockKind
from solver.model.kinds.embedding import WORDS
from solver.model.kinds.part import (
    HIDDEN,
    ROW,
    WORD,
    Part,
    PartTensor,
    Residual,
    TensorUse,
    Value,
    as_they_are,
    whole,
)
from solver.model.kinds.weight import Weight


@dataclass(frozen=True, slots=True)
class Head(BlockKind):
    """Logits of words, softcap c of c tanh(logits / c) where it is not 0; tied, its matrix is the embedding."""

    name: ClassVar[str] = "head"
    axis: ClassVar[str] = WORD
    curve: ClassVar[str] = "head"

    words: int
    softcap: float = 0.0
    tied: bool = False

    def resized(self, total: int) -> Self:
        """Return such a head of so many words."""
        return replace(self, words=total)

    def tensors(self, name: str, stream: Residual) -> dict[str, PartTensor]:
        """Return those of the last norm, and the matrix."""
        matrix = WORDS if self.tied else f"{name}/weight"
        weight = Weight((self.words, stream.hidden), 1, words=True)
        found = (*stream.norm_tensors("final_norm"), PartTensor(matrix, weight, TensorUse.INTO, WORD, self.words))
        return {tensor.leaf: tensor for tensor in found}

    def parts(self, name: str, stream: Residual, x: Value) -> tuple[Part, ...]:
        """Return its part."""
        tensors, words = tuple(self.tensors(name, stream).values()), {ROW: x.shape[0], WORD: self.words}
        logits = Value(f"{name}/logits", (ROW, WORD), tuple(words.values()))
        return (
            Part(
                f"{name}/logits", self, stream, "logits", words | {HIDDEN: x.shape[1]}, (x,), logits, tensors, cut=True
            ),
        )

    def summed_parts(self, name: str, stream: Residual, x: Value) -> tuple[Part, ...]:
        """Return its parts where ranks share out what it sums over: summands, of all words; then logits."""
        ((tensors, logits),) = ((part.tensors, part.writes) for part in self.parts(name, stream, x))
        sums, words = replace(logits, name=f"{name}/sum of logits"), dict(zip(logits.axes, logits.shape, strict=True))
        norm = {(x.name, HIDDEN): lambda _: whole(x.shape[1])}  # which is of all of a row
        return (
            Part(f"{name}/sums", self, stream, "sums", words | {HIDDEN: x.shape[1]}, (x,), sums, tensors, norm,
                 along=(HIDDEN, HIDDEN, as_they_are)),
            Part(f"{name}/logits", self, stream, "logits", words, (sums,), logits, cut=True),
        )  # fmt: skip
