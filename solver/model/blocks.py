"""What a block of a layer is: which axis of it can be shared out, its tensors, and how it may be cut.

A kind of block is a class with a file of its own in `solver.model.kinds`. Matrices lie so that the axis that ranks
share out is the first: those of the first product as [out, in] (y = x Wᵀ), that of the second as [in, out] (y = x W).
Letters as in `solver.model.spec`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, ClassVar, Self

from solver.base.errors import HeptiError, InfeasiblePlanError
from solver.base.spans import Span
from solver.model.kinds.part import Part, PartTensor, Residual, Value


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
    axis: ClassVar[str] = "inner"  # what ranks cut its parts along, besides rows; also its word in a plan
    curve: ClassVar[str] = ""  # which measured curve says what its parts take together
    later: ClassVar[tuple[str, ...]] = ()  # fields that files have only where they say something: they came later
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

    def check_in_decoder(self) -> None:
        """Refuse what a language model's block cannot be; errors as `check`."""

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Read what `to_table` wrote, as a language model's file has it."""
        return cls(**table)

    def to_table(self) -> dict[str, Any]:
        """Return its fields, as a language model's file has them."""
        return told(self, self.later)

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

    @property
    def group(self) -> int:
        """How many units of its axis are best given away together; 0: they are small, and many."""
        return 0

    def resized(self, total: int) -> Self:
        """Return such a block with another number of units of its axis."""
        raise NotImplementedError

    def among(self, dealt: tuple[int, ...]) -> Self:
        """Return such a block that shares out what it keeps of tokens: of every sum(dealt) each rank has so many."""
        return self

    def asked(self, requests: tuple[int, ...]) -> Self:
        """Return such a block over a batch of requests, each of so many rows, one after the other."""
        return self

    def units(self, share: Span) -> dict[str, int]:
        """Return how many units of every axis of its tensors a share of its own axis needs."""
        return {self.axis: share.size}

    def made_columns(self, units: Mapping[str, int]) -> int:
        """Return how many columns of a row lie there at a time where so many units are computed, beside the stream."""
        return units[self.axis]

    def kept_numbers(self, units: Mapping[str, int]) -> int:
        """Return how many numbers of a row are kept from pass to pass, of so many units."""
        return 0

    def recalled(self, units: Mapping[str, int], rows: int, behind: int) -> float:
        """Return how many columns rows see in all of what is kept, after so many others."""
        return 0.0

    def tensors(self, name: str, stream: Residual) -> dict[str, PartTensor]:
        """Return its tensors in a block of this name, by their leaves, in file order."""
        raise NotImplementedError

    def parts(self, name: str, stream: Residual, x: Value) -> tuple[Part, ...]:
        """Return its parts in a language model's block of this name, which reads rows of the stream."""
        raise NotImplementedError


def told(owner: Any, later: Collection[str]) -> dict[str, Any]:
    """Return the fields of a dataclass, those that came later only where they say something."""
    fields = dataclasses.fields(owner)
    unsaid = {field.name for field in fields if field.name in later and getattr(owner, field.name) == field.default}
    return {name: value for name, value in dataclasses.asdict(owner).items() if name not in unsaid}


def check_types(value: Any) -> None:
    """Refuse fields of another type than they are declared: `TypeError`."""
    kinds = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,), "tuple[str, ...]": (tuple,)}
    for field in dataclasses.fields(value):
        found = getattr(value, field.name)
        if type(found) not in kinds.get(str(field.type), (type(found),)):
            raise TypeError(f"{field.name} is {found!r}, must be {field.type}")


@lru_cache(maxsize=256)
def parts_of(kind: BlockKind, stream: Residual) -> tuple[Part, ...]:
    """Return the parts of a block over one row."""
    return kind.parts(kind.name, stream, stream.value("x", 1))


@lru_cache(maxsize=256)
def tensors_of(kind: BlockKind, stream: Residual) -> Mapping[str, PartTensor]:
    """Return the tensors of a block within its layer, by their leaves."""
    return kind.tensors(kind.name, stream)


@lru_cache(maxsize=256)
def total_of(kind: BlockKind, stream: Residual) -> int:
    """Return how many units of its axis a block has."""
    return next(part.axes[kind.axis] for part in parts_of(kind, stream) if part.cut)


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
        return tuple(tensors_of(self.kind, self.stream).values())

    @property
    def shared(self) -> list[PartTensor]:
        """The tensors that only a rank with a share of the block holds."""
        return [tensor for tensor in self.tensors if not tensor.everywhere]

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """How it may be cut in layers that are not decoupled."""
        inner = (Cut.BLOCK, Cut.TO_ROWS, Cut.COLUMNS, Cut.GRID)
        return (Cut.ROWS, Cut.WHOLE, *(inner if self.inner is not None else ()))


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
