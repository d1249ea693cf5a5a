"""Reads ahead: while the ranks compute a thread makes the next requests, and complaints, which are told in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from queue import Queue
from threading import Thread
from typing import Generic, TypeVar

Made = TypeVar("Made")
AHEAD = 1  # wait for their turn, beside the one that the thread is busy with


class Ahead(Generic[Made]):
    """Takes what a thread makes, and its complaints, in the order in which they were made.

    Parameters
    ----------
    tell
        Takes a complaint, in the thread of whoever takes the rest.
    """

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._turns: Queue[tuple[Made] | str | BaseException | None] = Queue(AHEAD)

    def complain(self, complaint: str) -> None:
        """Tell what is wrong when it is its turn; for what makes things, in the thread."""
        self._turns.put(complaint)

    def is_there(self) -> bool:
        """Return whether something can be taken without waiting, the end included; tell complaints before it."""
        turns = self._turns.queue
        while turns and isinstance(turns[0], str):
            self._tell(str(self._turns.get()))
        return bool(turns)

    def of(self, source: Iterable[Made]) -> Iterator[Made]:
        """Yield what a source makes; what it raises is raised here, in its turn."""
        # A daemon, since a program that ends early does not wait for the next line of standard input.
        Thread(target=self._make, args=(source,), daemon=True).start()
        while (turn := self._turns.get()) is not None:
            if isinstance(turn, str):
                self._tell(turn)
            elif isinstance(turn, BaseException):
                raise turn
            else:
                yield turn[0]

    def _make(self, source: Iterable[Made]) -> None:
        try:
            for made in source:
                self._turns.put((made,))
        except BaseException as error:  # whoever takes the rest would wait for ever
            self._turns.put(error)
        else:
            self._turns.put(None)
