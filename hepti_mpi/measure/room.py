"""Whether hosts have the memory that a plan needs, before anything is loaded: later the kernel would end a rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hepti_mpi.comm.group import Group, SharedError, host_name
from solver.base.phrases import counted
from solver.cluster.board import free_bytes
from solver.cluster.cluster import MIB, PROGRAM_BYTES


def check_room(model: str, needs: Callable[[], Sequence[int]] | None, group: Group) -> None:
    """Refuse a plan for which a host lacks memory; a step of all ranks.

    The program is in memory already, as far as it is known beforehand what it takes: what is still to come has to fit
    into what is free. A plan that fills all of a cluster file's memory runs, if a few MiB of it are another program's.

    Parameters
    ----------
    model
        Its name.
    needs
        On rank 0, which knows the plan best: what every rank needs in bytes, the program too; of one without a part, 0.

    Raises
    ------
    SharedError
        Naming the host that lacks most, what it has, and what its ranks need.
    """
    told = group.on_all(lambda: (host_name(), free_bytes(), needs() if needs else ()))
    coming = [max(need - PROGRAM_BYTES, 0) for need in told[0][2]]
    worst: tuple[int, str] | None = None
    for host in {place: None for place, *_ in told}:
        ranks = [rank for rank, (place, *_) in enumerate(told) if place == host and coming[rank]]
        need = sum(coming[rank] for rank in ranks)
        room = min(free for place, free, _ in told if place == host)
        if need > room and (worst is None or need - room > worst[0]):
            several = f" for {counted(len(ranks), 'rank')}" * (len(ranks) > 1)
            worst = (
                need - room,
                f"{model} by this plan needs {math.ceil(need / MIB)} MiB more on {host}{several}, which has "
                f"{room // MIB} free: give a plan that asks less of it, or add hosts or memory",
            )
    if worst is not None:
        raise SharedError(worst[1])
