"""What is answered: JSON lines, or the last hidden states as one `.npz`."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hepti_mpi.arrays import Array
from hepti_mpi.inputs import Request
from solver.command import whole_file

SUFFIXES = (".jsonl", ".npz")


def answer(request: Request, seconds: float, result: dict[str, Any]) -> dict[str, Any]:
    """Return a request's answer as it stands in the output."""
    entry: dict[str, Any] = {"id": request.id, "tokens": request.rows, "seconds": seconds}
    if request.truncated:
        entry["truncated"] = True
    return entry | result


def write_answers(path: Path, answers: Sequence[Mapping[str, Any]], hidden: Mapping[str, Array]) -> None:
    """Write the answers as `.jsonl`, or the last hidden states by id as `.npz`."""
    with whole_file(path) as temporary:
        if path.suffix == ".jsonl":
            lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in answers)
            temporary.write_text(lines, encoding="utf-8")
            return
        # As np.savez does, which takes no array called "file".
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, array in hidden.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array)


def write_json(path: Path, table: Mapping[str, Any]) -> None:
    """Write a table as JSON."""
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(table, indent=1) + "\n")
