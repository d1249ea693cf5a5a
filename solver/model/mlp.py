"""The feed-forward block: up, its activation, and down."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from solver.model.blocks import Axis, Block, Inner, Tensor, TensorUse, norm_tensors, one_of, product

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "tanh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp(Block):
    """Two products with an activation between them; the columns between them, F, can be shared out."""

    name: ClassVar[str] = "mlp"
    inner_key: ClassVar[str] = "ffn"
    inputs_first: ClassVar[tuple[str, ...]] = ("mlp/down/weight",)
    ffn: int
    activation: str = "gelu"

    def check(self) -> None:
        """Refuse widths that fit nothing."""
        Block.check(self)
        one_of("activation", self.activation, ACTIVATIONS)

    @property
    def inner(self) -> Inner:
        """Columns, one by one."""
        return Inner(Axis.FFN, Axis.OUTPUT, self.ffn)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Up, down and norm."""
        return _tensors(self.hidden, self.inner)


@cache
def _tensors(H: int, columns: Inner) -> tuple[Tensor, ...]:
    shape = (columns.count, H)
    into, out = product("mlp/up", shape, TensorUse.INTO, columns), product("mlp/down", shape, TensorUse.OUT, columns)
    return (*into, *out, *norm_tensors("mlp/norm", H))
