"""A run of parts as one onnxruntime graph: what every kind of block adds its nodes to.

Rows of the stream are [batch, rows, H], whatever they are made of. Values that come from before the run are inputs,
and those that are read after it outputs: an exchange of summands stands between two graphs, and one graph serves any
number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from hepti_mpi.kernels.blocks import Blocks
from hepti_mpi.kernels.kinds.block_nodes import block_node, constants_of, give_back_unread
from hepti_mpi.kernels.kinds.held import Matrix, TensorSource, rows_of
from hepti_mpi.kernels.ort import ACTIVATIONS, CONTRIBUTED, Session, make_session
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span
from solver.model.kinds.part import Part, PartTensor, RankRegion, Value
from solver.model.kinds.weight import BLOCK

OPSET = 18


@dataclass(slots=True)
class PartGraph:
    """A graph as it comes together.

    Parameters
    ----------
    source
        Of the weights.
    leaves
        The names of the values that come out of it.
    cache
        What keys and values are kept in: float32 or int8.
    """

    source: TensorSource
    leaves: frozenset[str]
    cache: str = "float32"
    nodes: list[NodeProto] = field(default_factory=list)
    small: list[TensorProto] = field(default_factory=list)
    large: dict[str, Numbers] = field(default_factory=dict)
    blocks: dict[str, Blocks] = field(default_factory=dict)  # by the product
    inputs: list[ValueInfoProto] = field(default_factory=list)
    outputs: list[ValueInfoProto] = field(default_factory=list)
    made: set[str] = field(default_factory=set)  # values that have nodes
    sums: dict[str, tuple[str, str, Array | None]] = field(default_factory=dict)  # of the stream, without nodes yet
    normed: dict[tuple[str, ...], str] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)  # of an attention: its queries, keys, values and contexts

    def takes(self, name: str, shape: Sequence[Any], kind: int = TensorProto.FLOAT) -> str:
        """Add an input, once."""
        if all(own.name != name for own in self.inputs):
            self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def gives(self, name: str, shape: Sequence[Any], kind: int = TensorProto.FLOAT) -> str:
        """Add an output."""
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, name: str, array: Numbers) -> str:
        """Add a small constant."""
        self.small.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, op: str, inputs: Sequence[str], outputs: str | Sequence[str], domain: str = "", **facts: Any) -> str:
        """Add a node; return its first output."""
        names = [outputs] if isinstance(outputs, str) else [*outputs]
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **facts))
        return names[0]

    def value(self, value: Value) -> str:
        """Return a value that a part reads: an input where no part of this graph makes it."""
        if value.name in self.sums:
            x, s, bias = self.sums.pop(value.name)
            if bias is not None:
                s = self.node("Add", [s, self.constant(f"{value.name}.bias", bias)], f"{value.name}.biased")
            self.node("Add", [x, s], value.name)
            self.made.add(value.name)
        if value.name not in self.made:
            self.takes(value.name, ["batch", "rows", f"{value.name} columns"])
        return value.name

    def tensor(self, part: Part, leaf: str) -> PartTensor | None:
        """Return a tensor of a part; None where it has none of this name."""
        return next((tensor for tensor in part.tensors if tensor.leaf == leaf), None)

    def matrix(self, part: Part, leaf: str, region: RankRegion) -> Matrix:
        """Return what a rank has of a matrix."""
        tensor = self.tensor(part, leaf)
        assert tensor is not None
        return self.source.matrix(tensor, rows_of(tensor, region))

    def vector(self, part: Part, leaf: str, region: RankRegion) -> Array | None:
        """Return what a rank has of a vector; None where the part has none."""
        tensor = self.tensor(part, leaf)
        return None if tensor is None else self.source.vector(tensor, rows_of(tensor, region))

    def product(self, x: str, y: str, matrix: Matrix, bias: Array | None = None) -> str:
        """Add y = x · matrix + bias."""
        if isinstance(matrix, Blocks):
            symmetric = y if matrix.minima is None else f"{y}.symmetric"
            self.blocks[symmetric] = matrix
            biases = [] if bias is None else [self.constant(f"{y}.bias", bias)]
            self.nodes.append(block_node(matrix, x, symmetric, biases))
            return y if matrix.minima is None else self._with_minima(x, y, symmetric, matrix.minima, matrix.summed)
        # As it lies: a copy of the head's matrix the other way round was half of what its graph took to make.
        transposed = not matrix.flags.c_contiguous
        self.large[f"{y}.matrix"] = matrix.T if transposed else matrix
        product = y if bias is None else f"{y}.product"
        self.node("FusedMatMul", [x, f"{y}.matrix"], product, CONTRIBUTED, transB=int(transposed))
        return y if bias is None else self.node("Add", [product, self.constant(f"{y}.bias", bias)], y)

    def _with_minima(self, x: str, y: str, symmetric: str, minima: Numbers, summed: int) -> str:
        """Add to a product what minima make: of every block the sum of its numbers of x times its minimum."""
        sums, blocks = f"{x}.sums", -(-summed // BLOCK)
        if not any(sums in node.output for node in self.nodes):
            if missing := -summed % BLOCK:
                ends = self.constant(f"{x}.ends", np.array([0, 0, 0, 0, 0, missing], np.int64))
                x = self.node("Pad", [x, ends], f"{x}.filled")
            apart = self.constant(f"{sums}.shape", np.array([0, 0, blocks, BLOCK], np.int64))
            axis = self.constant(f"{sums}.axis", np.array([-1], np.int64))
            self.node("ReduceSum", [self.node("Reshape", [x, apart], f"{x}.apart"), axis], sums, keepdims=0)
        self.large[f"{y}.minima"] = minima
        return self.node("Add", [symmetric, self.node("MatMul", [sums, f"{y}.minima"], f"{y}.of_minima")], y)

    def columns(self, x: str, y: str, columns: Span) -> str:
        """Add some columns of x."""
        ends = (("from", columns.start), ("to", columns.stop), ("axis", -1))
        constants = [self.constant(f"{y}.{name}", np.array([n], np.int64)) for name, n in ends]
        return self.node("Slice", [x, *constants], y)

    def norm(self, x: str, y: str, part: Part, leaf: str) -> str:
        """Add the norm of the stream that a part has under this name; return x where it has none."""
        tensor = self.tensor(part, f"{leaf}/weight")
        if tensor is None:
            return x
        return self.scaled(x, y, self.source.vector(tensor, rows_of(tensor, {})), self.vector(part, f"{leaf}/bias", {}),
                           part.stream.eps)  # fmt: skip

    def scaled(self, x: str, y: str, weight: Array, shift: Array | None, eps: float) -> str:
        """Add a norm over the last axis; "rms" without a shift."""
        facts: dict[str, Any] = {"axis": -1, "epsilon": eps}
        scale = self.constant(f"{y}.weight", weight)
        if shift is None:
            return self.node("SimplifiedLayerNormalization", [x, scale], y, **facts)
        return self.node("LayerNormalization", [x, scale, self.constant(f"{y}.shift", shift)], y, **facts)

    def read(self, part: Part, leaf: str = "norm") -> str:
        """Return the rows of the stream that a part reads, normed where it has a norm of this name; once for all."""
        (value,) = part.reads
        weight = self.tensor(part, f"{leaf}/weight")
        if weight is None:
            return self.value(value)
        key = value.name, weight.name
        if key not in self.normed:
            self.normed[key] = self._read(part, value, leaf)
        return self.normed[key]

    def _read(self, part: Part, value: Value, leaf: str) -> str:
        y = f"{value.name}.normed"
        if value.name not in self.sums:
            return self.norm(self.value(value), y, part, leaf)
        # The sum and its norm are one node.
        x, s, bias = self.sums.pop(value.name)
        self.made.add(value.name)
        weight, shift = (self.vector(part, f"{leaf}/{end}", {}) for end in ("weight", "bias"))
        assert weight is not None
        op, inputs = "SkipSimplifiedLayerNormalization", [x, s, self.constant(f"{y}.weight", weight)]
        if shift is not None:
            op = "SkipLayerNormalization"
            inputs.append(self.constant(f"{y}.shift", shift))
        if bias is not None:
            inputs.append(self.constant(f"{y}.bias", bias))
        return self.node(op, inputs, [y, "", "", value.name], CONTRIBUTED, epsilon=part.stream.eps)

    def activated(self, activation: str, x: str, y: str) -> str:
        """Add an activation."""
        if activation == "silu":
            return self.node("QuickGelu", [x], y, CONTRIBUTED, alpha=1.0)
        operator, domain = ACTIVATIONS[activation]
        return self.node(operator, [x], y, domain)

    def session(self) -> Session:
        """Make the session, and give back what of the weights it does not read any more."""
        lent = {name: part.array for y, own in self.blocks.items() for name, part in constants_of(own, y).items()}
        session = make_session(
            self.nodes, self.inputs, self.outputs, self.small, self.large | lent, opset=OPSET, passes_memory_on=True,
            shares_constants=bool(lent),
        )  # fmt: skip
        for own in self.blocks.values():
            give_back_unread(own)
        return session


AddNodes = Callable[[PartGraph, Part, RankRegion], None]
