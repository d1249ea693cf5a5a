"""Whether a network ends with probabilities, in whatever nodes these are written.

Every value gets bounds, as far as its nodes give any: a softmax is between 0 and 1, and so is what exponentials are of
their sum, 1 / (1 + exp(-x)), or a softmax that is quantised and multiplied back. Scores that are none have no bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.model.convnet import ConvNet, Node
from solver.model.operators import VERBATIM

Interval = tuple[float, float]  # the least and the largest number
UNKNOWN: Interval = (-math.inf, math.inf)
SLACK = 0.02  # of a probability that was quantised
# Operators that put numbers elsewhere, choose among them, or take their mean.
_SAME = (
    "Identity", "Dropout", "Cast", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather",
    "Expand", "MaxPool", "AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceMax", "ReduceMin", "Tile", "Split",
)  # fmt: skip
_KNOWN: Mapping[str, Interval] = {
    "Softmax": (0, 1), "Sigmoid": (0, 1), "HardSigmoid": (0, 1), "Hardmax": (0, 1), "Tanh": (-1, 1), "Erf": (-1, 1),
    "LogSoftmax": (-math.inf, 0), "Softplus": (0, math.inf),
}  # fmt: skip


def ends_with_probabilities(net: ConvNet, tensors: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether all numbers of the first output are between 0 and 1, whatever the image."""
    bounds: dict[str, Interval] = {}
    makers = {node.output: node for node in net.nodes}
    for node in net.nodes:
        given = [_of(name, bounds, tensors) for name in node.inputs]
        bounds[node.output] = _bounds(node, given, makers)
    low, high = bounds.get(net.outputs[0], UNKNOWN)
    return low >= -SLACK and high <= 1 + SLACK


def _of(name: str, bounds: Mapping[str, Interval], tensors: Mapping[str, NDArray[Any]]) -> Interval:
    if name in tensors and tensors[name].size and tensors[name].dtype.kind in "fiu":
        return float(tensors[name].min()), float(tensors[name].max())
    return bounds.get(name, UNKNOWN)


def _bounds(node: Node, given: Sequence[Interval], makers: Mapping[str, Node]) -> Interval:
    """Return the bounds of what a node makes of inputs with these."""
    op = node.op.removeprefix(VERBATIM)
    if op in _SAME:
        return given[0]
    if op == "Concat":
        return min(low for low, _ in given), max(high for _, high in given)
    if _is_part_of_sum(node, op, given, makers):
        return 0, 1
    if op == "Sub" and _is_above(node.inputs[0], node.inputs[1], makers):
        return -math.inf, 0
    if op == "Clip":
        return _clipped(given[0], (node.attributes.get("min", -math.inf), node.attributes.get("max", math.inf)))
    return _KNOWN[op] if op in _KNOWN else _RULES[op](*given) if op in _RULES else UNKNOWN


def _clipped(given: Interval, limits: Interval) -> Interval:
    """Return what a clip leaves; of what has no bounds only limits from 0 to 1 are some: others quantise scores."""
    if given == UNKNOWN and not (limits[0] >= 0 and limits[1] <= 1):
        return UNKNOWN
    return min(max(given[0], limits[0]), limits[1]), max(min(given[1], limits[1]), limits[0])


def _is_part_of_sum(node: Node, op: str, given: Sequence[Interval], makers: Mapping[str, Node]) -> bool:
    """Return whether a node divides numbers that are at least 0 by their own sum."""
    if op not in ("Div", "Mul") or given[0][0] < 0:
        return False
    below = _through(node.inputs[1], makers)
    if op == "Mul":
        if below is None or below.op.removeprefix(VERBATIM) != "Reciprocal":
            return False
        below = _through(below.inputs[0], makers)
    return _is_of(below, ("ReduceSum", "ReduceL1"), node.inputs[0])


def _is_above(value: str, other: str, makers: Mapping[str, Node]) -> bool:
    """Return whether one value is the largest number of another, or the logarithm of the sum of its exponentials."""
    maker = _through(other, makers)
    if _is_of(maker, ("ReduceMax", "ReduceLogSumExp"), value):
        return True
    if maker is None or maker.op.removeprefix(VERBATIM) != "Log":
        return False
    summed = _through(maker.inputs[0], makers)
    if summed is None or summed.op.removeprefix(VERBATIM) != "ReduceSum":
        return False
    return _is_of(makers.get(summed.inputs[0]), ("Exp",), value)


def _is_of(node: Node | None, ops: Sequence[str], value: str) -> bool:
    return node is not None and node.op.removeprefix(VERBATIM) in ops and node.inputs[0] == value


def _through(name: str, makers: Mapping[str, Node]) -> Node | None:
    """Return the node that makes a value, but for another shape, or a little that is added."""
    node = makers.get(name)
    while node is not None and node.op.removeprefix(VERBATIM) in (*_SAME, "Add", "Clip") and node.inputs[0] in makers:
        node = makers[node.inputs[0]]
    return node


def _times(one: Interval, other: Interval) -> Interval:
    if UNKNOWN in (one, other):
        return UNKNOWN
    products = [0.0 if 0 in (a, b) else a * b for a in one for b in other]
    return min(products), max(products)


def _inverse(given: Interval) -> Interval:
    low, high = given
    return (1 / high, 1 / low) if low > 0 else UNKNOWN


def _rounded(given: Interval) -> Interval:
    low, high = (number if math.isinf(number) else float(np.round(number)) for number in given)
    return low, high


def _exp(given: Interval) -> Interval:
    low, high = (math.exp(number) if number < 700 else math.inf for number in given)
    return low, high


_RULES: Mapping[str, Callable[..., Interval]] = {
    "Relu": lambda x: (max(x[0], 0.0), max(x[1], 0.0)),
    "Neg": lambda x: (-x[1], -x[0]),
    "Exp": _exp,
    "Round": _rounded,
    "Reciprocal": _inverse,
    "Add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "Sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "Mul": _times,
    "Div": lambda x, y: _times(x, _inverse(y)),
    "Min": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "Max": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
}
