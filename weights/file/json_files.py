"""Reading the JSON and text files of a checkpoint; a Git LFS pointer in a file's place says what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError, explained

POINTER = b"version https://git-lfs.github.com/spec/"  # what such a pointer begins with


def refuse_pointer(path: Path) -> None:
    """Refuse a file that `git clone` without Git LFS left in place of a large one.

    Raises
    ------
    HeptiError
        With how to get the file itself; an unreadable file is left to whoever reads it.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(POINTER))
    except OSError:
        return
    if start == POINTER:
        raise HeptiError(
            f"{path} is a Git LFS pointer, not the file itself: git lfs pull in its folder gets it, as does hf download"
        )


def read_text(path: Path) -> str:
    """Return what a text file of a checkpoint holds.

    Raises
    ------
    HeptiError
        If it is unreadable, not UTF-8, or a Git LFS pointer.
    """
    refuse_pointer(path)
    with explained(f"cannot read {path}", (OSError, UnicodeDecodeError)):
        return path.read_text("utf-8")


def read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one where the file is missing and `optional`.

    Raises
    ------
    HeptiError
        If the file is missing, unreadable, not JSON, or not an object.
    """
    if optional and not path.is_file():
        return {}
    found = read_any_json(path)
    if not isinstance(found, dict):
        raise HeptiError(f"{path} is not an object")
    return found


def read_any_json(path: Path) -> Any:
    """Return whatever a JSON file holds."""
    refuse_pointer(path)
    with explained(f"cannot read {path}", OSError), explained(f"{path} is not JSON", ValueError):
        return json.loads(path.read_text("utf-8"))
