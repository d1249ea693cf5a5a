"""The model of a benchmark: a weights file, or a named architecture with random weights, made once and kept."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from launch.base import shell
from launch.base.json_output import printed
from solver.base.cache import cache_folder
from solver.base.errors import HeptiError
from solver.model.named import named_model
from solver.model.spec import ModelSpec

SYNTHESIS_S = 1800.0


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A weights file and what it says of itself."""

    path: Path
    spec: ModelSpec


def check_model(word: str, layers: int | None) -> None:
    """Refuse, before anything is started, what is neither a file nor an architecture."""
    if _is_file(word):
        if layers is not None:
            raise HeptiError(f"--layers is for named architectures: {word} has the layers that it has")
        return
    named_model(word, layers)


def bench_model(word: str, layers: int | None) -> BenchModel:
    """Return a weights file, or the kept one of a named architecture, made now where there is none.

    Raises
    ------
    HeptiError
        If there is no such file or architecture.
    """
    check_model(word, layers)
    if _is_file(word):
        return model_of(Path(word))
    spec = named_model(word, layers)
    path = cache_folder() / f"{word}-{spec.layers}-random.h5"
    try:
        if _inspect(path) == spec:
            return BenchModel(path, spec)
    except HeptiError:
        pass  # not there yet, or of another version
    path.parent.mkdir(parents=True, exist_ok=True)
    _weights(["synthesize", word, str(path), "--layers", str(spec.layers)])
    return BenchModel(path, spec)


def model_of(path: Path) -> BenchModel:
    """Return a weights file; errors as `bench_model`."""
    return BenchModel(path.absolute(), _inspect(path))


def decoupled_model(word: str, layers: int | None) -> BenchModel | None:
    """Return the decoupled model beside a named architecture; None where there is none.

    There is none of a file, of one layer, or of one that is decoupled itself.
    """
    if _is_file(word):
        return None
    name = f"{word}-decoupled"
    try:
        named_model(name, layers)
    except HeptiError:
        return None
    return bench_model(name, layers)


def _is_file(word: str) -> bool:
    return bool(Path(word).suffix) or Path(word).exists()


def _inspect(path: Path) -> ModelSpec:
    facts = printed(_weights(["inspect", str(path), "--json"]), f"python -m weights inspect {path}")
    return ModelSpec.from_json(json.dumps(facts["model"]))


def _weights(words: list[str]) -> str:
    """Run a command of the room that knows weights files."""
    code, out, error = shell.attempt([sys.executable, "-m", "weights", *words], SYNTHESIS_S)
    if code:
        raise HeptiError(error.strip().partition(": ")[2] or f"python -m weights {words[0]} failed with {code}")
    return out
