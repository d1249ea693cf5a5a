"""Answers, and what takes them in memory: what the report says of them, and those of a file until they are written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hepti_mpi.requests.inputs import Request
from hepti_mpi.requests.service_lines import Complaint
from solver.base.arrays import Array

# Of a run that serves the report has so many requests: their median errs by less than the requests' own noise, and they
# take a few hundred KiB.
LAST = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A request's answer."""

    entry: dict[str, Any]  # as it stands in the output
    hidden: Array  # its last hidden state [rows, H]; of models that answer in words or by outputs nothing
    batch_rows: int = 0  # of all requests that ran together
    counts: bool = True  # in the report
    line: int = 0  # the number of the JSON line that asked; 0: none did
    outputs: Mapping[str, Array] = field(default_factory=dict)  # of a network, by name
    told: bool = True  # to who asked: of documents only the best are

    @property
    def arrays(self) -> dict[str, Array]:
        """What an `.npz` has of it, by name."""
        if self.outputs:
            return {f"{self.entry['id']}/{name}": array for name, array in self.outputs.items()}
        return {f"{self.entry['id']}": self.hidden}

    @property
    def says_cancelled(self) -> bool:
        """Whether it says itself that nobody waits for it any more, with what there is of it."""
        return self.entry.get("finish_reason") == CANCELLED


Sink = Callable[[Answer], object]

NOTHING = np.empty(0, np.float32)  # the hidden state of what has none
CANCELLED = "cancelled"  # why an answer ends that nobody waits for any more
NO_NUMBERS = "the model made NaN or infinite numbers of it, which are no answer: a weight is damaged, or overflows"


def no_numbers(name: str | int, line: int = 0) -> Complaint:
    """Return what is said of a request for which a model computes no numbers."""
    return Complaint(f"request {name}: {NO_NUMBERS}", line, name, NO_NUMBERS)


def are_numbers(*arrays: Array) -> bool:
    """Tell whether all of what a model computed are numbers."""
    return all(bool(np.isfinite(array).all()) for array in arrays)


def entry_of(request: Request, seconds: float, result: dict[str, Any]) -> dict[str, Any]:
    """Return a request's answer as it stands in the output."""
    entry: dict[str, Any] = {"id": request.id, "tokens": request.rows, "seconds": seconds}
    if request.truncated:
        entry["truncated"] = True
    return entry | result


class Tally:
    """What the report says of the requests that count; of a run that `serves` it has the last ones.

    Attributes
    ----------
    count, tokens
        How many requests, and how many tokens they had; images have none.
    """

    def __init__(self, *, serves: bool) -> None:
        self.count = 0
        self.tokens = 0
        self._last: deque[tuple[str | int, int, float]] = deque(maxlen=LAST if serves else None)

    def take(self, answer: Answer) -> None:
        """Count an answer."""
        if answer.counts:
            self.count += 1
            self.tokens += answer.entry.get("tokens", 0)
            self._last.append((answer.entry["id"], answer.batch_rows, answer.entry["seconds"]))

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
