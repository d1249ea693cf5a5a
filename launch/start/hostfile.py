"""Hostfiles as Open MPI reads them: one host a line, `slots=` behind it, `#` before a comment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from solver.base.errors import HeptiError, explained


@dataclass(frozen=True, slots=True)
class HostfileEntry:
    """One line: a host and how many ranks it takes; None: as many as it has cores."""

    host: str
    slots: int | None


def read_hostfile(path: Path) -> list[HostfileEntry]:
    """Read a hostfile.

    Raises
    ------
    HeptiError
        If it cannot be read, names no host or an option, or is MPICH's (`host:2`), with the line.
    """
    with explained(f"cannot read hostfile {path}", (OSError, UnicodeDecodeError)):
        text = path.read_text()
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            entries.append(_entry(words, f"{path}, line {number}"))
    if not entries:
        raise HeptiError(f"hostfile {path} names no host: write one with launch hostfile HOST … --out {path}")
    return entries


def check_host(host: str, where: str) -> None:
    """Refuse what cannot be the name of a host.

    Raises
    ------
    HeptiError
        If it is empty, has blanks, or would be an option of ssh.
    """
    if host.startswith("-"):
        raise HeptiError(f"{where}: {host!r} would be an option of ssh: the name of a host does not begin with a dash")
    if not host or host.split() != [host]:
        raise HeptiError(f"{where}: {host!r} is no name of a host")


def _entry(words: Sequence[str], where: str) -> HostfileEntry:
    host, slots = words[0], None
    check_host(host, where)
    if ":" in host:
        raise HeptiError(f"{where}: {host!r} is how MPICH writes it, Open MPI wants `{host.split(':')[0]} slots=1`")
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key == "slots":
            if not value.isdecimal() or int(value) < 1:
                raise HeptiError(f"{where}: slots={value!r} is not a whole number above 0")
            slots = int(value)
    return HostfileEntry(host, slots)
