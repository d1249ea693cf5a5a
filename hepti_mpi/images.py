"""Images for vision models: resize, crop, rescale and normalise as the checkpoint says. The only address of Pillow."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hepti_mpi.arrays import Array
from solver.errors import HeptiError
from solver.model import ImageInput

try:
    from PIL import Image
except ModuleNotFoundError:  # the extra `vision` is not installed; said when an image is asked for
    Image = None  # type: ignore[assignment]


def read_image(path: Path, source: ImageInput) -> Array:
    """Read an image file as the model's input.

    Returns
    -------
    [channels, height, width] float32

    Raises
    ------
    HeptiError
        If there is no such image, or Pillow is not installed.
    """
    if Image is None:
        raise HeptiError("reading images needs Pillow: pip install 'hepti[vision]'")
    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # Pillow's ways to refuse
        raise HeptiError(f"cannot read image {path}: {error}") from error
    height, width = source.resize or (source.height, source.width)
    image = image.resize((width, height), Image.Resampling[source.resample.upper()])
    top, left = (height - source.height) // 2, (width - source.width) // 2
    image = image.crop((left, top, left + source.width, top + source.height))
    pixels = np.asarray(image, np.float32) * source.rescale
    pixels -= np.asarray(source.mean, np.float32)
    pixels /= np.asarray(source.std, np.float32)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
