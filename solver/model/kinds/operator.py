"""Operators of convolutional networks: parts over channels, image rows and image columns.

Along every axis each number of an output needs a window of an input. Of kernel k, stride s, dilation d and padding p
output pixels [l, h) need input pixels [l s - p, (h - 1) s - p + (k - 1) d + 1), as far as there are any; what lies
beyond the image is padded. Channels pass unchanged, by groups, or all are needed. An operator is the windows that it
has: from them follows which box of its inputs it needs for a box of its output, and what else comes out with that.

Operators that are not named here need all of their inputs and make all of their output: one rank computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from solver.model.convnet import Node
from solver.model.kinds.part import NodeKind, Part, Reaching, Region, Residual, Spans, Value, whole

CHANNEL, IMAGE_ROW, IMAGE_COLUMN = MAP = ("channel", "image row", "image column")
SUMMED = "summed"  # axis of what an operator adds up: input channels, or the rows of a global pool
NO_STREAM = Residual(0)  # what a network adds, an operator of its own adds

UNARY = (
    "Relu", "LeakyRelu", "Elu", "Selu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Softplus", "Softsign", "Mish",
    "Clip", "Exp", "Log", "Sqrt", "Abs", "Neg", "Erf", "Gelu", "Round", "Floor", "Ceil", "Sign", "Reciprocal", "Celu",
    "ThresholdedRelu", "Sin", "Cos", "Identity", "Cast",
)  # fmt: skip
BROADCAST = ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "PRelu", "BatchNormalization")
ELEMENTWISE = (*UNARY, *BROADCAST)
POOLS = ("MaxPool", "AveragePool")
PADDED = ("Conv", *POOLS, "Pad")

Extent = tuple[int, ...]  # channels, rows and columns of a value


@dataclass(frozen=True, slots=True)
class Window:
    """Which numbers along an axis of an input output numbers [l, h) need.

    They are [g floor((l times + first) / per), g ceil((h times + after) / per)), as far as there are any; all where
    `times` is 0.

    Parameters
    ----------
    together
        g, the numbers that are needed together: input channels of a group.
    whole
        Whether all comes out that has the same window: output channels of a group, the pixels that one becomes.
    """

    times: int = 1
    per: int = 1
    first: int = 0
    after: int = 0
    together: int = 1
    whole: bool = False

    def ends(self, spans: Spans) -> Spans:
        """Return what is needed for spans of the output, [..., 2], beyond the ends of the input, too."""
        found = spans if self.times == 1 else spans * self.times
        found = found + _offsets(self.first, self.after + self.per - 1)
        return found if self.per == self.together == 1 else found // self.per * self.together


SAME, EVERY, EVERYTHING = Window(), Window(times=0), Window(times=0, whole=True)
Windows = tuple[Window, Window, Window]  # along channels, rows and columns


@lru_cache(maxsize=256)
def _offsets(first: int, after: int) -> Spans:
    return np.array([first, after])


@dataclass(frozen=True, slots=True, eq=False)
class AxisReach:
    """How an operator reaches along an axis into an input.

    Parameters
    ----------
    length, outputs
        Of the input and of the output along that axis.
    nearest
        Of every number of the output, where some need nothing of the input, the nearest that needs some: before it, if
        there is one. None: all need some.
    sure
        Whether numbers of the output always need some.
    """

    axis: str
    window: Window
    length: int
    outputs: int
    nearest: Spans | None = None
    sure: bool = False

    def __call__(self, region: Region) -> Spans:
        """Return where a region of the output reaches, [..., 2]."""
        if not self.window.times:
            return whole(self.length)
        spans = region[self.axis]
        return self._inside(spans if self.nearest is None else self._grown(spans))

    def made(self, region: Region) -> Spans:
        """Return what comes out where a region is wanted."""
        window = self.window
        if not window.whole:
            return self._grown(region[self.axis])
        return self(region) // window.together * window.per // window.times if window.times else whole(self.outputs)

    def padded(self, region: Region) -> Spans:
        """Return how many numbers before the input, and after it, what comes out needs, [..., 2]."""
        made = self._grown(region[self.axis])
        return np.asarray(np.abs(self._inside(made) - self.window.ends(made)))

    @property
    def makes_more(self) -> bool:
        """Whether more may come out than is wanted."""
        return self.window.whole or self.nearest is not None

    def _inside(self, spans: Spans) -> Spans:
        return np.minimum(np.maximum(self.window.ends(spans), 0), self.length)

    def _grown(self, spans: Spans) -> Spans:
        """Return spans with the nearest number that needs some of the input, where none of theirs does.

        A graph needs a pixel: windows may lie in the padding altogether, or between the pixels that a transposed
        convolution puts apart.
        """
        if self.nearest is None:
            return spans
        inside, near = self._inside(spans), self.nearest[np.minimum(spans[..., 0], self.outputs - 1)]
        none = (inside[..., 0] >= inside[..., 1])[..., None]
        grown = np.stack([np.minimum(spans[..., 0], near), np.maximum(spans[..., 1], near + 1)], -1)
        return np.where(none, grown, spans)


@lru_cache(maxsize=1 << 10)
def _axis_reach(axis: str, window: Window, length: int, outputs: int) -> AxisReach:
    """Return how a window reaches, where an output's numbers are to need some of the input."""
    if not window.times:
        return AxisReach(axis, window, length, outputs, sure=length > 0)
    at = np.arange(outputs)
    ends = np.minimum(np.maximum(window.ends(np.stack([at, at + 1], -1)), 0), length)
    some = np.flatnonzero(ends[:, 0] < ends[:, 1])
    nearest = None
    if 0 < some.size < outputs:
        nearest = np.asarray(some[np.maximum(np.searchsorted(some, at, side="right") - 1, 0)])
    return AxisReach(axis, window, length, outputs, nearest, sure=some.size > 0)


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
            return Window(per=stride, first=begin - reach + stride, after=begin)
        return Window(times=stride, first=-begin, after=reach - stride - begin)
    if node.op == "Pad":
        return Window(first=-have["pads"][axis], after=-have["pads"][axis])
    if node.op == "Resize":  # between pixels also those beside them
        factor = have["factors"][axis]
        beside = 0 if have["exact"] or factor == 1 else factor
        return Window(per=factor, first=-beside, after=beside, whole=True)
    if node.op == "SpaceToDepth":
        return Window(times=have["blocksize"], whole=True)
    return Window(per=have["blocksize"], whole=True) if node.op == "DepthToSpace" else SAME


def _padded(node: Node, inputs: Sequence[Extent], output: Extent) -> list[Windows]:
    groups, channels = node.attributes.get("group", 1), inputs[0][0]
    own = Window(per=output[0] // groups, together=channels // groups, whole=True) if groups > 1 else EVERY
    return [(own if node.op == "Conv" else SAME, *windows(node))]


def _scaled(node: Node, inputs: Sequence[Extent], output: Extent) -> list[Windows]:
    """Return those of an operator that makes several pixels of one, or one of several."""
    return [(SAME if node.op == "Resize" else EVERYTHING, *windows(node))]


def _pixel_by_pixel(node: Node, inputs: Sequence[Extent], output: Extent) -> list[Windows]:
    """Return the same pixels of every value; of one that is the same for all rows, columns or channels, that one."""
    every = []
    for extent in inputs:
        channels, rows, columns = (EVERY if length == 1 else SAME for length in extent)
        every.append((channels, rows, columns))
    return every


def _concat(node: Node, inputs: Sequence[Extent], output: Extent) -> list[Windows]:
    """Return what is wanted of every part, which lie one after the other in the channels."""
    starts = np.cumsum([0, *(channels for channels, _, _ in inputs)]).tolist()
    return [(Window(first=-start, after=-start), SAME, SAME) for start in starts[:-1]]


def _slice(node: Node, inputs: Sequence[Extent], output: Extent) -> list[Windows]:
    start = node.attributes["start"]
    return [(Window(first=start, after=start), SAME, SAME)]


def _flatten(node: Node, inputs: Sequence[Extent], output: Extent) -> list[Windows]:
    return [(Window(per=math.prod(inputs[0][1:]), whole=True), EVERY, EVERY)]


# By the operator: the windows of its inputs. Those that are not here need everything.
REACH: Mapping[str, Callable[[Node, Sequence[Extent], Extent], list[Windows]]] = {
    **dict.fromkeys(PADDED, _padded),
    **dict.fromkeys(("ConvTranspose", "Resize", "SpaceToDepth", "DepthToSpace"), _scaled),
    **dict.fromkeys(ELEMENTWISE, _pixel_by_pixel),
    "Concat": _concat,
    "Slice": _slice,
    "GlobalAveragePool": lambda *_: [(SAME, EVERY, EVERY)],
    "Flatten": _flatten,
    "Gemm": lambda *_: [(EVERY, EVERY, EVERY)],
}
# Along which axis of their input operators add up, so that ranks can compute summands; where that is not in groups.
ADDED_UP = {"Conv": CHANNEL, "Gemm": CHANNEL, "GlobalAveragePool": IMAGE_ROW}


@dataclass(frozen=True, slots=True, eq=False)
class Operator(NodeKind):
    """An operator of a network, by how it reaches into its inputs.

    Parameters
    ----------
    number
        Of its node.
    curve
        Which measured curve says what it takes.
    reaches
        Of every input, along every axis of a map.
    added_up
        The axis of its input along which it adds up; "": none.
    """

    number: int
    curve: str
    reaches: tuple[tuple[AxisReach, AxisReach, AxisReach], ...]
    added_up: str = ""

    @classmethod
    def of(cls, number: int, node: Node, inputs: Sequence[Extent], output: Extent, curve: str) -> Operator:
        """Return the operator of a node with values of these extents."""
        reaches = []
        every = REACH[node.op](node, inputs, output) if node.op in REACH else [(EVERYTHING,) * 3] * len(inputs)
        for extent, own in zip(inputs, every, strict=True):
            make: Callable[..., AxisReach] = AxisReach if node.op == "Concat" else _axis_reach  # may need nothing
            channels, rows, columns = map(make, MAP, own, extent, output)
            reaches.append((channels, rows, columns))
        added_up = "" if node.attributes.get("group", 1) > 1 else ADDED_UP.get(node.op, "")
        return cls(number, curve, tuple(reaches), added_up)

    def part(self, name: str, role: str, reads: Sequence[Value], writes: Value) -> Part:
        """Return its part; of a value that it reads twice it needs what contains both boxes."""
        axes, reach = dict(zip(MAP, writes.shape, strict=True)), dict[tuple[str, str], Reaching]()
        for value, reaches in zip(reads, self.reaches, strict=True):
            for own in (own for own in reaches if own.window != SAME or own.length != own.outputs):
                key = value.name, own.axis
                reach[key] = partial(_both, reach[key], own) if key in reach else own
        rounds: dict[str, Reaching] = {axis: partial(_all, length) for axis, length in axes.items()}
        if self.reaches:
            rounds = {own.axis: own.made for own in self.reaches[0] if own.makes_more}
        sure = all(own.sure for reaches in self.reaches for own in reaches)
        every = tuple(dict.fromkeys(reads))
        return Part(name, self, NO_STREAM, role, axes, every, writes, reach=reach, rounds=rounds, sure=sure)


@lru_cache(maxsize=1 << 10)
def adding(part: Part) -> Part:
    """Return the part of an operator with what it adds up as an axis, along which it can be cut."""
    operator, first = part.kind, part.reads[0]
    assert isinstance(operator, Operator)
    axes = {**part.axes, SUMMED: first.shape[MAP.index(operator.added_up)]}
    return replace(part, axes=axes, reach={**part.reach, (first.name, operator.added_up): _summed})


def _all(length: int, region: Region) -> Spans:
    return whole(length)


def _summed(region: Region) -> Spans:
    return region[SUMMED]


def _both(one: Reaching, other: Reaching, region: Region) -> Spans:
    """Return the spans that contain what both reach; what is empty takes no room."""
    first, second = one(region), other(region)
    has_first, has_second = (own[..., :1] < own[..., 1:] for own in (first, second))
    both = np.concatenate([np.minimum(first, second)[..., :1], np.maximum(first, second)[..., 1:]], -1)
    return np.where(has_first & has_second, both, np.where(has_first, first, second))
