"""Kinds of blocks: which axis of each can be shared out, and which tensors it has.

Matrices lie so that the axis that ranks share out is the first: those of the first product as [out, in] (y = x Wᵀ),
that of the second as [in, out] (y = x W). Letters as in `solver.model.spec`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from solver.model.precision import FLOAT32, Precision


class Part(StrEnum):
    """Where in its block a tensor is used."""

    INTO = "into"  # the first product, which makes the inner columns
    OUT = "out"  # the second, which sums over them
    NORM = "norm"


@dataclass(frozen=True, slots=True)
class Axis:
    """What can be shared out: so many heads or columns, each of `unit` rows of a tensor."""

    name: str
    count: int
    unit: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a block."""

    name: str  # behind the prefix of its layer
    shape: tuple[int, ...]
    part: Part
    axis: Axis | None = None  # shares out the first dimension; None: who adds the residual needs all of it

    @property
    def summed(self) -> int | None:
        """The dimension that its product sums over; a vector has none."""
        return None if len(self.shape) == 1 else int(self.part is Part.INTO)

    def sublayer(self, norm: str) -> int:
        """Return which sub-layer of its block needs it, 0 or 1, where a model's norms are "pre" or "post"."""
        return int(self.part is Part.OUT or (self.part is Part.NORM and norm == "post"))

    def held_bytes(self, precision: Precision = FLOAT32, units: int | None = None, columns: int | None = None) -> int:
        """Return its bytes as held; those of so many units of its axis, or of so many columns, if one is given."""
        length = self.shape[0] if units is None or self.axis is None else units * self.axis.unit
        return precision.bytes_of((length, *(self.shape[1:] if columns is None else (columns,))), self.summed)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a layer."""

    name: str
    tensors: tuple[Tensor, ...]  # in file order

    @property
    def shared(self) -> list[Tensor]:
        """The tensors that ranks share out."""
        return [tensor for tensor in self.tensors if tensor.axis is not None]


@cache
def attention(H: int, heads: int) -> Block:
    """Return multi-head attention: Q, K and V by heads, and the product of the context."""
    axis = Axis("heads", heads, H // heads)
    into = [_product(f"attention/{name}", (H, H), Part.INTO, axis) for name in ("query", "key", "value")]
    out = _product("attention/output", (H, H), Part.OUT, axis)
    return Block("attention", (*sum(into, ()), *out, *_norm("attention/norm", H)))


@cache
def mlp(H: int, F: int) -> Block:
    """Return the feed-forward block: up, its activation, and down."""
    axis = Axis("ffn", F, 1)
    into, out = _product("mlp/up", (F, H), Part.INTO, axis), _product("mlp/down", (F, H), Part.OUT, axis)
    return Block("mlp", (*into, *out, *_norm("mlp/norm", H)))


def _product(name: str, shape: tuple[int, int], part: Part, axis: Axis) -> tuple[Tensor, ...]:
    """Return a product's matrix and bias; the bias is as wide as its result, and only inner columns are shared out."""
    bias = (shape[:1], part, axis) if part is Part.INTO else (shape[1:], part)
    return Tensor(f"{name}/weight", shape, part, axis), Tensor(f"{name}/bias", *bias)


def _norm(name: str, width: int) -> tuple[Tensor, ...]:
    return tuple(Tensor(f"{name}/{vector}", (width,), Part.NORM) for vector in ("weight", "bias"))


# Names, behind their layer's prefix, of the matrices that lie as [in, out].
INPUTS_FIRST = tuple(tensor.name for tensor in (*attention(1, 1).tensors, *mlp(1, 1).tensors) if tensor.summed == 0)
