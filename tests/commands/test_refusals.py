"""Bad input to jobs of processes, and to commands without MPI: exit code 2, one line, nothing left behind.

All that two ranks refuse stands in tests/mpi/test_refusals.py.
"""

import json
import shutil

import h5py
import numpy as np
import pytest

from tests.kit.commands import complaints, hepti, solver, weights
from tests.kit.planned import PLAN, changed
from weights import cli as weights_command


@pytest.fixture(scope="module")
def bert(converted):
    return converted("bert")


@pytest.fixture
def refused(tmp_path):
    """Run a command and check that it refuses, for the reason given, and leaves no file."""

    def check(complaint, command, *arguments, **options):
        before = sorted(tmp_path.rglob("*"))
        done = command(*arguments, **options)

        assert done.returncode == 2, done.stderr
        (line,) = complaints(done)
        assert complaint in line
        assert sorted(tmp_path.rglob("*")) == before
        return done

    return check


@pytest.fixture
def job(refused, tmp_path):
    """Run a job that would write two files, and check that it refuses."""

    def check(complaint, *arguments, ranks=2, **options):
        outputs = ("--output", tmp_path / "answers.jsonl", "--report", tmp_path / "report.json")
        return refused(complaint, hepti, ranks, *arguments, *outputs, **options)

    return check


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--input", "none.txt"), "cannot read --input none.txt"),
        (("--random", 8, "--cluster", "mixed4", "--system", "single:pi-7"), "there is no device 'pi-7'"),
        (("--random", 8, "--cluster", "mixed4", "--plan", "plan.json"), "the plan is for"),
    ],
)
def test_of_what_is_refused_no_note_stands_before_the_error(words, complaint, bert, refused, tmp_path):
    """Not that all ranks run on this machine, nor which boards are left out."""
    plan = write(tmp_path / "plan.json", PLAN)
    words = [plan if word == plan.name else word for word in words]

    done = refused(complaint, hepti, 3, "--model", bert.path, *words)

    assert "note: " not in done.stderr
    assert "3 ranks on" not in done.stderr


def test_a_cache_that_cannot_be_made_is_found_before_hosts_are_measured(bert, refused, tmp_path):
    cache = write(tmp_path / "cache", "no folder")

    for words in (("--model", bert.path, "--random", 5), ()):
        done = refused(f"cannot make {cache}/hepti: Not a directory", hepti, 1, *words, XDG_CACHE_HOME=str(cache))

        assert "measuring" not in done.stderr


# Weights files.


def damaged(path, folder, harm):
    """Return a copy of a weights file that `harm` has been done to."""
    copy = folder / "damaged.h5"
    shutil.copy(path, copy)
    harm(copy)
    return copy


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def flip_in_metadata(path):
    """Harm the object header of the root group, which holds the attributes."""
    with h5py.File(path) as file:
        place = h5py.h5o.get_info(file.id).addr
    flip(path, place + 30)


def test_bad_usage_ends_a_job(bert, job):
    complaint = "unrecognized arguments: --modle bert.h5: did you mean --model? (see python -m hepti_mpi --help)"
    job(complaint, "--modle", "bert.h5")


def test_a_plan_that_does_not_fit_ends_a_job(bert, job, tmp_path):
    plan = write(tmp_path / "plan.json", PLAN)
    job("the plan is for 2 devices, the job has 3 ranks", "--model", bert.path, "--random", 5, "--plan", plan, ranks=3)


def test_damage_that_rank_0_finds_ends_a_job(bert, job, tmp_path):
    path = damaged(bert.path, tmp_path, flip_in_metadata)
    job("damaged.h5", "--model", path, "--random", 5)


def test_a_rank_that_finds_the_damage_alone_ends_all(bert, job, tmp_path):
    """Only the last of three ranks reads the last head's query."""
    plan = changed("attention heads", [[0, 2], [2, 3], [3, 5]])
    plan["stages"][0]["devices"].append("c")
    plan["stages"][0]["layers"][0]["mlp"]["rows"] = [0.5, 0.5, 0]

    def harm(path):
        with h5py.File(path, "r+") as file:
            file["layers/2/attention/query/weight"][39, 1] = np.nan

    path = damaged(bert.path, tmp_path, harm)
    plan = write(tmp_path / "plan.json", plan)

    job("query/weight has NaN or infinite values: convert it again (rank 2)", "--model", path, "--random", 5,
        "--plan", plan, ranks=3)  # fmt: skip


# Commands without MPI.


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (shutil.rmtree, "there is no checkpoint"),
        (lambda folder: (folder / "config.json").unlink(), "holds no checkpoint"),
        (lambda folder: write(folder / "config.json", {"model_type": "mamba"}), "unknown architecture"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\7" * 90), "cannot read"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has neither model.safetensors nor"),
    ],
)
def test_checkpoints_that_cannot_be_converted(harm, complaint, bert, tmp_path, capsys):
    folder = tmp_path / "checkpoint"
    shutil.copytree(bert.folder, folder, ignore=shutil.ignore_patterns("*.h5"))
    harm(folder)

    assert weights_command.main(["convert", str(folder), str(tmp_path / "model.h5")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line
    assert not [path for path in tmp_path.iterdir() if path != folder]


def test_safetensors_cut_short(bert, refused, tmp_path):
    folder = tmp_path / "checkpoint"
    shutil.copytree(bert.folder, folder, ignore=shutil.ignore_patterns("*.h5"))
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])

    refused("model.safetensors", weights, "convert", folder, tmp_path / "model.h5")


def test_weights_for_a_missing_folder(bert, refused, tmp_path):
    refused("there is no folder", weights, "convert", bert.folder, tmp_path / "missing" / "model.h5")
    refused("there is no folder", weights, "synthesize", "minilm-l6", tmp_path / "missing" / "model.h5")


def test_the_planner_refuses_a_damaged_file(bert, refused, tmp_path):
    cluster = "hepti_mpi/demo/cluster.toml"
    path = damaged(bert.path, tmp_path, flip_in_metadata)

    refused("damaged.h5", solver, "--model", path, "--cluster", cluster, "--out", tmp_path / "plan.json")
