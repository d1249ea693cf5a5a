"""From an ONNX file to a `ConvNet`: every operator in the one form that plans and kernels know.

A node that is used in a way that passes rows on (`solver.model.operators`) becomes a node of that operator, its small
constants attributes. Any other becomes `Verbatim:NAME`, which one rank computes: with all of its inputs, its own
attributes, and what is unusual about its output.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.base.errors import HeptiError
from solver.model.convnet import ConvNet, Node, bytes_as_they_are
from solver.model.operators import in_levels
from weights.networks.onnx_file import OnnxNode, read_graph
from weights.networks.onnx_operators import CANONICAL
from weights.networks.onnx_patterns import PATTERNS
from weights.networks.onnx_reading import OpaqueError, Reading

Tensors = dict[str, NDArray[Any]]


def read_onnx(path: Path, size: tuple[int, int] | None = None) -> tuple[ConvNet, Tensors]:
    """Read a convolutional network.

    Parameters
    ----------
    path
        An ONNX file.
    size
        Height and width of the image, where the file leaves them open.

    Returns
    -------
    network, tensors by name

    Raises
    ------
    HeptiError
        If the file is damaged, or something in it cannot be computed; the line names the node.
    """
    graph = read_graph(path, size)
    reading = Reading(path, graph)
    for node in graph.nodes:
        _read(reading, node)
    outputs = tuple(reading.resolved(name) for name in graph.outputs)
    for name, output in zip(graph.outputs, outputs, strict=True):
        if output not in reading.shapes:
            raise HeptiError(f"{path}: output {name} does not depend on the image")
    nodes = _used(reading.nodes, outputs)
    if not nodes:
        raise HeptiError(f"{path} computes nothing of the image")
    names = {name for node in nodes for name in node.inputs}
    tensors = {name: tensor for name, tensor in reading.tensors.items() if name in names}
    for name, tensor in tensors.items():
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            raise HeptiError(f"{path}: tensor {name} has NaN or infinite values")
    values = {reading.input, *(node.output for node in nodes)}
    channels = reading.shapes[reading.input][0]
    net = ConvNet(
        name=graph.name,
        input=reading.input,
        outputs=outputs,
        nodes=nodes,
        shapes={name: shape for name, shape in reading.shapes.items() if name in values},
        tensors={name: tensor.shape for name, tensor in tensors.items()},
        opset=graph.opset,
        picture=bytes_as_they_are(channels) if graph.bytes_in else None,
        notes=graph.notes,
    )
    return in_levels(net), tensors


def _read(reading: Reading, node: OnnxNode) -> None:
    """Write a node in its canonical form; one that has none, or is not used so, as it is."""
    if node.outputs[0] in reading.done:
        return
    used = [number for number, output in enumerate(node.outputs) if reading.users[output]]
    if not used:
        return
    if node.op == "Split":
        _split(reading, node)
        return
    ways = [CANONICAL[node.op], *PATTERNS] if node.op in CANONICAL else PATTERNS
    for write in ways if used == [0] else ():
        try:
            write(reading, node)
            return
        except OpaqueError:
            continue
    reading.verbatim(node, used)


def _split(reading: Reading, node: OnnxNode) -> None:
    """Write a split as slices."""
    value = reading.resolved(node.inputs[0])
    axis = int(node.attributes.get("axis", 0))
    stops = list(itertools.accumulate(reading.graph.shapes[output][axis] for output in node.outputs))
    for output, stop in zip(node.outputs, stops, strict=True):
        if reading.users[output]:
            start = stop - reading.graph.shapes[output][axis]
            reading.slice(f"{node.name}/{output}", value, output, axis, start, stop)


def _used(nodes: Sequence[Node], outputs: Sequence[str]) -> tuple[Node, ...]:
    """Return the nodes that the outputs depend on."""
    wanted, found = set(outputs), []
    for node in reversed(nodes):
        if node.output in wanted:
            wanted |= set(node.inputs)
            found.append(node)
    return tuple(reversed(found))
