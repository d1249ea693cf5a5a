"""The head: rows of the stream become logits of words, behind the last layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from solver.model.blocks import BlockKind
from solver.model.kinds.embedding import WORDS
from solver.model.kinds.part import HIDDEN, ROW, WORD, Part, PartTensor, Residual, TensorUse, Value
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
        rows, tensors = x.shape[0], tuple(self.tensors(name, stream).values())
        return (Part(f"{name}/logits", self, stream, "logits", {ROW: rows, WORD: self.words, HIDDEN: x.shape[1]}, (x,),
                     Value(f"{name}/logits", (ROW, WORD), (rows, self.words)), tensors, cut=True),)  # fmt: skip
