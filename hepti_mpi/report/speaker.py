"""What a leader tells the person at the terminal, beside answers and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from hepti_mpi.comm.hosts import Place, describe, launcher_words, names_hosts, warnings
from hepti_mpi.report import tables
from solver.base.phrases import counted
from solver.base.progress import progress

# Of a label and bytes: a bar, and what is called with the bytes that are done.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


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

    def introduce(self, places: Sequence[Place], notes: Sequence[str] = ()) -> None:
        """Tell where ranks run, and what goes with it; once nothing is refused, or hosts are to be measured."""
        self.say(describe(places))
        self.note([*warnings(places, on_hosts=names_hosts(launcher_words())), *notes])

    def progress(self, label: str, total: int, unit: str = "bytes") -> AbstractContextManager[Callable[[int], None]]:
        """Show how far something is, of so many bytes or whatever `unit` says."""
        return progress(label, total, console=self.console, unit=unit)

    def wrote(self, answers: int, path: Path) -> None:
        """Tell how many answers are in a file."""
        self.say(f"wrote {counted(answers, 'answer')} to {path}")

    def note(self, notes: Sequence[str]) -> None:
        """Tell what may be a mistake, or is not as one would expect."""
        for note in notes:
            self.say(f"note: {note}")
