"""`ConvNet`: a convolutional network as a graph of nodes, everything about it but its numbers.

A value is what a node computes of one image: [C, H, W], a vector [C], or of any other shape after the part of the
graph that can be cut. A *box* is the part of a value that a rank has, needs or computes: channels, rows and columns.
Which box of its inputs a node needs for a box of its output says `solver.model.operators`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from solver.base.arrays import FLOAT_BYTES
from solver.base.errors import HeptiError
from solver.base.spans import Span

# What a first output means; those of YOLO are as their exporters write them.
YOLO_HEADS = ("yolov5", "yolov8", "yolov11", "yolox")
HEADS = ("scores", "boxes", *YOLO_HEADS, "none")
LETTERBOXES = ("", "middle", "corner")  # where a picture lies that is made smaller and not cut, if it is so


@dataclass(frozen=True, slots=True)
class Node:
    """An operator of the graph, as ONNX names it, with what it computes of.

    Parameters
    ----------
    inputs
        Values and tensors, in ONNX's order; "" where one is left out.
    output
        The value that it computes.
    attributes
        As ONNX has them, but that small constant inputs (pads, axes, scales, limits) are attributes, too.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class MapBox:
    """Channels, rows and columns of a value; without any where one of them is empty."""

    channels: Span
    rows: Span
    columns: Span

    @property
    def size(self) -> int:
        """How many numbers."""
        channels, rows, columns = self.channels, self.rows, self.columns  # asked for by the ten thousand
        return (channels.stop - channels.start) * (rows.stop - rows.start) * (columns.stop - columns.start)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns."""
        return self.channels.size, self.rows.size, self.columns.size

    def intersect(self, other: MapBox) -> MapBox:
        """Return what both have."""
        return MapBox(
            self.channels.intersect(other.channels),
            self.rows.intersect(other.rows),
            self.columns.intersect(other.columns),
        )

    def contains(self, other: MapBox) -> bool:
        """Return whether all of the other is within."""
        return not other.size or self.intersect(other) == other

    def within(self, other: MapBox) -> tuple[slice, slice, slice]:
        """Return this box as an index into the array of `other`, which contains it."""
        channels, rows, columns = (one.within(two).slice for one, two in zip(self.spans, other.spans, strict=True))
        return channels, rows, columns

    @property
    def spans(self) -> tuple[Span, Span, Span]:
        """All three."""
        return self.channels, self.rows, self.columns


NOTHING = MapBox(Span(0, 0), Span(0, 0), Span(0, 0))


@dataclass(frozen=True, slots=True)
class Picture:
    """How an image becomes the input of the network, by torchvision's names.

    Parameters
    ----------
    resize
        The shorter side is made so long, or both sides (height, width); None: straight to the network's size.
    mean, std
        Of every channel, of pixels from 0 to 1.
    interpolation
        Pillow's name.
    scale
        What a pixel, 0 to 255, is multiplied by first.
    letterbox
        Where the whole image lies in the network's input, which is grey around it; "": it is resized and cropped.
    bgr
        Whether blue comes first.
    """

    resize: tuple[int, ...] | None = None
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    interpolation: str = "bilinear"
    scale: float = 1 / 255
    letterbox: str = ""
    bgr: bool = False


def bytes_as_they_are(channels: int) -> Picture:
    """Return how pixels become the input of a network that takes bytes."""
    return Picture(mean=(0.0,) * channels, std=(1.0,) * channels, scale=1.0)


@dataclass(frozen=True, eq=False)
class ConvNet:
    """A graph of nodes in an order in which every node follows those that it needs.

    Parameters
    ----------
    input
        The name of the one input, an image [C, H, W].
    outputs
        The values that are the result.
    shapes
        Of every value, without the batch.
    tensors
        The shape of every tensor of weights; the first dimension is that of output channels wherever channels can be
        shared out.
    picture
        How images become the input; None: pixels / 255, RGB.
    labels
        Names of the classes.
    head
        What the first output means: "scores" of classes, "boxes" of a YOLOv2 head with `anchors`, boxes of another YOLO
        by its name, or "none".
    anchors
        Width and height of every anchor of a YOLO head, in cells.
    opset
        ONNX's version that the nodes are of.
    notes
        What is to be said of how it is computed.
    probabilities
        Whether the first output is of probabilities, so that no softmax is taken of it.
    """

    name: str
    input: str
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    shapes: Mapping[str, tuple[int, ...]]
    tensors: Mapping[str, tuple[int, ...]]
    picture: Picture | None = None
    labels: tuple[str, ...] = ()
    head: str = "none"
    anchors: tuple[tuple[float, float], ...] = ()
    opset: int = 17
    notes: tuple[str, ...] = ()
    probabilities: bool = False

    def __post_init__(self) -> None:
        known = {self.input, *self.tensors, ""}
        for node in self.nodes:
            for name in node.inputs:
                if name not in known:
                    raise HeptiError(
                        f"network {self.name}: node {node.name} needs {name}, which nothing before it makes"
                    )
            known.add(node.output)
            if node.output not in self.shapes:
                raise HeptiError(f"network {self.name}: the shape of {node.output} is unknown")
        for name in self.outputs:
            if name not in known:
                raise HeptiError(f"network {self.name}: nothing makes its output {name}")
        if len(self.shapes.get(self.input, ())) != 3:
            raise HeptiError(f"network {self.name}: input {self.input} must be [C, H, W]")
        if self.head not in HEADS:
            raise HeptiError(f"network {self.name}: head is {self.head!r}, must be one of {', '.join(HEADS)}")

    def extent(self, value: str) -> MapBox:
        """Return all of a value; one that is neither [C, H, W] nor [C] is one thing that nobody has a part of."""
        return self._extents[value]

    @cached_property
    def _extents(self) -> Mapping[str, MapBox]:
        found = {}
        for value, shape in self.shapes.items():
            channels, rows, columns = (*shape, 1, 1, 1)[:3] if self.axes(value) else (1, 1, 1)
            found[value] = MapBox(Span(0, channels), Span(0, rows), Span(0, columns))
        return found

    def axes(self, value: str) -> int:
        """Return how many axes of a value a box has: 3 of [C, H, W], 1 of [C], none of any other.

        A node that is kept as it is may make [3, 4, 5] without a batch, which is no map.
        """
        rank = len(self.shapes[value])
        return rank if rank in (1, 3) and value not in self._without_batch else 0

    @cached_property
    def _without_batch(self) -> frozenset[str]:
        return frozenset(node.output for node in self.nodes if not node.attributes.get("batch", True))

    def bytes_of(self, value: str, size: int) -> int:
        """Return the bytes of a box of a value that has so many numbers, float32."""
        whole = self.extent(value).size
        return FLOAT_BYTES * (math.prod(self.shapes[value]) * size // whole if whole else 0)

    def values_of(self, node: Node) -> Sequence[str]:
        """Return the values that a node computes of, tensors left out."""
        return self._values[node.output]

    @cached_property
    def _values(self) -> Mapping[str, Sequence[str]]:
        return {node.output: [name for name in node.inputs if name in self.shapes] for node in self.nodes}

    @cached_property
    def made_by(self) -> Mapping[str, int]:
        """The number of the node that makes a value; -1 makes the input."""
        return {self.input: -1, **{node.output: number for number, node in enumerate(self.nodes)}}

    @cached_property
    def last_use(self) -> Mapping[str, int]:
        """The number of the last node that needs a value; that of an output comes after all."""
        found = {self.input: -1}
        for number, node in enumerate(self.nodes):
            found[node.output] = number
            found |= dict.fromkeys(self.values_of(node), number)
        return found | dict.fromkeys(self.outputs, len(self.nodes))

    @cached_property
    def first_use(self) -> Mapping[str, int]:
        """The number of the first node that needs a value; after all where only the result does."""
        found = dict.fromkeys(self.made_by, len(self.nodes))
        for number in range(len(self.nodes) - 1, -1, -1):
            found |= dict.fromkeys(self.values_of(self.nodes[number]), number)
        return found

    def live(self, at: int) -> tuple[str, ...]:
        """Return the values that are there before node number `at`, and needed by it or after it."""
        return self._live[at]

    @cached_property
    def _live(self) -> tuple[tuple[str, ...], ...]:
        return tuple(
            tuple(value for value, made in self.made_by.items() if made < at <= self.last_use[value])
            for at in range(len(self.nodes) + 1)
        )

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits of what a plan depends on: nodes and shapes."""
        shape = (
            self.input,
            self.outputs,
            *self.shapes.items(),
            *((node.name, node.op, node.inputs, node.output, node.attributes) for node in self.nodes),
        )
        return hashlib.sha256(repr(shape).encode()).hexdigest()[:12]

    def to_json(self) -> str:
        """Write as JSON."""
        return json.dumps({"kind": "convnet", **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> ConvNet:
        """Read what `to_json` wrote.

        Raises
        ------
        HeptiError
            If it is damaged.
        """
        try:
            table = json.loads(text)
            del table["kind"]
            nodes = tuple(
                Node(entry["name"], entry["op"], tuple(entry["inputs"]), entry["output"], entry["attributes"])
                for entry in table.pop("nodes")
            )
            picture = table.pop("picture")
            shapes, tensors = (
                {key: tuple(shape) for key, shape in table.pop(of).items()} for of in ("shapes", "tensors")
            )
            return cls(
                nodes=nodes,
                shapes=shapes,
                tensors=tensors,
                picture=picture and Picture(**{key: _tuple(value) for key, value in picture.items()}),
                **{key: _tuple(value) for key, value in table.items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise HeptiError(f"description of a network is damaged or of a newer version: {error}") from error


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
