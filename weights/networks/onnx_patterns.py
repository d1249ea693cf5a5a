"""Several nodes that are one of another kind: what exporters write where ONNX, or our form, has a word for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.model.convnet import Node
from solver.model.kinds.operator import BROADCAST, UNARY
from weights.networks.onnx_file import OnnxNode
from weights.networks.onnx_reading import OpaqueError, Reading

_MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten")  # that put numbers in another order, at most
_SHAPES = ("Reshape", "Squeeze", "Unsqueeze")

Order = NDArray[Any]  # of numbers: which one is where


def moved_pixels(reading: Reading, node: OnnxNode) -> None:
    """Write a run of reshapes and transposes that moves pixels into channels, or back."""
    if node.op not in _MOVES:
        raise OpaqueError
    value = reading.value(node)
    shape = (1, *reading.shapes[value])
    order: Order = np.arange(math.prod(shape)).reshape(shape)
    run: list[OnnxNode] = []
    follower: OnnxNode | None = node
    while follower is not None:
        order = _moved(reading, follower, order)
        run.append(follower)
        found = _as_one(order, shape) if order.ndim == 4 and order.shape[0] == 1 else None
        if found is not None:
            op, attributes = found
            reading.write(node, op, [value], run[-1].outputs[0], **attributes)
            reading.done.update(one.outputs[0] for one in run)
            return
        output = follower.outputs[0]
        behind = reading.followers[output]
        only = len(behind) == 1 and behind[0].op in _MOVES and not reading.is_output(output)
        follower = behind[0] if only else None
    raise OpaqueError


def _moved(reading: Reading, node: OnnxNode, order: Order) -> Order:
    if node.op == "Transpose":
        return order.transpose(node.attributes.get("perm", range(order.ndim)[::-1]))
    return order.reshape(reading.graph.shapes[node.outputs[0]])


def _as_one(order: Order, shape: Sequence[int]) -> tuple[str, dict[str, Any]] | None:
    """Return the operator that puts numbers of a shape [1, C, H, W] into this order."""
    _, channels, height, width = shape
    _, deep, high, wide = order.shape
    original = np.arange(math.prod(shape))
    if height % high == 0 and (size := height // high) > 1 and (high * size, wide * size) == (height, width):
        parts = original.reshape(1, channels, high, size, wide, size)
        if np.array_equal(parts.transpose(0, 3, 5, 1, 2, 4).reshape(order.shape), order):
            return "SpaceToDepth", {"blocksize": size}
    if high % height == 0 and (size := high // height) > 1 and (deep * size**2, wide) == (channels, width * size):
        rows = original.reshape(1, size, size, deep, height, width).transpose(0, 3, 4, 1, 5, 2)
        columns = original.reshape(1, deep, size, size, height, width).transpose(0, 1, 4, 2, 5, 3)
        for mode, parts in (("DCR", rows), ("CRD", columns)):
            if np.array_equal(parts.reshape(order.shape), order):
                return "DepthToSpace", {"blocksize": size, "mode": mode}
    return None


def vector_as_map(reading: Reading, node: OnnxNode) -> None:
    """Write what is computed of a vector [C], and then reshaped to [C, 1, 1], as convolutions of a map of one pixel.

    So the matrices of a squeeze-and-excitation block end no row part.
    """
    if node.op not in _SHAPES:
        raise OpaqueError
    value = reading.value(node, ranks=(1,))
    if reading.shape(node.outputs[0]) != (*reading.shapes[value], 1, 1):
        raise OpaqueError
    reading.same(node.outputs[0], _one_pixel(reading, value))


def _one_pixel(reading: Reading, value: str) -> str:
    """Return a value [C, 1, 1] of the same numbers as one [C]."""
    node = reading.made.get(value)
    if node is None:
        raise OpaqueError
    if node.op == "Flatten":
        before = node.inputs[0]
        if reading.shapes[before] != (*reading.shapes[value], 1, 1):
            raise OpaqueError
        return before
    if node.op not in ("Gemm", "Concat", "Slice", *UNARY, *BROADCAST):
        raise OpaqueError
    attributes = dict(node.attributes)
    inputs = [
        _one_pixel(reading, name) if name in reading.shapes else _tensor(reading, node, name) for name in node.inputs
    ]
    op = node.op
    if op == "Gemm":
        op = "Conv"
        attributes = {
            "group": 1, "kernel_shape": [1, 1], "strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0],
        }  # fmt: skip
    return reading.write_copy(node, op, inputs, (*reading.shapes[value], 1, 1), attributes)


def _tensor(reading: Reading, node: Node, name: str) -> str:
    """Return a tensor as a map of one pixel needs it: a matrix as 1 × 1 kernels, a vector with rows and columns."""
    tensor = reading.tensors[name]
    if tensor.ndim == 2 or (node.op not in ("Gemm", "BatchNormalization")):
        return reading.tensor(name, tensor[..., None, None])
    return name


def broadcast(reading: Reading, node: OnnxNode) -> None:
    """Leave an Expand out where what follows makes a value of one pixel as large as the other anyway."""
    if node.op != "Expand" or reading.is_output(node.outputs[0]):
        raise OpaqueError
    value = reading.value(node)
    output = node.outputs[0]
    for follower in reading.followers[output]:
        others = [name for name in follower.inputs if name != output]
        shapes = [reading.graph.shapes.get(name) for name in others]
        if follower.op not in BROADCAST or reading.graph.shapes[output] not in shapes:
            raise OpaqueError
    reading.same(output, value)


def across_channels(reading: Reading, node: OnnxNode) -> None:
    """Write a local response normalisation as x / (k + a/n sum x²)^b, the sum a convolution 1 × 1."""
    if node.op != "LRN":
        raise OpaqueError
    value, have = reading.value(node), node.attributes
    shape = reading.shapes[value]
    count, size = shape[0], int(have["size"])
    places = np.arange(count)
    distance = places[None] - places[:, None]  # of the channel that is added from that which it is added to
    band = (distance >= -((size - 1) // 2)) & (distance <= size // 2)
    weight = (band * np.float32(have.get("alpha", 1e-4) / size)).astype(np.float32)[..., None, None]
    output = node.outputs[0]
    names = [
        reading.tensor(f"{output}/{role}", tensor)
        for role, tensor in (
            ("weight", weight),
            ("bias", np.full(count, have.get("bias", 1.0), np.float32)),
            ("power", np.full((1, 1, 1), have.get("beta", 0.75), np.float32)),
        )
    ]
    squares = reading.write_between(node, "Mul", [value, value], shape)
    window = {"kernel_shape": [1, 1], "strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0]}
    sums = reading.write_between(node, "Conv", [squares, *names[:2]], shape, group=1, **window)
    power = reading.write_between(node, "Pow", [sums, names[2]], shape)
    reading.write(node, "Div", [value, power])


# Each writes a node, and perhaps those after it, or raises `OpaqueError`.
PATTERNS: Sequence[Callable[[Reading, OnnxNode], None]] = (moved_pixels, vector_as_map, broadcast, across_channels)
