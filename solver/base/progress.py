"""How far it is, on stderr: a bar for what takes longer than a second, or now and then a line where nobody watches.

Of what nobody knows how far it is, a line says now and then that it goes on.
"""

from __future__ import annotations

import sys
import threading
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
_LINE_S = 10.0  # between lines: short work has none, long work one a tenth


@contextmanager
def signs_of_life(label: str) -> Iterator[None]:
    """Say on stderr every eight seconds that something is on its way: silent for ten a program is taken for dead."""
    over = threading.Event()
    begin = time.monotonic()

    def say() -> None:
        while not over.wait(0.8 * _LINE_S):
            print(f"{label}: {time.monotonic() - begin:.0f} s so far", file=sys.stderr, flush=True)

    speaker = threading.Thread(target=say, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        over.set()
        speaker.join()


@contextmanager
def progress(
    label: str, total: int, *, console: Console | None = None, unit: str = "bytes"
) -> Iterator[Callable[[int], None]]:
    """Give a function to call with the amount done; the bar appears after a second, on terminals only.

    Elsewhere stderr gets a line for every tenth, ten seconds after the last one at the soonest.

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
    begin, shown, said = time.monotonic(), False, 0

    def advance(amount: int) -> None:
        nonlocal begin, shown, said
        bar.advance(task, amount)
        waited_s = time.monotonic() - begin
        if console.is_terminal:
            if not shown and waited_s > _PATIENCE_S:
                bar.start()
                shown = True
        elif console.stderr and waited_s > _LINE_S and (tenths := int(bar.tasks[0].percentage // 10)) > said:
            console.print(f"{label}: {10 * tenths} %")
            begin, said = time.monotonic(), tenths

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
