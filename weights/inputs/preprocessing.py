"""How a checkpoint's preprocessor_config.json says that images become pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from solver.base.errors import HeptiError
from solver.model.spec import ImageInput

_RESAMPLINGS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
MOST_CHANNELS = 1024  # a damaged number would have means and deviations for all of them: 1e9 took 24 GiB


def image_input(config: Mapping[str, Any], images: Mapping[str, Any], prefix: int) -> ImageInput:
    """Describe the images that a model reads.

    Parameters
    ----------
    config
        The model's config.json.
    images
        Its preprocessor_config.json; empty where there is none: pixels from -1 to 1, stretched to the model's size.
    prefix
        Learned rows in front of the patches.

    Raises
    ------
    HeptiError
        If sizes do not fit together, or a step is one that is not computed.
    """
    height, width = _pair(config.get("image_size", 224), "config.json: image_size")
    patch = _pair(config.get("patch_size", 16), "config.json: patch_size")
    if patch[0] != patch[1] or height % patch[0] or width % patch[0]:
        raise HeptiError(f"config.json: image_size {height} by {width} is not made of square patches of {patch}")
    channels = int(config.get("num_channels", 3))
    if not 1 <= channels <= MOST_CHANNELS:
        raise HeptiError(f"config.json: num_channels is {channels}, must be 1 to {MOST_CHANNELS}")

    resize = _pair(images["size"], "preprocessor_config.json: size") if _on(images, "do_resize", "size") else None
    final = resize
    if _on(images, "do_center_crop", "crop_size"):
        final = _pair(images["crop_size"], "preprocessor_config.json: crop_size")
    if final not in (None, (height, width)):
        raise HeptiError(f"preprocessor_config.json makes images of {final}, config.json wants {(height, width)}")
    resample = images.get("resample", 2)
    if resample not in _RESAMPLINGS:
        raise HeptiError(f"preprocessor_config.json: resample is {resample!r}, must be one of {_RESAMPLINGS}")

    normalize = images.get("do_normalize", True)
    mean = images.get("image_mean", [0.5] * channels) if normalize else [0.0] * channels
    std = images.get("image_std", [0.5] * channels) if normalize else [1.0] * channels
    if len(mean) != channels or len(std) != channels:
        raise HeptiError(f"preprocessor_config.json: {len(mean)} means, {len(std)} deviations, {channels} channels")
    return ImageInput(
        height,
        width,
        patch[0],
        channels,
        prefix,
        mean=tuple(map(float, mean)),
        std=tuple(map(float, std)),
        rescale=float(images.get("rescale_factor", 1 / 255)) if images.get("do_rescale", True) else 1.0,
        resize=None if resize == (height, width) else resize,
        resample=_RESAMPLINGS[resample],
    )


def _on(images: Mapping[str, Any], switch: str, size: str) -> bool:
    """Tell whether a step is done; cropping was off by default where nothing was said."""
    return bool(images.get(switch, switch == "do_resize")) and size in images


def _pair(value: Any, name: str) -> tuple[int, int]:
    """Return height and width from any of the ways they are written."""
    if isinstance(value, Mapping) and {"height", "width"} <= value.keys():
        value = (value["height"], value["width"])
    if isinstance(value, int):
        value = (value, value)
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(isinstance(side, int) for side in value):
        raise HeptiError(f"{name} is {value!r}, must be a number or height and width")
    return value[0], value[1]
