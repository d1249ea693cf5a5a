"""Sinks that print and write answers: as JSON lines, or the last hidden states as one `.npz`."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hepti_mpi.base.launcher import straight_to
from hepti_mpi.requests.answers import Answer, Sink
from hepti_mpi.requests.service_lines import print_line
from solver.base.command import whole_file
from solver.base.errors import HeptiError, explained

SUFFIXES = (".jsonl", ".npz")


@contextmanager
def writing(path: Path) -> Iterator[Sink]:
    """Give a sink whose answers become a file at the end, or leave nothing: JSON lines, or an `.npz`.

    What it has taken is in the file, and not in memory; but for the names in an `.npz`, which stand at its end.
    """
    with whole_file(path) as temporary:
        if path.suffix == ".jsonl":
            with temporary.open("w", encoding="utf-8") as file:

                def add_line(answer: Answer) -> None:
                    file.write(json.dumps(answer.entry, ensure_ascii=False) + "\n")
                    file.flush()

                yield add_line
            return
        # As np.savez does, which takes no array called "file".
        with zipfile.ZipFile(temporary, "w") as archive:

            def add_array(answer: Answer) -> None:
                for name, array in answer.arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array)

            yield add_array


@contextmanager
def as_they_come(path: Path) -> Iterator[Sink]:
    """Give a sink as `writing` does; its file stays however the run ends, since nobody answers these again."""
    ended: BaseException | None = None
    with writing(path) as take:
        try:
            yield take
        except (HeptiError, KeyboardInterrupt) as error:
            ended = error
    if ended is not None:
        raise ended


@contextmanager
def at_the_end(path: Path) -> Iterator[Sink]:
    """Give a sink as `writing` does; nothing is there of it before the end, however a job is ended."""
    kept: list[Answer] = []

    def keep(answer: Answer) -> None:
        hidden = answer.hidden if path.suffix == ".npz" else answer.hidden[:0]
        kept.append(replace(answer, hidden=hidden.copy()))  # not its whole batch

    yield keep
    with writing(path) as take:
        for answer in kept:
            take(answer)


def print_answer(answer: Answer) -> None:
    """Print an answer as `print_line` does."""
    print_line(answer.entry)


def print_text(text: str) -> None:
    """Print a part of a text at once, under mpirun too.

    Raises
    ------
    HeptiError
        If nobody reads it any more.
    """
    with explained("cannot write an answer to standard output", OSError):
        print(text, end="", file=_straight(), flush=True)


@cache
def _straight() -> TextIO | None:
    """Return where mpirun itself writes; None: as everything else."""
    descriptor = straight_to(1)
    return None if descriptor is None else os.fdopen(descriptor, "w", encoding="utf-8", errors="replace")


def write_json(path: Path, table: Mapping[str, Any]) -> None:
    """Write a table as JSON."""
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(table, indent=1) + "\n")
