"""The MLP of a language model: two products with an activation between, gated or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from solver.model.blocks import one_of
from solver.model.kinds.part import FFN, HIDDEN, ROW, Part, PartTensor, Residual, Value
from solver.model.kinds.weight import Weight

ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedMlp:
    """down(activation(gate(x)) * up(x)), or without a gate down(activation(up(x)))."""

    curve: ClassVar[str] = "mlp"

    ffn: int  # F
    activation: str = "silu"
    gated: bool = True
    bias: bool = False

    def check(self) -> None:
        """Refuse an activation that is none."""
        one_of("activation", self.activation, ACTIVATIONS)

    def tensors(self, name: str, stream: Residual) -> dict[str, PartTensor]:
        """Return its tensors by their leaves, in file order; columns share out most of them."""
        H, found = stream.hidden, stream.norm_tensors(f"{name}/norm") if stream.pre_norms else []
        for leaf in ("gate", "up") if self.gated else ("up",):
            found.append(PartTensor(f"{name}/{leaf}/weight", Weight((self.ffn, H), 1), FFN, self.ffn))
            if self.bias:
                found.append(PartTensor(f"{name}/{leaf}/bias", Weight((self.ffn,)), FFN, self.ffn))
        found.append(PartTensor(f"{name}/down/weight", Weight((self.ffn, H), 0), FFN, self.ffn))
        if self.bias:
            found.append(PartTensor(f"{name}/down/bias", Weight((H,))))
        found += stream.norm_tensors(f"{name}/post_norm") if stream.post_norms else []
        return {tensor.leaf: tensor for tensor in found}

    def parts(self, name: str, stream: Residual, x: Value) -> tuple[Part, ...]:
        """Return the parts of an MLP that reads rows of the stream."""
        rows, tensors = x.shape[0], self.tensors(name, stream)
        inner = Value(f"{name}/inner", (ROW, FFN), (rows, self.ffn))
        into = tuple(tensor for leaf, tensor in tensors.items() if leaf.partition("/")[0] in ("norm", "gate", "up"))
        columns = {ROW: rows, FFN: self.ffn}
        return (
            Part(f"{name}/up", self, stream, "up", columns, (x,), inner, into),
            Part(f"{name}/down", self, stream, "down", columns | {HIDDEN: x.shape[1]}, (inner,),
                 stream.value(name, rows), (tensors["down/weight"],)),
        )  # fmt: skip
