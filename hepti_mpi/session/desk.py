"""What rank 0 says to a person and to a program that asks, and what it hears of them, whatever the model."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from hepti_mpi.comm.group import Group
from hepti_mpi.comm.hosts import Place
from hepti_mpi.report.speaker import Speaker
from hepti_mpi.requests.ahead import AHEAD, Ahead
from hepti_mpi.requests.answers import Answer, no_numbers
from hepti_mpi.requests.service_lines import Complaint, ServiceLines
from solver.base.front import program


class FrontDesk(Speaker, ABC):
    """Where requests come in and complaints go out; on rank 0 only.

    Parameters
    ----------
    options
        The command line, from `cli.parse`.
    group
        All ranks of the job.
    places
        Where each runs.

    Attributes
    ----------
    serves
        Whether standard input is answered line by line.
    complained
        Whether something was wrong with a request.
    again
        Whether what is read was read before: what is wrong with it has been told.
    ahead, lines
        Requests that a thread makes, and the lines of standard input, as far as they are asked for.
    """

    def __init__(self, options: argparse.Namespace, group: Group, places: Sequence[Place]) -> None:
        super().__init__()
        self.options, self.group, self.places = options, group, places
        self.serves = options.input == "-"
        self.complained = self.again = False
        self._without_numbers: set[str | int] = set()  # requests of which that was said
        self.hear()

    def hear(self, most_ahead: int = AHEAD) -> None:
        """Begin to hear requests, of which so many may be made ahead."""
        self.ahead = Ahead[Any](self.complain, self.look, most_ahead)
        self.lines = ServiceLines(self.ahead.wake)

    def complain(self, complaint: Complaint) -> None:
        """Tell a person, and the program that asked, what is wrong with a request."""
        self.complained = True
        if not self.again:
            self.say(f"{program(self.options.called)}: {complaint}")
        if self.serves:
            self.lines.complain(complaint)

    def refuse_answer(self, answer: Answer) -> None:
        """Tell that an answer is none, since it is not of numbers; where the request is not gone, once."""
        name = answer.entry["id"]
        if self.serves or name not in self._without_numbers:
            self._without_numbers.add(name)
            self.complain(no_numbers(name, answer.line))

    def left_out(self, request: Any) -> bool:
        """Return whether a request is cancelled, before it is computed; that is told then."""
        return self.lines.leaves_out(request.id, request.line)

    def look(self) -> None:
        """Answer what has overtaken the requests of standard input."""
        self.lines.tell(self.status)

    @property
    @abstractmethod
    def answered(self) -> int:
        """How many requests that count were answered."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Return what the job says of itself."""
