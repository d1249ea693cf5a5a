"""Whatever is refused, and wherever that is noticed: all ranks end, rank 0 says one line, and nothing is left behind.

What is refused, and in which words, is seen within one process: tests/hepti_mpi/refusals.
"""

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest

from hepti_mpi.__main__ import main
from hepti_mpi.measure import room
from solver.base.phrases import counted
from solver.model.spec import TextInput
from solver.plan.writing import plan_to_json
from solver.systems import make_plan
from tests.kit.clusters import pis
from tests.kit.encoders import POST
from tests.kit.networks import write_boards, write_classifier, write_photos
from weights.synthesize import synthesize

pytestmark = pytest.mark.sizes

SPEC = replace(POST, name="bert", input=TextInput(vocab=211, positions=512, max_rows=512))


@pytest.fixture(scope="module")
def place(all_ranks, shared_folder):
    """Return a folder with an encoder, one whose last head is no number, a network, boards, an image, and plans."""
    path = shared_folder / "refused"
    if all_ranks.rank == 0:
        write_photos(path / "photos")
        write_classifier(path / "sees.h5")
        for name in ("bert.h5", "nan.h5"):
            synthesize(path / name, SPEC, 0)
        with h5py.File(path / "nan.h5", "r+") as file:
            file["layers/1/attention/value/weight"][-1, 0] = np.nan
        for ranks in (all_ranks.size, all_ranks.size + 1):
            name = "plan.json" if ranks == all_ranks.size else "more.json"
            (path / name).write_text(plan_to_json(make_plan("megatron", SPEC, pis(*[20.0] * ranks), 5)))
        write_boards(path / "boards.toml", all_ranks.size)
        write_boards(path / "few.toml", max(all_ranks.size - 1, 1))
    all_ranks.barrier()
    return path


@pytest.fixture
def refused(place, world, folder, capsys):
    """Run a job that would write two files; check that all ranks end, and return what rank 0 says in its one line."""

    def run(model, *words):
        outputs = ("--output", folder / "answers.jsonl", "--report", folder / "report.json")
        words = [place / word if str(word).endswith((".json", ".toml", ".png")) else word for word in words]
        found = main([str(word) for word in ("--model", place / model, *words, *outputs)])
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("python -m ")]
        world.barrier()
        if world.rank:
            assert lines == []
            return None
        (line,) = lines
        assert found == 2
        assert not [*folder.iterdir()]
        return line

    return run


@pytest.mark.parametrize(
    ("model", "words", "named"),
    [
        ("bert.h5", ("--modle", "x"), "--modle"),
        ("bert.h5", ("--random", "513"), "513"),
        ("bert.h5", ("--random", "5", "--plan", "more.json"), "plan again for"),
        ("sees.h5", ("--random", "0", "--wire", "int4"), "int4"),
        ("sees.h5", ("--input", "photos/bad.png", "--cluster", "boards.toml"), "bad.png"),
    ],
)
def test_a_refusal_ends_all_ranks(model, words, named, refused):
    line = refused(model, *words)

    assert line is None or named in line


def test_more_ranks_than_boards(refused, world):
    if world.size == 1:
        return  # there is always a board
    line = refused("bert.h5", "--random", "5", "--cluster", "few.toml")

    assert line is None or f"has {counted(world.size - 1, 'device')}, the job has {world.size} ranks" in line


def test_memory_that_the_last_rank_lacks(refused, world, monkeypatch):
    """Ranks of one host have what the one that sees least has."""
    if world.rank == world.size - 1:
        monkeypatch.setattr(room, "free_bytes", lambda: 0)

    line = refused("bert.h5", "--random", "5", "--plan", "plan.json")

    assert line is None or "which has 0 free" in line


def test_what_the_last_rank_reads_is_said_with_its_number(refused, world):
    """It alone has the last head."""
    line = refused("nan.h5", "--random", "5", "--plan", "plan.json", "--backend", "numpy")

    assert line is None or "attention/value/weight has NaN" in line
    assert line is None or line.endswith(f"(rank {world.size - 1})") == (world.size > 1)


def test_a_bad_line_leaves_the_others(place, world, folder, capsys):
    """The line is named by its number; the answers of the others are written, and the exit code is 2."""
    lines = [{"id": "one", "tokens": [7, 8]}, {"tokens": [5, 211]}, {"id": "three", "tokens": [9]}]
    answers = {}
    for name, some in (("good", lines[::2]), ("bad", lines)):
        if world.rank == 0:
            (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, some)))
        world.barrier()
        words = ("--input", folder / f"{name}.jsonl", "--output", folder / f"{name}-out.jsonl")
        code = main(["--model", str(place / "bert.h5"), "--cluster", str(place / "boards.toml"), *map(str, words)])
        if world.rank == 0:
            assert code == (2 if name == "bad" else 0)
            answers[name] = [json.loads(row) for row in (folder / f"{name}-out.jsonl").read_text().splitlines()]

    if world.rank == 0:
        said = capsys.readouterr().err
        assert said.count("python -m hepti_mpi: bad.jsonl, line 2: ") == 1
        assert [answer["id"] for answer in answers["bad"]] == ["one", "three"]
        for one, other in zip(answers["bad"], answers["good"], strict=True):
            np.testing.assert_allclose(one["embedding"], other["embedding"], rtol=0, atol=1e-6)
