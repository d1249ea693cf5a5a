"""Documents that are ranked, of files or of standard input; on rank 0 only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hepti_mpi.requests.inputs import content_of, texts_in
from hepti_mpi.requests.stdin import check_length, read_lines
from solver.base.errors import HeptiError, explained

Document = tuple[str, str]  # its name, and its text


def read_documents(files: Sequence[Path]) -> Iterator[Document]:
    """Yield the documents of files, or of the lines of standard input, which are numbered.

    Raises
    ------
    HeptiError
        If a file cannot be read, or two have one name.
    """
    seen: set[str] = set()
    for name, text in _of_files(files) if files else _of_lines(read_lines(), "standard input"):
        if name in seen:
            raise HeptiError(f"{name} stands twice among the documents")
        seen.add(name)
        yield name, text


def _of_files(files: Sequence[Path]) -> Iterator[Document]:
    for path in files:
        if path.is_dir():
            yield from ((f"{path / name}", content_of(inside)) for name, inside in texts_in(path))
        elif path.suffix == ".jsonl":
            with explained(f"cannot read {path}", OSError), path.open("rb") as lines:
                yield from _of_json(lines, path)
        else:
            with explained(str(path), HeptiError):
                yield str(path), content_of(path)


def _of_json(lines: Iterable[bytes], path: Path) -> Iterator[Document]:
    for number, line in enumerate(lines, start=1):
        with explained(f"{path}, line {number}: not JSON", (ValueError, RecursionError)):
            entry = json.loads(line)
        if not isinstance(entry, dict) or not isinstance(entry.get("text"), str):
            raise HeptiError(f'{path}, line {number}: not like {{"id": 1, "text": "…"}}')
        yield str(entry.get("id", number)), entry["text"]


def _of_lines(lines: Iterable[bytes], source: str) -> Iterator[Document]:
    for number, line in enumerate(lines, start=1):
        check_length(line)
        with explained(f"{source}, line {number}: not UTF-8", UnicodeDecodeError):
            text = line.decode("utf-8-sig").rstrip("\r\n")
        if text.strip():
            yield str(number), text
