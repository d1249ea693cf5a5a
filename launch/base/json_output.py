"""What other programs answer in JSON; where it is none, the error says who answered, and what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError, explained

SHOWN = 80  # characters of an answer that is none


def printed(output: str, who: str) -> dict[str, Any]:
    """Return the object in the last line that a program printed; a library or a .bashrc may have spoken before it.

    Raises
    ------
    HeptiError
        If there is none.
    """
    last = (output.strip().splitlines() or [""])[-1]
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        said = f"answered {last[:SHOWN]!r}" if last else "answered nothing"
        raise HeptiError(f"{who} {said}, not a JSON object")
    return found


def written(path: Path, who: str) -> Any:
    """Return the JSON of a file that a program wrote.

    Raises
    ------
    HeptiError
        If there is none.
    """
    with explained(f"{who} left no readable {path}", OSError):
        text = path.read_text()
    with explained(f"{who} left a {path.name} that is no JSON", ValueError):
        return json.loads(text)
