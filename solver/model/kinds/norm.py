"""The norm of the stream before a block, where it is computed apart from what reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from solver.model.blocks import BlockKind
from solver.model.kinds.part import ROW, Part, Residual, Value

NORM = "norm"  # the role of its part


@dataclass(frozen=True, slots=True)
class InputNorm(BlockKind):
    """What a block reads of the stream, where that is normed before it."""

    name: ClassVar[str] = NORM
    axis: ClassVar[str] = ROW
    # No curve: the block that reads it has measured it with itself.

    def part(self, name: str, stream: Residual, x: Value) -> Part:
        """Return the part that norms rows for the block of this name."""
        rows, tensors = x.shape[0], tuple(stream.norm_tensors(f"{name}/norm"))
        normed = stream.value(f"{name}/normed", rows)
        return Part(f"{name}/norm", self, stream, NORM, {ROW: rows}, (x,), normed, tensors)
