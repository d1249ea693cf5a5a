"""The folder of a benchmark's results, `--out`: made before anything runs, each file written whole."""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from solver.base.command import whole_file
from solver.base.errors import HeptiError


def make_folder(out: Path | None) -> None:
    """Make the folder, if one is asked for, and try it: what takes half an hour must not be lost at its end.

    Raises
    ------
    HeptiError
        If it cannot be made, or takes no file.
    """
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except FileExistsError as error:
        raise HeptiError(f"--out {out} is a file: name a folder") from error
    except OSError as error:
        raise HeptiError(f"cannot write to --out {out}: {error.strerror}") from error


def write_text(path: Path, text: str) -> None:
    """Write a file; where the disk is full, what was there before stays."""
    with whole_file(path) as temporary:
        temporary.write_text(text)


def can_draw() -> bool:
    """Return whether pictures can be drawn; say so where they cannot."""
    if find_spec("matplotlib") is None:
        print("note: no pictures without matplotlib: pip install 'hepti[plot]'", file=sys.stderr)
        return False
    return True
