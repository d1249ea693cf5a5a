"""What was answered: all of a file's requests, and of a run that serves no more than it needs, however long it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hepti_mpi.base.arrays import Array
from hepti_mpi.requests import outputs
from solver.base.errors import HeptiError

# Of a run that serves the report has so many requests: their median errs by less than the requests' own noise, and they
# take a few hundred KiB.
LAST = 1000


class Answers:
    """The answers on their way to the output, and what the report says of the requests that count.

    Parameters
    ----------
    output
        The file that they are written to, if any.
    serves
        Whether requests keep coming: answers are written as they come, and the report has the last requests; else all
        are kept, those of the last pass as answers, those of all passes that count for the report.
    """

    def __init__(self, output: Path | None, serves: bool) -> None:
        self.count = 0  # that counted
        self.kept: list[dict[str, Any]] = []
        self._output, self._serves = output, serves
        self._hidden: dict[str, Array] = {}  # last hidden states by id
        self._last: deque[tuple[str | int, int, float]] = deque(maxlen=LAST if serves else None)
        self._write: Callable[[dict[str, Any], Array], object] | None = None

    @property
    def by_id(self) -> bool:
        """Whether answers are found by their ids, so that none may come twice."""
        return not self._serves or self._writes_hidden

    @property
    def _writes_hidden(self) -> bool:
        return self._output is not None and self._output.suffix == ".npz"

    @contextmanager
    def as_they_come(self) -> Iterator[None]:
        """Write what is added meanwhile; it stays however the run ends, since nobody answers it again."""
        if self._output is None:
            yield
            return
        ended: BaseException | None = None
        with outputs.writing(self._output) as self._write:
            try:
                yield
            except (HeptiError, KeyboardInterrupt) as error:
                ended = error
        if ended is not None:
            raise ended

    def begin_pass(self) -> None:
        """Forget the answers of the pass before."""
        self.kept.clear()

    def add(self, entry: dict[str, Any], hidden: Array, rows: int, *, counts: bool) -> None:
        """Take an answer, its last hidden state [S, H], and the rows of its batch."""
        if counts:
            self.count += 1
            self._last.append((entry["id"], rows, entry["seconds"]))
        if self._write is not None:
            self._write(entry, hidden)
        elif not self._serves:
            self.kept.append(entry)
            if self._writes_hidden:
                self._hidden[str(entry["id"])] = hidden.copy()

    def write(self) -> None:
        """Write what was kept."""
        if self._output is not None and not self._serves:
            outputs.write_answers(self._output, self.kept, self._hidden)

    @property
    def rows(self) -> list[int]:
        """Of the batch of each request in the report."""
        return [rows for _, rows, _ in self._last]

    @property
    def seconds(self) -> dict[str | int, list[float]]:
        """The seconds of each request in the report, by id."""
        found: dict[str | int, list[float]] = {}
        for name, _, seconds in self._last:
            found.setdefault(name, []).append(seconds)
        return found
