"""What is answered: JSON lines, or the last hidden states as one `.npz`."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hepti_mpi.base.arrays import Array
from hepti_mpi.requests.inputs import Request
from solver.base.command import whole_file
from solver.base.errors import explained

SUFFIXES = (".jsonl", ".npz")


def answer(request: Request, seconds: float, result: dict[str, Any]) -> dict[str, Any]:
    """Return a request's answer as it stands in the output."""
    entry: dict[str, Any] = {"id": request.id, "tokens": request.rows, "seconds": seconds}
    if request.truncated:
        entry["truncated"] = True
    return entry | result


@contextmanager
def writing(path: Path) -> Iterator[Callable[[Mapping[str, Any], Array | None], None]]:
    """Give a function that takes answers one by one, each with its last hidden state where the file is an `.npz`.

    What it has taken is in the file, and not in memory; but for the names in an `.npz`, which stand at its end.
    """
    with whole_file(path) as temporary:
        if path.suffix == ".jsonl":
            with temporary.open("w", encoding="utf-8") as file:

                def add_line(entry: Mapping[str, Any], _: Array | None) -> None:
                    file.write(json.dumps(entry, ensure_ascii=False) + "\n")
                    file.flush()

                yield add_line
            return
        # As np.savez does, which takes no array called "file".
        with zipfile.ZipFile(temporary, "w") as archive:

            def add_array(entry: Mapping[str, Any], hidden: Array | None) -> None:
                assert hidden is not None
                with archive.open(f"{entry['id']}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, hidden)

            yield add_array


def write_answers(path: Path, answers: Sequence[Mapping[str, Any]], hidden: Mapping[str, Array]) -> None:
    """Write the answers as `.jsonl`, or the last hidden states by id as `.npz`."""
    with writing(path) as add:
        for entry in answers:
            add(entry, hidden.get(str(entry["id"])))


def print_answer(entry: Mapping[str, Any]) -> None:
    """Print an answer as a line at once.

    Raises
    ------
    HeptiError
        If nobody reads it any more.
    """
    with explained("cannot write an answer to standard output", OSError):
        print(json.dumps(entry), flush=True)


def write_json(path: Path, table: Mapping[str, Any]) -> None:
    """Write a table as JSON."""
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(table, indent=1) + "\n")
