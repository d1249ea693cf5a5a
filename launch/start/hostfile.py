"""Hostfiles as Open MPI reads them: one host a line, `slots=` after it, `#` before a comment."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from solver.base.errors import HeptiError, explained
from solver.base.phrases import did_you_mean

# What may follow a host, as Open MPI 5 spells it; what is a number of ranks comes first.
_SLOTS = ("slots", "count", "cpu")
_USUAL = ("slots", "max_slots", "port", "username")
_KEYS = (
    *_SLOTS, *_USUAL, "max-slots", "slots_max", "slots-max", "count_max", "count-max", "max_count", "max-count",
    "user_name", "user-name",
)  # fmt: skip


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
        If it cannot be read, names no host or an option, has a word that mpirun does not know, or is MPICH's
        (`host:2`), with the line.
    """
    if not path.exists():
        raise HeptiError(f"there is no hostfile {path}: write one host a line, as `pi-0 slots=1`")
    text = hostfile_lines(path)
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if words:
            entries.append(_entry(words, f"{path}, line {number}"))
    if not entries:
        raise HeptiError(f"hostfile {path} names no host: write one a line, as `pi-0 slots=1`")
    return entries


def hostfile_lines(path: Path) -> str:
    """Return the text of a hostfile as mpirun reads it: without the line ends and the byte order mark of Windows."""
    with explained(f"cannot read hostfile {path}", (OSError, UnicodeDecodeError)):
        return path.read_text("utf-8-sig")  # and line ends as Python reads them


def clean_lines(path: Path | None) -> str | None:
    """Return a hostfile's text where mpirun needs another than it has; None: it reads the file itself."""
    if path is None:
        return None
    text = hostfile_lines(path)
    return None if path.read_bytes() == text.encode() else text


def split_hosts(word: str) -> list[str]:
    """Return the hosts of `--hosts a,b,c`.

    Raises
    ------
    HeptiError
        If one is none, or stands twice.
    """
    hosts = [host.strip() for host in word.split(",")]
    for host in hosts:
        check_host(host, f"--hosts {word}")
    if double := [host for number, host in enumerate(hosts) if host in hosts[:number]]:
        raise HeptiError(f"{double[0]} stands twice in --hosts: --np gives hosts more ranks than one")
    return hosts


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
    if host.startswith("["):
        raise HeptiError(f"{where}: {host!r} has brackets: Open MPI reads an IPv6 address without them")
    if ":" in host and not _is_address(host):
        raise HeptiError(f"{where}: {host!r} is how MPICH writes it, Open MPI wants `{host.split(':')[0]} slots=1`")
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or key not in _KEYS:
            keys = [f"{known}=" for known in _USUAL]
            raise HeptiError(f"{where}: {word!r} after {host!r} is not known{did_you_mean(key, keys)}")
        if key in _SLOTS:
            if not value.isdecimal() or int(value) < 1:
                raise HeptiError(f"{where}: {key}={value!r} is not a whole number above 0")
            slots = int(value)
    return HostfileEntry(host, slots)


def _is_address(host: str) -> bool:
    """Tell whether a host is named by its IPv6 address, perhaps with the link it lies on: fe80::1%eth0."""
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False
