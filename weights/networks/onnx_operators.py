"""The operators of ONNX that pass rows, channels or vectors on, each written in one canonical form.

A function here reads one node and writes it, or raises `OpaqueError` where it is used in a way that the form cannot
say; then it is kept verbatim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from solver.base.errors import HeptiError
from solver.model.convnet import Node
from solver.model.kinds.operator import UNARY
from weights.networks.onnx_file import Constant, OnnxNode
from weights.networks.onnx_reading import OpaqueError, Reading

LIMITS = np.finfo(np.float32)


def _require(condition: bool) -> None:
    if not condition:
        raise OpaqueError


def _floats(array: Constant) -> Constant:
    return array.astype(np.float32)


def _two(node: OnnxNode, name: str) -> list[int]:
    """Return an attribute of rows and columns, 1 where it is left out."""
    return [int(entry) for entry in node.attributes.get(name, (1, 1))]


def _pads(node: OnnxNode, entering: Sequence[int], leaving: Sequence[int], reach: Sequence[int]) -> list[int]:
    """Return [top, left, bottom, right] of a window that passes over rows and columns."""
    auto = node.attributes.get("auto_pad", "NOTSET")
    if auto == "NOTSET":
        return [int(entry) for entry in node.attributes.get("pads", (0, 0, 0, 0))]
    if auto == "VALID":
        return [0, 0, 0, 0]
    strides = _two(node, "strides")
    totals = [
        max((out - 1) * stride + window - into, 0)
        for into, out, stride, window in zip(entering, leaving, strides, reach, strict=True)
    ]
    small, large = [total // 2 for total in totals], [-(-total // 2) for total in totals]
    return [*small, *large] if auto == "SAME_UPPER" else [*large, *small]


def _window(reading: Reading, node: OnnxNode, value: str, kernel: Sequence[int]) -> dict[str, Any]:
    """Return the attributes of a window in full."""
    strides, dilations = _two(node, "strides"), _two(node, "dilations")
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    pads = _pads(node, reading.shapes[value][1:], reading.shape(node.outputs[0])[1:], reach)
    return {"kernel_shape": [int(size) for size in kernel], "strides": strides, "dilations": dilations, "pads": pads}


def _weights(reading: Reading, node: OnnxNode) -> tuple[Constant, list[str]]:
    """Return a convolution's weight, and the names of weight and bias."""
    names = [reading.resolved(name) for name in node.inputs[1:] if name]
    weight = reading.constant(node, 1)
    if weight is None:
        raise OpaqueError
    if weight.ndim != 4:
        raise HeptiError(f"{reading.path}: node {node.name} is {node.op} over {weight.ndim - 2} axes, must be over 2")
    bias = reading.constant(node, 2)
    arrays = [weight] if bias is None else [weight, bias]
    return weight, [reading.tensor(name, _floats(array)) for name, array in zip(names, arrays, strict=True)]


def _conv(reading: Reading, node: OnnxNode) -> None:
    weight, names = _weights(reading, node)
    value = reading.value(node)
    entering, needed = reading.shapes[value][0], weight.shape[1] * int(node.attributes.get("group", 1))
    if entering != needed:
        raise HeptiError(
            f"{reading.path}: node {node.name} has weights for {needed} channels, its input has {entering}"
        )
    window = _window(reading, node, value, weight.shape[2:])
    padding = reading.made.get(value)
    if padding is not None and padding.op == "Pad" and padding.attributes["value"] == 0:
        value = _with_padding(window, padding)
    reading.write(node, "Conv", [value, *names], group=int(node.attributes.get("group", 1)), **window)


def _with_padding(window: dict[str, Any], padding: Node) -> str:
    """Let a window pad what a Pad before it does; return what that is of."""
    window["pads"] = [one + two for one, two in zip(window["pads"], padding.attributes["pads"], strict=True)]
    return padding.inputs[0]


def _loses(reading: Reading, padding: Node) -> bool:
    """Return whether what is padded is never above the largest of a window, so that it is as if it were not there."""
    if padding.attributes["value"] <= LIMITS.min:
        return True
    before = reading.made.get(padding.inputs[0])
    positive = before is not None and (before.op == "Relu" or (before.op == "Clip" and before.attributes["min"] >= 0))
    return positive and padding.attributes["value"] <= 0


def _conv_transpose(reading: Reading, node: OnnxNode) -> None:
    weight, names = _weights(reading, node)
    value = reading.value(node)
    _require("output_shape" not in node.attributes and node.attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID"))
    window = _window(reading, node, value, weight.shape[2:])
    behind = [int(entry) for entry in node.attributes.get("output_padding", (0, 0))]
    group = int(node.attributes.get("group", 1))
    reading.write(node, "ConvTranspose", [value, *names], group=group, output_padding=behind, **window)


def _pool(reading: Reading, node: OnnxNode) -> None:
    value = reading.value(node)
    kernel = node.attributes["kernel_shape"]
    window = _window(reading, node, value, kernel)
    entering, leaving = reading.shapes[value][1:], reading.shape(node.outputs[0])[1:]
    if entering == leaving and list(kernel) == [1, 1]:  # torch's adaptive pool to the size that is there
        reading.same(node.outputs[0], value)
        return
    if node.op == "MaxPool":
        padding = reading.made.get(value)
        if padding is not None and padding.op == "Pad" and _loses(reading, padding):
            value = _with_padding(window, padding)
        reading.write(node, "MaxPool", [value], **window)
        return
    pads = window["pads"]
    if tuple(kernel) == entering and leaving == (1, 1) and not any(pads):
        reading.write(node, "GlobalAveragePool", [value])
        return
    counted = int(node.attributes.get("count_include_pad", 0))
    if counted:
        for axis in (0, 1):
            stop = (leaving[axis] - 1) * window["strides"][axis] + (kernel[axis] - 1) * window["dilations"][axis] + 1
            if stop > entering[axis] + pads[axis] + pads[axis + 2]:
                raise HeptiError(
                    f"{reading.path}: node {node.name} is AveragePool with ceil_mode and count_include_pad, which "
                    "counts neither pixels nor padding"
                )
    if set(window["dilations"]) == {1}:
        reading.write(node, "AveragePool", [value], count_include_pad=counted, **window)
    else:
        _dilated_average(reading, node, value, window, counted=bool(counted))


def _dilated_average(reading: Reading, node: OnnxNode, value: str, window: Mapping[str, Any], *, counted: bool) -> None:
    """Write an average of pixels that lie apart as a convolution of each channel, and a division by their number.

    AveragePool has dilations since opset 19 only, and onnxruntime pads by less than a kernel only.
    """
    channels, *entering = reading.shapes[value]
    leaving, kernel = reading.shape(node.outputs[0])[1:], window["kernel_shape"]
    counts = []
    for axis in (0, 1):
        first = np.arange(leaving[axis]) * window["strides"][axis] - window["pads"][axis]
        places = first[:, None] + np.arange(kernel[axis]) * window["dilations"][axis]
        inside = (places >= 0) & (places < entering[axis])
        counts.append(inside.sum(axis=1) if not counted else np.full(leaving[axis], kernel[axis]))
    output = node.outputs[0]
    weight = reading.tensor(f"{output}/weight", np.ones((channels, 1, *kernel), np.float32))
    count = reading.tensor(f"{output}/count", np.outer(*counts).astype(np.float32)[None])
    sums = reading.write_between(node, "Conv", [value, weight], (channels, *leaving), group=channels, **window)
    reading.write(node, "Div", [sums, count])


def _global_max(reading: Reading, node: OnnxNode) -> None:
    value = reading.value(node)
    kernel = list(reading.shapes[value][1:])
    reading.write(node, "MaxPool", [value], kernel_shape=kernel, strides=[1, 1], dilations=[1, 1], pads=[0, 0, 0, 0])


def _global_average(reading: Reading, node: OnnxNode) -> None:
    reading.write(node, "GlobalAveragePool", [reading.value(node)])


def _reduce_mean(reading: Reading, node: OnnxNode) -> None:
    value = reading.value(node)
    axes = reading.numbers(node, 1, "axes")
    _require(axes is not None and sorted(axis % 4 for axis in axes) == [2, 3])
    if node.attributes.get("keepdims", 1):
        reading.write(node, "GlobalAveragePool", [value])
        return
    channels = reading.shapes[value][0]
    pooled = reading.write_between(node, "GlobalAveragePool", [value], (channels, 1, 1))
    reading.write(node, "Flatten", [pooled])


def _unary(reading: Reading, node: OnnxNode) -> None:
    reading.write(node, node.op, [reading.value(node, ranks=(1, 3))], **node.attributes)


def _clip(reading: Reading, node: OnnxNode) -> None:
    value = reading.value(node, ranks=(1, 3))
    low, high = reading.constant(node, 1), reading.constant(node, 2)
    lowest = node.attributes.get("min", LIMITS.min) if low is None else low.item()
    highest = node.attributes.get("max", LIMITS.max) if high is None else high.item()
    reading.write(node, "Clip", [value], min=float(lowest), max=float(highest))


def _nothing(reading: Reading, node: OnnxNode) -> None:
    """Leave a node out whose output is its input."""
    name = reading.resolved(node.inputs[0])
    if name not in reading.graph.constants:
        _require(reading.dtype(node.outputs[0]) == reading.dtype(name))
    reading.same(node.outputs[0], name)


def _binary(reading: Reading, node: OnnxNode) -> None:
    """Write an operator of two values, or a value and a constant, pixel by pixel."""
    _require(len(node.inputs) == 2)
    _combine(reading, node, node.op)


def _several(reading: Reading, node: OnnxNode) -> None:
    """Write a sum, or the largest or smallest, of any number of values as a chain of pairs."""
    op = "Add" if node.op == "Sum" else node.op
    if len(node.inputs) == 1:
        _nothing(reading, node)
    elif len(node.inputs) == 2:
        _combine(reading, node, op)
    else:
        shape = reading.shape(node.outputs[0])
        values = [reading.value(node, number, ranks=(len(shape),)) for number in range(len(node.inputs))]
        _require(len(shape) in (1, 3) and all(reading.shapes[value] == shape for value in values))
        total = values[0]
        for value in values[1:-1]:
            total = reading.write_between(node, op, [total, value], shape)
        reading.write(node, op, [total, values[-1]])


def _combine(reading: Reading, node: OnnxNode, op: str) -> None:
    shape = reading.shape(node.outputs[0])
    _require(len(shape) in (1, 3))
    inputs = [reading.resolved(name) for name in node.inputs]
    constants = [name in reading.graph.constants for name in inputs]
    _require(not all(constants))
    if any(reading.is_plain(name) and reading.shapes[name] == shape for name in inputs):
        inputs = [reading.spread(node, name, len(shape)) for name in inputs]
    for name, constant in zip(inputs, constants, strict=True):
        if constant:
            _require(reading.graph.constants[name].ndim <= 1 + len(shape))
        else:
            _require(reading.is_plain(name) and len(reading.shapes[name]) == len(shape))
    names = []
    for name, constant in zip(inputs, constants, strict=True):
        if constant:
            array = _floats(reading.graph.constants[name])
            array = array.reshape((1,) * (1 + len(shape) - array.ndim) + array.shape)
            _require(array.shape[0] == 1)
            name = reading.tensor(name, array[0])
        names.append(name)
    reading.write(node, op, names)


def _batch_norm(reading: Reading, node: OnnxNode) -> None:
    value = reading.value(node, ranks=(1, 3))
    _require(not node.attributes.get("training_mode", 0))
    tensors = [reading.constant(node, number) for number in range(1, 5)]
    names = [
        reading.tensor(reading.resolved(name), _floats(tensor))
        for name, tensor in zip(node.inputs[1:], tensors, strict=True)
        if tensor is not None
    ]
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    reading.write(node, "BatchNormalization", [value, *names], epsilon=epsilon)


def _concat(reading: Reading, node: OnnxNode) -> None:
    rank = len(reading.shape(node.outputs[0]))
    _require(rank in (1, 3) and node.attributes["axis"] % (rank + 1) == 1)
    values = [reading.value(node, number, ranks=(rank,)) for number in range(len(node.inputs))]
    if len(values) == 1:
        reading.same(node.outputs[0], values[0])
    else:
        reading.write(node, "Concat", values)


def _slice(reading: Reading, node: OnnxNode) -> None:
    value = reading.value(node, ranks=(1, 3))
    starts, stops = reading.numbers(node, 1, "starts"), reading.numbers(node, 2, "ends")
    if starts is None or stops is None:
        raise OpaqueError
    axes = reading.numbers(node, 3, "axes") or list(range(len(starts)))
    steps = reading.numbers(node, 4, "steps") or [1] * len(starts)
    whole = (1, *reading.shapes[value])
    cuts = {}
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        _require(step == 1)
        first, behind, _ = slice(start, stop).indices(whole[axis % len(whole)])
        if (first, behind) != (0, whole[axis % len(whole)]):
            cuts[axis % len(whole)] = first, behind
    if not cuts:
        reading.same(node.outputs[0], value)
        return
    _require(set(cuts) == {1} and cuts[1][0] < cuts[1][1])
    reading.slice(node.name, value, node.outputs[0], 1, *cuts[1])


def _pad(reading: Reading, node: OnnxNode) -> None:
    value = reading.value(node)
    _require(node.attributes.get("mode", "constant") == "constant")
    found, fill = reading.numbers(node, 1, "pads"), reading.constant(node, 2)
    axes = reading.numbers(node, 3, "axes") or list(range(4))
    if found is None:
        raise OpaqueError
    before, behind = [0] * 4, [0] * 4
    for number, axis in enumerate(axes):
        before[axis], behind[axis] = found[number], found[len(axes) + number]
    _require(not any((*before[:2], *behind[:2])) and min(*before, *behind) >= 0)
    if not any((*before, *behind)):
        reading.same(node.outputs[0], value)
        return
    padding = float(node.attributes.get("value", 0.0) if fill is None or not fill.size else fill.item())
    reading.write(node, "Pad", [value], pads=[*before[2:], *behind[2:]], value=padding)


def _resize(reading: Reading, node: OnnxNode) -> None:
    value = reading.value(node)
    entering, leaving = reading.shapes[value], reading.shape(node.outputs[0])
    attributes = node.attributes
    mode = attributes.get("mode", "nearest")
    place = attributes.get("coordinate_transformation_mode", "asymmetric" if node.op == "Upsample" else "half_pixel")
    nearest = attributes.get("nearest_mode", "floor" if node.op == "Upsample" else "round_prefer_floor")
    _require(mode in ("nearest", "linear") and place in _PLACES and not attributes.get("antialias", 0))
    _require(len(leaving) == 3 and leaving[0] == entering[0])
    for number in range(1, len(node.inputs)):
        reading.constant(node, number)
    _require(all(out % into == 0 for into, out in zip(entering, leaving, strict=True)))
    factors = [leaving[axis] // entering[axis] for axis in (1, 2)]
    for scales in (reading.constant(node, number) for number in range(1, len(node.inputs))):
        if scales is not None and scales.dtype == np.float32 and scales.size in (2, 4):
            _require(scales.tolist() == [1, 1, *factors][-scales.size :])
    if factors == [1, 1]:
        reading.same(node.outputs[0], value)
        return
    exact = mode == "nearest" and all(
        _nearest(pixel, factor, place, nearest) == pixel // factor for factor in factors for pixel in range(factor)
    )
    reading.write(
        node, "Resize", [value], factors=factors, exact=exact, mode=mode,
        coordinate_transformation_mode=place, nearest_mode=nearest,
    )  # fmt: skip


# Where an output pixel lies among those of the input; with whole factors the half-pixel modes are the same, but that
# `pytorch_half_pixel` has its own for an output of one pixel, which whole factors make only of one.
_PLACES: Mapping[str, Callable[[int, int], float]] = {
    "half_pixel": lambda pixel, factor: (pixel + 0.5) / factor - 0.5,
    "pytorch_half_pixel": lambda pixel, factor: (pixel + 0.5) / factor - 0.5,
    "asymmetric": lambda pixel, factor: pixel / factor,
}


def _nearest(pixel: int, factor: int, place: str, mode: str) -> int:
    at = _PLACES[place](pixel, factor)
    if mode == "round_prefer_floor":
        return math.ceil(at - 0.5)
    if mode == "round_prefer_ceil":
        return math.floor(at + 0.5)
    return math.floor(at) if mode == "floor" else math.ceil(at)


def _reshaped(reading: Reading, node: OnnxNode) -> None:
    """Write what puts [C, H, W] into a vector, or changes nothing."""
    name = reading.resolved(node.inputs[0])
    _require(reading.is_plain(name))
    entering, leaving = reading.shapes[name], reading.shape(node.outputs[0])
    if entering == leaving:
        reading.same(node.outputs[0], name)
        return
    _require(len(entering) == 3 and leaving == (math.prod(entering),))
    reading.write(node, "Flatten", [name])


def _gemm(reading: Reading, node: OnnxNode) -> None:
    """Write y = x W^T + b, factors and turns within W and b."""
    value = reading.value(node, ranks=(1,))
    weight, bias = reading.constant(node, 1), reading.constant(node, 2)
    attributes = node.attributes
    if weight is None or weight.ndim != 2:
        raise OpaqueError
    _require(not attributes.get("transA", 0))
    alpha, beta = np.float32(attributes.get("alpha", 1.0)), np.float32(attributes.get("beta", 1.0))
    if not attributes.get("transB", 0):
        weight = weight.T
    weight = _floats(weight)
    names = [reading.tensor(reading.resolved(node.inputs[1]), weight if alpha == 1 else weight * alpha)]
    if bias is not None:
        spread = np.broadcast_to(_floats(bias) * beta, (1, len(weight)))[0]
        names.append(reading.tensor(reading.resolved(node.inputs[2]), spread))
    reading.write(node, "Gemm", [value, *names])


def _space_to_depth(reading: Reading, node: OnnxNode) -> None:
    value = reading.value(node)
    _require(node.attributes.get("mode", "DCR") == "DCR")
    reading.write(node, "SpaceToDepth", [value], blocksize=int(node.attributes["blocksize"]))


def _depth_to_space(reading: Reading, node: OnnxNode) -> None:
    value, mode = reading.value(node), node.attributes.get("mode", "DCR")
    reading.write(node, "DepthToSpace", [value], blocksize=int(node.attributes["blocksize"]), mode=mode)


_DO_NOTHING = ("Identity", "Cast", "Dropout")
CANONICAL: Mapping[str, Callable[[Reading, OnnxNode], None]] = {
    **{op: _unary for op in UNARY if op not in ("Clip", *_DO_NOTHING)},
    **dict.fromkeys(_DO_NOTHING, _nothing),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "PRelu"), _binary),
    **dict.fromkeys(("Sum", "Min", "Max"), _several),
    **dict.fromkeys(("MaxPool", "AveragePool"), _pool),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshaped),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("Gemm", "MatMul"), _gemm),
    "Conv": _conv, "ConvTranspose": _conv_transpose, "GlobalMaxPool": _global_max, "Clip": _clip,
    "GlobalAveragePool": _global_average, "ReduceMean": _reduce_mean, "BatchNormalization": _batch_norm,
    "Concat": _concat, "Slice": _slice, "Pad": _pad, "SpaceToDepth": _space_to_depth, "DepthToSpace": _depth_to_space,
}  # fmt: skip
