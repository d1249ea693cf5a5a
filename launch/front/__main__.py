"""`hepti`, or `python -m launch.front`."""

from __future__ import annotations

import sys
from typing import NoReturn

from solver.base import stopping


def load() -> stopping.Main:
    """Import the command line."""
    from launch.front.command import main

    return main


def run() -> NoReturn:
    """Run the command that is typed, and exit with its code."""
    stopping.run(" ".join(["hepti", *sys.argv[1:2]]), load)


if __name__ == "__main__":
    run()
