"""Where the ranks run: one line that says it, and the two classic mistakes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hepti_mpi.comm.group import host_name
from solver.base.clock import SCALE, at_scale
from solver.base.phrases import counted

_HOSTS = {
    "--hostfile", "-hostfile", "--host", "-host", "-H", "--hosts", "-hosts", "--machinefile", "-machinefile", "-f",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank runs, and how many of the host's cores it may use."""

    host: str
    cores: int
    usable_cores: int


def place() -> Place:
    """Return where this rank runs."""
    return Place(host_name(), os.cpu_count() or 1, len(os.sched_getaffinity(0)))


def describe(places: Sequence[Place]) -> str:
    """Return the line that says which hosts run how many ranks."""
    ranks = Counter(spot.host for spot in places)
    lab = f"; a lab{at_scale()}, all seconds are its own" if SCALE != 1 else ""
    hosts = ", ".join(host if count == 1 else f"{host} ({count} ranks)" for host, count in ranks.items())
    return f"{counted(len(places), 'rank')} on {counted(len(ranks), 'host')}: {hosts}{lab}"


def names_hosts(launcher: Sequence[str]) -> bool:
    """Return whether the command line that has started a rank names hosts, or is that of a daemon on one of them."""
    program = Path(launcher[0]).name if launcher else ""
    words = {word.partition("=")[0] for word in launcher}
    return program in ("prted", "orted", "hydra_pmi_proxy") or bool(_HOSTS & words)


def launcher_words() -> list[str]:
    """Return the command line of the program that has started this rank; nothing where it cannot be read."""
    try:
        return Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")
    except OSError:
        return []


def warnings(places: Sequence[Place], *, on_hosts: bool) -> list[str]:
    """Return what looks like one of the two classic mistakes, each with how to fix it.

    Parameters
    ----------
    on_hosts
        Whether hosts were named: where none were, one machine is to play all ranks.
    """
    found = []
    ranks = Counter(spot.host for spot in places)
    if on_hosts and len(places) > 1 and len(ranks) == 1:
        found.append(
            f"all {len(places)} ranks run on {places[0].host}, which has {counted(places[0].cores, 'core')}: write "
            "slots=1 after every host of the hostfile, or start mpirun with --map-by ppr:1:node"
        )
    bound = next((spot for spot in places if spot.usable_cores < spot.cores // ranks[spot.host]), None)
    if bound is not None:
        found.append(
            f"ranks on {bound.host} are bound to {counted(bound.usable_cores, 'core')} of {bound.cores}: "
            f"start mpirun with --bind-to none"
        )
    return found
