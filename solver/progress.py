"""A progress bar on stderr for what takes longer than a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_PATIENCE_S = 1.0


@contextmanager
def progress(
    label: str, total: int, *, console: Console | None = None, unit: str = "bytes"
) -> Iterator[Callable[[int], None]]:
    """Give a function to call with the amount done; the bar appears after a second, on terminals only.

    Parameters
    ----------
    label
        What is being done.
    total
        Bytes, or whatever `unit` says.
    console
        Where to draw; None: stderr.
    unit
        "bytes" shows sizes and speed, any other counts.
    """
    console = console or Console(stderr=True)
    amounts: tuple[ProgressColumn, ...] = (MofNCompleteColumn(), TextColumn(unit))
    if unit == "bytes":
        amounts = (DownloadColumn(True), TransferSpeedColumn())
    columns = (TextColumn(label), BarColumn(), *amounts, TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(label, total=total)
    begin, shown = time.monotonic(), False

    def advance(amount: int) -> None:
        nonlocal shown
        bar.advance(task, amount)
        if not shown and console.is_terminal and time.monotonic() - begin > _PATIENCE_S:
            bar.start()
            shown = True

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
