"""Ranks in reserve: they are started and connected, and wait to be told what they are for.

    mpirun … python -m hepti_mpi reserve

Rank 0 prints `{"reserve": RANKS}` when all are there, and reads one line, `{"run": WORDS}`: from then on the job is as
if it had been started with these words. It saves mpirun's start to a service that has lost a rank: 1.3 to 3 of some 6 s
on four boards with a quarter of a core of 2024 each.
"""

from __future__ import annotations

import json

from hepti_mpi.comm.group import Group
from solver.base import clock
from solver.base.errors import HeptiError

RESERVE = "reserve"
# As often as ranks of a job look for orders, every 5 ms, to wait took 2 % of a core.
LOOK_S = 0.1


def told(group: Group) -> list[str]:
    """Wait until somebody says what these ranks are for; return the words on every rank.

    Raises
    ------
    HeptiError
        On rank 0, if it is something else.
    """
    group.barrier()
    if group.rank == 0:
        print(json.dumps({RESERVE: group.size}), flush=True)
        # What follows the line is for what these ranks are told to be: nothing of it is read ahead.
        with open(0, "rb", buffering=0, closefd=False) as stdin:
            words = _words(stdin.readline())
        group.orders.send(words, group.others())
    else:
        while (order := group.orders.poll()) is None:
            clock.sleep(LOOK_S)
        words = order[1]
    group.traffic.reset()  # the wait was for nobody
    return words


def _words(line: bytes) -> list[str]:
    try:
        words = json.loads(line)["run"]
    except (ValueError, TypeError, KeyError):
        words = None
    if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        raise HeptiError(f'ranks in reserve are told {{"run": ["--model", …]}}, not {line.decode(errors="replace")!r}')
    return words
