"""Operators of a `ConvNet`: which box of its inputs a node needs for a box of its output, and the work that it is.

Rows and columns go through a window: output pixels [l, h) of kernel k, stride s, dilation d and padding p need input
pixels [l s - p, (h - 1) s - p + (k - 1) d + 1), as far as there are any; what lies beyond the image is padded. Channels
pass unchanged, or all are needed. A run of nodes is walked backwards from what is wanted behind it (`walk`): the
receptive field, node by node.

Operators that are not named here need all of their inputs and make all of their output: one rank computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache, reduce
from typing import Any

from solver.base.spans import Span
from solver.model.convnet import NOTHING, ConvNet, MapBox, Node

UNARY = (
    "Relu", "LeakyRelu", "Elu", "Selu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Softplus", "Softsign", "Mish",
    "Clip", "Exp", "Log", "Sqrt", "Abs", "Neg", "Erf", "Gelu", "Round", "Floor", "Ceil", "Sign", "Reciprocal", "Celu",
    "ThresholdedRelu", "Sin", "Cos", "Identity", "Cast",
)  # fmt: skip
BROADCAST = ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "PRelu", "BatchNormalization")
ELEMENTWISE = (*UNARY, *BROADCAST)
POOLS = ("MaxPool", "AveragePool")
VERBATIM = "Verbatim:"  # in front of operators that are as they were in the model's file
PRODUCTS = ("Gemm", "MatMul")
LARGE_PRODUCT = 1 << 22  # numbers of a product's weights that one graph computes with
GLOBAL_POOLS = ("GlobalAveragePool",)  # that can be added up of parts


class WorkKind(StrEnum):
    """Kinds of nodes of which each has a speed of its own: depthwise convolutions run at a sixth of dense ones."""

    CONVOLUTION = "convolution"  # k × k
    POINTWISE = "pointwise"  # 1 × 1
    DEPTHWISE = "depthwise"
    POOL = "pool"
    ELEMENTWISE = "elementwise"
    CONNECTED = "connected"  # a matrix times a vector


@dataclass(frozen=True, slots=True)
class Window:
    """Which input pixels along an axis output pixels [l, h) need.

    They are [floor((l times + first) / per), ceil((h times + behind) / per)), as far as there are any.
    """

    times: int = 1
    per: int = 1
    first: int = 0
    behind: int = 0

    def needs(self, wanted: Span, length: int) -> tuple[Span, Span, int, int]:
        """Return which input pixels an output needs, which output these make, and the padding in front and behind.

        What is made is more than wanted only where a window lies in the padding altogether, or between the pixels that
        a transposed convolution puts apart: a graph needs a pixel.
        """
        start, stop = wanted.start, wanted.stop
        first, behind = self.start(start), self.stop(stop)
        while start > 0 and first >= min(length, behind):
            start -= 1
            first = self.start(start)
        while behind <= max(0, first):
            stop += 1
            behind = self.stop(stop)
        inside = Span(min(max(first, 0), length), max(min(behind, length), 0))
        made = wanted if stop - start == wanted.size else Span(start, stop)
        return inside, made, inside.start - first, behind - inside.stop

    def start(self, start: Any) -> Any:
        """Return the first input pixel that an output from this one on needs; also of many, [...]."""
        return (start * self.times + self.first) // self.per

    def stop(self, stop: Any) -> Any:
        """Return the input pixel behind the last that an output up to this one needs; also of many, [...]."""
        return -((-stop * self.times - self.behind) // self.per)


@dataclass(frozen=True, slots=True)
class Reach:
    """What a node computes for a box of its output.

    Parameters
    ----------
    made
        The box that comes out; it contains what is wanted.
    needs
        For every one of the node's values, in order, the box that must be there.
    pads
        Rows above, columns left, rows below, columns right that are padded.
    """

    made: MapBox
    needs: tuple[MapBox, ...]
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)


@lru_cache(maxsize=1 << 12)
def windows(node: Node) -> tuple[Window, Window]:
    """Return how an operator that passes rows on passes over rows, and over columns."""
    rows, columns = (_window(node, axis) for axis in (0, 1))
    return rows, columns


def _window(node: Node, axis: int) -> Window:
    have = node.attributes
    if node.op in ("Conv", "ConvTranspose", *POOLS):
        stride, begin = have.get("strides", (1, 1))[axis], have.get("pads", (0, 0, 0, 0))[axis]
        reach = (have["kernel_shape"][axis] - 1) * have.get("dilations", (1, 1))[axis] + 1
        if node.op == "ConvTranspose":  # input i makes outputs i s - p to i s - p + reach - 1
            return Window(per=stride, first=begin - reach + stride, behind=begin)
        return Window(times=stride, first=-begin, behind=reach - stride - begin)
    if node.op == "Pad":
        return Window(first=-have["pads"][axis], behind=-have["pads"][axis])
    if node.op == "Resize":  # between pixels also those beside them
        factor = have["factors"][axis]
        beside = 0 if have["exact"] or factor == 1 else factor
        return Window(per=factor, first=-beside, behind=beside)
    if node.op == "SpaceToDepth":
        return Window(times=have["blocksize"])
    return Window(per=have["blocksize"]) if node.op == "DepthToSpace" else Window()


@lru_cache(maxsize=1 << 12)  # plans that differ, and pieces of one, need the same boxes again
def reach(net: ConvNet, node: Node, wanted: MapBox) -> Reach:
    """Return what a node computes for a box of its output that is not empty."""
    return REACH.get(node.op, _everything)(net, node, wanted)


def _windowed(net: ConvNet, node: Node, wanted: MapBox) -> Reach:
    """Return what an operator that pads needs, by its windows over both axes."""
    channels = made_channels = wanted.channels
    if node.op == "Conv":
        channels, made_channels = conv_channels(net, node, wanted.channels)
    over_rows, over_columns = windows(node)
    _, height, width = net.shapes[net.values_of(node)[0]]
    rows, made_rows, top, bottom = over_rows.needs(wanted.rows, height)
    columns, made_columns, left, right = over_columns.needs(wanted.columns, width)
    made = MapBox(made_channels, made_rows, made_columns)
    return Reach(made, (MapBox(channels, rows, columns),), (top, left, bottom, right))


def conv_channels(net: ConvNet, node: Node, wanted: Span) -> tuple[Span, Span]:
    """Return the input channels that output channels need, and the output channels that these make: whole groups."""
    groups, every = node.attributes.get("group", 1), net.extent(net.values_of(node)[0])
    if groups == 1:
        return every.channels, wanted
    inputs, outputs = every.channels.size, net.shapes[node.output][0]
    each = outputs // groups
    own = Span(wanted.start // each, -(-wanted.stop // each))
    return own.scaled(inputs // groups), own.scaled(each)


def _scaled(net: ConvNet, node: Node, wanted: MapBox) -> Reach:
    """Return what an operator needs that makes several pixels of one, or one of several, and what it makes of that."""
    every = net.extent(net.values_of(node)[0])
    spans = []
    for window, own, whole in zip(windows(node), (wanted.rows, wanted.columns), every.spans[1:], strict=True):
        inside, made, _, _ = window.needs(own, whole.stop)
        if node.op != "ConvTranspose":
            made = Span(inside.start * window.per // window.times, inside.stop * window.per // window.times)
        spans.append((inside, made))
    (rows, made_rows), (columns, made_columns) = spans
    if node.op == "Resize":
        needed, made_channels = wanted.channels, wanted.channels
    else:
        needed, made_channels = every.channels, Span(0, net.shapes[node.output][0])
    return Reach(MapBox(made_channels, made_rows, made_columns), (MapBox(needed, rows, columns),))


def _pixel_by_pixel(net: ConvNet, node: Node, wanted: MapBox) -> Reach:
    """Return the same pixels of every value; of one that is the same for all rows, columns or channels, that one."""

    def of(value: str) -> MapBox:
        if len(net.shapes[value]) == 3 and 1 not in net.shapes[value]:
            return wanted
        every = net.extent(value).spans
        return MapBox(*(Span(0, 1) if own.stop == 1 else span for own, span in zip(every, wanted.spans, strict=True)))

    return Reach(wanted, tuple(of(value) for value in net.values_of(node)))


def _concat(net: ConvNet, node: Node, wanted: MapBox) -> Reach:
    """Return what is wanted of every part, which lie one behind the other in the channels."""
    needs, start = [], 0
    for value in net.values_of(node):
        own = Span(start, start + net.shapes[value][0])
        common = own.intersect(wanted.channels)
        inside = Span(0, 0) if not common.size else common.within(own)
        needs.append(MapBox(inside, wanted.rows, wanted.columns) if inside.size else NOTHING)
        start = own.stop
    return Reach(wanted, tuple(needs))


def _slice(net: ConvNet, node: Node, wanted: MapBox) -> Reach:
    start = node.attributes["start"]
    channels = Span(start + wanted.channels.start, start + wanted.channels.stop)
    return Reach(wanted, (MapBox(channels, wanted.rows, wanted.columns),))


def _global(net: ConvNet, node: Node, wanted: MapBox) -> Reach:
    every = net.extent(net.values_of(node)[0])
    return Reach(wanted, (MapBox(wanted.channels, every.rows, every.columns),))


def _flatten(net: ConvNet, node: Node, wanted: MapBox) -> Reach:
    every = net.extent(net.values_of(node)[0])
    pixels = every.rows.size * every.columns.size
    channels = Span(wanted.channels.start // pixels, -(-wanted.channels.stop // pixels))
    made = MapBox(channels.scaled(pixels), wanted.rows, wanted.columns)
    return Reach(made, (MapBox(channels, every.rows, every.columns),))


def _gemm(net: ConvNet, node: Node, wanted: MapBox) -> Reach:
    return Reach(wanted, (net.extent(net.values_of(node)[0]),))


def _everything(net: ConvNet, node: Node, wanted: MapBox) -> Reach:
    return Reach(net.extent(node.output), tuple(net.extent(value) for value in net.values_of(node)))


# By the operator: what it needs. Those that are not here need everything.
REACH: Mapping[str, Callable[[ConvNet, Node, MapBox], Reach]] = {
    **dict.fromkeys(("Conv", *POOLS, "Pad"), _windowed),
    **dict.fromkeys(("ConvTranspose", "Resize", "SpaceToDepth", "DepthToSpace"), _scaled),
    **dict.fromkeys(ELEMENTWISE, _pixel_by_pixel),
    "Concat": _concat,
    "Slice": _slice,
    "GlobalAveragePool": _global,
    "Flatten": _flatten,
    "Gemm": _gemm,
}
# Those that pass rows on: a part of the rows of their output needs a part of those of their input.
BY_ROWS = frozenset(REACH) - {"GlobalAveragePool", "Flatten", "Gemm"}
# Those of which a rank can compute some output channels.
BY_CHANNELS = frozenset(REACH) - {"ConvTranspose", "SpaceToDepth", "DepthToSpace"}
# Those that add up over their input channels (or rows, a global pool): ranks can compute summands.
SUMS = ("Conv", "Gemm")


# Where a tile's neighbours lie: how many tiles further down, and across.
SIDES = {"above": (-1, 0), "below": (1, 0), "left": (0, -1), "right": (0, 1)}


@dataclass(frozen=True, slots=True)
class Strip:
    """What of a value a tile takes from its neighbour at a side: all along that side."""

    value: str
    side: str
    box: MapBox

    @property
    def name(self) -> str:
        """Its name among all that one tile takes, or gives."""
        return f"{self.value}:{self.side}"

    def rest(self, box: MapBox) -> MapBox:
        """Return what of a box lies beyond this one."""
        axis = "rows" if SIDES[self.side][0] else "columns"
        own, taken = getattr(box, axis), getattr(self.box, axis)
        first = self.side in ("above", "left")
        return replace(box, **{axis: Span(taken.stop, own.stop) if first else Span(own.start, taken.start)})


@dataclass(frozen=True, slots=True)
class Walk:
    """What a rank needs and computes of a run of nodes.

    Parameters
    ----------
    needs
        Of every value within, and of those from before, the box that must be there.
    made
        What every node that is computed at all makes, by its number.
    taken
        What of values within is not made, but taken from neighbours, in the order in which it is left out.
    """

    needs: Mapping[str, MapBox]
    made: Mapping[int, Reach]
    taken: tuple[Strip, ...] = ()

    def rest(self, value: str) -> MapBox:
        """Return what is needed of a value without what is taken of it."""
        own = (strip for strip in self.taken if strip.value == value)
        return reduce(lambda box, strip: strip.rest(box), own, self.needs[value])


def walk(
    net: ConvNet,
    nodes: Span,
    wanted: Mapping[str, MapBox],
    parts: Mapping[str, MapBox] | None = None,
    beside: Mapping[str, Mapping[str, MapBox]] | None = None,
) -> Walk:
    """Walk a run of nodes backwards from boxes that are wanted behind it.

    Parameters
    ----------
    wanted
        By the value; those from before the run are needed as they are.
    parts
        By the output of nodes that add up (a global pool, a convolution over input channels): the box of its input over
        which this rank does; the output is a summand.
    beside
        By the side: what the neighbour there has of values within, which is not computed again as far as the others are
        a box. What is wanted behind the run is not taken.
    """
    needs = {value: box for value, box in wanted.items() if box.size}
    made: dict[int, Reach] = {}
    taken: list[Strip] = []
    parts = parts or {}
    for number in range(nodes.stop - 1, nodes.start - 1, -1):
        node = net.nodes[number]
        box = needs.get(node.output)
        if box is None:
            continue
        if beside and node.output not in wanted and is_by_rows(net, node):
            strips, box = _strips(node.output, box, beside)
            taken += strips
            if not box.size:
                continue
        if node.output in parts:
            made[number] = part_of(net, node, box, parts[node.output])
        else:
            made[number] = reach(net, node, box)
        for value, own in zip(net.values_of(node), made[number].needs, strict=True):
            if own.size:
                needs[value] = needs[value].hull(own) if value in needs else own
    return Walk(needs, made, tuple(taken))


def _strips(value: str, box: MapBox, beside: Mapping[str, Mapping[str, MapBox]]) -> tuple[list[Strip], MapBox]:
    """Return what neighbours have of a box, one side after the other, and what is left, which is a box, too."""
    found = []
    for side, there in beside.items():
        strip = Strip(value, side, box.intersect(there.get(value, NOTHING)))
        if strip.box.size and strip.box.size + (rest := strip.rest(box)).size == box.size:
            found.append(strip)
            box = rest
    return found, box


def part_of(net: ConvNet, node: Node, wanted: MapBox, part: MapBox) -> Reach:
    """Return what a node needs that adds up over a part of its input: some channels, or, of a global pool, rows."""
    if node.op in GLOBAL_POOLS:
        return Reach(wanted, (part,))
    found = reach(net, node, wanted)
    (own,) = found.needs
    return Reach(found.made, (MapBox(part.channels, own.rows, own.columns),), found.pads)


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


def flop(net: ConvNet, node: Node, box: MapBox, part: MapBox | None = None) -> int:
    """Return the floating-point operations of a box of a node's output; of a summand, over that part of its input."""
    if node.op not in REACH:
        product = node.op.removeprefix(VERBATIM) in PRODUCTS
        return math.prod(net.shapes[node.output]) * (2 * _summed(net, node) if product else 1)
    own = part or net.extent(net.values_of(node)[0])
    if node.op in GLOBAL_POOLS:
        return own.size
    channels = own.channels.size // int(node.attributes.get("group", 1)) if part is None else own.channels.size
    if node.op == "Gemm":
        return 2 * channels * box.size
    pixels = math.prod(map(int, node.attributes.get("kernel_shape", ())))
    if node.op in POOLS:
        return pixels * box.size
    if node.op == "Conv":
        return 2 * channels * pixels * box.size
    if node.op == "ConvTranspose":
        return max(2 * channels * pixels // math.prod(map(int, node.attributes.get("strides", (1, 1)))), 1) * box.size
    return box.size


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
    return bool(window.behind > 0 or window.first < 0)


def levels(net: ConvNet) -> list[int]:
    """Return for every node how many nodes on the longest way to it need rows of others, itself counted.

    Nodes of a level exchange nothing with each other. A global pool counts for those behind it: ranks pool their rows.
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


def cut_points(net: ConvNet) -> list[int]:
    """Return where the part that is shared out by rows may be cut: before nodes that need rows of others, and its ends.

    In between ranks would exchange nothing.
    """
    level, end = levels(net), row_part(net)
    return [0, *(number for number in range(1, end) if level[number] != level[number - 1]), end] if end else [0]


def channel_points(net: ConvNet) -> list[int]:
    """Return where that part may be cut besides where channels are shared out: before nodes that need all of them."""
    depth = depths(net)
    return [number for number in range(1, row_part(net)) if depth[number] != depth[number - 1]]
