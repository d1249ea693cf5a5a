"""What a block of a layer is: which axis of it can be shared out, its tensors, and how it may be cut.

A kind of block is a class with a file of its own in `solver.model.kinds`. Matrices lie so that the axis that ranks
share out is the first: those of the first product as [out, in] (y = x Wᵀ), that of the second as [in, out] (y = x W).
Letters as in `solver.model.spec`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar

from solver.base.errors import HeptiError, InfeasiblePlanError
from solver.model.kinds.part import PartTensor, Residual


class Cut(StrEnum):
    """How one block is split over the ranks."""

    ROWS = "rows"  # each rank its rows, all weights
    COLUMNS = "columns"  # heads or F columns, gathered, then output columns
    BLOCK = "block"  # heads or F columns, then full-size summands
    TO_ROWS = "to_rows"  # heads or F columns, of which the owners of rows get what they make; then rows, all weights
    GRID = "grid"  # a tile of both weights: some columns of H by some heads or F columns
    WHOLE = "whole"  # everything, each rank that has sub-blocks of other layers
    SUB_BLOCKS = "sub_blocks"  # each rank its sub-blocks of a decoupled layer


class Axis(StrEnum):
    """What is shared out; FIXED is what depends on no share, but on taking part at all, ROOT what rank 0 alone has."""

    FIXED = "fixed"
    ROOT = "rank 0"
    ROWS = "rows"
    HEADS = "heads"
    CONTEXT = "attention output columns"
    FFN = "ffn columns"
    OUTPUT = "mlp output columns"
    SUB_BLOCKS = "sub-blocks"


@dataclass(frozen=True, slots=True)
class Inner:
    """What of a block can be shared out besides rows: so many heads or columns, each of `unit` rows of a tensor."""

    axis: Axis
    output: Axis  # of the output columns, where these are shared out, too
    count: int
    unit: int = 1


class BlockKind:
    """What is computed in a block: the base of its kinds, which are frozen dataclasses."""

    name: ClassVar[str]  # also the first word of its tensors' names
    curve: ClassVar[str] = ""  # which measured curve says what its parts take together
    inner_key: ClassVar[str] = "inner"  # the name of its heads or columns in a plan file
    inputs_first: ClassVar[tuple[str, ...]] = ()  # names of its matrices that lie as [in, out]
    __slots__ = ()

    def check(self) -> None:
        """Refuse widths that fit nothing.

        Raises
        ------
        HeptiError
            Naming the field.
        """
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            size = getattr(self, field.name)
            least = 0 if field.default == 0 else 1
            if type(size) is int and size < least:
                raise HeptiError(f"{field.name} is {size}, must be at least {least}")

    @property
    def inner(self) -> Inner | None:
        """What can be shared out besides rows."""
        return None

    @property
    def inner_columns(self) -> int:
        """Columns between its two products, in all."""
        return 0 if self.inner is None else self.inner.count * self.inner.unit

    @property
    def work_columns(self) -> int:
        """Columns that its computation needs at a time beside the stream."""
        return self.inner_columns

    def tensors(self, name: str, stream: Residual) -> dict[str, PartTensor]:
        """Return its tensors in a block of this name, by their leaves, in file order."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Block:
    """A block of an encoder's layer: adds to the stream what it computes of it.

    With a norm of the stream before it, or of the sum after it, as the stream says.
    """

    kind: BlockKind
    stream: Residual

    @property
    def name(self) -> str:
        """Of its kind."""
        return self.kind.name

    @property
    def hidden(self) -> int:
        """H, the width of the stream."""
        return self.stream.hidden

    @property
    def inner(self) -> Inner | None:
        """What can be shared out besides rows."""
        return self.kind.inner

    @property
    def tensors(self) -> tuple[PartTensor, ...]:
        """Its tensors within its layer, in file order."""
        return _tensors(self)

    @property
    def shared(self) -> list[PartTensor]:
        """The tensors that only a rank with a share of the block holds."""
        return [tensor for tensor in self.tensors if not tensor.everywhere]

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """How it may be cut in layers that are not decoupled."""
        inner = (Cut.BLOCK, Cut.TO_ROWS, Cut.COLUMNS, Cut.GRID)
        return (Cut.ROWS, Cut.WHOLE, *(inner if self.inner is not None else ()))


@lru_cache(maxsize=256)
def _tensors(block: Block) -> tuple[PartTensor, ...]:
    return tuple(block.kind.tensors(block.name, block.stream).values())


def inner_of(block: Block, system: str) -> Inner:
    """Return what of a block can be shared out besides rows, for a system that does so.

    Raises
    ------
    InfeasiblePlanError
        If nothing can.
    """
    if block.inner is None:
        raise InfeasiblePlanError(f"{system} shares out what is within blocks: {block.name} can be cut by rows only")
    return block.inner


def one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not one of those allowed."""
    if value not in allowed:
        raise HeptiError(f"{field} {value!r} is not one of {', '.join(allowed)}")
