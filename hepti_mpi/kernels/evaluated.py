"""A network's graphs by numpy: onnx's reference evaluator computes the very nodes that onnxruntime would.

Operators with windows are ours: a sum, or a maximum, over the pixels of a window. Those of onnx 1.23 are slow, and some
are wrong. Its convolution writes a matrix of all windows, with two indices of 8 bytes for every number: 578 MB more for
VGG-16's second one. Its MaxPool visits pixels in Python, and reads paddings in another order. Its ConvTranspose mixes
up groups of several channels. One image on one x86 core, ms, onnxruntime / ours / those: ResNet-18 16 / 72 / 530,
VGG-16 145 / 380 / 6000.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
from onnx import NodeProto, ValueInfoProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from hepti_mpi.kernels.slab import Arrays, Bind
from solver.base.arrays import Numbers
from solver.base.errors import HeptiError
from solver.model.convnet import Node
from solver.model.kinds.operator import REACH
from solver.model.operators import VERBATIM

# Operators that a network may have as its file has them. In all of onnx's tests of each the evaluator gives what
# onnxruntime does (`tests/hepti_mpi/kernels/test_evaluated.py`); what else there is, nobody has compared.
AS_THEY_ARE = frozenset({
    "Abs", "Add", "And", "ArgMax", "ArgMin", "Cast", "Ceil", "Celu", "Clip", "Concat", "ConstantOfShape", "Cos",
    "CumSum", "DepthToSpace", "Div", "Einsum", "Elu", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather",
    "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "Greater", "GreaterOrEqual",
    "HardSigmoid", "HardSwish", "Hardmax", "Identity", "InstanceNormalization", "LRN", "LayerNormalization",
    "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "LpNormalization", "MatMul", "Max", "Mean", "Min", "Mish",
    "Mod", "Mul", "Neg", "NonMaxSuppression", "NonZero", "Not", "OneHot", "Or", "PRelu", "Pad", "Pow", "Range",
    "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Round", "ScatterElements", "ScatterND", "Selu",
    "Shape", "Sigmoid", "Sign", "Sin", "Size", "Slice", "Softmax", "Softplus", "Softsign", "SpaceToDepth", "Split",
    "Sqrt", "Squeeze", "Sub", "Sum", "Swish", "Tanh", "ThresholdedRelu", "Tile", "TopK", "Transpose", "Trilu",
    "Unsqueeze", "Where", "Xor",
})  # fmt: skip


def check_operators(nodes: Sequence[Node]) -> None:
    """Refuse nodes of a network of which numpy does not compute one as onnxruntime does.

    Raises
    ------
    HeptiError
        Naming the first.
    """
    for node in nodes:
        op = node.op.removeprefix(VERBATIM)
        if node.op not in REACH and op not in AS_THEY_ARE:
            raise HeptiError(
                f"numpy does not compute {op}, as node {node.name} is: have onnxruntime on every board (pip install "
                "onnxruntime), and leave out --backend numpy"
            )


def evaluator(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: Arrays,
    opset: int,
    in_place: bool,
) -> Bind:
    """Make of a graph what numpy computes; as `slab.MakeBind`, but that constants always stay where they are."""
    graph = helper.make_graph(nodes, "share", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    evaluates = ReferenceEvaluator(model, new_ops=OURS)

    def bind(given: Arrays, left: Arrays) -> Callable[[], None]:
        values = {**constants, **{name: array[None] for name, array in given.items()}}
        return partial(_compute, evaluates, values, {name: array[None] for name, array in left.items()})

    return bind


def _compute(evaluates: ReferenceEvaluator, values: Arrays, left: Arrays) -> None:
    with np.errstate(all="ignore"):  # what comes of a division by zero is seen at the end, as onnxruntime's
        found = evaluates.run([*left], dict(values))
    for place, array in zip(left.values(), found, strict=True):
        assert array.shape == place.shape
        place[...] = array


class Conv(OpRun):
    """A convolution of images [N, C, H, W]; weights [O, C / group, h, w]."""

    op_domain = ""

    def _run(
        self, x: Numbers, w: Numbers, b: Numbers | None = None, *, group: int, pads: Sequence[int], **window: Any
    ) -> tuple[Numbers]:
        x, (strides, dilations) = _padded(x, pads, 0), _steps(window)
        kernel = w.shape[2:]
        size = _size(x, kernel, strides, dilations)
        by_group = x.reshape(len(x), group, -1, *x.shape[2:])
        weights = _by_pixel(w, group)
        seen = _seen(by_group, size, kernel, strides, dilations)
        y = sum(one @ pixels.reshape(*by_group.shape[:3], -1) for one, pixels in zip(weights, seen, strict=True))
        return (_with_bias(y.reshape(len(x), -1, *size), b),)


class ConvTranspose(OpRun):
    """A transposed convolution of images [N, C, H, W]; weights [C, O / group, h, w]."""

    op_domain = ""

    def _run(
        self,
        x: Numbers,
        w: Numbers,
        b: Numbers | None = None,
        *,
        group: int,
        pads: Sequence[int],
        output_padding: Sequence[int],
        **window: Any,
    ) -> tuple[Numbers]:
        strides, dilations = _steps(window)
        kernel, size = w.shape[2:], x.shape[2:]
        whole = [
            (length - 1) * stride + (of - 1) * dilation + 1 + more
            for length, of, stride, dilation, more in zip(size, kernel, strides, dilations, output_padding, strict=True)
        ]
        y = np.zeros((len(x), group, w.shape[1], *whole), np.float32)
        by_group = x.reshape(len(x), group, -1, math.prod(size))
        for one, place in zip(_by_pixel(w, group), _seen(y, size, kernel, strides, dilations), strict=True):
            place += (one.swapaxes(-1, -2) @ by_group).reshape(place.shape)
        top, left, bottom, right = pads
        y = y.reshape(len(x), -1, *whole)[..., top : whole[0] - bottom, left : whole[1] - right]
        return (_with_bias(y, b),)


class MaxPool(OpRun):
    """The largest of each window of images [N, C, H, W]; what is padded is below any number."""

    op_domain = ""

    def _run(self, x: Numbers, *, kernel_shape: Sequence[int], pads: Sequence[int], **window: Any) -> tuple[Numbers]:
        x, (strides, dilations) = _padded(x, pads, -np.inf), _steps(window)
        size = _size(x, kernel_shape, strides, dilations)
        return (reduce(np.maximum, _seen(x, size, kernel_shape, strides, dilations)),)


class AveragePool(OpRun):
    """The mean of each window of images [N, C, H, W]: of its pixels, or with zeros for what is padded."""

    op_domain = ""

    def _run(
        self, x: Numbers, *, kernel_shape: Sequence[int], pads: Sequence[int], count_include_pad: int, **window: Any
    ) -> tuple[Numbers]:
        counted = np.ones_like(x[:1, :1])
        x, (strides, dilations) = _padded(x, pads, 0), _steps(window)
        size = _size(x, kernel_shape, strides, dilations)
        total, count = (
            reduce(np.add, _seen(of, size, kernel_shape, strides, dilations))
            for of in (x, _padded(counted, pads, count_include_pad))
        )
        return (total / count,)


class BatchNormalization(OpRun):
    """What was learned of the channels of [N, C, ...]: the evaluator's own, before opset 14, learns anew."""

    op_domain = ""

    def _run(
        self, x: Numbers, scale: Numbers, shift: Numbers, mean: Numbers, variance: Numbers, *, epsilon: float, **_: Any
    ) -> tuple[Numbers]:
        by = scale / np.sqrt(variance + np.float32(epsilon))
        spread = (-1, *[1] * (x.ndim - 2))
        return (x * by.reshape(spread) + (shift - mean * by).reshape(spread),)


OURS = [Conv, ConvTranspose, MaxPool, AveragePool, BatchNormalization]


def _padded(x: Numbers, pads: Sequence[int], by: float) -> Numbers:
    top, left, bottom, right = pads
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=by)


def _steps(window: Mapping[str, Any]) -> tuple[Sequence[int], Sequence[int]]:
    """Return strides and dilations; a node that has none takes every pixel."""
    strides, dilations = (window.get(name) or (1, 1) for name in ("strides", "dilations"))
    return strides, dilations


def _size(x: Numbers, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> tuple[int, ...]:
    """Return how many rows and columns windows make of padded ones."""
    return tuple(
        (length - (of - 1) * dilation - 1) // stride + 1
        for length, of, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True)
    )


def _seen(
    x: Numbers, size: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Iterator[Numbers]:
    """Yield for each pixel of a window what lies there in all windows, [..., *size], as a view."""
    for pixel in np.ndindex(*kernel):
        rows, columns = (
            slice(at * dilation, at * dilation + (count - 1) * stride + 1, stride)
            for at, count, stride, dilation in zip(pixel, size, strides, dilations, strict=True)
        )
        yield x[..., rows, columns]


def _by_pixel(w: Numbers, group: int) -> Numbers:
    """Return weights [A, B, h, w] by pixel and group, [h w, group, A / group, B]."""
    by_group = w.reshape(group, -1, w.shape[1], math.prod(w.shape[2:]))
    return np.ascontiguousarray(np.moveaxis(by_group, 3, 0))


def _with_bias(y: Numbers, b: Numbers | None) -> Numbers:
    return y if b is None else y + b.reshape(-1, 1, 1)
