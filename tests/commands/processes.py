"""Ranks as the machine sees them."""

import os
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def ranks_of(model, count):
    """Return the process ids of the ranks that run a weights file, lowest first, as soon as all are there."""
    while True:
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal() and runs(path, model)]
        if len(pids) == count:
            return sorted(pids)
        time.sleep(0.05)


def runs(process, model):
    try:
        words = (process / "cmdline").read_bytes().decode().split("\0")
    except OSError:  # it has just ended
        return False
    return [word for word in words[1:4] if word != "-P"][:2] == ["-m", "hepti_mpi"] and str(model) in words


def cpu_seconds(pid):
    """Return what a process has computed so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
