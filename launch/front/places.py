"""Where a job runs: the words of the command line that say so, and those that are the job's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.doctor.room import check_ranks
from launch.start.hostfile import read_hostfile, split_hosts
from solver.base.errors import HeptiError

OPTIONS = ("--hosts", "--hostfile", "--np", "--agent")


@dataclass(frozen=True, slots=True)
class StartPlace:
    """Where ranks are started.

    Parameters
    ----------
    hosts
        None: this machine alone.
    hostfile
        That of the person, if any.
    agent
        What replaces ssh; empty: ssh.
    """

    hosts: tuple[str, ...]
    ranks: int
    hostfile: Path | None = None
    agent: str = ""


def split(words: Sequence[str]) -> tuple[StartPlace, list[str]]:
    """Return where to start, and the words that are not about this.

    Raises
    ------
    HeptiError
        If an option has no value, a wrong one, stands twice or contradicts another, this machine has no room for
        so many ranks, or a host is none.
    """
    found: dict[str, str] = {}
    rest: list[str] = []
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if name not in OPTIONS:
            rest.append(word)
            continue
        value = value if equals else next(left, "")
        if not value or (not equals and value.startswith("--")):
            raise HeptiError(f"{name} has no value")
        if name in found:
            raise HeptiError(f"{name} stands twice: {found[name]} and {value}")
        found[name] = value
    return _place(found), rest


def _place(found: dict[str, str]) -> StartPlace:
    hostfile = Path(found["--hostfile"]) if "--hostfile" in found else None
    hosts: list[str] = []
    if "--hosts" in found:
        if hostfile is not None:
            raise HeptiError("--hosts and --hostfile both say where to run: give one")
        hosts = split_hosts(found["--hosts"])
    elif hostfile is not None:
        hosts = list(dict.fromkeys(entry.host for entry in read_hostfile(hostfile)))
    ranks = len(hosts) or 1
    if "--np" in found:
        if not found["--np"].isdecimal() or int(found["--np"]) < 1:
            raise HeptiError(f"--np is {found['--np']}, must be a whole number above 0")
        ranks = int(found["--np"])
        if not hosts:
            check_ranks(ranks)
    return StartPlace(tuple(hosts), ranks, hostfile, found.get("--agent", ""))
