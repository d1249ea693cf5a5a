"""What people have of a model, where a command asks for one: checkpoints, GGUF and ONNX files, a hub's name."""

import pytest

from tests.kit.asked import from_lines, to_lines
from tests.kit.commands import complaints, hepti, mpirun, run, solver, succeeded, weights
from tests.kit.gguf_files import write_gguf
from tests.kit.languages import generate

HUB = "org/some-model-1.5"
ANSWER = f"there is no {HUB} here; if a hub has it: hf download {HUB} --local-dir some-model-1.5"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Return an empty cache, which the first job fills."""
    return {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


def test_a_checkpoint_directory_is_run_as_its_weights_file_is(converted, cache):
    checkpoint = converted("sentence")
    job = ("--cluster", "paper2", "--input", "-")
    folder, line = checkpoint.folder, to_lines([{"tokens": [7, 8, 9]}])

    wanted = succeeded(hepti(2, "--model", checkpoint.path, *job, stdin=line))
    first = succeeded(hepti(2, "--model", folder, *job, stdin=line, **cache))
    second = succeeded(hepti(2, "--model", folder / "model.safetensors", *job, stdin=line, **cache))

    said = [from_lines(done.stdout)[0]["embedding"] for done in (wanted, first, second)]
    assert said[0] == pytest.approx(said[1], abs=1e-5)
    assert said[1] == pytest.approx(said[2], abs=1e-5)
    assert "is converted once" in first.stderr
    assert "is converted once" not in second.stderr


def test_a_checkpoint_directory_of_a_language_model_is_asked(tiny, cache):
    job = generate(tiny, "--prompt", "the cat sleeps", "--tokens", 8, path=tiny.folder)

    done = succeeded(hepti(2, *job, **cache))

    assert done.stdout == tiny.text(tiny.says("the cat sleeps", 8)) + "\n"


def test_a_gguf_file_is_asked_and_planned(tmp_path, cache):
    path = tmp_path / "small.gguf"
    write_gguf(path, "llama", "Q8_0")
    job = ("generate", "--model", path, "--cluster", "pi4x4", "--input", "-", "--tokens", 4, "--context", 32)

    done = succeeded(hepti(2, *job, stdin=to_lines([{"tokens": [5, 6]}]), **cache))
    planned = succeeded(solver("--model", path, "--cluster", "pi4x4", "--prompt", 2, "--tokens", 4, **cache))

    assert len(from_lines(done.stdout)[0]["new_tokens"]) == 4
    assert "in int8, 3 layers" in planned.stdout
    assert "is converted once" not in planned.stderr
    refused = hepti(1, "--model", path, **cache)
    assert complaints(refused) == [
        f"python -m hepti_mpi: {path} is a language model, here an encoder is needed: hepti generate takes it"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        mpirun(2, "--model", HUB),
        mpirun(2, "generate", "--model", HUB, "--prompt", "x"),
        mpirun(2, "profile", "--model", HUB, "--out", "never.toml"),
        ("python", "-m", "solver", "--model", HUB, "--cluster", "mixed4"),
        ("python", "-m", "weights", "convert", HUB, "never.h5"),
    ],
    ids=["run", "generate", "profile", "solver", "convert"],
)
def test_a_hubs_name_is_answered_with_the_command_that_downloads_it(command):
    done = run(*command)

    assert done.returncode == 2
    (line,) = complaints(done)
    assert ANSWER in line


def test_a_safetensors_is_converted_as_its_directory(converted, tmp_path):
    checkpoint = converted("sentence")

    done = succeeded(weights("convert", checkpoint.folder / "model.safetensors", tmp_path / "m.h5"))

    assert "m.h5: sentence, 3 layers" in done.stdout
