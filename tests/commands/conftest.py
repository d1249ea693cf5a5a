"""Checkpoints, converted once, that the tests of this folder share."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import weights.__main__ as weights
from tests import checkpoints

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
