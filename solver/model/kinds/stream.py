"""What lies between the blocks of a language model: what they computed is added to the stream; and words at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from solver.model.kinds.part import HIDDEN, ROW, WORD, Part, PartTensor, Residual, TensorUse, Value
from solver.model.kinds.weight import Weight


@dataclass(frozen=True, slots=True)
class Join:
    """x + post_norm(s + bias): what a block computed, s, is added to the stream, x."""

    curve: ClassVar[str] = ""  # the block that reads it has measured it with itself

    def parts(
        self, name: str, stream: Residual, x: Value, s: Value, tensors: tuple[PartTensor, ...]
    ) -> tuple[Part, ...]:
        """Return its part."""
        rows, name = x.shape[0], f"{name}/joined"
        joined = stream.value(name, rows)
        return (Part(f"{name}/join", self, stream, "join", {ROW: rows}, (x, s), joined, tensors),)


@dataclass(frozen=True, slots=True)
class Head:
    """Logits of words, softcap c of c tanh(logits / c) where it is not 0."""

    curve: ClassVar[str] = "head"
    words: int
    softcap: float = 0.0

    def tensors(self, name: str, matrix: str, stream: Residual) -> tuple[PartTensor, ...]:
        """Return its tensors: the last norm's, and the matrix of this name."""
        weight = Weight((self.words, stream.hidden), 1, words=True)
        return (*stream.norm_tensors(name), PartTensor(matrix, weight, TensorUse.INTO, WORD, self.words))

    def parts(self, name: str, stream: Residual, x: Value, tensors: tuple[PartTensor, ...]) -> tuple[Part, ...]:
        """Return its part."""
        rows = x.shape[0]
        return (Part(f"{name}/logits", self, stream, "logits", {ROW: rows, WORD: self.words, HIDDEN: x.shape[1]}, (x,),
                     Value(f"{name}/logits", (ROW, WORD), (rows, self.words)), tensors),)  # fmt: skip
