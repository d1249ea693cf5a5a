"""The nodes of a `ConvNet` as parts, the work that they are, and where a network can be cut.

Which box of its inputs a node needs for a box of its output says its kind (`solver.model.kinds.operator`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from solver.base.spans import Span
from solver.model.convnet import ConvNet, Node
from solver.model.kinds.operator import ADDED_UP, CHANNEL, IMAGE_ROW, MAP, POOLS, REACH, Operator, windows
from solver.model.kinds.part import Part, Value

VERBATIM = "Verbatim:"  # in front of operators that are as they were in the model's file
PRODUCTS = ("Gemm", "MatMul")
LARGE_PRODUCT = 1 << 22  # numbers of a product's weights that one graph computes with
GLOBAL_POOLS = tuple(op for op, axis in ADDED_UP.items() if axis == IMAGE_ROW)  # that can be added up of parts


class WorkKind(StrEnum):
    """Kinds of nodes of which each has a speed of its own: depthwise convolutions run at a sixth of dense ones."""

    CONVOLUTION = "convolution"  # k × k
    POINTWISE = "pointwise"  # 1 × 1
    DEPTHWISE = "depthwise"
    POOL = "pool"
    ELEMENTWISE = "elementwise"
    CONNECTED = "connected"  # a matrix times a vector


def map_value(net: ConvNet, name: str) -> Value:
    """Return a value by its channels, rows and columns."""
    return Value(name, MAP, net.extent(name).shape)


@lru_cache(maxsize=16)
def parts_of(net: ConvNet) -> Mapping[str, Part]:
    """Return the parts that the nodes are, by their outputs."""
    values = {name: map_value(net, name) for name in net.shapes}
    found = {}
    for number, node in enumerate(net.nodes):
        reads, writes = [values[name] for name in net.values_of(node)], values[node.output]
        operator = Operator.of(number, node, [value.shape for value in reads], writes.shape, signature(net, node))
        found[node.output] = operator.part(node.name, node.op, reads, writes)
    return found


def parts_between(net: ConvNet, nodes: Span) -> list[Part]:
    """Return the parts that a run of nodes is."""
    parts = parts_of(net)
    return [parts[node.output] for node in net.nodes[nodes.slice]]


# Those that pass rows on: a part of the rows of their output needs a part of those of their input.
BY_ROWS = frozenset(REACH) - {"GlobalAveragePool", "Flatten", "Gemm"}
# Those of which a rank can compute some output channels.
BY_CHANNELS = frozenset(REACH) - {"ConvTranspose", "SpaceToDepth", "DepthToSpace"}
# Those that add up over their input channels.
SUMS = tuple(op for op, axis in ADDED_UP.items() if axis == CHANNEL)


def adds_up(node: Node) -> bool:
    """Return whether a node adds up over its input channels: ranks can compute summands of it."""
    return node.op in SUMS and node.attributes.get("group", 1) == 1


def kind_of(net: ConvNet, node: Node) -> WorkKind:
    """Return which kind of work a node is."""
    if node.op in ("Conv", "ConvTranspose"):
        groups = node.attributes.get("group", 1)
        if groups > 1 and groups == net.shapes[net.values_of(node)[0]][0]:
            return WorkKind.DEPTHWISE
        return WorkKind.POINTWISE if tuple(node.attributes["kernel_shape"]) == (1, 1) else WorkKind.CONVOLUTION
    if node.op in (*POOLS, *GLOBAL_POOLS):
        return WorkKind.POOL
    return WorkKind.CONNECTED if node.op.removeprefix(VERBATIM) in PRODUCTS else WorkKind.ELEMENTWISE


def flop(net: ConvNet, node: Node) -> int:
    """Return the floating-point operations of all of a node's output."""
    if node.op not in REACH:
        product = node.op.removeprefix(VERBATIM) in PRODUCTS
        return math.prod(net.shapes[node.output]) * (2 * _summed(net, node) if product else 1)
    own, numbers = net.extent(net.values_of(node)[0]), net.extent(node.output).size
    if node.op in GLOBAL_POOLS:
        return own.size
    channels = own.channels.size // int(node.attributes.get("group", 1))
    if node.op == "Gemm":
        return 2 * channels * numbers
    pixels = math.prod(map(int, node.attributes.get("kernel_shape", ())))
    if node.op in POOLS:
        return pixels * numbers
    if node.op == "Conv":
        return 2 * channels * pixels * numbers
    if node.op == "ConvTranspose":
        return max(2 * channels * pixels // math.prod(map(int, node.attributes.get("strides", (1, 1)))), 1) * numbers
    return numbers


def _summed(net: ConvNet, node: Node) -> int:
    """Return how many numbers a product that is computed as it is adds up for one of its output."""
    left = node.inputs[0]
    shape = net.shapes[left] if left in net.shapes else net.tensors[left]
    turned = node.attributes.get("attributes", {}).get("transA", 0)
    return shape[0 if turned else -1]


def tensors_of(net: ConvNet, node: Node) -> list[str]:
    """Return the tensors that a node computes with."""
    return [name for name in node.inputs if name in net.tensors]


def is_by_rows(net: ConvNet, node: Node) -> bool:
    """Return whether a node passes rows on: its operator does, and its output has rows."""
    return node.op in BY_ROWS and net.axes(node.output) == 3


def row_part(net: ConvNet) -> int:
    """Return the number of the first node that needs all rows of something, a global pool not counted."""
    for number, node in enumerate(net.nodes):
        if not (is_by_rows(net, node) or node.op in GLOBAL_POOLS):
            return number
    return len(net.nodes)


def signature(net: ConvNet, node: Node) -> str:
    """Return what a node's speed depends on besides how many rows it computes: operator, channels, columns, window."""
    # One number has no axes; what is random depends on no value.
    entering = next((net.shapes[value] for value in net.values_of(node)), ()) or (1,)
    leaving = net.shapes[node.output] or (1,)
    width = entering[2] if len(entering) == 3 else 1
    words: Sequence[Any] = [node.op, entering[0], "x", width, leaving[0]]
    if "kernel_shape" in node.attributes:
        window = [node.attributes.get(key, "") for key in ("kernel_shape", "strides", "dilations", "group")]
        words = [*words, *window]
    return " ".join(str(word) for word in words)


def needs_beside(node: Node) -> bool:
    """Return whether rows of a node's output need more of its input than their own part: a halo, or all rows."""
    if node.op not in BY_ROWS:
        return True
    window, _ = windows(node)
    return bool(window.after > 0 or window.first < 0)


def levels(net: ConvNet) -> list[int]:
    """Return for every node how many nodes on the longest way to it need rows of others, itself counted.

    Nodes of a level exchange nothing with each other. A global pool counts for those after it: ranks pool their rows.
    """
    return _counted(net, lambda node: needs_beside(node) and node.op not in GLOBAL_POOLS)


def depths(net: ConvNet) -> list[int]:
    """Return the same of nodes that need rows of others or all channels."""
    return _counted(net, lambda node: (needs_beside(node) and node.op not in GLOBAL_POOLS) or needs_all_channels(node))


def _counted(net: ConvNet, counts: Callable[[Node], bool]) -> list[int]:
    of_value, found = {net.input: 0}, list[int]()
    for node in net.nodes:
        found.append(max((of_value[value] for value in net.values_of(node)), default=0) + counts(node))
        of_value[node.output] = found[-1] + (node.op in GLOBAL_POOLS)
    return found


def needs_all_channels(node: Node) -> bool:
    """Return whether an output channel needs all channels of the input."""
    return node.op == "Gemm" or (node.op == "Conv" and node.attributes.get("group", 1) == 1)


def in_levels(net: ConvNet) -> ConvNet:
    """Return the network with its nodes in the order of their levels, and within these of their depths.

    Branches side by side then need what others have at the same points, in one exchange.
    """
    order = [*zip(levels(net), depths(net), strict=True)]
    numbers = sorted(range(len(net.nodes)), key=order.__getitem__)
    return replace(net, nodes=tuple(net.nodes[number] for number in numbers))


@lru_cache(maxsize=16)
def cut_points(net: ConvNet) -> Sequence[int]:
    """Return where the part that is shared out by rows may be cut: before nodes that need rows of others, and its ends.

    In between ranks would exchange nothing.
    """
    level, end = levels(net), row_part(net)
    return [0, *(number for number in range(1, end) if level[number] != level[number - 1]), end] if end else [0]


@lru_cache(maxsize=16)
def channel_points(net: ConvNet) -> Sequence[int]:
    """Return where that part may be cut besides where channels are shared out: before nodes that need all of them."""
    depth = depths(net)
    return [number for number in range(1, row_part(net)) if depth[number] != depth[number - 1]]
