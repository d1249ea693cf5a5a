"""Lines of standard input while a job serves: requests in their turn, and what overtakes them.

A thread takes lines as they come, also while the ranks compute. Requests wait here as lines; a question for the job's
status, and a cancel, is heard at once, however many requests wait. What waits is bounded: `--input - < large_file` does
not fill memory. Beyond that the thread reads no further until there is room, so that a cancel behind so many requests
is heard late: who cancels keeps fewer of them open, as `launch serve` does.
"""

from __future__ import annotations

import json
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any

from solver.base.errors import HeptiError, explained

# That wait: enough to see every batch ahead, and little beside a model.
WAITING_LINES = 10_000
WAITING_BYTES = 32 << 20  # or a single line
ASIDE = {"cancel": (str, int), "status": (str, int, float)}  # what overtakes requests, and of what


@dataclass(frozen=True, slots=True)
class Complaint:
    """What is wrong with a line, or an image, that is left out.

    Parameters
    ----------
    text
        For a person: it says where.
    line
        Its number; 0: it stands on none.
    id
        The request's, as far as it has one, else the line's number.
    error
        For who asked: it does not say where.
    """

    text: str
    line: int = 0
    id: str | int = 0
    error: str = ""

    def __str__(self) -> str:
        """Return what a person reads."""
        return self.text


class ServiceLines:
    """Tells requests from cancels and questions for the status, as lines come.

    A request is known by the number of its line, and open from there until `end` is called: after its answer, or after
    what is wrong with it has been told. All methods may be called from any thread.

    Parameters
    ----------
    wake
        Called, in the thread that reads, when there is something to `tell`.
    """

    def __init__(self, wake: Callable[[], object] = lambda: None) -> None:
        self._wake = wake
        self._changed = Condition()
        self._open: dict[int, bytes] = {}  # in the order in which they came
        self._waiting: deque[int] = deque()  # of the open ones those that nobody has taken yet
        self._waiting_bytes = 0
        self._cancelled: set[int] = set()  # of the open ones that somebody has taken
        self._dropped: list[str | int] = []  # ids of those that were cancelled while they waited
        self._status: list[str | int | float] = []
        self._ended = False
        self._error: BaseException | None = None

    def of(self, lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield the requests among lines, and their numbers, from 1 on; what `lines` raises is raised after them."""
        # A daemon, since a program that ends early does not wait for the next line of standard input.
        Thread(target=self._read, args=(lines,), daemon=True).start()
        while (taken := self._next()) is not None:
            yield taken

    def take_status(self) -> list[str | int | float]:
        """Return the questions for the status since the last call."""
        with self._changed:
            asked, self._status = self._status, []
            self._changed.notify_all()
        return asked

    def take_dropped(self) -> list[str | int]:
        """Return the ids of requests that were cancelled while they waited, since the last call; they have ended."""
        with self._changed:
            dropped, self._dropped = self._dropped, []
            self._changed.notify_all()
        return dropped

    def is_cancelled(self, line: int) -> bool:
        """Return whether the open request of a line is cancelled."""
        with self._changed:
            return line in self._cancelled

    def leaves_out(self, name: str | int, line: int) -> bool:
        """Return whether the open request of a line is cancelled; it ends then, and that is its answer."""
        if not self.is_cancelled(line):
            return False
        self.end(line)
        print_cancelled(name)
        return True

    def end(self, line: int) -> bool:
        """Take note that nothing more is told of the request of a line; return whether it was cancelled."""
        with self._changed:
            self._open.pop(line, None)
            cancelled = line in self._cancelled
            self._cancelled.discard(line)
        return cancelled

    def tell(self, status: Callable[[], Mapping[str, Any]]) -> None:
        """Print the answers to what has overtaken requests; `status` is asked where somebody asks for it."""
        for name in self.take_dropped():
            print_cancelled(name)
        for asked in self.take_status():
            print_line({"status": asked} | dict(status()))

    def complain(self, complaint: Complaint) -> None:
        """Print what is wrong with a request, which ends with it."""
        if self.end(complaint.line):
            print_cancelled(complaint.id)
        else:
            print_line({"id": complaint.id, "error": complaint.error})

    def _next(self) -> tuple[int, bytes] | None:
        """Return the next request and take it; None: there is none any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if self._waiting:
                number = self._waiting.popleft()
                self._forget(self._open[number])
                return number, self._open[number]
            if self._error is not None:
                raise self._error
            return None

    def _read(self, lines: Iterable[bytes]) -> None:
        error: BaseException | None = None
        try:
            for number, line in enumerate(lines, start=1):
                self._take(number, line)
        except BaseException as raised:  # whoever takes the rest would wait for ever
            error = raised
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def _take(self, number: int, line: bytes) -> None:
        aside = _aside(line)
        with self._changed:
            if aside is None:
                self._changed.wait_for(lambda: self._has_room(line))
                self._open[number] = line
                self._waiting.append(number)
                self._waiting_bytes += sys.getsizeof(line)
                self._changed.notify_all()
                return
            self._changed.wait_for(lambda: len(self._status) + len(self._dropped) < WAITING_LINES)
            key, value = aside
            if key == "status":
                self._status.append(value)
            else:
                self._cancel(value)
        self._wake()

    def _has_room(self, line: bytes) -> bool:
        size = self._waiting_bytes + sys.getsizeof(line)
        return not self._waiting or (len(self._waiting) < WAITING_LINES and size <= WAITING_BYTES)

    def _cancel(self, name: str | int | float) -> None:
        for number in [number for number, line in self._open.items() if id_of(number, line) == name]:
            if self._waiting and number >= self._waiting[0]:
                self._waiting.remove(number)
                line = self._open.pop(number)
                self._forget(line)
                self._dropped.append(id_of(number, line))
            else:
                self._cancelled.add(number)

    def _forget(self, line: bytes) -> None:
        self._waiting_bytes -= sys.getsizeof(line)
        self._changed.notify_all()


def id_of(number: int, line: bytes) -> str | int:
    """Return the id of the request on a line: the line's number where it has none that can be one."""
    with suppress(ValueError, RecursionError, HeptiError):
        entry = json.loads(line)
        if isinstance(entry, dict):
            return checked_id(entry.get("id", number))
    return number


def checked_id(name: Any) -> str | int:
    """Return what may be an id.

    Raises
    ------
    HeptiError
        If it is none.
    """
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise HeptiError(f"id {name!r} is neither a string nor an integer")
    # Halves of surrogate pairs come from JSON's escapes: no file holds them.
    with explained("the id is not Unicode", UnicodeEncodeError):
        str(name).encode()
    return name


def print_line(entry: Mapping[str, Any]) -> None:
    """Print an object as a line at once.

    Raises
    ------
    HeptiError
        If nobody reads it any more.
    """
    with explained("cannot write an answer to standard output", OSError):
        print(json.dumps(entry), flush=True)


def print_cancelled(name: str | int) -> None:
    """Print that a request has ended since it was cancelled, as `print_line` does."""
    print_line({"id": name, "finish_reason": "cancelled"})


def _aside(line: bytes) -> tuple[str, str | int | float] | None:
    """Return what overtakes requests, `cancel` or `status`, and of what; None where a line is a request's."""
    if b'"cancel"' not in line and b'"status"' not in line:
        return None
    with suppress(ValueError, RecursionError):
        entry = json.loads(line)
        if isinstance(entry, dict) and len(entry) == 1:
            ((key, value),) = entry.items()
            # Python reads NaN and Infinity, which no JSON has.
            finite = not isinstance(value, float) or math.isfinite(value)
            if type(value) in ASIDE.get(key, ()) and finite:
                return key, value
    return None
