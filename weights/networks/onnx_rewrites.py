"""Operators of ONNX that are written with simpler ones, before anything is folded: normalisations over rows.

A `Rewriter` goes through a graph once; what it has no rule for stays as it is. The rules for quantised operators are in
`onnx_quantised.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from solver.base.arrays import Numbers
from solver.base.errors import HeptiError

# Operators that put numbers elsewhere, or choose among them: of whole numbers they make whole numbers.
KEEP_WHOLE = (
    "MaxPool", "Reshape", "Transpose", "Concat", "Split", "Slice", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Pad",
    "Clip", "Relu", "Gather", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Max", "Min", "Add", "Sub", "Mul",
    "Where", "GlobalMaxPool",
)  # fmt: skip
_SHAPED = {"Reshape": 1, "Expand": 1, "Tile": 1, "Squeeze": 1, "Unsqueeze": 1, "Slice": 1, "Gather": 1, "Split": 1}
_WHOLE = (np.int8, np.uint8, np.int16, np.uint16, np.int32)


def new_name(name: str, taken: set[str]) -> str:
    """Return a name that nothing has, which is taken from now on: this one, or with a number after it."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}/{number}"
    taken.add(found)
    return found


class Rewriter:
    """A graph whose nodes are being written anew.

    Parameters
    ----------
    path
        For errors.
    model
        It is changed by `run`.
    whole
        Values that are whole numbers in the file, and float32 from here on: pixels.

    Attributes
    ----------
    constants
        By name, also those that nodes are.
    shapes
        As far as they are known; None is an open size.
    makers, users
        Which node makes a value, and how many nodes and outputs use it.
    whole
        Values that are float32 and were of whole numbers in the file.
    rounded
        Names of nodes whose sums may pass 2^24, from where float32 leaves whole numbers out.
    """

    def __init__(self, path: Path, model: onnx.ModelProto, whole: Sequence[str] = ()) -> None:
        self.path, self.model, self.whole = path, model, set(whole)
        self.opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
        graph = model.graph
        self.constants: dict[str, Numbers] = {}
        for tensor in graph.initializer:
            self.constants[tensor.name] = numpy_helper.to_array(tensor)
        for node in graph.node:
            value = next((entry.t for entry in node.attribute if entry.name == "value"), None)
            if node.op_type == "Constant" and value is not None:
                self.constants[node.output[0]] = numpy_helper.to_array(value)
        self.makers = {output: node for node in graph.node for output in node.output}
        self.users = Counter(name for node in graph.node for name in node.input)
        self.users.update(value.name for value in graph.output)
        self.followers = {name: node for node in graph.node for name in node.input}
        self.shapes = _shapes(model)
        self.rounded: list[str] = []
        self.changed = False
        self.skipped: set[str] = set()  # outputs of nodes that one before them has become
        self._nodes: list[onnx.NodeProto] = []
        self._names = {*self.constants, *self.makers, *(value.name for value in graph.input)}
        self._node: onnx.NodeProto = graph.node[0]

    def run(self, rules: Mapping[str, Rewrite]) -> None:
        """Write all nodes anew for which there is a rule, by their operator, and domain where it is not ONNX's own."""
        for node in self.model.graph.node:
            if node.output[0] in self.skipped:
                continue
            self._node = node
            domain = "" if node.domain in ("", "ai.onnx") else f"{node.domain}."
            rule = rules.get(domain + node.op_type)
            if rule is not None and rule(self, node):
                self.changed = True
            else:
                self._nodes.append(self._with_whole_inputs(node))
        del self.model.graph.node[:]
        self.model.graph.node.extend(self._nodes)

    def _with_whole_inputs(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Return a node that stays, with constants of whole numbers as float32 beside values that are so now."""
        if node.op_type not in KEEP_WHOLE or node.domain not in ("", "ai.onnx"):
            return node
        last = _SHAPED.get(node.op_type, len(node.input))
        inputs = [name for name in node.input[:last] if name]
        if not any(name in self.whole for name in inputs):
            return node
        self.whole.update(node.output)
        given = [
            self.number(self.constants[name], name)
            if number < last and name in self.constants and self.constants[name].dtype.type in _WHOLE
            and not (node.op_type == "Pad" and number in (1, 3))
            else name
            for number, name in enumerate(node.input)
        ]  # fmt: skip
        del node.input[:]
        node.input.extend(given)
        return node

    def add(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add a node; return its output."""
        output = output or self.unique(f"{self._node.output[0]}/{op}")
        name = self._node.name or self._node.output[0]
        named = name if output == self._node.output[0] else self.unique(f"{name}/{op}")
        self._nodes.append(helper.make_node(op, inputs, [output], named, **attributes))
        return output

    def number(self, value: Any, role: str = "number") -> str:
        """Add a constant of float32; return its name."""
        return self.constant(np.asarray(value).astype(np.float32), role)

    def constant(self, array: Numbers, role: str = "constant") -> str:
        """Add a constant; return its name."""
        name = self.unique(f"{self._node.output[0]}/{role}")
        self.constants[name] = array
        self.model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def unique(self, name: str) -> str:
        """Return a name that nothing has."""
        return new_name(name, self._names)

    def given(self, node: onnx.NodeProto, number: int) -> str:
        """Return the name of an input, "" where it is left out."""
        return node.input[number] if number < len(node.input) else ""

    def needed(self, node: onnx.NodeProto, number: int) -> Numbers:
        """Return an input that must be constant.

        Raises
        ------
        HeptiError
            If it is computed.
        """
        name = self.given(node, number)
        if name not in self.constants:
            raise self.refusal(node, f"its input {name or number} is computed, it must be constant")
        return self.constants[name]

    def refusal(self, node: onnx.NodeProto, why: str) -> HeptiError:
        """Return the error that says why a node cannot be computed."""
        return HeptiError(f"{self.path}: node {node.name or node.output[0]} is {node.op_type}: {why}")

    def attributes(self, node: onnx.NodeProto) -> dict[str, Any]:
        """Return a node's attributes."""
        return {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}


Rewrite = Callable[[Rewriter, onnx.NodeProto], bool]  # writes a node, or returns False where it stays as it is


def _shapes(model: onnx.ModelProto) -> dict[str, list[int | None]]:
    """Return the shapes of values, as far as they can be known now."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # what is wrong is said when the graph is folded
        inferred = model
    graph = inferred.graph
    return {
        value.name: [
            dim.dim_value if dim.HasField("dim_value") else None for dim in value.type.tensor_type.shape.dim
        ]
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }  # fmt: skip


def _instance_norm(write: Rewriter, node: onnx.NodeProto) -> bool:
    """Write it as means over rows, which ranks can add up."""
    names = [write.given(node, number) for number in range(3)]
    if len(write.shapes.get(names[0], ())) != 4 or any(name not in write.constants for name in names[1:]):
        return False
    scale, bias = (write.constants[name] for name in names[1:])
    _normalise(write, node, names[0], scale, bias, groups=None)
    return True


def _variance_norm(write: Rewriter, node: onnx.NodeProto) -> bool:
    """Write (x - mean) / (deviation + 1e-9) of every channel; over other axes it stays."""
    axes = list(write.attributes(node).get("axes", (0, 2, 3)))
    if len(write.shapes.get(node.input[0], ())) != 4 or axes != [0, 2, 3]:
        return False
    apart = write.add("Sub", [node.input[0], write.add("GlobalAveragePool", [node.input[0]])])
    deviation = write.add("Sqrt", [write.add("GlobalAveragePool", [write.add("Mul", [apart, apart])])])
    write.add("Div", [apart, write.add("Add", [deviation, write.number(1e-9, "epsilon")])], node.output[0])
    return True


def _group_norm(write: Rewriter, node: onnx.NodeProto) -> bool:
    """Write it so, too; until opset 20 scale and bias are of groups, then of channels."""
    names = [write.given(node, number) for number in range(3)]
    shape = write.shapes.get(names[0], ())
    if len(shape) != 4 or shape[1] is None or any(name not in write.constants for name in names[1:]):
        return False
    groups = int(write.attributes(node)["num_groups"])
    if shape[1] % groups:
        raise write.refusal(node, f"it has {groups} groups, its input {shape[1]} channels")
    scale, bias = (np.repeat(own, shape[1] // own.size) for own in (write.constants[name] for name in names[1:]))
    _normalise(write, node, names[0], scale, bias, groups=groups)
    return True


def _normalise(
    write: Rewriter, node: onnx.NodeProto, value: str, scale: Numbers, bias: Numbers, groups: int | None
) -> None:
    """Write (x - mean) / sqrt(variance + epsilon) · scale + bias, over the pixels of channels or groups of them."""
    epsilon = float(write.attributes(node).get("epsilon", 1e-5))
    channels = scale.size

    def mean(of: str) -> str:
        pooled = write.add("GlobalAveragePool", [of])
        if groups is None or groups == channels:
            return pooled
        each = channels // groups
        spread = np.kron(np.eye(groups), np.ones((each, each)))[:, :, None, None] / each
        return write.add("Conv", [pooled, write.number(spread, "mean")])

    apart = write.add("Sub", [value, mean(value)])
    variance = write.add("Add", [mean(write.add("Mul", [apart, apart])), write.number(epsilon, "epsilon")])
    even = write.add("Div", [apart, write.add("Sqrt", [variance])])
    scaled = write.add("Mul", [even, write.number(scale.reshape(-1, 1, 1), "scale")])
    write.add("Add", [scaled, write.number(bias.reshape(-1, 1, 1), "bias")], node.output[0])


RULES: Mapping[str, Rewrite] = {
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "MeanVarianceNormalization": _variance_norm,
}
