"""The embedding: tokens become rows of the stream, before the first layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from solver.model.blocks import BlockKind
from solver.model.kinds.part import HIDDEN, ROW, WORD, Part, PartTensor, Residual, TensorUse, Value
from solver.model.kinds.weight import Weight

WORDS, PLACES = "embedding/weight", "positions/weight"  # its tensors


@dataclass(frozen=True, slots=True)
class Embedding(BlockKind):
    """scale · word + place: of every token its word's row of a table, and that of its place, where these are learned.

    A product with what is 1 where a token is a word, and 0 elsewhere: cut by words, ranks get summands, of which all
    but one are 0. Whole, it is computed where its rows are read from the file: no rank holds the table.

    Parameters
    ----------
    positions
        How many places have a row; 0: none has.
    """

    name: ClassVar[str] = "embedding"
    axis: ClassVar[str] = WORD
    # No curve: that of a pass has measured it with what else rank 0 does before one.

    words: int
    scale: float = 1.0
    positions: int = 0

    def resized(self, total: int) -> Self:
        """Return such an embedding of so many words."""
        return replace(self, words=total)

    def tensors(self, name: str, stream: Residual) -> dict[str, PartTensor]:
        """Return its tables."""
        words = Weight((self.words, stream.hidden), 1, words=True)
        found = {WORDS: PartTensor(WORDS, words, TensorUse.INTO, WORD, self.words)}
        if self.positions:
            found[PLACES] = PartTensor(PLACES, Weight((self.positions, stream.hidden)), TensorUse.INTO)
        return found

    def parts(self, name: str, stream: Residual, x: Value) -> tuple[Part, ...]:
        """Return its part, which reads tokens."""
        rows, made = x.shape[0], stream.value(name, x.shape[0])
        axes = {ROW: rows, WORD: self.words, HIDDEN: made.shape[1]}
        tensors = tuple(self.tensors(name, stream).values())
        return (Part(f"{name}/rows", self, stream, "words", axes, (x,), made, tensors, cut=True),)
