"""The parser of every command line of ours."""

from __future__ import annotations

import argparse
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
