"""What people have of a model, where a command asks for one: checkpoints, GGUF and ONNX files, a hub's name."""

import pytest

from solver import cli as solver
from tests.kit import inside
from tests.kit.asked import from_lines, to_lines
from tests.kit.commands import complaints, succeeded
from tests.kit.gguf_files import write_gguf
from tests.kit.languages import generate
from tests.kit.shared_ranks import jobs
from weights import cli as weights

HUB = "org/some-model-1.5"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Return an empty cache, which the first job fills."""
    return {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


def test_a_checkpoint_directory_is_run_as_its_weights_file_is(converted, cache):
    checkpoint = converted("sentence")
    job = ("--cluster", "paper2", "--input", "-")
    folder, line = checkpoint.folder, to_lines([{"tokens": [7, 8, 9]}])

    wanted = succeeded(jobs(2, "--model", checkpoint.path, *job, stdin=line))
    first = succeeded(jobs(2, "--model", folder, *job, stdin=line, **cache))
    second = succeeded(jobs(2, "--model", folder / "model.safetensors", *job, stdin=line, **cache))

    said = [from_lines(done.stdout)[0]["embedding"] for done in (wanted, first, second)]
    assert said[0] == pytest.approx(said[1], abs=1e-5)
    assert said[1] == pytest.approx(said[2], abs=1e-5)
    assert "is converted once" in first.stderr
    assert "is converted once" not in second.stderr


def test_a_checkpoint_directory_of_a_language_model_is_asked(tiny, cache):
    job = generate(tiny, "--prompt", "the cat sleeps", "--tokens", 8, path=tiny.folder)

    done = succeeded(jobs(2, *job, **cache))

    assert done.stdout == tiny.text(tiny.says("the cat sleeps", 8)) + "\n"


def test_a_gguf_file_is_asked_and_planned(tmp_path, cache, monkeypatch, kept):
    path = tmp_path / "small.gguf"
    write_gguf(path, "llama", "Q8_0")
    job = ("generate", "--model", path, "--cluster", "pi4x4", "--input", "-", "--tokens", 4, "--context", 32)

    done = succeeded(jobs(2, *job, stdin=to_lines([{"tokens": [5, 6]}]), **cache))
    monkeypatch.setenv("XDG_CACHE_HOME", cache["XDG_CACHE_HOME"])
    words = ("--model", path, "--cluster", "pi4x4", "--prompt", 2, "--tokens", 4)
    planned = succeeded(inside.run(solver.main, *words))

    assert len(from_lines(done.stdout)[0]["new_tokens"]) == 4
    assert "in int8, 3 layers" in planned.stdout
    assert "is converted once" not in planned.stderr
    refused = jobs(1, "--model", path, **cache)
    assert refused.returncode == 2
    kept("\n".join(complaints(refused)))


def test_a_hubs_name_is_answered_with_the_command_that_downloads_it(kept):
    for done in (
        jobs(2, "--model", HUB),
        jobs(2, "generate", "--model", HUB, "--prompt", "x"),
        jobs(2, "profile", "--model", HUB, "--out", "never.toml"),
        inside.run(solver.main, "--model", HUB, "--cluster", "mixed4"),
        inside.run(weights.main, "convert", HUB, "never.h5"),
    ):
        assert done.returncode == 2
        (line,) = complaints(done)
        kept(line)


def test_a_safetensors_is_converted_as_its_directory(converted, tmp_path):
    checkpoint = converted("sentence")

    done = succeeded(inside.run(weights.main, "convert", checkpoint.folder / "model.safetensors", tmp_path / "m.h5"))

    assert "m.h5: sentence, 3 layers" in done.stdout
