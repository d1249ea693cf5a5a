"""How a checkpoint's preprocessor_config.json says that images become pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from solver.base.errors import HeptiError
from solver.model.spec import ImageInput

_RESAMPLINGS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # Pillow's numbers
MOST_CHANNELS = 1024  # a damaged number would have means and deviations for all of them: 1e9 took 24 GiB
_FILE = "preprocessor_config.json"
_HALF, _CLIP_MEAN = 0.5, (0.48145466, 0.4578275, 0.40821073)
_CLIP = {
    "resample": 3, "image_mean": _CLIP_MEAN, "image_std": (0.26862954, 0.26130258, 0.27577711),
    "size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}, "do_center_crop": True, "square": False,
    "do_convert_rgb": True,
}  # fmt: skip
# What processors do where the file says nothing; "square": what one number as a size means, else the shorter side.
_PROCESSORS: Mapping[str, Mapping[str, Any]] = {
    "ViT": {
        "resample": 2, "image_mean": _HALF, "image_std": _HALF, "size": {"height": 224, "width": 224},
        "do_center_crop": False, "square": True,
    },
    "DeiT": {
        "resample": 3, "image_mean": _HALF, "image_std": _HALF, "size": {"height": 256, "width": 256},
        "crop_size": {"height": 224, "width": 224}, "do_center_crop": True, "square": True,
    },
    "Bit": _CLIP,
    "CLIP": _CLIP,
}  # fmt: skip
_OF_TYPE = {"deit": "DeiT", "dinov2": "Bit", "dinov2_with_registers": "Bit"}  # by model_type; others: ViT
_READ = (
    "crop_size", "do_center_crop", "do_convert_rgb", "do_normalize", "do_rescale", "do_resize",
    "feature_extractor_type", "image_mean", "image_processor_type", "image_std", "resample", "rescale_factor", "size",
)  # fmt: skip
# Images come to the processor in one order of axes; the rest is of saving, of devices and of batches.
_UNSEEN = (
    "_valid_processor_keys", "auto_map", "backend", "data_format", "default_to_square", "device", "disable_grouping",
    "image_seq_length", "input_data_format", "processor_class", "return_tensors",
    "transformers_version",
)  # fmt: skip


def image_input(
    config: Mapping[str, Any], images: Mapping[str, Any], prefix: int, *, interpolates: bool = False
) -> ImageInput:
    """Describe the images that a model reads.

    Parameters
    ----------
    config
        The model's config.json.
    images
        Its preprocessor_config.json; empty where there is none: pixels from -1 to 1, stretched to the model's size.
    prefix
        Learned rows in front of the patches.
    interpolates
        Whether the model fits its positions to whatever size the processor makes, as DINOv2 does.

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

    alone = {"do_resize": False, "image_processor_type": "ViTImageProcessor"}
    said = _with_defaults(images or alone, str(config.get("model_type")))
    resize = _resize(said) if said["do_resize"] else None
    final = resize
    if said["do_center_crop"]:
        final = _pair(said["crop_size"], f"{_FILE}: crop_size")
    elif resize is not None and len(resize) == 1:
        raise HeptiError(f"{_FILE}: size is {said['size']!r} without a crop, which makes images of every size")
    if interpolates and final is not None:
        height, width = final[0], final[-1]
    if final not in (None, (height, width)) or height % patch[0] or width % patch[0]:
        raise HeptiError(f"{_FILE} makes images of {final}, config.json wants {(height, width)}")
    if said["resample"] not in _RESAMPLINGS:
        raise HeptiError(f"{_FILE}: resample is {said['resample']!r}, must be one of {_RESAMPLINGS}")

    normalize = said["do_normalize"]
    mean = _of_channels(said["image_mean"] if normalize else 0.0, channels)
    std = _of_channels(said["image_std"] if normalize else 1.0, channels)
    if len(mean) != channels or len(std) != channels:
        raise HeptiError(f"{_FILE}: {len(mean)} means, {len(std)} deviations, {channels} channels")
    return ImageInput(
        height,
        width,
        patch[0],
        channels,
        prefix,
        mean=mean,
        std=std,
        rescale=float(said["rescale_factor"]) if said["do_rescale"] else 1.0,
        resize=None if resize == (height, width) else resize,
        resample=_RESAMPLINGS[said["resample"]],
        on_white=bool(said["do_convert_rgb"]),
    )


def _with_defaults(images: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Return what a processor does, where the file says nothing, too.

    Raises
    ------
    HeptiError
        If the file names another processor, or has a key that nobody here knows.
    """
    named = images.get("image_processor_type") or images.get("feature_extractor_type")
    name = str(named) if named else f"{_OF_TYPE.get(model_type, 'ViT')}ImageProcessor"
    for ending in ("Fast", "Pil", "ImageProcessor", "FeatureExtractor"):
        name = name.removesuffix(ending)
    if name not in _PROCESSORS:
        known = ", ".join(f"{one}ImageProcessor" for one in _PROCESSORS)
        raise HeptiError(f"{_FILE}: Hepti does not compute image_processor_type {named}, but {known}")
    for key, value in images.items():
        if key not in (*_READ, *_UNSEEN) and value not in (None, False, {}, []):
            raise HeptiError(f"{_FILE}: Hepti does not know the key {key}, which may change pixels: take it out if not")
    usual: dict[str, Any] = {"do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255}
    usual["do_convert_rgb"] = False
    return usual | dict(_PROCESSORS[name]) | {key: value for key, value in images.items() if value is not None}


def _resize(said: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shorter side that images get, or their height and width."""
    size = said["size"]
    if isinstance(size, int) and not said["square"]:
        return (size,)
    if isinstance(size, Mapping) and isinstance(shorter := size.get("shortest_edge"), int):
        if size.get("longest_edge") is not None:
            raise HeptiError(f"{_FILE}: size has a longest_edge, Hepti computes shortest_edge, or height and width")
        return (shorter,)
    return _pair(size, f"{_FILE}: size")


def _of_channels(value: Any, channels: int) -> tuple[float, ...]:
    """Return a mean or deviation of every channel; one number is that of all."""
    return tuple(map(float, value)) if isinstance(value, list | tuple) else (float(value),) * channels


def _pair(value: Any, name: str) -> tuple[int, int]:
    """Return height and width from any of the ways they are written."""
    if isinstance(value, Mapping) and {"height", "width"} <= value.keys():
        value = (value["height"], value["width"])
    if isinstance(value, int):
        value = (value, value)
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(isinstance(side, int) for side in value):
        raise HeptiError(f"{name} is {value!r}, must be a number or height and width")
    return value[0], value[1]
