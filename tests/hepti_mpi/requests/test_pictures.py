"""Images become what a convolutional network reads, and bad ones become complaints."""

import os

import numpy as np
import pytest
from PIL import Image

from hepti_mpi.requests import pictures
from hepti_mpi.requests.pictures import PictureReader
from hepti_mpi.requests.service_lines import ServiceLines
from solver.base.errors import HeptiError
from solver.model.convnet import ConvNet, Node, Picture
from tests import sweeps

NUMBERS = np.random.default_rng(0)


def network(channels, height, width, picture=None):
    shape = (channels, height, width)
    nodes = (Node("last", "Relu", ("image",), "y"),)
    return ConvNet("sees", "image", ("y",), nodes, {"image": shape, "y": shape}, {}, picture)


def save(path, width, height, **options):
    """Save noise as an image, and return it as it is read again."""
    Image.fromarray(NUMBERS.integers(0, 256, (height, width, 3), np.uint8)).save(path, **options)
    return Image.open(path).convert("RGB")


def ask(net, path, **options):
    """Return the requests of a file, and what was said of the others."""
    said = []
    reader = PictureReader(net, lambda complaint: said.append(str(complaint)), **options)
    requests = list(reader.file(path))
    assert reader.count(path) == len(requests) + len(said)
    return requests, said


def resized(image, size, interpolation):
    """Resize as torchvision.transforms.functional.resize does with Pillow's images."""
    w, h = image.size
    if len(size) == 1:
        short, long = (w, h) if w <= h else (h, w)
        new_short, new_long = size[0], int(size[0] * long / short)
        size = (new_long, new_short) if w <= h else (new_short, new_long)
    return image.resize((size[1], size[0]), interpolation)


def cropped(image, height, width):
    """Crop as torchvision.transforms.functional.center_crop does, in numpy: first pad, then cut."""
    array = np.asarray(image)
    missing = [max(0, height - array.shape[0]), max(0, width - array.shape[1])]
    array = np.pad(array, [*((n // 2, (n + 1) // 2) for n in missing), (0, 0)])
    top, left = (round((have - want) / 2.0) for have, want in zip(array.shape, (height, width), strict=False))
    return array[top : top + height, left : left + width].transpose(2, 0, 1)


@pytest.mark.parametrize(
    ("resize", "size", "width_height", "interpolation"),
    sweeps.cycled(
        24,
        [(8,), (9,), (11,), (12,), (6,), (16, 9), (5, 17), None],
        [(8, 8), (9, 9), (7, 12)],
        [(31, 20), (20, 31), (13, 13), (8, 40), (5, 4)],
        ["bilinear", "bicubic"],
    ),
)
def test_images_are_resized_and_cropped_as_by_torchvision(size, resize, width_height, interpolation, tmp_path):
    image = save(tmp_path / "a.png", *width_height)
    net = network(3, *size, Picture(resize, interpolation=interpolation))

    (request,), said = ask(net, tmp_path / "a.png")

    assert (request.id, said, request.pixels.dtype) == ("a", [], np.uint8)
    assert request.pixels.flags.c_contiguous
    expected = cropped(resized(image, resize or size, Image.Resampling[interpolation.upper()]), *size)
    assert np.array_equal(request.pixels, expected)


def test_an_image_of_the_networks_size_stays_as_it_is(tmp_path):
    image = save(tmp_path / "a.png", 8, 6)

    (request,), _ = ask(network(3, 6, 8, Picture((12,))), tmp_path / "a.png")

    assert np.array_equal(request.pixels, np.asarray(image).transpose(2, 0, 1))


@pytest.mark.parametrize("resize", [(20,), (7,), (16, 40), None])
@pytest.mark.parametrize("width_height", [(60, 40), (40, 60)])
def test_a_frame_says_where_pixels_lie_in_the_image(resize, width_height, tmp_path):
    """A bright spot is found again at its own place, wherever resizing and cropping have moved it."""
    width, height = width_height
    image = np.zeros((height, width, 3), np.uint8)
    image[18:22, 20:24] = 255  # the middle at 22, 20
    Image.fromarray(image).save(tmp_path / "a.png")

    (request,), _ = ask(network(3, 12, 16, Picture(resize)), tmp_path / "a.png")

    down, across = (
        np.average(np.arange(n) + 0.5, weights=request.pixels[0].sum(axis)) for n, axis in ((12, 1), (16, 0))
    )
    left, top, right, bottom = request.frame.in_image(np.array([[across, down, 1e6, 1e6]], np.float32))[0]
    assert (left, top) == pytest.approx((22, 20), abs=1.0)
    assert (right, bottom) == width_height


def test_a_network_of_one_channel_reads_grey(tmp_path):
    image = save(tmp_path / "a.png", 8, 8)

    (request,), _ = ask(network(1, 8, 8), tmp_path / "a.png")

    assert np.array_equal(request.pixels, np.asarray(image.convert("L"))[None])


@pytest.mark.parametrize("channels", [1, 3])
def test_a_grey_image_of_16_bits_is_as_dark_as_it_is(channels, tmp_path):
    grey = NUMBERS.integers(0, 2**16, (5, 7), np.uint16)
    Image.fromarray(grey).save(tmp_path / "deep.png")

    [request], said = ask(network(channels, 5, 7), tmp_path / "deep.png")

    assert not said
    assert (request.pixels == grey >> 8).all()


def test_images_are_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned right by 90°
    image = save(tmp_path / "a.png", 8, 6, exif=exif)

    (request,), _ = ask(network(3, 8, 6), tmp_path / "a.png")

    assert np.array_equal(request.pixels, np.rot90(np.asarray(image), -1).transpose(2, 0, 1))


def test_random_pixels_are_those_of_their_seed():
    reader = PictureReader(network(3, 4, 5), pytest.fail)

    assert reader.random(1).pixels.shape == (3, 4, 5)
    assert reader.random(1).pixels.dtype == np.uint8
    assert np.array_equal(reader.random(1).pixels, reader.random(1).pixels)
    assert not np.array_equal(reader.random(1).pixels, reader.random(2).pixels)


def test_a_folder_is_all_images_in_it_by_their_paths(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "folder.png").mkdir()
    for name in ("b.PNG", "a.jpg", "deep/c.png"):
        save(tmp_path / name, 5, 4)
    (tmp_path / "notes.md").write_text("no image")
    (tmp_path / "none.png").write_text("no image either")
    os.mkfifo(tmp_path / "pipe.png")

    requests, said = ask(network(3, 4, 4), tmp_path)

    assert [request.id for request in requests] == ["a.jpg", "b.PNG", "deep/c.png"]
    assert [line.split(": ")[0] for line in said] == [
        f"cannot read image {tmp_path / name}" for name in ("none.png", "pipe.png")
    ]


def test_a_list_of_paths_is_as_a_command_line(tmp_path, monkeypatch, kept):
    monkeypatch.chdir(tmp_path)
    save("a.png", 5, 4)
    (tmp_path / "list.txt").write_text(f"a.png\n\n{tmp_path}/a.png\r\nnone.png")

    requests, said = ask(network(3, 4, 4), tmp_path / "list.txt")

    assert [request.id for request in requests] == [1, 3]
    kept("\n".join(said))


BAD = [
    (b"{", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b"\xff", "not UTF-8"),
    (b"7", "not an object"),
    (b"{}", "network sees needs an image"),
    (b'{"image": 7}', "image is no string"),
    (b'{"image": "a.png", "id": true}', "neither a string nor an integer"),
    (b'{"image": "a.png", "id": "\\ud800"}', "the id is not Unicode"),
    (b'{"image": "\\ud800.png"}', "cannot read image"),
    (b'{"image": "a\\u0000b.png"}', "cannot read image"),
    (b'{"image": "a.png", "id": "1"}', "id '1' stands on line 1 already"),
    (b'{"image": "../a.png"}', "is not below --images"),
    (b'{"image": "pipe.png"}', "it is no regular file"),
    (b'{"image": "none.png"}', "No such file"),
    (b'{"image": "half.png"}', "cannot read image"),
    (b'{"image": "strip.png"}', "pixels when resized"),
]


@pytest.mark.timeout(60)
def test_a_bad_line_is_one_complaint_and_the_others_are_answered(tmp_path):
    save(tmp_path / "a.png", 5, 4)
    save(tmp_path / "strip.png", 1, 20_000)
    save(tmp_path / "half.png", 50, 40)
    (tmp_path / "half.png").write_bytes((tmp_path / "half.png").read_bytes()[:1000])
    os.mkfifo(tmp_path / "pipe.png")
    good = b'{"image": "a.png"}'
    (tmp_path / "list.jsonl").write_bytes(b"\n".join([good, *(line for line, _ in BAD), good]))

    requests, said = ask(network(3, 4, 4, Picture((64,))), tmp_path / "list.jsonl", images=tmp_path)

    assert [request.id for request in requests] == [1, len(BAD) + 2]
    for number, (complaint, (_, problem)) in enumerate(zip(said, BAD, strict=True), start=2):
        assert complaint.startswith(f"list.jsonl, line {number}: ")
        assert problem in complaint
        assert "\n" not in complaint


def test_standard_input_names_images_as_json_or_as_paths(tmp_path, monkeypatch):
    save(tmp_path / "a.png", 5, 4)
    lines = [b'{"id": "x", "image": "a.png"}', b"a.png", b"../a.png", b'{"id": "x", "image": "a.png"}', b"{a.png"]
    monkeypatch.setattr(pictures, "read_lines", lambda: iter(lines))
    said = []

    requests = list(
        PictureReader(
            network(3, 4, 4), lambda complaint: said.append(str(complaint)), by_id=False, images=tmp_path
        ).standard_input(ServiceLines())
    )

    assert [request.id for request in requests] == ["x", 2, "x"]
    assert ["is not below --images" in said[0], "not JSON" in said[1], len(said)] == [True, True, 2]


@pytest.mark.parametrize("line", [b'{"image": "a.png"}', b"a.png"])
def test_without_such_a_folder_standard_input_names_no_image(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("a.png", 5, 4)
    monkeypatch.setattr(pictures, "read_lines", lambda: iter([line]))
    said = []

    assert not list(
        PictureReader(network(3, 4, 4), lambda complaint: said.append(str(complaint))).standard_input(ServiceLines())
    )
    assert "--images FOLDER" in said[0]


def test_a_file_may_be_read_again(tmp_path):
    save(tmp_path / "a.png", 5, 4)
    (tmp_path / "list.txt").write_text(f"{tmp_path}/a.png\n")
    reader = PictureReader(network(3, 4, 4), pytest.fail)

    assert [len(list(reader.file(tmp_path / "list.txt"))) for _ in range(2)] == [1, 1]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none.txt", "No such file"),
        ("notes.md", "not a .txt"),
        ("", "no images"),
        ("none", "no such file or folder"),
        ("none.png", "no such file or folder"),
    ],
)
def test_what_is_no_source_of_images_is_refused_at_once(name, problem, tmp_path):
    (tmp_path / "notes.md").write_text("no image")
    reader = PictureReader(network(3, 4, 4), pytest.fail)

    for read in (reader.count, lambda path: list(reader.file(path))):
        with pytest.raises(HeptiError, match=problem):
            read(tmp_path / name)


def test_networks_that_read_no_images_say_so(tmp_path):
    save(tmp_path / "a.png", 5, 4)

    requests, said = ask(network(2, 4, 4), tmp_path / "a.png")

    assert requests == []
    assert "reads 2 channels" in said[0]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_damaged_images_are_complained_of_whatever_is_damaged(tmp_path):
    """Bytes are changed at random; then a width beside the orientation is a text, which is a struct.error."""
    path, net = tmp_path / "a.jpg", network(3, 8, 6)
    exif = Image.Exif()
    exif[0x010E], exif[0x0112] = "text", 6
    save(path, 8, 6, exif=exif)
    whole = path.read_bytes()
    for _ in range(sweeps.count(60, 300)):
        damaged = np.frombuffer(whole, np.uint8).copy()
        damaged[NUMBERS.integers(2, len(whole), 3)] = NUMBERS.integers(0, 256, 3)
        path.write_bytes(damaged[: NUMBERS.integers(len(whole) // 4, len(whole) + 1)].tobytes())

        ask(net, path)

    path.write_bytes(whole.replace(b"\x01\x0e\x00\x02", b"\x01\x00\x00\x02"))

    requests, said = ask(net, path)

    assert (len(requests), len(said)) == (0, 1)
