"""What a leader tells the person at the terminal, beside answers and tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hepti_mpi.report import tables
from solver.base.phrases import counted


class Speaker:
    """Tells the person at the terminal; on rank 0 only.

    Attributes
    ----------
    console
        The terminal.
    """

    def __init__(self) -> None:
        self.console = tables.terminal(stderr=True)

    def say(self, line: str) -> None:
        """Tell a line."""
        # What reads a pipe has whole lines; on a terminal they end between words.
        self.console.print(line, soft_wrap=not self.console.is_terminal)

    def wrote(self, answers: int, path: Path) -> None:
        """Tell how many answers are in a file."""
        self.say(f"wrote {counted(answers, 'answer')} to {path}")

    def note(self, notes: Sequence[str]) -> None:
        """Tell what may be a mistake, or is not as one would expect."""
        for note in notes:
            self.say(f"note: {note}")
