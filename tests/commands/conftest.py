"""Checkpoints, converted once, that the tests of this folder share."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.kit import checkpoints, shared_ranks
from tests.kit.languages import make_tiny
from weights import cli as weights

POSITIONS = 512


@dataclass(frozen=True)
class Converted:
    """A random checkpoint, its weights file, and the transformers model that they were made of."""

    family: str
    folder: Path
    path: Path
    model: Any

    def expected(self, request):
        """Return what transformers makes of token ids or pixels."""
        return checkpoints.expected(self.model, self.family, request)


@pytest.fixture(scope="session", autouse=True)
def _no_ranks_are_left():
    """End those that jobs have shared."""
    yield
    shared_ranks.end()


@pytest.fixture(scope="session")
def converted(tmp_path_factory):
    """Make and convert a checkpoint of a family; the same settings give the same one."""

    @cache
    def make(family, **settings):
        folder = tmp_path_factory.mktemp("checkpoint") / family  # the folder's name is the model's
        model = checkpoints.make_checkpoint(family, folder, **{"positions": POSITIONS, **settings})
        path = folder / f"{family}.h5"
        assert weights.main(["convert", str(folder), str(path)]) == 0
        return Converted(family, folder, path, model)

    return make


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Return a tiny language model."""
    return make_tiny(tmp_path_factory.mktemp("language") / "tiny")


@pytest.fixture(scope="session")
def uneven(tiny, tmp_path_factory):
    """Return the plan file of a tiny language model as a person writes one: three ranks, none of which has all."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    table = {
        "format": "hepti-plan/2", "model": {"name": "tiny"}, "devices": ["a", "b", "c"], "context": 128,
        "stages": [
            {
                "runs": [
                    {
                        "layers": [0, 3],
                        "attention": {"cut": "heads", "heads": [1, 4, 0]},
                        "mlp": {"cut": "columns", "columns": [32, 0, 64]},
                    }
                ]
            }
        ],
        "head": {"cut": "words", "words": [100, 0, tiny.model.config.vocab_size - 100]},
    }  # fmt: skip
    path.write_text(json.dumps(table))
    return path


@pytest.fixture
def model(converted, tmp_path):
    """Return a weights file of this test's own, so that its ranks can be told from others."""
    path = tmp_path / "model.h5"
    path.symlink_to(converted("bert").path)
    return path
