"""A Git LFS pointer, which `git clone` leaves in a large file's place, says what it is wherever it is met."""

import pytest

from hepti_mpi.__main__ import main as hepti
from tests.kit import inside
from tests.kit.checkpoints import make_checkpoint
from weights.cli import main as weights

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize("ending", ["gguf", "onnx", "h5", "safetensors"])
@pytest.mark.parametrize("way", ["convert", "run"])
def test_of_a_model_file(tmp_path, ending, way):
    path = tmp_path / f"model.{ending}"
    path.write_text(POINTER)

    if way == "convert":
        done = inside.run(weights, "convert", path, tmp_path / "new.h5")
    else:
        done = inside.run(hepti, "--model", path, "--random", 1)

    assert done.returncode == 2
    assert f"{path} is a Git LFS pointer" in done.stderr


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_of_a_file_of_a_checkpoint(tmp_path, name):
    make_checkpoint("bert", tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / name).write_text(POINTER)

    done = inside.run(weights, "convert", tmp_path / "checkpoint", tmp_path / "new.h5")

    assert done.returncode == 2
    assert f"{name} is a Git LFS pointer" in done.stderr
