"""Jobs of processes with convolutional networks: standard input, interruption, ranks without the file, ONNX files."""

import signal
import sys

import h5py
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.kit.commands import complaints, mpirun, run, start, succeeded
from tests.kit.long_jobs import long_job
from tests.kit.networks import check_answer, expected, write_boards, write_classifier, write_photos
from tests.kit.shared_ranks import jobs


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with the weights file of a network, images, and boards."""
    path = tmp_path_factory.mktemp("network")
    write_photos(path / "photos")
    write_classifier(path / "sees.h5")
    write_boards(path / "boards.toml", 3)
    return path


def of(place, *options):
    return ("--model", place / "sees.h5", "--cluster", place / "boards.toml", *options)


def test_paths_on_standard_input_are_answered_one_by_one(place, kept):
    photos = place / "photos"
    command = mpirun(3, *of(place, "--input", "-", "--images", photos, "--system", "modnn"))

    with long_job(*command) as job:
        check_answer(job.ask("a.png"), photos / "a.png")
        refused = job.ask("bad.png")
        answer = job.ask('{"id": "c", "image": "deep/c.png"}')
        code, rest, errors = job.end()

    assert refused["id"] == 2
    assert answer["id"] == "c"
    check_answer(answer, photos / "deep" / "c.png")
    assert (code, rest) == (2, "")
    (line,) = [line for line in errors.splitlines() if line.startswith("python -m hepti_mpi")]
    assert line.endswith(refused["error"])
    kept(line)


def test_a_job_that_is_interrupted_says_so_and_keeps_what_is_answered(place, tmp_path):
    options = of(place, "--input", "-", "--images", place / "photos", "--output", tmp_path / "answers.jsonl")

    with start(sys.executable, "-m", "hepti_mpi", *options) as process:
        print("a.png", file=process.stdin, flush=True)
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        stderr = process.communicate()[1]

    said = [line for line in stderr.splitlines() if not line.startswith(("1 rank", "note:"))]
    assert said == ["python -m hepti_mpi: interrupted"]
    assert process.returncode == 130
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 1


THOROUGH = pytest.mark.thorough("other plans of the same shares")


@pytest.mark.parametrize("system", ["modnn", *(pytest.param(it, marks=THOROUGH) for it in ("hepti", "deeperthings"))])
def test_a_rank_without_the_file_gets_its_share_from_rank_0(system, place, tmp_path):
    image, output = place / "photos" / "a.png", tmp_path / "all.npz"
    command = mpirun(3, *of(place, "--input", image, "--system", system, "--output", output))
    at = command.index("hepti_mpi")

    succeeded(run(*command[:at], "tests.commands.odd_rank", "no-file", *command[at + 1 :]))

    with np.load(output) as arrays:
        (found,) = arrays.values()
    np.testing.assert_allclose(found, expected(image), rtol=0, atol=1e-5)


def test_an_onnx_file_is_run_as_it_is_on_hosts_that_are_measured_first(place, tmp_path):
    weight = np.random.default_rng(0).standard_normal((4, 3, 1, 1), np.float32)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, channels, 14, 14))
        for name, channels in (("x", 3), ("y", 4))
    ]
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="c")
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "n.onnx")
    job = ("--model", tmp_path / "n.onnx", "--random", 7, "--output", tmp_path / "all.npz")

    for first in (True, False):
        done = succeeded(jobs(2, *job, XDG_CACHE_HOME=str(tmp_path / "cache")))
        assert ("measuring them" in done.stderr) is first

    pixels = np.random.default_rng(7).integers(0, 256, (3, 14, 14), np.uint8) / np.float32(255)
    with np.load(tmp_path / "all.npz") as arrays:
        np.testing.assert_allclose(arrays["random/y"], np.tensordot(weight[:, :, 0, 0], pixels, 1), rtol=0, atol=1e-5)


def test_weights_that_are_no_numbers_are_one_line_where_they_are_sent(place, tmp_path, kept):
    write_classifier(tmp_path / "nan.h5")
    with h5py.File(tmp_path / "nan.h5", "r+") as file:
        file["tensor t0"][:, 0, 0, 0] = np.nan
    job = ("--model", tmp_path / "nan.h5", "--cluster", place / "boards.toml", "--random", 0, "--system", "modnn")
    command = mpirun(2, *job)
    at = command.index("hepti_mpi")

    done = run(*command[:at], "tests.commands.odd_rank", "no-file", *command[at + 1 :])

    assert done.returncode == 2
    (line,) = complaints(done)
    kept(line)
