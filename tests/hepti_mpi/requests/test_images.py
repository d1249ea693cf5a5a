"""Which image files requests may name."""

import base64
import json
import os
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from hepti_mpi.requests import inputs
from hepti_mpi.requests.inputs import Reader
from hepti_mpi.requests.service_lines import ServiceLines
from hepti_mpi.session import cli
from solver.base.errors import HeptiError
from solver.model.spec import ImageInput, encoder
from tests import sweeps

SPEC = encoder("sees", hidden=16, ffn=32, heads=2, layers=1, input=ImageInput(8, 8, 4))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with an image, links, a pipe; another image lies beside it, where we are."""
    inside = tmp_path / "images"
    (inside / "deep").mkdir(parents=True)
    for path in (inside / "deep" / "own.png", tmp_path / "secret.png"):
        Image.new("RGB", (8, 8)).save(path)
    (inside / "link.png").symlink_to("deep/own.png")
    (inside / "out.png").symlink_to("../secret.png")
    (inside / "up").symlink_to("..")
    (inside / "circle.png").symlink_to("circle.png")
    os.mkfifo(inside / "pipe.png")
    (tmp_path / "images-too").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "images-too" / "secret.png")
    monkeypatch.chdir(tmp_path)
    return inside


def read(way, paths, images, monkeypatch):
    """Return which paths were read, and what was said of the others."""
    said = []
    lines = [json.dumps({"image": path}) if way != ".txt" else path for path in paths]
    reader = Reader(SPEC, None, lambda complaint: said.append(str(complaint)), images=images)
    if way == "-":
        monkeypatch.setattr(inputs, "read_lines", lambda: (line.encode() for line in lines))
        return [request.id for request in reader.standard_input(ServiceLines())], said
    Path(f"list{way}").write_text("\n".join(lines))
    return [request.id for request in reader.file(Path(f"list{way}"))], said


# Which paths may be named below --images, and what is said of the others.
PATHS = {
    "deep/own.png": None,
    "link.png": None,
    "{folder}/deep/../link.png": None,
    "../secret.png": "is not below --images",
    "{folder}/../secret.png": "is not below --images",
    "{folder}-too/secret.png": "is not below --images",
    "out.png": "is not below --images",
    "up/secret.png": "is not below --images",
    "/nowhere": "is not below --images",
    "circle.png": "cannot read image",
    "pipe.png": "it is no regular file",
    "deep": "it is no regular file",
    "missing.png": "No such file",
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("path", "way"), sweeps.cycled(13, PATHS, ["-", ".jsonl", ".txt"]))
def test_lines_name_images_below_the_folder_that_a_person_names(way, path, folder, monkeypatch):
    problem = PATHS[path]
    names, said = read(way, [path.format(folder=folder)], folder, monkeypatch)

    assert names == ([] if problem else [1])
    assert len(said) == bool(problem)
    assert problem is None or problem in said[0]


@pytest.mark.parametrize("way", ["-", ".jsonl"])
def test_without_such_a_folder_json_lines_name_no_image(way, folder, monkeypatch):
    names, said = read(way, ["secret.png", 7, "a\0b.png"], None, monkeypatch)

    assert names == []
    assert all("--images FOLDER" in line for line in (said[0], said[2]))
    assert "image is no string" in said[1]


def test_a_list_of_paths_is_as_a_command_line(folder, monkeypatch):
    """They begin where we are, and lead anywhere."""
    paths = ["secret.png", "images/link.png", str(folder / "out.png")]

    assert read(".txt", paths, None, monkeypatch) == ([1, 2, 3], [])


def test_a_path_that_is_none_is_refused(folder, monkeypatch):
    names, said = read("-", ["a\0b.png"], folder, monkeypatch)

    assert names == []
    assert "cannot read image" in said[0]


def test_a_folder_of_images_without_lines_that_name_some_is_refused():
    with pytest.raises(HeptiError, match="add --input"):
        cli.parse(["--images", "pictures", "--text", "a"])


def encoded(image, kind):
    file = BytesIO()
    image.save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP", "GIF"])
def test_a_line_has_an_image_in_itself_without_a_folder(kind, monkeypatch):
    line = json.dumps({"id": "x", "image_data": encoded(Image.new("RGB", (8, 8), "red"), kind)})
    monkeypatch.setattr(inputs, "read_lines", lambda: iter([line.encode()]))

    (request,) = Reader(SPEC, None, pytest.fail).standard_input(ServiceLines())

    assert (request.id, request.rows, request.line) == ("x", SPEC.input.rows, 1)
    assert request.content.shape == (SPEC.input.channels, SPEC.input.height, SPEC.input.width)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("", "it is no image"),
        ("aGVsbG8=", "it is no image"),
        ("aGVsbG8", "image_data is no base64: "),
        ("ä", "image_data is no base64: "),
        ("aGV\nsbG8=", "image_data is no base64: "),
        (None, "image_data is no string"),
        ("A" * (14 << 20), f"{(14 << 20) // 4 * 3} bytes, at most {10 << 20}"),
        (encoded(Image.new("RGB", (8, 8)), "TIFF"), "it is no image"),  # formats that cameras seldom make are not tried
        (encoded(Image.new("RGB", (8, 8)), "EPS"), "it is no image"),  # Pillow would run another program
        (encoded(Image.new("1", (10_000, 5_001)), "PNG"), "10000 by 5001 pixels"),
        (encoded(Image.new("RGB", (8, 8), "red"), "PNG")[:60], "cannot read the image: "),
    ],
)
def test_what_is_no_image_in_a_line_is_one_complaint(data, problem, monkeypatch):
    line, said = json.dumps({"id": "x", "image_data": data}).encode(), []
    monkeypatch.setattr(inputs, "read_lines", lambda: iter([line]))

    assert not [*Reader(SPEC, None, said.append).standard_input(ServiceLines())]

    (complaint,) = said
    assert problem in complaint.error
    assert "\n" not in complaint.error
    assert (complaint.id, complaint.line, str(complaint)) == ("x", 1, f"standard input, line 1: {complaint.error}")


def test_a_line_that_is_too_long_is_refused(monkeypatch):
    said = []
    monkeypatch.setattr(inputs, "read_lines", lambda: iter([b" " * (16 << 20) + b"{}"]))

    assert not [*Reader(SPEC, None, said.append).standard_input(ServiceLines())]
    assert [complaint.error for complaint in said] == [f"the line is longer than {16 << 20} bytes: send less at a time"]
