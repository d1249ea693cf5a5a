"""Whose code a program is: the checkout that `bench compare` stands in, or another one.

`python -m` takes modules from the current folder before all others, installed ones too. So the current folder of a
program decides, on every host, and the Python environment is the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from launch.base import shell
from launch.base.json_output import printed
from launch.compare.stage import BenchHosts
from solver.base.errors import HeptiError

THIS, AGAINST = "this", "against"
HERE = Path(__file__).resolve().parents[2]
PACKAGES = ("hepti_mpi", "solver", "weights")
# Finds the packages as `-m` does, and imports none of them.
ORIGINS = """import json, sys
from importlib.util import find_spec
print(json.dumps({name: str(getattr(find_spec(name), "origin", None)) for name in sys.argv[1:]}))"""


def checkout(word: str) -> Path:
    """Return the folder of a checkout, for argparse, which names the option in front of what is wrong."""
    path = Path(word).resolve()
    for package in PACKAGES:
        if not (path / package / "__main__.py").is_file():
            raise argparse.ArgumentTypeError(f"{word} is no checkout of Hepti: there is no {package}/__main__.py")
    return path


def in_checkout(folder: Path | None, program: Sequence[str]) -> list[str]:
    """Return a program as a host starts it in a checkout; None: wherever it is started."""
    return list(program) if folder is None else ["env", f"--chdir={folder}", *program]


def check_hosts(stage: BenchHosts, folder: Path) -> None:
    """Refuse hosts that would run other code than a checkout's, by what `-m` finds on them.

    Raises
    ------
    HeptiError
        If a host has no such folder, or would take a package from elsewhere.
    """
    for number, host in enumerate(stage.hosts):
        code, out, error = stage.alone(number, in_checkout(folder, [sys.executable, "-c", ORIGINS, *PACKAGES]))
        if code:
            raise HeptiError(
                f"{host} cannot run the code of {folder}: {' '.join(error.split()) or f'exit code {code}'}"
            )
        for package, origin in printed(out, host).items():
            if folder not in Path(origin).parents:
                raise HeptiError(f"{host} would run {package} of {origin}, not of {folder}: unset PYTHONSAFEPATH there")


def checkouts(folder: Path) -> dict[str, str]:
    """Return, for both versions, folder and commit."""
    return {version: _described(path) for version, path in ((THIS, HERE), (AGAINST, folder))}


def _described(path: Path) -> str:
    """Return a folder, and its commit where it has a history of its own."""
    if not (path / ".git").exists():
        return str(path)
    code, out, _ = shell.attempt(["git", "-C", str(path), "describe", "--always", "--dirty"])
    return str(path) if code else f"{path} at {out.strip()}"
