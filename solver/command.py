"""What every command line of ours has: its parser, and a look at the files that it is to write."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from solver.errors import HeptiError


class Parser(argparse.ArgumentParser):
    """Argparse whose errors, and those of its subcommands, are one line that the command prints like any other."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing usage and error and exiting, on every rank at that.

        Raises
        ------
        HeptiError
            Always: what is wrong with the arguments, and which help to ask.
        """
        raise HeptiError(f"{message} (see {self.prog} --help)")


def check_path(path: Path, suffixes: Sequence[str]) -> None:
    """Refuse, before anything is computed, a file that could not be written at the end.

    Raises
    ------
    HeptiError
        If the ending is another or the folder is missing.
    """
    if path.suffix not in suffixes:
        raise HeptiError(f"cannot write {path}: the ending must be {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise HeptiError(f"cannot write {path}: there is no folder {path.parent}")
