"""Images for vision models: resize, crop, rescale and normalise as the checkpoint says. The only address of Pillow."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.base.arrays import Array
from solver.base.environment import install
from solver.base.errors import HeptiError, explained
from solver.model.convnet import Picture
from solver.model.spec import ImageInput

try:
    from PIL import Image, ImageOps, UnidentifiedImageError
except ModuleNotFoundError:  # the extra `vision` is not installed; said when an image is asked for
    Image = None  # type: ignore[assignment]

# What Pillow calls images of so many channels.
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# A strip one pixel wide would become gigabytes when its shorter side is made as long as the network wants it.
MOST_PIXELS = 50_000_000
# Of an image that a line has in itself: more than cameras of boards and telephones make.
MOST_DATA_BYTES = 10 << 20
GREY = 114  # around an image that is not cut, as YOLO's own readers have it
# Data may come from anywhere: no reader that runs another program, or is seldom tried.
DATA_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF")


@dataclass(frozen=True, slots=True)
class Frame:
    """Which part of an image a network sees.

    Parameters
    ----------
    width, height
        Of the image, upright, in its own pixels.
    corner
        Where the upper left corner of the network's input lies in it, across and down; below 0 where the input goes
        beyond the image.
    step
        From one pixel of the input to the next, across and down, in pixels of the image.
    """

    width: int
    height: int
    corner: tuple[float, float] = (0.0, 0.0)
    step: tuple[float, float] = (1.0, 1.0)

    def in_image(self, edges: Array) -> Array:
        """Return boxes (left, top, right, bottom) [n, 4] of the input in the image's own pixels, as far as it goes."""
        corner, step, size = (np.array([*of, *of], np.float32) for of in (self.corner, self.step, self._size))
        found: Array = np.clip(edges * step + corner, 0, size)
        return found

    @property
    def _size(self) -> tuple[int, int]:
        return self.width, self.height


def below(folder: Path, path: str) -> Path:
    """Return where a path that begins in a folder leads, with all links followed.

    Raises
    ------
    HeptiError
        If it leads out of the folder; it is not said whether there is anything.
    """
    # Links in a circle, or no path at all.
    with explained(f"cannot read image {path!r}", (OSError, RuntimeError, ValueError)):
        root = folder.resolve()
        found = (root / path).resolve()
    if not found.is_relative_to(root):
        raise HeptiError(f"image {path!r} is not below --images {folder}")
    return found


def image_data(text: Any) -> bytes:
    """Return the image file that a line has in itself, in base64.

    Raises
    ------
    HeptiError
        If it is no base64, or too large.
    """
    if not isinstance(text, str):
        raise HeptiError("image_data is no string")
    if (size := len(text) // 4 * 3) > MOST_DATA_BYTES:
        raise HeptiError(f"image_data has {size} bytes, at most {MOST_DATA_BYTES} are read: send a smaller image")
    with explained("image_data is no base64", ValueError):
        return base64.b64decode(text, validate=True)


def read_image(file: Path | bytes, source: ImageInput) -> Array:
    """Read an image file, or what stands in one, as the model's input.

    Returns
    -------
    [channels, height, width] float32

    Raises
    ------
    HeptiError
        If there is no such image, it is no regular file (a pipe may never end), has more than MOST_PIXELS pixels where
        it is no file, or Pillow is not installed.
    """
    with _opened(file) as opened:
        image = _upright(opened, "RGB")
        if source.on_white and image.info.get("transparency") is not None:
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    size = _resized(image.width, image.height, source.resize or (source.height, source.width))
    if size[0] * size[1] > MOST_PIXELS:
        raise HeptiError(f"cannot read {_name(file)}: it would be {size[0]} by {size[1]} pixels when resized")
    image = image.resize(size, Image.Resampling[source.resample.upper()])
    width, height = size
    top, left = (height - source.height) // 2, (width - source.width) // 2
    image = image.crop((left, top, left + source.width, top + source.height))
    pixels = np.asarray(image, np.float32) * source.rescale
    pixels -= np.asarray(source.mean, np.float32)
    pixels /= np.asarray(source.std, np.float32)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def read_pixels(file: Path | bytes, shape: tuple[int, ...], picture: Picture) -> tuple[NDArray[np.uint8], Frame]:
    """Read an image file, or what stands in one, as a convolutional network takes it, not normalised yet.

    It is turned upright, resized and cropped as torchvision's Resize and CenterCrop do, black where it is smaller than
    the crop. One that has the network's size stays as it is.

    Parameters
    ----------
    shape
        Channels, height and width of the network's input.

    Returns
    -------
    [channels, height, width] uint8, and which part of the image that is

    Raises
    ------
    HeptiError
        As `read_image`; or if images do not have so many channels, or it is too long for its width.
    """
    channels, height, width = shape
    if channels not in MODES:
        raise HeptiError(f"cannot read {_name(file)}: the network reads {channels} channels, an image has 1, 3 or 4")
    with _opened(file) as opened:
        image = _upright(opened, MODES[channels])
    frame = Frame(*image.size)
    if picture.letterbox and image.size != (width, height):
        image, frame = _letterboxed(image, width, height, picture)
    elif image.size != (width, height):
        size = _resized(image.width, image.height, picture.resize or (height, width))
        if size[0] * size[1] > MOST_PIXELS:
            raise HeptiError(f"cannot read {_name(file)}: it would be {size[0]} by {size[1]} pixels when resized")
        image = image.resize(size, Image.Resampling[picture.interpolation.upper()])
        left, top = _crop_start(image.width, width), _crop_start(image.height, height)
        image = image.crop((left, top, left + width, top + height))
        across, down = frame.width / size[0], frame.height / size[1]
        frame = Frame(frame.width, frame.height, (left * across, top * down), (across, down))
    pixels = np.asarray(image).reshape(height, width, channels)
    if picture.bgr:
        pixels = pixels[..., [2, 1, 0, *range(3, channels)]] if channels >= 3 else pixels
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)), frame


def _letterboxed(image: Image.Image, width: int, height: int, picture: Picture) -> tuple[Image.Image, Frame]:
    """Return the whole image as large as it fits, grey around it, with the rounding of ultralytics."""
    factor = min(width / image.width, height / image.height)
    size = max(round(image.width * factor), 1), max(round(image.height * factor), 1)
    left, top = (
        round((whole - own) / 2 - 0.1) if picture.letterbox == "middle" else 0
        for whole, own in zip((width, height), size, strict=True)
    )
    # Pillow takes a number for a grey image, else one a channel; the fourth says how solid a pixel is.
    grey = (GREY, GREY, GREY, 255)[: len(image.getbands())]
    found = Image.new(image.mode, (width, height), grey if len(grey) > 1 else GREY)
    found.paste(image.resize(size, Image.Resampling[picture.interpolation.upper()]), (left, top))
    return found, Frame(image.width, image.height, (-left / factor, -top / factor), (1 / factor, 1 / factor))


@contextmanager
def _opened(file: Path | bytes) -> Iterator[Image.Image]:
    """Open an image file; what Pillow refuses within is one line."""
    if Image is None:
        raise HeptiError(f"reading images needs Pillow: {install('vision')}")
    # Pillow's ways to refuse; the last is of a damaged orientation.
    refusals = (OSError, SyntaxError, ValueError, Image.DecompressionBombError, struct.error)
    with explained(f"cannot read {_name(file)}", refusals):
        try:
            opened = _open_data(file) if isinstance(file, bytes) else _open_path(file)
        except UnidentifiedImageError:
            raise HeptiError(f"cannot read {_name(file)}: it is no image") from None
        with opened:
            yield opened


def _upright(image: Image.Image, mode: str) -> Image.Image:
    """Return an image as its camera was held, in a mode: what transformers does before any processor sees it."""
    return _eight_bits(ImageOps.exif_transpose(image)).convert(mode)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return the high bytes of a grey image of 16 bits, as Pillow takes those of colours: it cuts grey off at 255."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def _open_path(path: Path) -> Image.Image:
    if path.exists() and not path.is_file():
        raise HeptiError(f"cannot read {_name(path)}: it is no regular file")
    return Image.open(path)


def _open_data(data: bytes) -> Image.Image:
    opened = Image.open(BytesIO(data), formats=DATA_FORMATS)
    if opened.width * opened.height > MOST_PIXELS:
        size = f"{opened.width} by {opened.height}"
        raise HeptiError(f"cannot read the image: it has {size} pixels, at most {MOST_PIXELS} are read")
    return opened


def _name(file: Path | bytes) -> str:
    return "the image" if isinstance(file, bytes) else f"image {file}"


def _resized(width: int, height: int, resize: tuple[int, ...]) -> tuple[int, int]:
    """Return the width and height that an image gets: its shorter side (n,), or (height, width)."""
    if len(resize) == 2:
        return resize[1], resize[0]
    shorter, longer = resize[0], int(resize[0] * max(width, height) / min(width, height))
    return (shorter, longer) if width <= height else (longer, shorter)


def _crop_start(size: int, cropped: int) -> int:
    """Return where the middle begins, with torchvision's rounding; before the image, where that is smaller."""
    return round((size - cropped) / 2) if size >= cropped else -((cropped - size) // 2)
