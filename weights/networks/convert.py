"""From an ONNX file to a network's weights file, with what the ONNX file does not say: labels, pictures, head."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from solver.base.environment import install
from solver.base.errors import HeptiError, explained
from solver.model.convnet import LETTERBOXES, YOLO_HEADS, ConvNet, Picture, bytes_as_they_are
from weights.networks.probabilities import ends_with_probabilities

_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
_PICTURE_KEYS = (
    "resize", "resize_size", "crop", "crop_size", "mean", "std", "interpolation", "scale", "letterbox", "channel_order",
)  # fmt: skip
_ORDERS = ("rgb", "bgr")


def read_network(
    source: Path,
    size: tuple[int, int] | None = None,
    labels: Path | None = None,
    head: str | None = None,
    picture: Path | None = None,
    anchors: Sequence[tuple[float, float]] = (),
) -> tuple[ConvNet, Mapping[str, NDArray[Any]], str]:
    """Return what `write_network` makes a weights file of: the network of an ONNX file, its tensors, their source.

    Parameters
    ----------
    size
        Height and width of the image, where the ONNX file leaves them open.
    labels
        A file with the name of a class in every line.
    head
        What the first output means; None: scores if it is a vector.
    picture
        A JSON file that says by torchvision's names how an image becomes the input.
    anchors
        Width and height in cells of the boxes of a YOLO head.

    Raises
    ------
    HeptiError
        If one of the files is not as it should be.
    """
    try:
        # Imported late: it needs onnx and onnxruntime, which only this needs.
        from weights.networks.onnx_graph import read_onnx
    except ImportError as error:
        raise HeptiError(f"converting {source} needs onnx and onnxruntime: {install('fast')}") from error
    if not source.is_file():
        raise HeptiError(f"no ONNX file {source}")
    net, tensors = read_onnx(source, size)
    result = net.shapes[net.outputs[0]]
    shown = _picture(picture, net.shapes[net.input])
    if net.picture is not None and shown is not None and (shown.scale, shown.mean, shown.std) != (
        net.picture.scale, net.picture.mean, net.picture.std,
    ):  # fmt: skip
        raise HeptiError(f"{source} takes bytes: --picture must have scale 1, and neither mean nor std")
    net = replace(
        net,
        head=head or ("scores" if _is_vector(result) else "none"),
        labels=_labels(labels),
        picture=shown or net.picture or _usual_picture(head, net.shapes[net.input][0]),
        anchors=tuple(anchors),
        probabilities=ends_with_probabilities(net, tensors),
    )
    _check_head(net, result)
    return net, tensors, f"{source.name} ({'; '.join((f'ONNX, opset {net.opset}', *net.notes))})"


def _is_vector(shape: tuple[int, ...]) -> bool:
    """Return whether a result is a number a class, whatever axes of one pixel it has besides."""
    return len(shape) in (1, 3) and set(shape[1:]) <= {1}


def _labels(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    with explained(f"cannot read {path}", (OSError, UnicodeDecodeError)):
        return tuple(line.strip() for line in path.read_text("utf-8").splitlines() if line.strip())


def _check_head(net: ConvNet, result: tuple[int, ...]) -> None:
    """Refuse labels and anchors that are not as many as the result has."""
    if net.head == "scores" and net.labels and len(net.labels) != result[0]:
        raise HeptiError(f"there are {len(net.labels)} labels, the network has {result[0]} scores")
    if net.head == "boxes":
        if len(result) != 3:
            raise HeptiError(
                f"--head boxes needs an output of boxes for every cell [C, H, W], here it is {list(result)}"
            )
        if not net.anchors or result[0] % len(net.anchors) or result[0] // len(net.anchors) <= 5:
            raise HeptiError(
                f"--head boxes needs --anchors, 5 numbers and the scores of classes for each; here are "
                f"{len(net.anchors)} for {result[0]} channels"
            )
        _check_labels(net, result[0] // len(net.anchors) - 5)
    if net.head in YOLO_HEADS:
        _check_yolo(net, result)


def _check_labels(net: ConvNet, classes: int) -> None:
    if net.labels and len(net.labels) != classes:
        raise HeptiError(f"there are {len(net.labels)} labels, the network has {classes} classes")


def _check_yolo(net: ConvNet, result: tuple[int, ...]) -> None:
    """Refuse a result that is not of such a head."""
    by_channels = net.head in ("yolov8", "yolov11")
    least, form = (5, "[4 + classes, boxes]") if by_channels else (6, "[boxes, 5 + classes]")
    if len(result) != 2 or result[0 if by_channels else 1] < least:
        raise HeptiError(f"--head {net.head} needs an output {form}, here it is {list(result)}")
    if by_channels and len(net.outputs) > 1:
        raise HeptiError(
            f"--head {net.head} is for networks that find boxes and nothing else, here are {len(net.outputs)} outputs"
        )
    if net.head == "yolox":
        _, height, width = net.shapes[net.input]
        maps = [(height // stride) * (width // stride) for stride in (8, 16, 32, 64)]
        if result[0] not in (sum(maps[:3]), sum(maps)) or height % 32 or width % 32:
            raise HeptiError(
                f"--head yolox needs a box a cell of maps of 8, 16 and 32 pixels, {sum(maps[:3])}, here are {result[0]}"
            )
    _check_labels(net, result[0] - 4 if by_channels else result[1] - 5)


def _usual_picture(head: str | None, channels: int) -> Picture | None:
    """Return how a YOLO's own programs read images."""
    if head not in YOLO_HEADS:
        return None
    if head == "yolox":
        return replace(bytes_as_they_are(channels), letterbox="corner", bgr=True)
    return Picture(mean=(0.0,) * channels, std=(1.0,) * channels, letterbox="middle")


def _picture(path: Path | None, shape: tuple[int, ...]) -> Picture | None:
    """Read how an image becomes the input, which is [C, H, W]."""
    if path is None:
        return None
    with explained(f"{path} does not say how pictures are read", (OSError, ValueError, TypeError, AttributeError)):
        facts = json.loads(path.read_text("utf-8"))
        for key in facts:
            if key not in _PICTURE_KEYS:
                raise HeptiError(f"{path}: {key} is not one of {', '.join(_PICTURE_KEYS)}")
        crop = _sides(facts.get("crop_size", facts.get("crop")))
        if crop and (crop * 2)[:2] != shape[1:]:
            raise HeptiError(f"{path}: crop is {list(crop)}, the network needs {list(shape[1:])}")
        interpolation = str(facts.get("interpolation", "bilinear")).lower().rpartition(".")[2]
        if interpolation not in _INTERPOLATIONS:
            raise HeptiError(f"{path}: interpolation is {interpolation}, must be one of {', '.join(_INTERPOLATIONS)}")
        mean, std = (
            tuple(map(float, facts.get(key, [usual] * shape[0]))) for key, usual in (("mean", 0.0), ("std", 1.0))
        )
        if len(mean) != shape[0] or len(std) != shape[0] or not all(std):
            raise HeptiError(f"{path}: mean and std must be {shape[0]} numbers, and no std may be 0")
        scale = float(facts.get("scale", 1 / 255))
        if not all(map(isfinite, (*mean, *std, scale))):
            raise HeptiError(f"{path}: mean, std and scale must be finite numbers")
        letterbox, order = facts.get("letterbox", ""), str(facts.get("channel_order", "rgb")).lower()
        if letterbox not in LETTERBOXES or order not in _ORDERS:
            raise HeptiError(
                f"{path}: letterbox is {letterbox!r} and channel_order {order!r}, must be one of "
                f"{', '.join(LETTERBOXES[1:])}, and of {', '.join(_ORDERS)}"
            )
        return Picture(
            letterbox=letterbox,
            bgr=order == "bgr",
            resize=_sides(facts.get("resize_size", facts.get("resize"))),
            mean=mean,
            std=std,
            interpolation=interpolation,
            scale=scale,
        )


def _sides(value: Any) -> tuple[int, ...] | None:
    """Return one length, or height and width; None where nothing is said."""
    if value is None:
        return None
    sides = tuple(value) if isinstance(value, list) else (value,)
    if len(sides) not in (1, 2) or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ValueError(f"{value!r} is neither a length nor height and width")
    return sides
