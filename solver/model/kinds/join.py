"""The join: what a block computed is added to the stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from solver.model.blocks import BlockKind
from solver.model.kinds.part import ROW, WHOLE, Part, PartTensor, Residual, Value

JOINED = "joined"  # the last word of the stream's name after a block


@dataclass(frozen=True, slots=True)
class Join(BlockKind):
    """x + post_norm(s + bias): what a block computed, s, is added to the stream, x."""

    name: ClassVar[str] = "join"
    axis: ClassVar[str] = WHOLE
    # No curve: the block that reads it has measured it with itself.

    def part(self, name: str, stream: Residual, x: Value, s: Value, tensors: tuple[PartTensor, ...]) -> Part:
        """Return its part."""
        rows, name = x.shape[0], f"{name}/{JOINED}"
        joined = stream.value(name, rows)
        return Part(f"{name}/join", self, stream, "join", {ROW: rows}, (x, s), joined, tensors, cut=True)
