"""How far every board is: a line each on a terminal, elsewhere a line when something is done."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from solver.base.phrases import counted

MB = 1e6


class BoardScreen:
    """Boards side by side, on stderr.

    Parameters
    ----------
    names
        What has a line.
    console
        None: stderr.
    """

    def __init__(self, names: list[str], console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        columns = (
            TextColumn("{task.fields[name]}"),
            BarColumn(20),
            TimeElapsedColumn(),
            TextColumn("{task.fields[doing]}"),
        )
        self._bars = Progress(*columns, console=self._console, transient=True)
        self._tasks = {name: self._bars.add_task("", total=None, name=name, doing="waits") for name in names}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def doing(self, name: str, what: str, size: int | None = None) -> None:
        """Tell what is done; with a size in bytes the bar says how far."""
        self._bars.reset(self._tasks[name], total=size, name=name, doing=what)

    def carried(self, name: str, size: int) -> None:
        """Tell that so many bytes more are done."""
        self._bars.advance(self._tasks[name], size)

    def done(self, name: str, what: str) -> None:
        """Tell how it ended."""
        self._bars.remove_task(self._tasks[name])
        self._console.print(f"{name}: {what}", soft_wrap=True, highlight=False, markup=False)


def sent(files: int, size: int) -> str:
    """Return how much goes to a board."""
    return f"sends {counted(files, 'file')}, {size / MB:.0f} MB"
