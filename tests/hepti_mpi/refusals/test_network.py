"""Every bad input of a network's job: exit code 2, one line that says what is wrong, nothing left behind.

What conversion refuses of an ONNX file stands in tests/weights; here that the job says it.
"""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from hepti_mpi.__main__ import main
from hepti_mpi.kernels import trial
from hepti_mpi.measure import profile_network, room
from solver.plan.writing import plan_to_json
from tests.kit import refusals
from tests.kit.convnets import Builder, plan_of
from tests.kit.networks import classifier, write_boards, write_classifier, write_photos
from tests.kit.onnx_files import ODD, onnx_file
from tests.kit.planned import PLAN
from weights.file.networks import write_network

HERE = Path(__file__).parent
ALONE = ("--cluster", "boards-1.toml")  # where ranks compute, this process is the only one


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with the weights file of a network, images, boards, and plans for two ranks."""
    path = tmp_path_factory.mktemp("network")
    write_photos(path / "photos")
    write_classifier(path / "sees.h5")
    for count in (1, 2):
        write_boards(path / f"boards-{count}.toml", count)
    (path / "empty").mkdir()
    (path / "empty.txt").write_text("")
    (path / "notes.md").write_text("no image")
    (path / "net.onnx").write_text("")
    write_plans(path)
    write_classifier(path / "nan.h5")
    with h5py.File(path / "nan.h5", "r+") as file:
        file["tensor t0"][1, 2, 0, 0] = np.nan
    return path


def write_plans(path):
    net, _ = classifier()
    count = len(net.nodes)
    good = plan_to_json(plan_of(net, [(count, "rows", [0.5, 0.5])], 2), net)
    (path / "good.json").write_text(good)
    (path / "three.json").write_text(plan_to_json(plan_of(net, [(count, "rows", [0.5, 0.5, 0])], 3), net))
    (path / "one.json").write_text(plan_to_json(plan_of(net, [(count, "rows", [1])], 1), net))
    (path / "bert.json").write_text(json.dumps(PLAN))
    for name, change in {
        "int4.json": {"wire": "int4"},
        "other.json": {"model": {"name": "other", "fingerprint": "0123456789ab"}},
        "short.json": {"stages": [{"runs": [{"nodes": [0, 2], "cut": "rows", "rows": [1, 0]}]}]},
    }.items():
        (path / name).write_text(json.dumps(json.loads(good) | change))


@pytest.mark.usefixtures("two_ranks")
def test_a_job_is_refused_in_one_line_and_leaves_nothing(place, job):
    before = sorted(place.rglob("*"))
    network = job("sees.h5")
    programs = {
        "network": lambda words: network([*words, "--cluster", "boards-2.toml"]),
        "one board": lambda words: network([*words, "--cluster", "boards-1.toml"]),
        "python -m hepti_mpi": main,
    }

    refusals.check(HERE / "network.txt", programs, place)

    assert sorted(place.rglob("*")) == before


def test_an_operator_that_numpy_has_not(place, complaint):
    facts = {"attributes": {"kernel_shape": [2, 2]}, "output": 0, "batch": True, "dtype": "float32"}
    build = Builder(np.random.default_rng(0), height=4, width=4)
    write_network(place / "lp.h5", build.net([build.add("Verbatim:LpPool", ["x"], (3, 3, 3), **facts)]), {}, "a test")

    assert "LpPool" in complaint("--model", "lp.h5", "--random", 0, "--backend", "numpy", *ALONE)


@pytest.mark.parametrize(("name", "named"), [("photos/bad.png", "is no image"), ("empty.txt", "is empty")])
def test_an_input_without_an_image(name, named, complaint):
    assert named in complaint("--model", "sees.h5", "--input", name, *ALONE)


def test_weights_that_are_no_numbers(complaint):
    assert "tensor t0 has NaN" in complaint("--model", "nan.h5", "--random", 0, *ALONE)


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("cluster", [(), ("--cluster", "boards-2.toml")], ids=["bare", "cluster"])
def test_a_plan_for_which_a_host_lacks_memory_whatever_a_file_says_of_its_boards(cluster, complaint, monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda: 0)
    monkeypatch.setattr(room, "host_name", lambda: "pi-0")

    assert " 1 MiB more on " in complaint("--model", "sees.h5", "--random", 0, "--plan", "good.json", *cluster)


# ONNX files, straight.

FACTS = {
    "weights in another file": ({"external": True}, "in the file data"),
    "another domain": ({"last": ODD}, "odd one is Odd"),
    "sides of any size": ({"sides": ("h", "w")}, "--size HxW"),
    "no numbers": ({"weights": np.nan}, "tensor w has NaN"),
    "a later opset": ({"opset": 99}, "of opset 99"),
    "three sides": ({"sides": (1, 1, 8)}, "net.onnx"),
    "no network": (None, "no ONNX file"),
}


@pytest.fixture
def net(place, tmp_path, monkeypatch):
    """Return what writes a network's ONNX file; what is converted goes to a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(trial, "known", lambda: "")  # not tried anew for that
    return lambda **facts: onnx_file(place / "net.onnx", **facts)


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("name", FACTS)
def test_an_onnx_file_that_cannot_be_converted(name, net, place, complaint):
    facts, named = FACTS[name]
    if facts is None:
        (place / "net.onnx").write_text("no ONNX")
    else:
        net(**facts)

    assert named in complaint("--model", "net.onnx", "--random", 0, "--cluster", "boards-2.toml")


def test_images_of_as_many_channels_as_no_image_has(net, complaint):
    net(channels=5)

    assert "reads 5 channels" in complaint("--model", "net.onnx", "--input", "photos/a.png", *ALONE)


@pytest.mark.usefixtures("two_ranks")
def test_an_image_that_no_rank_has_memory_for_is_refused_before_it_is_measured(net, complaint, monkeypatch):
    monkeypatch.setattr(profile_network, "host_name", lambda: "pi-0")
    monkeypatch.setattr(profile_network, "free_bytes", lambda: 1 << 30)
    net(sides=(10**6, 10**6))

    assert "33974648 MiB on each rank" in complaint("--model", "net.onnx", "--random", 0)
