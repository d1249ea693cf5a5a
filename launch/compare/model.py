"""The model of a benchmark: a weights file, or a named architecture with random weights, made once and kept.

Which convolutional networks are known by name the room of weights knows: it is asked to make them.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from launch.base import shell
from launch.base.json_output import printed
from launch.compare.checkout import HERE
from solver.base.cache import cache_folder
from solver.base.errors import HeptiError
from solver.model.convnet import ConvNet
from solver.model.decoder import KIND as DECODER
from solver.model.decoder import Decoder
from solver.model.named import NAMED_MODELS, named_model
from solver.model.named_decoders import named_decoder
from solver.model.spec import ModelSpec

SYNTHESIS_S = 1800.0
DECOUPLED = "-decoupled"  # in the names of transformers


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A weights file and what it says of itself."""

    path: Path
    spec: ModelSpec


@dataclass(frozen=True, slots=True)
class BenchNetwork:
    """A weights file of a convolutional network, and what it says of itself."""

    path: Path
    net: ConvNet


@dataclass(frozen=True, slots=True)
class BenchDecoder:
    """A weights file of a language model, what it says of itself, and what its matrices are in."""

    path: Path
    model: Decoder
    precision: str


AnyModel: TypeAlias = BenchModel | BenchNetwork


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


def bench_network(word: str, layers: int | None) -> BenchNetwork | None:
    """Return a convolutional network, by its file or its name; None where the word means a transformer.

    An ONNX file is converted; one known by name gets random weights, kept until the room of weights changes.

    Raises
    ------
    HeptiError
        If there is no such file or architecture.
    """
    path = Path(word)
    if _is_file(word):
        check_model(word, layers)
        if path.suffix == ".onnx":
            path = _converted(path)
        facts = _facts(path)
    elif word in NAMED_MODELS or DECOUPLED in word:
        return None
    else:
        path = cache_folder() / f"{word}-random.h5"
        code = max(file.stat().st_mtime for file in (HERE / "weights").rglob("*.py"))
        if layers is not None or not path.exists() or path.stat().st_mtime < code:
            path.parent.mkdir(parents=True, exist_ok=True)
            _weights(["synthesize", word, str(path), *([] if layers is None else ["--layers", str(layers)])])
        facts = _facts(path)
    if facts["model"].get("kind") != "convnet":
        return None
    return BenchNetwork(path.absolute(), ConvNet.from_json(json.dumps(facts["model"])))


def bench_decoder(word: str, layers: int | None, precision: str) -> BenchDecoder:
    """Return a language model, by its file or its name; a named one has random numbers, kept until their code changes.

    Raises
    ------
    HeptiError
        If there is no such file or model, or the file is in another precision.
    """
    if word.endswith(".h5") or Path(word).exists():  # names have dots
        if layers is not None:
            raise HeptiError(f"--layers is for named models: {word} has the layers that it has")
        found = _decoder(Path(word))
        if found.precision != precision:
            raise HeptiError(f"{word} is in {found.precision}, --precisions is {precision}")
        return found
    model = named_decoder(word, layers)
    path = cache_folder() / f"{word}-{len(model.layers)}-{precision}-random.h5"
    try:
        found = _decoder(path)
        code = (HERE / "weights" / "synthesize.py").stat().st_mtime
        if found.model == model and path.stat().st_mtime > code:
            return found
    except HeptiError:
        pass  # not there yet, or of another version
    path.parent.mkdir(parents=True, exist_ok=True)
    _weights(["synthesize", word, str(path), "--layers", str(len(model.layers)), "--precision", precision])
    return _decoder(path)


def _decoder(path: Path) -> BenchDecoder:
    facts = _facts(path)
    if facts["model"].get("kind") != DECODER:
        raise HeptiError(f"{path} is no language model: hepti synthesize llama-3.2-1b {path} makes one")
    return BenchDecoder(path.absolute(), Decoder.from_json(json.dumps(facts["model"])), facts["precision"])


def exported(model: BenchDecoder, ending: str) -> Path:
    """Return a language model as a file of another engine, by its ending; made where it is older than the model."""
    place = hashlib.sha256(str(model.path).encode()).hexdigest()[:8]
    found = cache_folder() / f"{model.path.stem}-{place}-bench{ending}"
    if not found.exists() or found.stat().st_mtime < model.path.stat().st_mtime:
        found.parent.mkdir(parents=True, exist_ok=True)
        _weights(["export", str(model.path), str(found)])
    return found


def _converted(path: Path) -> Path:
    """Return the weights file of an ONNX file, made anew: what it names beside itself may have changed."""
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    found = cache_folder() / f"{path.stem}-{place}-bench.h5"
    found.parent.mkdir(parents=True, exist_ok=True)
    _weights(["convert", str(path), str(found)])
    return found


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
    return ModelSpec.from_json(json.dumps(_facts(path)["model"]))


def _facts(path: Path) -> dict[str, Any]:
    return printed(_weights(["inspect", str(path), "--json"]), f"hepti inspect {path}")


def _weights(words: list[str]) -> str:
    """Run a command of the room that knows weights files."""
    code, out, error = shell.attempt([sys.executable, "-m", "weights", *words], SYNTHESIS_S)
    if code:
        raise HeptiError(error.strip().partition(": ")[2] or f"hepti {words[0]} failed with {code}")
    return out
