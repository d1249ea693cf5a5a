"""A progress bar on stderr for what takes longer than a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

_PATIENCE_S = 1.0


@contextmanager
def progress(label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Give a function to call with the bytes done; the bar appears after a second, on terminals only."""
    console = Console(stderr=True)
    columns = (TextColumn(label), BarColumn(), DownloadColumn(True), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(label, total=total_bytes)
    begin, shown = time.monotonic(), False

    def advance(done_bytes: int) -> None:
        nonlocal shown
        bar.advance(task, done_bytes)
        if not shown and console.is_terminal and time.monotonic() - begin > _PATIENCE_S:
            bar.start()
            shown = True

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
