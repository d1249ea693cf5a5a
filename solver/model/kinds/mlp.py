"""The MLP: two products with an activation between, gated or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from solver.model.blocks import Axis, BlockKind, Inner, one_of
from solver.model.kinds.part import FFN, HIDDEN, ROW, Part, PartTensor, Residual, TensorUse, Value
from solver.model.kinds.weight import Weight

ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu", "tanh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp(BlockKind):
    """down(activation(gate(x)) * up(x)), or without a gate down(activation(up(x)))."""

    name: ClassVar[str] = "mlp"
    curve: ClassVar[str] = "mlp"
    axis: ClassVar[str] = FFN

    ffn: int  # F
    activation: str = "silu"
    gated: bool = True
    bias: bool = False

    @property
    def inner(self) -> Inner:
        """Columns, one by one."""
        return Inner(Axis.FFN, Axis.OUTPUT, self.ffn)

    def resized(self, total: int) -> Self:
        """Return such an MLP of so many columns."""
        return replace(self, ffn=total)

    def made_columns(self, units: Mapping[str, int]) -> int:
        """Return those of gate and up."""
        return (1 + self.gated) * units[FFN]

    def check(self) -> None:
        """Refuse an activation that is none."""
        BlockKind.check(self)
        one_of("activation", self.activation, ACTIVATIONS)

    def tensors(self, name: str, stream: Residual) -> dict[str, PartTensor]:
        """Return its tensors by their leaves, in file order; most are cut by columns."""
        H, found = stream.hidden, list[PartTensor]()
        for leaf in ("gate", "up") if self.gated else ("up",):
            found.append(PartTensor(f"{name}/{leaf}/weight", Weight((self.ffn, H), 1), TensorUse.INTO, FFN, self.ffn))
            if self.bias:
                found.append(PartTensor(f"{name}/{leaf}/bias", Weight((self.ffn,)), TensorUse.INTO, FFN, self.ffn))
        found.append(PartTensor(f"{name}/down/weight", Weight((self.ffn, H), 0), TensorUse.OUT, FFN, self.ffn))
        if self.bias:
            found.append(PartTensor(f"{name}/down/bias", Weight((H,)), TensorUse.OUT))
        return stream.with_norms(name, found)

    def parts(self, name: str, stream: Residual, x: Value) -> tuple[Part, ...]:
        """Return the parts of an MLP that reads rows of the stream."""
        rows, tensors, before = x.shape[0], self.tensors(name, stream), ("norm",) * stream.pre_norms
        inner = Value(f"{name}/inner", (ROW, FFN), (rows, self.ffn))
        into = tuple(tensor for leaf, tensor in tensors.items() if leaf.partition("/")[0] in (*before, "gate", "up"))
        columns = {ROW: rows, FFN: self.ffn}
        return (
            Part(f"{name}/up", self, stream, "up", columns, (x,), inner, into),
            Part(f"{name}/down", self, stream, "down", columns | {HIDDEN: x.shape[1]}, (inner,),
                 stream.value(name, rows), (tensors["down/weight"],), cut=True),
        )  # fmt: skip
