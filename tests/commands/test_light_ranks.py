"""Ranks other than 0 import what `hepti install` gives their boards and nothing else, whatever the job."""

import tomllib

import pytest

from tests.kit.commands import ROOT, mpirun, run, succeeded
from tests.kit.networks import write_boards, write_classifier, write_photos

TEXTS = ("--text", "a small board", "a little computer with a fan")


@pytest.fixture(scope="module")
def boards(tmp_path_factory):
    """Return a cluster file of two boards, so that both get a share."""
    path = tmp_path_factory.mktemp("boards") / "boards.toml"
    write_boards(path, 2)
    return path


def light(*words, **variables):
    """Run a job of two ranks, of which rank 1's board is a light one."""
    command = mpirun(2, *words)
    at = command.index("hepti_mpi")
    return run(*command[:at], "tests.commands.light_rank", *command[at + 1 :], **variables)


@pytest.mark.thorough("more options of a job that measures its boards")
@pytest.mark.parametrize(
    "options",
    [
        ("--backend", "numpy"), ("--backend", "onnxruntime"), ("--precision", "int8"), ("--replan", "auto"),
        ("--system", "pipeedge", "--wire", "int8", "--repeat", "3"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_encoder(options, converted, boards, tmp_path):
    report = ("--report", tmp_path / "report.json", "--trace", tmp_path / "trace.json")

    succeeded(light("--model", converted("bert").path, "--cluster", boards, *TEXTS, *options, *report))


def test_an_encoder_whose_boards_are_measured(converted, tmp_path):
    variables = {"XDG_CACHE_HOME": str(tmp_path)}  # where no profile is yet
    report = ("--report", tmp_path / "report.json", "--trace", tmp_path / "trace.json")

    succeeded(light("--model", converted("bert").path, *TEXTS, *report, **variables))


def test_a_network(boards, tmp_path):
    write_photos(tmp_path / "photos")
    write_classifier(tmp_path / "sees.h5")
    image = tmp_path / "photos" / "a.png"

    succeeded(light("--model", tmp_path / "sees.h5", "--cluster", boards, "--input", image, "--system", "modnn"))


def test_a_language_model(tiny, boards):
    asked = ("--prompt", "the cat", "--tokens", 5, "--system", "megatron")

    succeeded(light("generate", "--model", tiny.path, "--cluster", boards, *asked))


def test_a_language_model_without_onnxruntime(tiny, boards):
    asked = ("--prompt", "the cat", "--tokens", 5, "--system", "megatron", "--backend", "numpy")

    done = succeeded(light("generate", "--model", tiny.path, "--cluster", boards, *asked, HEPTI_LIGHT="worker"))

    assert done.stdout == tiny.text(tiny.says("the cat", 5)) + "\n"


@pytest.mark.parametrize(
    "kind",
    [
        "language model",
        *(pytest.param(kind, marks=pytest.mark.thorough("another kind")) for kind in ("encoder", "network")),
    ],
)
@pytest.mark.slow("measures a model on two ranks")
def test_a_profile(kind, tiny, tmp_path):
    write_classifier(tmp_path / "sees.h5")
    model = {"encoder": "minilm-l6", "network": tmp_path / "sees.h5", "language model": tiny.path}[kind]

    succeeded(light("profile", "--model", model, "--out", tmp_path / "measured.toml"))


def test_what_light_boards_get_is_asked_for_in_the_same_words_as_for_all():
    """The extra `worker` is a part of the dependencies: pip cannot take some of them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert set(project["optional-dependencies"]["worker"]) < set(project["dependencies"])
