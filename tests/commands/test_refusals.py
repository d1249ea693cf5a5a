"""Bad input to jobs of processes, and to commands without MPI: exit code 2, one line, nothing left behind.

All that two ranks refuse stands in tests/mpi/test_refusals.py.
"""

import json
import re
import shutil

import h5py
import numpy as np
import pytest

from solver import cli as solver
from tests.kit import inside
from tests.kit.commands import complaints, hepti
from tests.kit.planned import PLAN, changed
from tests.kit.shared_ranks import jobs
from weights import cli as weights


@pytest.fixture(scope="module")
def bert(converted):
    return converted("bert")


@pytest.fixture
def refused(tmp_path, kept):
    """Check of what a command did that it refuses as it is kept, and leaves no file; return what it did."""

    def check(command, *arguments, **options):
        before = sorted(tmp_path.rglob("*"))
        done = command(*arguments, **options)

        assert done.returncode == 2, done.stderr
        (line,) = complaints(done)
        kept(re.sub(r"Unable to .*|Error while deserializing.*", "…", line))  # words of HDF5 and safetensors
        assert sorted(tmp_path.rglob("*")) == before
        return done

    return check


@pytest.fixture
def job(refused, tmp_path):
    """Run a job that would write two files, and check that it refuses."""

    def check(*arguments, ranks=2, run=jobs):
        outputs = ("--output", tmp_path / "answers.jsonl", "--report", tmp_path / "report.json")
        return refused(run, ranks, *arguments, *outputs)

    return check


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_of_what_is_refused_no_note_stands_before_the_error(bert, refused, tmp_path):
    """Not that all ranks run on this machine, nor which boards are left out."""
    plan = write(tmp_path / "plan.json", PLAN)
    for words in (
        ("--input", "none.txt"),
        ("--random", 8, "--cluster", "mixed4", "--system", "single:pi-7"),
        ("--random", 8, "--cluster", "mixed4", "--plan", plan),
    ):
        done = refused(jobs, 3, "--model", bert.path, *words)

        assert "note: " not in done.stderr
        assert "3 ranks on" not in done.stderr


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


def test_bad_usage_ends_a_job(job):
    job("--modle", "bert.h5", run=hepti)


def test_a_plan_that_does_not_fit_ends_a_job(bert, job, tmp_path):
    plan = write(tmp_path / "plan.json", PLAN)
    job("--model", bert.path, "--random", 5, "--plan", plan, ranks=3)


def test_damage_that_rank_0_finds_ends_a_job(bert, job, tmp_path):
    path = damaged(bert.path, tmp_path, flip_in_metadata)
    job("--model", path, "--random", 5)


def test_a_rank_that_finds_the_damage_alone_ends_all(bert, job, tmp_path):
    """Only the last of three ranks reads the last head's query."""
    plan = changed("attention heads", [2, 1, 2])
    plan["stages"][0]["devices"].append("c")
    plan["stages"][0]["runs"][0]["mlp"]["rows"] = [0.5, 0.5, 0]

    def harm(path):
        with h5py.File(path, "r+") as file:
            file["layers/2/attention/query/weight"][39, 1] = np.nan

    path = damaged(bert.path, tmp_path, harm)
    plan = write(tmp_path / "plan.json", plan)

    done = job("--model", path, "--random", 5, "--plan", plan, ranks=3)

    assert "(rank 2)" in done.stderr


# Commands without MPI.


def convert(folder, path):
    return inside.run(weights.main, "convert", folder, path)


def test_checkpoints_that_cannot_be_converted(bert, refused, tmp_path):
    for number, harm in enumerate(
        (
            shutil.rmtree,
            lambda folder: (folder / "config.json").unlink(),
            lambda folder: write(folder / "config.json", {"model_type": "mamba"}),
            lambda folder: (folder / "model.safetensors").write_bytes(b"\7" * 90),
            lambda folder: (folder / "model.safetensors").unlink(),
        )
    ):
        folder = tmp_path / f"checkpoint-{number}"
        shutil.copytree(bert.folder, folder, ignore=shutil.ignore_patterns("*.h5"))
        harm(folder)

        refused(convert, folder, tmp_path / "model.h5")


def test_safetensors_cut_short(bert, refused, tmp_path):
    folder = tmp_path / "checkpoint"
    shutil.copytree(bert.folder, folder, ignore=shutil.ignore_patterns("*.h5"))
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])

    refused(convert, folder, tmp_path / "model.h5")


def test_weights_for_a_missing_folder(bert, refused, tmp_path):
    refused(convert, bert.folder, tmp_path / "missing" / "model.h5")
    refused(inside.run, weights.main, "synthesize", "minilm-l6", tmp_path / "missing" / "model.h5")


def test_the_planner_refuses_a_damaged_file(bert, refused, tmp_path):
    path = damaged(bert.path, tmp_path, flip_in_metadata)

    refused(inside.run, solver.main, "--model", path, "--cluster", "mixed4", "--out", tmp_path / "plan.json")
