"""Writing so that HDF5 survives a full disk and an impatient person."""

from __future__ import annotations

import io
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from solver.base.errors import HeptiError
from solver.base.stopping import SIGNALS


class Disk(io.FileIO):
    """A file whose writes never fail: the first error is kept in `failure`, the bytes are dropped.

    HDF5 does not survive a full disk: what it cannot write it tries again at every later step, with a traceback each,
    and the process ends with a segmentation fault (HDF5 2.0). So it never hears of it.
    """

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of `data`, or keep the reason."""
        rest = memoryview(data)
        while rest and not self.failure:
            try:
                rest = rest[super().write(rest) :]
            except OSError as error:
                self.failure = error
        return len(data)

    def truncate(self, size: int | None = None, /) -> int:
        """Set the length, or keep the reason; a limit on file sizes refuses this, too."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return size or 0


def check_space(path: Path, needed_bytes: int) -> None:
    """Refuse a file that cannot fit before an hour has been spent on writing it."""
    free_bytes = shutil.disk_usage(path.parent).free
    if needed_bytes > free_bytes:
        raise HeptiError(
            f"cannot write {path}: it takes {needed_bytes / 2**20:.0f} MiB, {path.parent} has "
            f"{free_bytes / 2**20:.0f} MiB free"
        )


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Make Ctrl-C and termination wait: raised inside one of HDF5's calls to `Disk` they end in its own faults."""
    if threading.current_thread() is not threading.main_thread():
        yield  # where signals never arrive
        return
    waiting: list[int] = []
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    for number in handlers:
        signal.signal(number, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0])
