"""Multi-head attention of an encoder: every row attends to all rows of its request."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from solver.base.errors import HeptiError
from solver.model.blocks import Axis, Block, Inner, Tensor, TensorUse, norm_tensors, product


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Block):
    """Q, K and V by heads, scores and context, and the product of the context; its heads, A, can be shared out."""

    name: ClassVar[str] = "attention"
    inner_key: ClassVar[str] = "heads"
    inputs_first: ClassVar[tuple[str, ...]] = ("attention/output/weight",)
    heads: int
    buckets: int = 0  # of distances between rows, each with a number that a head adds to scores (MPNet); 0: none is

    def check(self) -> None:
        """Refuse widths that fit nothing."""
        Block.check(self)
        if self.hidden % self.heads:
            raise HeptiError(f"hidden {self.hidden} is not a multiple of heads {self.heads}")

    @property
    def head_dim(self) -> int:
        """Head width d."""
        return self.hidden // self.heads

    @property
    def inner(self) -> Inner:
        """Heads, each of d columns."""
        return Inner(Axis.HEADS, Axis.CONTEXT, self.heads, self.head_dim)

    @property
    def work_columns(self) -> int:
        """Q, K, V and context."""
        return 4 * self.hidden

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Q, K, V, output and norm, and what distances add."""
        return _tensors(self.hidden, self.inner, self.buckets)


@cache
def _tensors(H: int, heads: Inner, buckets: int) -> tuple[Tensor, ...]:
    into = [product(f"attention/{name}", (H, H), TensorUse.INTO, heads) for name in ("query", "key", "value")]
    out = product("attention/output", (H, H), TensorUse.OUT, heads)
    # A vector, which all have who take part: it is small, and goes with no heads of a file.
    relative = [Tensor("attention/relative", (heads.count * buckets,), TensorUse.RELATIVE)] if buckets else []
    return (*sum(into, ()), *out, *norm_tensors("attention/norm", H), *relative)
