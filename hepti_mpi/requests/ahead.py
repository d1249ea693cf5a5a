"""Reads ahead: while the ranks compute a thread makes the next requests, and complaints, which are told in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from queue import Full, Queue
from threading import Thread
from typing import Generic, TypeVar

from hepti_mpi.requests.service_lines import Complaint

Made = TypeVar("Made")
AHEAD = 1  # wait for their turn, beside the one that the thread is busy with


class Mark(Enum):
    """What stands among what is made."""

    END = "end"
    LOOK = "look"  # there is something that is not made in turn


InTurn = tuple[Made] | Complaint | BaseException | Mark


class Ahead(Generic[Made]):
    """Takes what a thread makes, and its complaints, in the order in which they were made.

    Parameters
    ----------
    tell
        Takes a complaint, in the thread of whoever takes the rest.
    look
        Called there, too: before every wait for what is made, and when `wake` was called in the meantime.
    ahead
        How many may wait for their turn, beside the one that the thread is busy with.
    """

    def __init__(
        self, tell: Callable[[Complaint], object], look: Callable[[], object] = lambda: None, ahead: int = AHEAD
    ) -> None:
        self._tell, self._look = tell, look
        self._turns: Queue[InTurn[Made]] = Queue(ahead)

    def complain(self, complaint: Complaint) -> None:
        """Tell what is wrong when it is its turn; for what makes things, in the thread."""
        self._turns.put(complaint)

    def wake(self) -> None:
        """Let whoever waits for what is made look; from any thread."""
        with suppress(Full):  # then nobody waits
            self._turns.put_nowait(Mark.LOOK)

    def is_there(self) -> bool:
        """Return whether something can be taken without waiting, the end included; tell complaints before it."""
        turns = self._turns.queue
        while turns and (isinstance(turns[0], Complaint) or turns[0] is Mark.LOOK):
            turn = self._turns.get()
            if isinstance(turn, Complaint):
                self._tell(turn)
            else:
                self._look()
        return bool(turns)

    def of(self, source: Iterable[Made]) -> Iterator[Made]:
        """Yield what a source makes; what it raises is raised here, in its turn."""
        # A daemon, since a program that ends early does not wait for the next line of standard input.
        Thread(target=self._make, args=(source,), daemon=True).start()
        turn: InTurn[Made] = Mark.LOOK
        while turn is not Mark.END:
            self._look()
            turn = self._turns.get()
            if isinstance(turn, tuple):
                yield turn[0]
            elif isinstance(turn, BaseException):
                raise turn
            elif isinstance(turn, Complaint):
                self._tell(turn)
        self._look()

    def _make(self, source: Iterable[Made]) -> None:
        try:
            for made in source:
                self._turns.put((made,))
        except BaseException as error:  # whoever takes the rest would wait for ever
            self._turns.put(error)
        else:
            self._turns.put(Mark.END)
