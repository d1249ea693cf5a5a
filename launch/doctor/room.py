"""Whether this machine has room for the ranks that it is to play all alone."""

from __future__ import annotations

import os

from solver.base.errors import HeptiError
from solver.base.phrases import counted
from solver.cluster.board import free_bytes

# More ranks than cores take turns, which is right for a try-out: an exchange of all with all then waits this often for
# the same core. Whoever wants still more starts mpirun, which takes any number.
RANKS_PER_CORE = 8


def check_ranks(ranks: int, option: str = "--np") -> None:
    """Refuse more ranks on this machine than its cores, or its free memory, can play.

    Raises
    ------
    HeptiError
        With both numbers, and how many there may be.
    """
    cores = len(os.sched_getaffinity(0))
    if ranks <= cores:
        return
    if ranks > cores * RANKS_PER_CORE:
        raise HeptiError(
            f"{option} {ranks} are {ranks} processes on {counted(cores, 'core')} of this machine, more than "
            f"{RANKS_PER_CORE} a core: give {cores * RANKS_PER_CORE} at most, or boards by --hostfile"
        )
    from solver.cluster.cluster import MIB, PROGRAM_BYTES  # with it comes what few ranks do not wait for

    free = free_bytes()
    if ranks * PROGRAM_BYTES > free:
        raise HeptiError(
            f"{option} {ranks} are {ranks} processes of {PROGRAM_BYTES // MIB} MiB before any weights, this machine "
            f"has {free // MIB} MiB free: give {max(1, free // PROGRAM_BYTES)} at most, or boards by --hostfile"
        )
