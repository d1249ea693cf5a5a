"""Images for vision models: resize, crop, rescale and normalise as the checkpoint says. The only address of Pillow."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from solver.base.arrays import Array
from solver.base.errors import HeptiError, explained
from solver.model.spec import ImageInput

try:
    from PIL import Image
except ModuleNotFoundError:  # the extra `vision` is not installed; said when an image is asked for
    Image = None  # type: ignore[assignment]


def below(folder: Path, path: str) -> Path:
    """Return where a path that begins in a folder leads, behind all links.

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


def read_image(path: Path, source: ImageInput) -> Array:
    """Read an image file as the model's input.

    Returns
    -------
    [channels, height, width] float32

    Raises
    ------
    HeptiError
        If there is no such image, it is no regular file (a pipe may never end), or Pillow is not installed.
    """
    if Image is None:
        raise HeptiError("reading images needs Pillow: pip install 'hepti[vision]'")
    # Pillow's ways to refuse.
    with explained(f"cannot read image {path}", (OSError, SyntaxError, ValueError, Image.DecompressionBombError)):
        if path.exists() and not path.is_file():
            raise HeptiError(f"cannot read image {path}: it is no regular file")
        with Image.open(path) as file:
            image = file.convert("RGB")
    height, width = source.resize or (source.height, source.width)
    image = image.resize((width, height), Image.Resampling[source.resample.upper()])
    top, left = (height - source.height) // 2, (width - source.width) // 2
    image = image.crop((left, top, left + source.width, top + source.height))
    pixels = np.asarray(image, np.float32) * source.rescale
    pixels -= np.asarray(source.mean, np.float32)
    pixels /= np.asarray(source.std, np.float32)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
