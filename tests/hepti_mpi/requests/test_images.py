"""Which image files requests may name."""

import json
import os
from pathlib import Path

import pytest
from PIL import Image

from hepti_mpi import cli
from hepti_mpi.requests import inputs
from hepti_mpi.requests.inputs import Reader
from hepti_mpi.requests.service_lines import ServiceLines
from solver.base.errors import HeptiError
from solver.model.spec import ImageInput, encoder

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


@pytest.mark.timeout(20)
@pytest.mark.parametrize("way", ["-", ".jsonl", ".txt"])
@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("deep/own.png", None),
        ("link.png", None),
        ("{folder}/deep/../link.png", None),
        ("../secret.png", "is not below --images"),
        ("{folder}/../secret.png", "is not below --images"),
        ("{folder}-too/secret.png", "is not below --images"),
        ("out.png", "is not below --images"),
        ("up/secret.png", "is not below --images"),
        ("/nowhere", "is not below --images"),
        ("circle.png", "cannot read image"),
        ("pipe.png", "it is no regular file"),
        ("deep", "it is no regular file"),
        ("missing.png", "No such file"),
    ],
)
def test_lines_name_images_below_the_folder_that_a_person_names(way, path, problem, folder, monkeypatch):
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
