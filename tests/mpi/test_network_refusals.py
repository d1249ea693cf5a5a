"""Every bad input of a convolutional network: exit code 2, one line that says what is wrong, nothing left behind.

What conversion refuses of an ONNX file stands in tests/weights; here that the job says it.
"""

import json

import h5py
import numpy as np
import onnx
import pytest
from mpi4py import MPI
from onnx import TensorProto, helper, numpy_helper

from hepti_mpi.__main__ import main
from hepti_mpi.measure import room
from solver.plan.segment_file import segments_to_json
from tests.kit.convnets import plan_of
from tests.kit.networks import classifier, write_boards, write_classifier, write_photos
from tests.kit.planned import PLAN

pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size != 2, reason="the plans here are for two ranks")


@pytest.fixture(scope="module")
def place(all_ranks, shared_folder):
    """Return a folder with the weights file of a network, images, boards, and plans."""
    path = shared_folder / "refused"
    if all_ranks.rank == 0:
        write_photos(path / "photos")
        write_classifier(path / "sees.h5")
        write_boards(path / "boards.toml", 2)
        (path / "empty").mkdir()
        (path / "empty.txt").write_text("")
        (path / "notes.md").write_text("no image")
        write_plans(path)
        write_classifier(path / "nan.h5")
        with h5py.File(path / "nan.h5", "r+") as file:
            file["tensor t0"][1, 2, 0, 0] = np.nan
    all_ranks.barrier()
    return path


def write_plans(path):
    net, _ = classifier()
    count = len(net.nodes)
    good = segments_to_json(net, plan_of(net, [(count, "rows", [0.5, 0.5])], 2))
    (path / "two.json").write_text(good)
    (path / "three.json").write_text(segments_to_json(net, plan_of(net, [(count, "rows", [0.5, 0.5, 0])], 3)))
    (path / "one.json").write_text(segments_to_json(net, plan_of(net, [(count, "rows", [1])], 1)))
    (path / "bert.json").write_text(json.dumps(PLAN))
    for name, change in {
        "int4.json": {"wire": "int4"},
        "other.json": {"model": {"name": "other", "fingerprint": "0123456789ab"}},
        "short.json": {"segments": [{"nodes": [0, 2], "cut": "rows", "shares": [1, 0]}]},
    }.items():
        (path / name).write_text(json.dumps(json.loads(good) | change))


@pytest.fixture
def refused(place, world, folder, capsys):
    """Run a job that would write two files, and check that it refuses for the reason given, and leaves no file."""

    def check(complaint, *arguments, model="sees.h5", boards=True):
        outputs = ["--output", folder / "answers.jsonl", "--report", folder / "report.json"]
        words = ["--model", place / model, *outputs[: 0 if "--output" in arguments else None], *arguments]
        words += ["--cluster", place / "boards.toml"] if boards else []
        code = main([str(word) for word in words])
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("python -m ")]

        world.barrier()
        if world.rank == 0:
            assert code == 2
            (line,) = lines
            assert complaint in line
            assert not [path for path in folder.iterdir() if path.suffix != ".onnx"]
        else:
            assert lines == []

    return check


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "sees reads images: give --input FILE or FOLDER, or --random 0"),
        (["--text", "a"], "--text: sees reads images: give --input"),
        (["--random", "-1"], "--random is -1, sees takes any number from 0 on"),
        (["--random", "0", "--precision", "int8"], "--precision: sees computes in float32: leave it out"),
        (["--random", "0", "--watch"], "add --replan dry-run, or auto"),
        (
            ["--random", "0", "--trace", "trace.json", "--system", "hepti-throughput"],
            "--trace is of one image: leave out --system hepti-throughput",
        ),
        (["--random", "0", "--wire", "int4"], "int4 on the wire: sees sends float32, float16, int8"),
        (["--random", "0", "--backend", "numpy"], "sees.h5 needs onnxruntime: leave out --backend numpy"),
        (["--random", "0", "--plan", "p.json", "--system", "modnn"], "--plan and --system modnn both say who has what"),
        (["--random", "0", "--system", "coedg"], "unknown system 'coedg' (did you mean coedge?)"),
        (["--random", "0", "--system", "megatron"], "'megatron' is a system of encoders: networks have hepti, sin"),
        (["--random", "0", "--system", "single:pi-9"], "there is no device 'pi-9'"),
        (["--input", "nowhere/"], "--input nowhere: there is no such file or folder"),
        (["--input", "nowhere.png"], "--input nowhere.png: there is no such file or folder"),
        (["--input", "nowhere.txt"], "cannot read --input nowhere.txt: No such file"),
        (["--input", "-", "--images", "nowhere"], "there is no folder --images nowhere"),
        (["--random", "0", "--output", "answers.csv"], "the ending must be .jsonl or .npz"),
        (["--random", "0", "--output", "missing/answers.npz"], "there is no folder missing"),
    ],
)
def test_what_cannot_be_computed(arguments, complaint, refused):
    refused(complaint, *arguments)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("empty", "no images (.png, .jpg, .jpeg, .bmp, .webp) in this folder"),
        ("empty.txt", "empty.txt is empty"),
        ("notes.md", "not a .txt, a .jsonl, an image or a folder, nor - for standard input"),
        ("photos/bad.png", "photos/bad.png: it is no image"),
    ],
)
def test_an_input_without_an_image(name, complaint, refused, place):
    refused(complaint, "--input", place / name)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("three", "the plan is for 3 devices, 2 ranks run: start 3"),
        ("one", "the plan is for 1 devices, 2 ranks run: start 1"),
        ("bert", "bert.json: this is the plan of an encoder, bert: here a convnet's is needed"),
        ("int4", "int4 on the wire"),
        ("other", "the plan is for other with fingerprint 0123456789ab, sees has "),
        ("short", "its segments end at node 2, sees has 7"),
        ("nowhere", "cannot read plan"),
    ],
)
def test_a_plan_that_does_not_fit(name, complaint, refused, place):
    refused(complaint, "--random", 0, "--plan", place / f"{name}.json")


def test_a_plan_of_a_network_for_a_transformer(world, place, capsys):
    """Without --model it is a sentence encoder's."""
    code = main(["--text", "a", "--plan", str(place / "three.json")])

    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("python -m ")]
    world.barrier()
    if world.rank == 0:
        assert code == 2
        (line,) = lines
        assert "three.json: this is the plan of a convnet, sees: here an encoder's is needed" in line


def test_more_ranks_than_boards(refused, place, world, folder):
    boards = place / "empty" / "one.toml"
    if world.rank == 0:
        write_boards(boards, 1)
    world.barrier()

    refused("has 1 devices, the job has 2 ranks", "--random", 0, "--cluster", boards, boards=False)
    if world.rank == 0:
        boards.unlink()


def test_weights_that_are_no_numbers(refused):
    refused("nan.h5: tensor t0 has NaN or infinite values", "--random", 0, "--system", "modnn", model="nan.h5")


# ONNX files, straight.

CONV = helper.make_node("Conv", ["x", "w"], ["a"], name="c", pads=[1, 1, 1, 1])
RELU = helper.make_node("Relu", ["a"], ["y"], name="r")


def onnx_file(path, *, last=RELU, channels=3, sides=(8, 8), weights=1.0, opset=17, external=False):
    """Write a network of two nodes."""
    tensor = numpy_helper.from_array(np.full((4, channels, 3, 3), weights, np.float32), "w")
    shapes = {"x": (1, channels, *sides), "y": (1, 4, *sides)}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph([CONV, last], "g", ends[:1], ends[1:], [tensor])
    domains = [helper.make_opsetid("", opset), *([helper.make_opsetid("mine", 1)] if last.domain else [])]
    model = helper.make_model(graph, opset_imports=domains, ir_version=8)
    onnx.save(model, path, save_as_external_data=external, location="data", size_threshold=0)
    if external:
        path.with_name("data").unlink()


ODD = helper.make_node("Odd", ["a"], ["y"], name="odd one", domain="mine")


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ({"external": True}, "net.onnx keeps w in the file data, which is not beside it"),
        ({"last": ODD}, "node odd one is Odd of domain mine"),
        ({"sides": ("h", "w")}, "give it with --size HxW, of hepti convert"),
        ({"weights": np.nan}, "tensor w has NaN or infinite values"),
        ({"opset": 99}, "net.onnx is of opset 99"),
        ({"sides": (1, 1, 8)}, "net.onnx"),
        (None, "is no ONNX file, or cut short"),
    ],
)
def test_an_onnx_file_that_cannot_be_converted(facts, complaint, refused, folder, world, place, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    path = folder / "net.onnx"
    if world.rank == 0:
        if facts is None:
            path.write_text("no ONNX")
        else:
            onnx_file(path, **facts)
    world.barrier()

    refused(complaint, "--random", 0, model=path)


def test_images_of_as_many_channels_as_no_image_has(refused, world, folder, place, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    path = folder / "five.onnx"
    if world.rank == 0:
        onnx_file(path, channels=5)
    world.barrier()

    refused("the network reads 5 channels, an image has 1 or 3", "--input", place / "photos" / "a.png", model=path)


def test_an_image_that_no_rank_has_memory_for_is_refused_before_it_is_measured(
    refused, world, folder, place, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    path = folder / "huge.onnx"
    if world.rank == 0:
        onnx_file(path, sides=(10**6, 10**6))
    world.barrier()

    refused("huge needs at least 33974648 MiB on each rank of ", "--random", 0, model=path, boards=False)


@pytest.mark.parametrize("boards", [True, False])
def test_a_plan_for_which_a_host_lacks_memory_whatever_a_file_says_of_its_boards(boards, refused, place, monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda: 0)

    refused(" 1 MiB more on ", "--random", 0, "--plan", place / "two.json", boards=boards)
