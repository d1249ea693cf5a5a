"""What docs/features.md says that works for which models: its commands are run, and answers are those of one rank."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from solver import cli as solver
from tests.kit import planned_once
from tests.kit.commands import succeeded
from tests.kit.networks import write_classifier
from tests.kit.shared_ranks import jobs

PAGE = Path(__file__).parents[2] / "docs" / "features.md"
LANGUAGE = "language model"
KINDS = ("encoder", "network", LANGUAGE)
RANKS, CLUSTER = 4, ("--cluster", "pi4x4")
FILE = re.compile(r"\w+\.(svg|json)")
ROUGH = ("--wire float16", "--wire int8", "--precision")  # answers are nearly the same


def rows(heading):
    """Return the rows of the table below a heading: a command, and what it is for each kind of model."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if "`hepti " in line and line[0] == "|"]
    return [(row[1].strip(" `"), dict(zip(KINDS, map(str.strip, row[2:]), strict=True))) for row in lines]


def cases(heading):
    return [
        pytest.param(command, kind, cell == "yes", id=f"{kind} {command.replace(' --model MODEL', '')}")
        for command, cells in rows(heading)
        for kind, cell in cells.items()
    ]


@pytest.fixture(scope="module", autouse=True)
def _planned_once():
    with planned_once.shared():
        yield


@pytest.fixture(scope="module")
def models(converted, tiny, tmp_path_factory):
    """Return a small model of every kind."""
    path = tmp_path_factory.mktemp("network") / "sees.h5"
    write_classifier(path)
    return {"encoder": converted("bert").path, "network": path, "language model": tiny.path}


@pytest.fixture(scope="module")
def plans(models, tmp_path_factory):
    """Return the folder of a plan for each of them."""
    folder = tmp_path_factory.mktemp("plans")
    for kind, model in models.items():
        assert solver.main(["--model", str(model), *CLUSTER, "--out", str(folder / f"{kind}.json")]) == 0
    return folder


@pytest.fixture(scope="module")
def alone(models, tmp_path_factory):
    """Return what one rank answers, by numpy."""
    folder = tmp_path_factory.mktemp("alone")
    return {kind: answered(1, kind, folder, models[kind], "--random", "12", "--backend", "numpy") for kind in KINDS}


def answered(ranks, kind, folder, model, *words):
    """Run a job; return its numbers, which are tokens of a language model."""
    path = folder / ("answers.jsonl" if kind == LANGUAGE else "answers.npz")
    words += ("--tokens", "6", "--ignore-eos") if kind == LANGUAGE else ()
    succeeded(jobs(ranks, "--model", model, *words, "--output", path))
    if kind == LANGUAGE:
        return [np.array(json.loads(path.read_text())["new_tokens"])]
    with np.load(path) as arrays:
        return [*arrays.values()]


def words_of(command, model, plan, folder):
    """Return a command's words, of a model, a plan that is there, and files in a folder."""
    own = {"MODEL": str(model), "plan.json": str(plan)}
    return [own.get(word, str(folder / word) if FILE.fullmatch(word) else word) for word in shlex.split(command)[2:]]


def refused(done, words):
    """Tell whether one of the options was refused by its name."""
    return done[0] == 2 and any(word in done[1] for word in words if word.startswith("--") and word != "--model")


@pytest.mark.parametrize(("command", "kind", "works"), cases("Plans"))
def test_plans_are_for_the_models_that_the_table_says(
    command, kind, works, models, plans, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("solver.show.pictures.MAP_MBPS", (94,))
    monkeypatch.setattr("solver.show.pictures.MAP_MEMORY", (1,))
    plan = plans / f"{kind}.json" if "--price" in command else tmp_path / "plan.json"
    words = words_of(command, models[kind], plan, tmp_path)

    code = solver.main([*words, *CLUSTER])

    said, complained = capsys.readouterr()
    if not works:
        assert refused((code, complained), words)
        return
    assert (code, complained.count("python -m solver:")) == (0, 0)
    made = [Path(word) for word in words if word.startswith(str(tmp_path))]
    assert said or made
    assert all(path.stat().st_size for path in made)


@pytest.mark.parametrize(("command", "kind", "works"), cases("Runs"))
def test_runs_answer_as_one_rank_does(command, kind, works, models, plans, alone, tmp_path):
    words, model = words_of(command, models[kind], plans / f"{kind}.json", tmp_path), models[kind]
    cluster = () if "--plan" in words else CLUSTER
    if not works:
        done = jobs(RANKS, *words, *cluster)
        assert refused((done.returncode, done.stderr), words)
        return

    answers = answered(RANKS, kind, tmp_path, model, *words[2:], *cluster)

    made = [Path(word) for word in words if word.startswith(str(tmp_path))]
    assert all(json.loads(path.read_text()) for path in made)
    if kind == LANGUAGE and any(rough in command for rough in ROUGH):  # another word where two are nearly as likely
        assert [found.shape for found in answers] == [found.shape for found in alone[kind]]
        return
    error = 0.05 if any(rough in command for rough in ROUGH) else 1e-4
    for found, expected in zip(answers, alone[kind], strict=True):
        assert np.abs(found - expected).max() <= error * np.abs(expected).max()
