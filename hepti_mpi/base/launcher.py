"""The mpirun that started this rank: where it reads and writes itself.

Open MPI 5's mpirun forwards whole lines of a rank's output only (seen with 5.0.11, also on a terminal): of a text that
comes word by word, or a bar, nothing would be seen before its line ends. What is for a person's eyes as it comes
is written where mpirun itself writes.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from solver.base.front import JOB_OF

LAUNCHERS = ("prterun", "mpirun", "mpiexec", "orterun")


def launcher() -> Path | None:
    """Return the folder in /proc of the mpirun that started this rank; None where it is another kind, or hidden."""
    parent = Path("/proc") / str(os.getppid())
    with suppress(OSError):  # no /proc
        if (parent / "comm").read_text().strip() in LAUNCHERS:
            return parent
    return None


def _front(mpirun: Path) -> Path:
    """Return the folder in /proc of the `hepti` that has started mpirun, by which its streams go; else mpirun's own."""
    parent = (mpirun / "stat").read_text().rpartition(")")[2].split()[1]
    return mpirun.parent / parent if parent == os.environ.get(JOB_OF) else mpirun


def straight_to(number: int) -> int | None:
    """Return a descriptor of where mpirun's own standard output (1) or error (2) goes.

    None where it is no terminal and no pipe, or cannot be told: then it is to be written as everything else.
    """
    parent = launcher()
    if parent is None:
        return None
    with suppress(OSError):  # another user's mpirun, or nobody reads the pipe
        where = _front(parent) / "fd" / str(number)
        mode = where.stat().st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            descriptor = os.open(where, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
            if stat.S_ISFIFO(mode) or os.isatty(descriptor):
                os.set_blocking(descriptor, True)
                return descriptor
            os.close(descriptor)
    return None
