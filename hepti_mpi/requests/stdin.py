"""Lines of standard input under mpirun, end included.

Open MPI 5's mpirun forwards what it reads to rank 0, but not that its input has ended (openpmix pull request 4024,
seen with 5.0.11): a program that reads to the end never gets there. So when nothing has come for a while, we look at
mpirun's own standard input, which is at its end when it has nothing more to give and nobody writes to it any more.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from hepti_mpi.base.launcher import launcher
from solver.base.errors import HeptiError

# How long nothing must come before the launcher is asked, and what it forwards then has had time to arrive.
QUIET_S = 0.3
# An image of images.MOST_DATA_BYTES in base64, and more text than a model reads: no line fills memory.
MOST_LINE_BYTES = 16 << 20


def read_lines() -> Iterator[bytes]:
    """Yield the lines of standard input, each as soon as it is whole, without its line end.

    Of a line that is too long only so much is kept that `check_length` refuses it.
    """
    descriptor = sys.stdin.fileno()
    rest = bytearray()
    while True:
        at_end = _launcher_is_at_end()
        if select.select([descriptor], [], [], QUIET_S)[0]:
            chunk = os.read(descriptor, 1 << 16)
            *lines, last = chunk.split(b"\n")
            for line in lines:
                rest += line[: MOST_LINE_BYTES + 1 - len(rest)]
                yield bytes(rest)
                rest.clear()
            rest += last[: MOST_LINE_BYTES + 1 - len(rest)]
            at_end = not chunk
        if at_end:
            break
    if rest:
        yield bytes(rest)


def check_length(line: bytes) -> None:
    """Refuse a line that is too long.

    Raises
    ------
    HeptiError
        If it is.
    """
    if len(line) > MOST_LINE_BYTES:
        raise HeptiError(f"the line is longer than {MOST_LINE_BYTES} bytes: send less at a time")


def _launcher_is_at_end() -> bool:
    """Tell whether the mpirun that started this rank has read its standard input to the end."""
    parent = launcher()
    if parent is None:
        return False
    try:
        source = parent / "fd" / "0"
        mode = source.stat().st_mode
        if stat.S_ISREG(mode):
            position = (parent / "fdinfo" / "0").read_text().split()[1]
            return int(position) >= source.stat().st_size
        if stat.S_ISFIFO(mode):
            return _pipe_is_at_end(source)
        return source.samefile(os.devnull)
    except OSError:  # another user's mpirun
        return False


def _pipe_is_at_end(pipe: Path) -> bool:
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return [event for _, event in poll.poll(0)] == [select.POLLHUP]
    finally:
        os.close(descriptor)
