"""Products in int8 on onnxruntime: weights per output channel, activations per row, sums in int32.

A row's scale is its own range, so that a result depends neither on the rows that it was computed with nor on
how they are split; onnxruntime's dynamic quantisation takes one scale for all, which a single outlier row spoils for
the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from hepti_mpi.kernels import ort
from hepti_mpi.kernels.products import Linear
from solver.base.arrays import Array, Numbers

LARGEST = 127  # of a weight
STEPS = 255  # of an activation, from its row's least to its most: after a GELU nearly all lie on one side of zero
SMALLEST = 1e-30  # scales are at least this: a row or a channel of zeros has one too


def int8_nodes(operation: Linear, x: str, y: str, prefix: str) -> ort.Nodes:
    """Return a product as nodes, its weight in a quarter of the memory."""
    w, scale = quantise(operation.weight, channel_axis=1 if operation.bias is None else 0)
    constants: dict[str, Numbers] = {
        "columns": np.array([-1], np.int64),
        "smallest": np.array(SMALLEST, np.float32),
        "step": np.array(1 / STEPS, np.float32),
        "zero": np.array(0, np.uint8),
        "scale": scale,
        "sums": scale * w.sum(axis=0, dtype=np.float32, keepdims=True),
    } | ({} if operation.bias is None else {"b": operation.bias})

    def node(operator: str, inputs: Sequence[str], output: str, domain: str = "") -> NodeProto:
        names = {"x": x, "y": y}
        own = [names.get(name, f"{prefix}{name}") for name in (*inputs, output)]
        return helper.make_node(operator, own[:-1], own[-1:], domain=domain)

    last = "y" if operation.activation == "identity" else "h"
    nodes = [
        node("ReduceMax", ["x", "columns"], "most"),
        node("ReduceMin", ["x", "columns"], "least"),
        node("Sub", ["most", "least"], "range"),
        node("Max", ["range", "smallest"], "size"),
        node("Sub", ["x", "least"], "above"),
        node("Div", ["above", "size"], "unit"),
        node("QuantizeLinear", ["unit", "step", "zero"], "q"),
        node("MatMulIntegerToFloat", ["q", "w", "step", "scale"], "product", ort.CONTRIBUTED),
        node("Mul", ["product", "size"], "sized"),
        # x W = (x - least) W + least (sum of W's rows)
        node("Gemm", ["least", "sums"] + (["b"] if operation.bias is not None else []), "offset"),
        node("Add", ["sized", "offset"], last),
        *ort.activate(operation.activation, f"{prefix}h", y),
    ]
    return ort.Nodes(nodes, {f"{prefix}{name}": array for name, array in constants.items()}, {f"{prefix}w": w})


INT8 = replace(ort.FLOAT32, graph=partial(ort.make_graph, linear=int8_nodes))


def quantise(weight: Array, channel_axis: int) -> tuple[NDArray[np.int8], Array]:
    """Round a weight to int8, each channel by its largest value.

    Parameters
    ----------
    weight : [out, in] or [in, out]
        The weight.
    channel_axis
        Which axis is out.

    Returns
    -------
    [in, out] int8, C-contiguous
    [out]
        What one of its steps is.
    """
    inner_axis = 1 - channel_axis
    size = np.maximum(weight.max(axis=inner_axis), -weight.min(axis=inner_axis))
    scale = np.maximum(size, SMALLEST) * (1 / LARGEST)
    steps = weight * np.expand_dims(1 / scale, inner_axis)
    rounded = np.rint(steps, out=steps).astype(np.int8)
    return np.ascontiguousarray(rounded if channel_axis == 1 else rounded.T), scale.astype(np.float32)
