"""An ONNX graph that is being written in canonical form: what its names stand for, and what has been written."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.base.errors import HeptiError
from solver.model.convnet import Node
from solver.model.operators import VERBATIM
from weights.networks.onnx_file import Constant, OnnxGraph, OnnxNode
from weights.networks.onnx_rewrites import new_name


class OpaqueError(Exception):
    """A node is not used in the way that its canonical form says."""


class Reading:
    """A graph that is being written in canonical form.

    Attributes
    ----------
    nodes, shapes, tensors
        What has been written; shapes without the batch where a value has one.
    users, followers
        How many nodes and outputs use a value; and the nodes.
    made
        What has been written, by its output.
    done
        Outputs of nodes that have been written with one before them.
    """

    def __init__(self, path: Path, graph: OnnxGraph) -> None:
        self.path = path
        self.graph = graph
        self.nodes: list[Node] = []
        self.tensors: dict[str, NDArray[Any]] = {}
        self.users = Counter(name for node in graph.nodes for name in node.inputs if name)
        self.users.update(graph.outputs)
        self.followers: dict[str, list[OnnxNode]] = defaultdict(list)
        for node in graph.nodes:
            for name in dict.fromkeys(node.inputs):
                self.followers[name].append(node)
        self.done: set[str] = set()
        self.made: dict[str, Node] = {}
        self._same: dict[str, str] = {}
        self._names = {*graph.constants, *graph.shapes, *graph.dtypes}
        self.input = graph.input
        self.shapes: dict[str, tuple[int, ...]] = {self.input: graph.shapes[self.input][1:]}
        self._unbatched: set[str] = set()

    def resolved(self, name: str) -> str:
        """Return the value that a name stands for, nodes that do nothing left out."""
        return self._same.get(name, name)

    def value(self, node: OnnxNode, number: int = 0, ranks: Sequence[int] = (3,)) -> str:
        """Return an input that is a value [C, H, W], or of another of these ranks, of float32, one a batch."""
        name = self.resolved(node.inputs[number]) if number < len(node.inputs) else ""
        if not self.is_plain(name) or len(self.shapes[name]) not in ranks:
            raise OpaqueError
        return name

    def is_plain(self, name: str) -> bool:
        """Return whether a name is a value of float32 whose first dimension is the batch."""
        return name in self.shapes and name not in self._unbatched and self.dtype(name) == np.float32

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the type of a value."""
        return self.graph.dtypes.get(name, np.dtype(np.float32))

    def constant(self, node: OnnxNode, number: int) -> Constant | None:
        """Return an input that is constant; None where it is left out."""
        name = self.resolved(node.inputs[number]) if number < len(node.inputs) else ""
        if not name:
            return None
        if name not in self.graph.constants:
            raise OpaqueError
        return self.graph.constants[name]

    def numbers(self, node: OnnxNode, number: int, attribute: str) -> list[int] | None:
        """Return whole numbers that are an attribute in older opsets, and an input in newer ones."""
        if attribute in node.attributes:
            return [int(entry) for entry in node.attributes[attribute]]
        found = self.constant(node, number)
        return None if found is None else [int(entry) for entry in found.reshape(-1)]

    def shape(self, output: str) -> tuple[int, ...]:
        """Return the shape of an output, which must have a batch of 1, without it."""
        shape = self._whole_shape(output)
        if not shape or shape[0] != 1:
            raise OpaqueError
        return shape[1:]

    def same(self, name: str, as_name: str) -> None:
        """Let a node out that does nothing."""
        self._same[name] = as_name

    def is_output(self, name: str) -> bool:
        """Return whether a name is a result of the graph."""
        return name in self.graph.outputs

    def write(
        self, node: OnnxNode, op: str, inputs: Sequence[str], output: str | None = None, **attributes: Any
    ) -> None:
        """Write a node in canonical form."""
        output = output or node.outputs[0]
        self._add(node.name, op, inputs, output, self.shape(output), attributes)

    def write_between(
        self, node: OnnxNode, op: str, inputs: Sequence[str], shape: tuple[int, ...], **attributes: Any
    ) -> str:
        """Write a node in front of the last of those that one becomes; return its output."""
        output = self.unique(f"{node.outputs[0]}/{op}")
        self._add(self.unique(f"{node.name}/{op}"), op, inputs, output, shape, attributes)
        return output

    def spread(self, node: OnnxNode, name: str, rank: int) -> str:
        """Return one number that is computed as a value of this rank, which is then the same for all pixels."""
        is_number = name in self.shapes and math.prod(self.graph.shapes.get(name, (0,))) == 1
        if not is_number or self.dtype(name) != np.float32 or (self.is_plain(name) and len(self.shapes[name]) == rank):
            return name
        output = self.unique(f"{name}/spread")
        shape = self.tensor(f"shape of {rank}", np.ones(1 + rank, np.int64))
        facts = {"attributes": {}, "output": 0, "batch": True, "dtype": "float32"}
        self._add(self.unique(f"{node.name}/Reshape"), f"{VERBATIM}Reshape", [name, shape], output, (1,) * rank, facts)
        return output

    def write_copy(
        self, node: Node, op: str, inputs: Sequence[str], shape: tuple[int, ...], attributes: dict[str, Any]
    ) -> str:
        """Write a node that has been written once more, as another operator; return its output."""
        output = self.unique(f"{node.output}/{op}")
        self._add(self.unique(f"{node.name}/{op}"), op, inputs, output, shape, attributes)
        return output

    def tensor(self, name: str, array: Constant) -> str:
        """Keep a tensor of weights; return its name: that of the file, unless it is used in several forms."""
        array = np.array(array, order="C")  # a scalar stays one
        for known in (name, f"{name}/{'x'.join(map(str, array.shape))}"):
            if known in self.tensors and _equal(self.tensors[known], array):
                return known
        if name in self.tensors:
            name = self.unique(f"{name}/{'x'.join(map(str, array.shape))}")
        self.tensors[name] = array
        return name

    def unique(self, name: str) -> str:
        """Return a name that nothing has."""
        return new_name(name, self._names)

    def slice(self, name: str, value: str, output: str, axis: int, start: int, stop: int) -> None:
        """Write a slice of a value; of channels in canonical form."""
        rank = len(self._whole_shape(output))
        axis %= rank
        if self.is_plain(value) and axis == 1 and rank in (2, 4):
            attributes = {"start": start, "stop": stop}
            self._add(name, "Slice", [value], output, self.shape(output), attributes)
            return
        bounds = [self.tensor(f"number {number}", np.array([number], np.int64)) for number in (start, stop, axis)]
        self._add_verbatim(name, "Slice", [value, *bounds], output, {}, 0)

    def verbatim(self, node: OnnxNode, used: Sequence[int]) -> None:
        """Keep a node as it is; one whose outputs are used, once for each.

        Raises
        ------
        HeptiError
            If it has graphs within, or constants of a kind that is not stored.
        """
        for key, attribute in node.attributes.items():
            if not _is_json(attribute):
                raise HeptiError(f"{self.path}: node {node.name} is {node.op}, whose {key} cannot be kept")
        inputs = []
        for name in map(self.resolved, node.inputs):
            if name in self.graph.constants:
                constant = self.graph.constants[name]
                if constant.dtype != np.float32 and constant.dtype.kind not in "iub":
                    raise HeptiError(f"{self.path}: node {node.name} is {node.op} with a constant of {constant.dtype}")
                inputs.append(self.tensor(name, constant) if constant.size else "")
            else:
                inputs.append(name)
        for number in used:
            name = node.name if number == used[0] else self.unique(f"{node.name}/{node.outputs[number]}")
            self._add_verbatim(name, node.op, inputs, node.outputs[number], node.attributes, number, len(node.outputs))

    def _add_verbatim(
        self,
        name: str,
        op: str,
        inputs: Sequence[str],
        output: str,
        attributes: Mapping[str, Any],
        number: int,
        count: int = 1,
    ) -> None:
        shape = self._whole_shape(output, name)
        batched = bool(shape) and shape[0] == 1
        if not batched:
            self._unbatched.add(output)
        facts = {
            "attributes": dict(attributes),
            "output": number,
            "outputs": count,
            "batch": batched,
            "dtype": self.dtype(output).name,
        }
        self._add(name, f"{VERBATIM}{op}", inputs, output, shape[1:] if batched else shape, facts)

    def _add(
        self, name: str, op: str, inputs: Sequence[str], output: str, shape: tuple[int, ...], attributes: dict[str, Any]
    ) -> None:
        if 0 in shape:
            raise HeptiError(f"{self.path}: node {name} makes nothing of an image of this size: {list(shape)}")
        self.made[output] = Node(name, op, tuple(inputs), output, attributes)
        self.nodes.append(self.made[output])
        self.shapes[output] = shape

    def _whole_shape(self, output: str, node: str = "") -> tuple[int, ...]:
        if output not in self.graph.shapes:
            where = f"node {node}: " if node else ""
            raise HeptiError(f"{self.path}: {where}the shape of {output} is known only when it is computed: cut it off")
        return self.graph.shapes[output]


def _equal(one: Constant, other: Constant) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and np.array_equal(one, other)


def _is_json(value: Any) -> bool:
    return isinstance(value, str | int | float) or (isinstance(value, list) and all(map(_is_json, value)))
