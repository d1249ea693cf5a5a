"""The model that a person names: an architecture, or a file or folder of whatever format.

The library `solver` knows nothing of weights files, and no networks by name. Who plans may meet the rooms that do, and
only when it names such a model, so that planning for a named transformer needs no h5py.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from solver.base.errors import HeptiError
from solver.base.hub import refuse_hub_name
from solver.base.phrases import did_you_mean
from solver.model.convnet import ConvNet
from solver.model.decoder import Decoder
from solver.model.named import DECOUPLED_NAMES, NAMED_MODELS, named_model
from solver.model.named_decoders import NAMED_DECODERS, named_decoder
from solver.model.spec import ModelSpec

NamedKind = Literal["encoder", "network", "decoder"]
DECOUPLED = "-decoupled"  # in the names of transformers
ENDINGS = (".h5", ".onnx", ".gguf", ".safetensors")


def kind_of(word: str) -> NamedKind:
    """Return what kind of model a name or a path is of.

    Raises
    ------
    HeptiError
        If it is neither, with the names that there are; or a hub's name.
    """
    refuse_hub_name(word)
    path = Path(word)
    if path.exists() or path.suffix in ENDINGS:
        store = importlib.import_module("weights.file.store")
        found = importlib.import_module("weights.formats").model_kind(path)
        if not found:
            store.TensorFile(path).close()  # says what is wrong with the file
        kinds: dict[str, NamedKind] = {store.NETWORK: "network", store.LANGUAGE_MODEL: "decoder"}
        return kinds.get(found, "encoder")
    return kind_of_name(word)


def kind_of_name(word: str) -> NamedKind:
    """Return what kind of model an architecture's name is of, or nearly is.

    Raises
    ------
    HeptiError
        If there is none like it, with the names that there are.
    """
    if word in NAMED_MODELS:
        return "encoder"
    if get_close_matches(word, NAMED_DECODERS, n=1, cutoff=0.8):
        return "decoder"
    if Path(word).suffix or DECOUPLED in word:
        return "encoder"
    zoo = known_networks()
    near = get_close_matches(word, (*NAMED_MODELS, *zoo), n=1)
    if not near:
        known = (*sorted(NAMED_MODELS), *zoo, *NAMED_DECODERS, DECOUPLED_NAMES)
        raise HeptiError(f"unknown model {word}{did_you_mean(word, known)}")
    return "network" if near[0] in zoo else "encoder"


def encoder_of(word: str, layers: int | None = None) -> ModelSpec:
    """Return a named transformer, of another layer count where one is given, or what a file says of itself.

    Raises
    ------
    HeptiError
        If there is none, or a file's layers shall be others.
    """
    if not (Path(word).suffix or Path(word).exists()):
        return named_model(word, layers)
    if layers is not None:
        raise HeptiError(f"--layers is for named architectures: {word} has the layers that it has")
    with importlib.import_module("weights.file.store").WeightsFile(_weights_path(word)) as weights:
        spec: ModelSpec = weights.spec
    return spec


def network_of(word: str) -> ConvNet:
    """Return what a file says of itself, or a convolutional network that is known by name.

    Raises
    ------
    HeptiError
        If there is none.
    """
    net: ConvNet
    if Path(word).suffix or Path(word).exists():
        with importlib.import_module("weights.file.networks").NetworkFile(_weights_path(word)) as weights:
            net = weights.net
    else:
        net = _zoo().zoo_graph(word)
    return net


def decoder_of(word: str, layers: int | None = None) -> tuple[Decoder, str | None]:
    """Return a language model that is known by name, or a file's and what that is in.

    Raises
    ------
    HeptiError
        If there is none, or a file's layers shall be others.
    """
    if not (Path(word).suffix in ENDINGS or Path(word).exists()):
        return named_decoder(word, layers), None
    if layers is not None:
        raise HeptiError(f"--layers is for models known by name: {word} has the layers that it has")
    with importlib.import_module("weights.decoders.file").DecoderFile(_weights_path(word)) as weights:
        return weights.model, weights.precision


def known_networks() -> Mapping[str, object]:
    """Return the convolutional networks that are known by name."""
    known: Mapping[str, object] = _zoo().ZOO
    return known


def _zoo() -> Any:
    return importlib.import_module("weights.networks_zoo")


def _weights_path(word: str) -> Path:
    path: Path = importlib.import_module("weights.formats").weights_path(Path(word))
    return path
