"""What a block of a layer is: which axis of it can be shared out, its tensors, and how it may be cut.

A kind of block is a class with a file of its own: `solver.model.attention`, `solver.model.mlp`. Matrices lie so that
the axis that ranks share out is the first: those of the first product as [out, in] (y = x Wᵀ), that of the second as
[in, out] (y = x W). Letters as in `solver.model.spec`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from solver.base.errors import HeptiError, InfeasiblePlanError
from solver.model.precision import FLOAT32, Precision


class Cut(StrEnum):
    """How one block is split over the ranks."""

    ROWS = "rows"  # each rank its rows, all weights
    COLUMNS = "columns"  # heads or F columns, gathered, then output columns
    BLOCK = "block"  # heads or F columns, then full-size summands
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


class TensorUse(StrEnum):
    """Where in its block a tensor is used."""

    INTO = "into"  # the first product, which makes the inner columns
    OUT = "out"  # the second, which sums over them
    NORM = "norm"
    RELATIVE = "relative"  # added to scores, by the distance between two rows


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a block."""

    name: str  # behind the prefix of its layer
    shape: tuple[int, ...]
    part: TensorUse
    inner: Inner | None = None  # shares out the first dimension

    @property
    def everywhere(self) -> bool:
        """Whether all hold it who take part in a layer: norms and last biases, which go with the residual."""
        return self.inner is None and len(self.shape) == 1

    @property
    def summed(self) -> int | None:
        """The dimension that its product sums over; a vector has none."""
        return None if len(self.shape) == 1 else int(self.part is TensorUse.INTO)

    def sublayer(self, norm: str) -> int:
        """Return which sub-layer of its block needs it, 0 or 1, where a block's norm is "pre" or "post"."""
        return int(self.part is TensorUse.OUT or (self.part is TensorUse.NORM and norm == "post"))

    def held_bytes(self, precision: Precision = FLOAT32, units: int | None = None, columns: int | None = None) -> int:
        """Return its bytes as held; those of so many units of its axis, or of so many columns, if one is given."""
        length = self.shape[0] if units is None or self.inner is None else units * self.inner.unit
        return precision.bytes_of((length, *(self.shape[1:] if columns is None else (columns,))), self.summed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of a layer: adds to the stream what it computes of it, with a norm in front or behind.

    Parameters
    ----------
    hidden
        H, the width of the stream.
    norm
        "post": the sum is normed (BERT, RoBERTa, DistilBERT); "pre": what the block computes of is (ViT, DeiT).
    norm_eps
        Is added to the variance.
    """

    name: ClassVar[str]  # of the kind, and in front of its tensors' names
    inner_key: ClassVar[str] = "inner"  # the name of its heads or columns in a plan file
    inputs_first: ClassVar[tuple[str, ...]] = ()  # names of its matrices that lie as [in, out]
    hidden: int
    norm: str = "post"
    norm_eps: float = 1e-12

    def check(self) -> None:
        """Refuse widths that fit nothing.

        Raises
        ------
        HeptiError
            Naming the field.
        """
        for field in dataclasses.fields(self):
            size = getattr(self, field.name)
            least = 0 if field.default == 0 else 1
            if type(size) is int and size < least:
                raise HeptiError(f"{field.name} is {size}, must be at least {least}")
        one_of("norm", self.norm, ("post", "pre"))

    @property
    def inner(self) -> Inner | None:
        """What can be shared out besides rows."""
        return None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Its tensors, in file order."""
        raise NotImplementedError

    @property
    def shared(self) -> list[Tensor]:
        """The tensors that only who has a share of the block holds."""
        return [tensor for tensor in self.tensors if not tensor.everywhere]

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """How it may be cut in layers that are not decoupled."""
        return (Cut.ROWS, Cut.WHOLE) if self.inner is None else (Cut.ROWS, Cut.WHOLE, Cut.BLOCK, Cut.COLUMNS, Cut.GRID)

    @property
    def inner_columns(self) -> int:
        """Columns between its two products, in all."""
        return 0 if self.inner is None else self.inner.count * self.inner.unit

    @property
    def work_columns(self) -> int:
        """Columns that its computation needs at a time beside the stream."""
        return self.inner_columns


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


def product(name: str, shape: tuple[int, int], part: TensorUse, inner: Inner | None) -> tuple[Tensor, ...]:
    """Return a product's matrix and bias; the bias is as wide as its result, and only inner columns are shared out."""
    bias = (shape[:1], part, inner) if part is TensorUse.INTO else (shape[1:], part)
    return Tensor(f"{name}/weight", shape, part, inner), Tensor(f"{name}/bias", *bias)


def norm_tensors(name: str, width: int) -> tuple[Tensor, ...]:
    """Return a norm's scale and shift."""
    return tuple(Tensor(f"{name}/{vector}", (width,), TensorUse.NORM) for vector in ("weight", "bias"))


def one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not one of those allowed."""
    if value not in allowed:
        raise HeptiError(f"{field} {value!r} is not one of {', '.join(allowed)}")
