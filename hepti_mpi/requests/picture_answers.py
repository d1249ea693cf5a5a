"""What a convolutional network answers: the labels of an image, the boxes in it, or just what it computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hepti_mpi.requests.images import Frame
from solver.base.arrays import Array
from solver.base.phrases import printable
from solver.model.convnet import ConvNet
from solver.model.operators import VERBATIM

LABELS = 5  # are told of an image
# Nodes after which scores are probabilities already, and those that leave numbers as they are.
SCORING = ("Softmax", "Sigmoid")
RESHAPING = ("Flatten", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Dropout")
# As darknet has them: the least score of a box, and how much one may overlap a better one of its class, of their union.
LEAST_SCORE = 0.25
MOST_OVERLAP = 0.45
# As ultralytics has them: of newer heads more may overlap, and so many boxes are told at most.
OVERLAPS = {"yolov8": 0.7, "yolov11": 0.7}
MOST_BOXES = {"yolov5": 1000, "yolov8": 300, "yolov11": 300}
STRIDES = (8, 16, 32, 64)  # of the maps of YOLOX, in pixels; the last in large ones only
# No box is e^10 anchors wide; e^100, which a network without training may say, is no float32.
WIDEST = 10.0
EDGES = ("left", "top", "right", "bottom")  # of a box, in this order


def picture_answer(
    net: ConvNet, request_id: str | int, seconds: float, outputs: Mapping[str, Array], frame: Frame | None = None
) -> dict[str, Any]:
    """Return a request's answer as it stands in the output.

    Parameters
    ----------
    outputs
        By name, each without the batch.
    frame
        Which part of an image the network saw: boxes are in that image's pixels; None: in those of the input.

    Returns
    -------
    Id and seconds, and what the network's head says: label, score and `top5`; `boxes`; or the shapes of `outputs`.
    A label is the number of its class where the network has no names of classes.
    """
    entry: dict[str, Any] = {"id": request_id, "seconds": seconds}
    if net.head == "scores":
        top = _top(net, outputs[net.outputs[0]].reshape(-1))
        return entry | top[0] | {"top5": top}
    if net.head in DECODED:
        _, height, width = net.shapes[net.input]
        return entry | {"boxes": _boxes(net, outputs[net.outputs[0]], frame or Frame(width, height))}
    return entry | {"outputs": {name: [*outputs[name].shape] for name in net.outputs}}


def print_picture_answer(console: Console, entry: Mapping[str, Any]) -> None:
    """Print an answer for a person: the image's name, and below it what there is in it, line by line."""
    console.print(Text(printable(str(entry["id"])), "bold"), soft_wrap=True)
    grid = Table.grid(padding=(0, 2, 0, 0))
    if "top5" in entry:
        for one in entry["top5"]:
            grid.add_row(f"{one['score']:.3f}", printable(str(one["label"])))
    elif entry.get("boxes"):
        for _ in range(2):
            grid.add_column()
        for _ in EDGES:
            grid.add_column(justify="right")
        grid.add_row("", "", *EDGES, style="dim")
        for one in entry["boxes"]:
            edges = (f"{edge:.0f}" for edge in one["box"])
            grid.add_row(f"{one['score']:.3f}", printable(str(one["label"])), *edges)
    elif "boxes" in entry:
        grid.add_row("nothing found")
    else:
        for name, shape in entry["outputs"].items():
            grid.add_row(printable(name), ", ".join(map(str, shape)) or "one number")
    console.print(Padding(grid, (0, 0, 0, 2), expand=False))


def _top(net: ConvNet, scores: Array) -> list[dict[str, Any]]:
    """Return the classes with the highest scores [classes], the highest first."""
    scores = scores if _are_probabilities(net) else _softmax(scores)
    best = np.argsort(-scores, kind="stable")[:LABELS]
    return [{"label": _label(net, int(number)), "score": float(scores[number])} for number in best]


def _are_probabilities(net: ConvNet) -> bool:
    """Return whether the first output is softmaxed: said at conversion, or seen by its last nodes but for its shape."""
    if net.probabilities:
        return True
    value = net.outputs[0]
    while (number := net.made_by[value]) >= 0:
        node = net.nodes[number]
        op = node.op.removeprefix(VERBATIM)
        if op not in RESHAPING:
            return op in SCORING
        value = node.inputs[0]
    return False


def _label(net: ConvNet, number: int) -> str | int:
    return net.labels[number] if number < len(net.labels) else number


def _boxes(net: ConvNet, output: Array, frame: Frame) -> list[dict[str, Any]]:
    """Return what a head finds, in pixels of the image, the surest first."""
    edges, scores, classes = DECODED[net.head](net, output)
    kept = _without_doubles(edges, scores, classes, OVERLAPS.get(net.head, MOST_OVERLAP))
    edges = frame.in_image(edges)
    return [
        {"label": _label(net, int(classes[box])), "score": float(scores[box]), "box": edges[box].tolist()}
        for box in kept[: MOST_BOXES.get(net.head)]
    ]


def _yolov2(net: ConvNet, output: Array) -> Detected:
    """Decode a head [A (5 + classes), h, w]."""
    _, height, width = net.shapes[net.input]
    _, rows, columns = output.shape
    anchors = np.array(net.anchors, np.float32)
    raw = output.reshape(len(anchors), -1, rows, columns)
    objectness = _sigmoid(raw[:, 4])
    # No score is above its objectness: the rest need not be looked at.
    places = np.nonzero(objectness > LEAST_SCORE)
    anchor, row, column = places
    cells = raw[anchor, :, row, column]  # [boxes, 5 + classes]
    likely = _softmax(cells[:, 5:])
    classes, scores = likely.argmax(axis=1), likely.max(axis=1) * objectness[places]
    middles = np.stack([column, row], axis=1).astype(np.float32) + _sigmoid(cells[:, :2])
    halves = anchors[anchor] * np.exp(np.minimum(cells[:, 2:4], WIDEST)) / 2
    cell = np.array([width / columns, height / rows], np.float32)
    edges = np.concatenate([(middles - halves) * cell, (middles + halves) * cell], axis=1)
    return edges, scores, classes


def _yolov5(net: ConvNet, output: Array) -> Detected:
    """Read a head [boxes, 5 + classes]: middle, size, objectness and scores, all decoded in the network."""
    likely = output[output[:, 4] > LEAST_SCORE]
    return _of_middles(likely[:, :4], likely[:, 5:] * likely[:, 4:5])


def _yolov8(net: ConvNet, output: Array) -> Detected:
    """Read a head [4 + classes, boxes]: middle, size and scores, all decoded in the network."""
    return _of_middles(output[:4].T, output[4:].T)


def _yolox(net: ConvNet, output: Array) -> Detected:
    """Decode a head [boxes, 5 + classes] of the cells of all maps, row by row, the finest first."""
    _, height, width = net.shapes[net.input]
    corners, strides = yolox_cells(height, width, len(output))
    middles = (output[:, :2] + corners) * strides[:, None]
    sizes = np.exp(np.minimum(output[:, 2:4], WIDEST)) * strides[:, None]
    return _of_middles(np.concatenate([middles, sizes], axis=1), output[:, 5:] * output[:, 4:5])


def yolox_cells(height: int, width: int, count: int) -> tuple[Array, Array]:
    """Return column and row of so many cells, [n, 2], and the pixels from one to the next, [n]."""
    corners, strides = [], []
    for stride in STRIDES:
        rows, columns = height // stride, width // stride
        corners += [(column, row) for row in range(rows) for column in range(columns)]
        strides += [stride] * (rows * columns)
    return np.array(corners, np.float32)[:count], np.array(strides, np.float32)[:count]


def _of_middles(boxes: Array, scores: Array) -> Detected:
    """Return edges, the best score and its class of boxes by their middles and sizes, [n, 4], where it is enough."""
    best = scores.max(axis=1, initial=0)
    enough = best > LEAST_SCORE
    middles, halves = boxes[enough, :2], boxes[enough, 2:4] / 2
    edges = np.concatenate([middles - halves, middles + halves], axis=1)
    return edges, best[enough], scores[enough].argmax(axis=1)


Detected = tuple[Array, Array, NDArray[np.intp]]  # edges in pixels of the input, scores, classes
DECODED: Mapping[str, Callable[[ConvNet, Array], Detected]] = {
    "boxes": _yolov2, "yolov5": _yolov5, "yolov8": _yolov8, "yolov11": _yolov8, "yolox": _yolox,
}  # fmt: skip


def _without_doubles(edges: Array, scores: Array, classes: NDArray[np.intp], most: float) -> list[int]:
    """Return which boxes stay, by score: each but those that overlap a better one of their class."""
    left = np.argsort(-scores, kind="stable")
    left = left[scores[left] > LEAST_SCORE]
    kept = []
    while left.size:
        best, left = left[0], left[1:]
        kept.append(int(best))
        double = (classes[left] == classes[best]) & _doubles(edges[best], edges[left], most)
        left = left[~double]
    return kept


def _doubles(box: Array, boxes: Array, most: float) -> NDArray[np.bool_]:
    """Return which boxes [n, 4] have too much in common with one [4]."""
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    common = np.maximum(sides, 0).prod(axis=1)
    union = (box[2:] - box[:2]).prod() + (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) - common
    double: NDArray[np.bool_] = common > most * union
    return double


def _sigmoid(x: Array) -> Array:
    half: Array = np.tanh(0.5 * x)
    return 0.5 + 0.5 * half


def _softmax(x: Array) -> Array:
    weights: Array = np.exp(x - x.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights
