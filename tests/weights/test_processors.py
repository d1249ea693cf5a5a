"""Photos of every mode and orientation: pixels are those that transformers' image processors make of them."""

import json
import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import pytest
from PIL import Image
from transformers import AutoImageProcessor
from transformers.image_utils import load_image

from hepti_mpi.requests.images import read_image
from weights.inputs.preprocessing import image_input

VIT = {"model_type": "vit", "image_size": [32, 48], "patch_size": 8}
SQUARE = {"model_type": "dinov2", "image_size": 56, "patch_size": 8}
SIZE = {"height": 32, "width": 48}
# What a config.json and a preprocessor_config.json say; each key is changed at least once.
PROCESSORS = {
    "vit": (VIT, {"image_processor_type": "ViTImageProcessor", "size": SIZE}),
    "no type": (VIT, {"size": SIZE}),
    "a type of old": (VIT, {"feature_extractor_type": "ViTFeatureExtractor", "size": SIZE}),
    "nearest": (VIT, {"size": SIZE, "resample": 0}),
    "lanczos": (VIT, {"size": SIZE, "resample": 1}),
    "box": (VIT, {"size": SIZE, "resample": 4}),
    "hamming": (VIT, {"size": SIZE, "resample": 5}),
    "one number": (VIT, {"size": SIZE, "image_mean": 0.3, "image_std": 0.2}),
    "not normalised": (VIT, {"size": SIZE, "do_normalize": False}),
    "not rescaled": (VIT, {"size": SIZE, "do_rescale": False, "image_mean": [9, 8, 7], "image_std": [3, 4, 5]}),
    "rescaled otherwise": (VIT, {"size": SIZE, "rescale_factor": 1 / 127.5}),
    "cropped": (VIT, {"size": {"height": 40, "width": 61}, "do_center_crop": True, "crop_size": SIZE}),
    "crop beyond the image": (VIT, {"size": {"height": 27, "width": 41}, "do_center_crop": True, "crop_size": SIZE}),
    "on white": (VIT, {"size": SIZE, "do_convert_rgb": True}),
    "deit": ({**VIT, "model_type": "deit"}, {"size": {"height": 36, "width": 52}, "crop_size": SIZE}),
    "clip": (
        {**VIT, "image_size": 32},
        {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 40}, "crop_size": 32},
    ),
    "dinov2": (SQUARE, {"size": {"shortest_edge": 45}, "crop_size": {"height": 40, "width": 40}}),
    "one number as size": (SQUARE, {"size": 45, "crop_size": 40}),
    "nothing but the class": ({**SQUARE, "image_size": 224}, {"image_processor_type": "BitImageProcessor"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return a photo in every mode, and one that a camera turned."""
    folder = tmp_path_factory.mktemp("photos")
    values = np.random.default_rng(0).integers(0, 256, (5, 7, 4), np.uint8)
    photo = Image.fromarray(values).resize((71, 53))  # smooth, as photos are
    for mode in ("RGB", "RGBA", "L", "LA", "P", "1"):
        photo.convert(mode).save(folder / f"{mode}.png")
    photo.convert("RGB").quantize(20).save(folder / "transparent.png", transparency=3)
    photo.convert("CMYK").save(folder / "CMYK.jpg")
    for orientation in (3, 6, 8):
        exif = Image.Exif()
        exif[0x0112] = orientation
        photo.convert("RGB").save(folder / f"turned {orientation}.jpg", exif=exif)
    return sorted(folder.iterdir())


@pytest.mark.parametrize("name", PROCESSORS)
def test_pixels_are_the_processors(photos, tmp_path, name):
    config, said = PROCESSORS[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    theirs = AutoImageProcessor.from_pretrained(tmp_path)
    source = image_input(config, said, 1, interpolates=config["model_type"] == "dinov2")

    for photo in photos:
        wanted = np.asarray(theirs(load_image(str(photo)))["pixel_values"][0])
        np.testing.assert_allclose(read_image(photo, source), wanted, atol=1e-5, err_msg=photo.name)


def test_a_strip_that_would_become_gigabytes_is_refused(tmp_path):
    Image.new("RGB", (1, 60000)).save(tmp_path / "strip.png")
    source = image_input(*PROCESSORS["clip"], 1)

    with pytest.raises(Exception, match="when resized"):
        read_image(tmp_path / "strip.png", source)
