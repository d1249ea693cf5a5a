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
from solver.model.convnet import ConvNet, Picture

_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
_PICTURE_KEYS = ("resize", "resize_size", "crop", "crop_size", "mean", "std", "interpolation", "scale")


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
        from weights.convert.onnx_graph import read_onnx
    except ImportError as error:
        raise HeptiError(f"converting {source} needs onnx and onnxruntime: {install('fast')}") from error
    if not source.is_file():
        raise HeptiError(f"no ONNX file {source}")
    net, tensors = read_onnx(source, size)
    result = net.shapes[net.outputs[0]]
    net = replace(
        net,
        head=head or ("scores" if len(result) == 1 else "none"),
        labels=_labels(labels),
        picture=_picture(picture, net.shapes[net.input]),
        anchors=tuple(anchors),
    )
    _check_head(net, result)
    return net, tensors, f"{source.name} (ONNX, opset {net.opset})"


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
        classes = result[0] // len(net.anchors) - 5
        if net.labels and len(net.labels) != classes:
            raise HeptiError(f"there are {len(net.labels)} labels, the network has {classes} classes")


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
        return Picture(
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
