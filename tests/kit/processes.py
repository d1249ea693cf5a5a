"""Ranks as the machine sees them."""

import time
from pathlib import Path

import psutil


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
    used = psutil.Process(pid).cpu_times()
    return used.user + used.system


def has_ended(pid):
    """Return whether a process runs no more; one that nobody has waited for yet runs no more, either."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
