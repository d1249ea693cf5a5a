"""Published convolutional networks at their real sizes, with random weights: batch normalisations folded.

Weights are normal, spread so that every convolution's output has a mean square of about 1 (He et al. 2015): what
enters it has a mean square that is known, since an activation, a pool or a sum changes it in a known way. A residual
branch ends with less, so that a deep sum stays near 1. So every part of the image is visible in every result.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import SFC64, Generator

from solver.base.arrays import Array
from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean
from solver.model.convnet import ConvNet, Node, Picture
from solver.model.operators import in_levels

IMAGENET = Picture((256,), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
COCO_ANCHORS = ((0.57273, 0.677385), (1.87446, 2.06253), (3.33843, 5.47434), (7.88282, 3.52778), (9.77052, 9.16828))
VOC_ANCHORS = ((1.08, 1.19), (3.42, 4.41), (6.63, 11.38), (9.42, 5.11), (16.62, 10.52))
CLASSES = 1000
STEP = 32  # every one of them makes 32 × 32 pixels one
SMALLEST, LARGEST = 32, 4096


def zoo_graph(name: str) -> ConvNet:
    """Return the graph of a well-known network as published; errors as `zoo_network`."""
    return zoo_network(name, seed=None)[0]


def zoo_network(name: str, size: int | None = None, seed: int | None = 0) -> tuple[ConvNet, dict[str, Array]]:
    """Make a well-known network.

    Parameters
    ----------
    name
        One of `ZOO`.
    size
        Height and width of the image; None: as published.
    seed
        Of the random numbers; None: they are all zero, and take no room.

    Raises
    ------
    HeptiError
        If the name is unknown, or the size is one that it cannot take.
    """
    if name not in ZOO:
        raise HeptiError(f"unknown model {name}{did_you_mean(name, ZOO)}")
    make, usual = ZOO[name]
    size = usual if size is None else size
    if size % STEP or not SMALLEST <= size <= LARGEST:
        raise HeptiError(f"--size is {size}, must be a multiple of {STEP} from {SMALLEST} to {LARGEST}")
    layers = _Layers(size, seed)
    facts = make(layers)
    net = ConvNet(
        name=name,
        input="image",
        outputs=(layers.nodes[-1].output,),
        nodes=tuple(layers.nodes),
        shapes=layers.shapes,
        tensors={key: tensor.shape for key, tensor in layers.tensors.items()},
        **facts,
    )
    return in_levels(net), layers.tensors


class _Layers:
    """A network under construction: a method a layer, each returns the name of its output."""

    def __init__(self, size: int, seed: int | None) -> None:
        self.nodes: list[Node] = []
        self.shapes: dict[str, tuple[int, ...]] = {"image": (3, size, size)}
        self.tensors: dict[str, Array] = {}
        self._seed = seed
        self._square = {"image": 1.0}  # mean square of every value

    def conv(
        self, name: str, value: str, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1, gain: float = 1.0
    ) -> str:
        """Add a convolution whose output has mean square `gain`; the padding keeps a size that is not strided."""
        inputs, *sides = self.shapes[value]
        pad = kernel // 2
        self._weights(name, (channels, inputs // groups, kernel, kernel), value, gain)
        shape = (channels, *((side + 2 * pad - kernel) // stride + 1 for side in sides))
        window = _window(kernel, stride, [pad] * 4)
        return self._add("Conv", name, [value, f"{name}/weight", f"{name}/bias"], shape, gain, group=groups, **window)

    def connected(self, name: str, value: str, outputs: int) -> str:
        """Add a matrix."""
        self._weights(name, (outputs, *self.shapes[value]), value, 1.0)
        return self._add("Gemm", name, [value, f"{name}/weight", f"{name}/bias"], (outputs,), 1.0)

    def relu(self, value: str, kept: float = 0.5) -> str:
        """Add an activation, which keeps that part of the mean square."""
        return self._add("Relu", f"{value}/relu", [value], self.shapes[value], self._square[value] * kept)

    def relu6(self, value: str) -> str:
        """Add one that ends at 6."""
        square = self._square[value] / 2
        return self._add("Clip", f"{value}/relu6", [value], self.shapes[value], square, min=0.0, max=6.0)

    def leaky(self, value: str) -> str:
        """Add darknet's activation."""
        square = self._square[value] * (1 + 0.1**2) / 2
        return self._add("LeakyRelu", f"{value}/leaky", [value], self.shapes[value], square, alpha=0.1)

    def pool(self, name: str, value: str, kernel: int, stride: int, pads: Sequence[int] = (0, 0, 0, 0)) -> str:
        """Add a pool; a window that begins within the image counts, even if it ends beyond it."""
        channels, *sides = self.shapes[value]
        lengths = (side + pads[axis] + pads[axis + 2] - kernel for axis, side in enumerate(sides))
        shape = (channels, *(-(-length // stride) + 1 for length in lengths))
        # The largest of some normal numbers: 1.5 to 2.5 times the mean square of one, as far as they are unlike.
        return self._add("MaxPool", name, [value], shape, 1.5 * self._square[value], **_window(kernel, stride, pads))

    def add(self, name: str, *values: str) -> str:
        """Add two values."""
        return self._add("Add", name, values, self.shapes[values[0]], sum(self._square[value] for value in values))

    def concat(self, name: str, *values: str) -> str:
        """Put channels one after the other."""
        counts = [self.shapes[value][0] for value in values]
        square = sum(count * self._square[value] for count, value in zip(counts, values, strict=True)) / sum(counts)
        return self._add("Concat", name, values, (sum(counts), *self.shapes[values[0]][1:]), square)

    def reorg(self, name: str, value: str) -> str:
        """Put 2 × 2 pixels one after the other."""
        channels, height, width = self.shapes[value]
        shape = (4 * channels, height // 2, width // 2)
        return self._add("SpaceToDepth", name, [value], shape, self._square[value], blocksize=2)

    def mean(self, value: str) -> str:
        """Add a global pool, of numbers that are not negative, and make it a vector."""
        channels = self.shapes[value][0]
        pooled = self._add("GlobalAveragePool", "pool", [value], (channels, 1, 1), self._square[value] / 2)
        return self.flatten(pooled)

    def flatten(self, value: str) -> str:
        """Make a vector."""
        return self._add("Flatten", "flatten", [value], (math.prod(self.shapes[value]),), self._square[value])

    def _weights(self, name: str, shape: tuple[int, ...], value: str, gain: float) -> None:
        if self._seed is None:
            self.tensors[f"{name}/weight"] = np.broadcast_to(np.float32(0), shape)
            self.tensors[f"{name}/bias"] = np.broadcast_to(np.float32(0), shape[:1])
            return
        generator = Generator(SFC64([self._seed, zlib.crc32(name.encode())]))
        weight = generator.standard_normal(shape, dtype=np.float32)
        weight *= math.sqrt(gain / (math.prod(shape[1:]) * self._square[value]))
        self.tensors[f"{name}/weight"] = weight
        self.tensors[f"{name}/bias"] = generator.standard_normal(shape[0], dtype=np.float32) * 0.1

    def _add(
        self, op: str, name: str, inputs: Sequence[str], shape: tuple[int, ...], square: float, **attributes: Any
    ) -> str:
        self.nodes.append(Node(name, op, tuple(inputs), name, attributes))
        self.shapes[name] = shape
        self._square[name] = square
        return name


def _window(kernel: int, stride: int, pads: Sequence[int]) -> dict[str, list[int]]:
    return {
        "kernel_shape": [kernel, kernel],
        "strides": [stride, stride],
        "dilations": [1, 1],
        "pads": list(pads),
    }


_CLASSIFIER: Mapping[str, Any] = {"head": "scores", "picture": IMAGENET}


def _vgg16(layers: _Layers) -> Mapping[str, Any]:
    """Simonyan and Zisserman 2014, configuration D."""
    x = "image"
    for stage, (count, channels) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), 1):
        for number in range(1, count + 1):
            x = layers.relu(layers.conv(f"conv{stage}_{number}", x, channels, 3))
        x = layers.pool(f"pool{stage}", x, 2, 2)
    x = layers.flatten(x)
    for name in ("fc6", "fc7"):
        x = layers.relu(layers.connected(name, x, 4096))
    layers.connected("fc8", x, CLASSES)
    return _CLASSIFIER


def _resnet18(layers: _Layers) -> Mapping[str, Any]:
    """He et al. 2016, two convolutions a block."""
    _resnet(layers, (2, 2, 2, 2), (64, 128, 256, 512), bottleneck=False)
    return _CLASSIFIER


def _resnet50(layers: _Layers) -> Mapping[str, Any]:
    """He et al. 2016, a narrow convolution between two of 1 × 1; it has the stride, as everywhere since."""
    _resnet(layers, (3, 4, 6, 3), (256, 512, 1024, 2048), bottleneck=True)
    return _CLASSIFIER


def _resnet(layers: _Layers, depths: Sequence[int], widths: Sequence[int], bottleneck: bool) -> None:
    x = layers.relu(layers.conv("conv1", "image", 64, 7, 2))
    x = layers.pool("pool1", x, 3, 2, (1, 1, 0, 0))
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True), 1):
        for block in range(depth):
            name, stride = f"layer{stage}/{block}", 2 if stage > 1 and not block else 1
            skip, kept = x, 0.95  # what is skipped is not negative
            if layers.shapes[x][0] != width:
                skip, kept = layers.conv(f"{name}/skip", x, width, 1, stride), 0.5
            if bottleneck:
                x = layers.relu(layers.conv(f"{name}/conv1", x, width // 4))
                x = layers.relu(layers.conv(f"{name}/conv2", x, width // 4, 3, stride))
                x = layers.conv(f"{name}/conv3", x, width, gain=1 / depth)
            else:
                x = layers.relu(layers.conv(f"{name}/conv1", x, width, 3, stride))
                x = layers.conv(f"{name}/conv2", x, width, 3, gain=1 / depth)
            x = layers.relu(layers.add(f"{name}/add", x, skip), kept)
    layers.connected("fc", layers.mean(x), CLASSES)


def _mobilenetv2(layers: _Layers) -> Mapping[str, Any]:
    """Sandler et al. 2018, width 1: expansion, channels, blocks and first stride of every stage."""
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    x = layers.relu6(layers.conv("first", "image", 32, 3, 2))
    for stage, (expansion, channels, count, first) in enumerate(stages):
        for block in range(count):
            name, stride, skip = f"stage{stage}/{block}", 1 if block else first, x
            wide = layers.shapes[x][0] * expansion
            if expansion > 1:
                x = layers.relu6(layers.conv(f"{name}/expand", x, wide))
            x = layers.relu6(layers.conv(f"{name}/depthwise", x, wide, 3, stride, groups=wide))
            x = layers.conv(f"{name}/project", x, channels, gain=1 / count if block else 1.0)
            if block:
                x = layers.add(f"{name}/add", x, skip)
    x = layers.relu6(layers.conv("last", x, 1280))
    layers.connected("fc", layers.mean(x), CLASSES)
    return _CLASSIFIER


def _googlenet(layers: _Layers) -> Mapping[str, Any]:
    """Szegedy et al. 2015 as torchvision has it: normalised, and 3 × 3 where the paper has 5 × 5."""
    stages = (
        ("3", ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64))),
        ("4", ((192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
               (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128))),
        ("5", ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128))),
    )  # fmt: skip
    x = layers.relu(layers.conv("conv1", "image", 64, 7, 2))
    x = layers.pool("pool1", x, 3, 2)
    x = layers.relu(layers.conv("conv2", x, 64))
    x = layers.relu(layers.conv("conv3", x, 192, 3))
    x = layers.pool("pool2", x, 3, 2)
    for stage, blocks in stages:
        for letter, (one, before_three, three, before_five, five, pooled) in zip("abcde", blocks, strict=False):
            name = f"inception{stage}{letter}"
            branches = [layers.relu(layers.conv(f"{name}/1x1", x, one))]
            for branch, before, channels in (("3x3", before_three, three), ("5x5", before_five, five)):
                narrow = layers.relu(layers.conv(f"{name}/{branch}_reduce", x, before))
                branches.append(layers.relu(layers.conv(f"{name}/{branch}", narrow, channels, 3)))
            around = layers.pool(f"{name}/pool", x, 3, 1, (1, 1, 1, 1))
            branches.append(layers.relu(layers.conv(f"{name}/pool_proj", around, pooled)))
            x = layers.concat(name, *branches)
        if stage != "5":
            x = layers.pool(f"pool{stage}", x, *((3, 2) if stage == "3" else (2, 2)))
    layers.connected("fc", layers.mean(x), CLASSES)
    return _CLASSIFIER


def _yolov2(layers: _Layers) -> Mapping[str, Any]:
    """Redmon and Farhadi 2017, yolov2.cfg of COCO: Darknet-19, a map of twice the size beside, five boxes a cell."""
    plan = ((32,), (64,), (128, 64, 128), (256, 128, 256), (512, 256, 512, 256, 512), (1024, 512, 1024, 512, 1024))
    x, number = "image", 0
    fine = x
    for stage, widths in enumerate(plan):
        if stage:
            fine = x
            x = layers.pool(f"pool{stage}", x, 2, 2)
        for place, channels in enumerate(widths):
            number += 1
            x = layers.leaky(layers.conv(f"conv{number}", x, channels, 1 if place % 2 else 3))
    for _ in range(2):
        number += 1
        x = layers.leaky(layers.conv(f"conv{number}", x, 1024, 3))
    fine = layers.reorg("reorg", layers.leaky(layers.conv("conv21", fine, 64)))
    x = layers.leaky(layers.conv("conv22", layers.concat("both", fine, x), 1024, 3))
    layers.conv("conv23", x, len(COCO_ANCHORS) * (5 + 80))
    return {"head": "boxes", "anchors": COCO_ANCHORS, "picture": Picture()}


def _tiny_yolov2(layers: _Layers) -> Mapping[str, Any]:
    """Redmon and Farhadi 2017, yolov2-tiny-voc.cfg: the last pool keeps the size, padded on the right and below."""
    x = "image"
    for number, channels in enumerate((16, 32, 64, 128, 256, 512), 1):
        x = layers.leaky(layers.conv(f"conv{number}", x, channels, 3))
        x = layers.pool(f"pool{number}", x, 2, 2) if number < 6 else layers.pool("pool6", x, 2, 1, (0, 0, 1, 1))
    for number in (7, 8):
        x = layers.leaky(layers.conv(f"conv{number}", x, 1024, 3))
    layers.conv("conv9", x, len(VOC_ANCHORS) * (5 + 20))
    return {"head": "boxes", "anchors": VOC_ANCHORS, "picture": Picture()}


# What makes a network, and its usual image size.
ZOO: Mapping[str, tuple[Callable[[_Layers], Mapping[str, Any]], int]] = {
    "vgg16": (_vgg16, 224), "resnet18": (_resnet18, 224), "resnet50": (_resnet50, 224),
    "mobilenetv2": (_mobilenetv2, 224), "googlenet": (_googlenet, 224), "yolov2": (_yolov2, 416),
    "tiny-yolov2": (_tiny_yolov2, 416),
}  # fmt: skip
