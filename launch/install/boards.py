"""What boards answered, what is wrong with them, and the commands that are run there; nothing here runs them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.doctor.ask import MARK
from launch.doctor.findings import HostAnswer, examine
from launch.install.wheels import WheelSet

LOOK = Path(__file__).with_name("look.py")
# Pythons that a board may have beside `python3`; later ones are found where python3 is one.
NAMES = ("python3", *(f"python3.{minor}" for minor in range(11, 20)))
# What wheels are made for.
MACHINES = ("aarch64", "x86_64")
MIB = 2**20


@dataclass(frozen=True, slots=True)
class LookedAt:
    """One board: the Python that its environment has or is made with, or what is wrong.

    Parameters
    ----------
    facts
        What `install.look` says by that Python.
    trouble
        What is wrong and how to mend it; empty: nothing.
    """

    host: str
    facts: Mapping[str, Any]
    trouble: str = ""

    @property
    def python(self) -> str:
        """The version of its Python."""
        return ".".join(map(str, self.facts["version"]))

    def wheel_set(self, *, full: bool) -> WheelSet:
        """Return which wheels it takes."""
        major, minor, _ = self.facts["version"]
        return WheelSet(f"{major}.{minor}", self.facts["machine"], self.facts["glibc"], full)


def look_script(environment: Path, token: str) -> str:
    """Return the shell script that asks every Python of a board; the environment's own is the first."""
    names = shlex.join([f"{environment}/bin/python", *NAMES])
    asks = f"{shlex.quote(LOOK.read_text())} {shlex.quote(str(environment))} {shlex.quote(token)}"
    return f'echo {MARK}; for python in {names}; do "$python" -c {asks} 2>/dev/null; done; true'


def looked_at(host: str, answer: tuple[int, str, str], environment: Path, wanted: Sequence[int]) -> LookedAt:
    """Return what a board's answer means.

    Parameters
    ----------
    answer
        Exit code, output and errors of `look_script`.
    wanted
        The Python that Hepti needs at least, and ours, as (3, 11, 3, 12).
    """
    code, out, error = answer
    if code:
        said = (error.strip().splitlines() or [f"exit code {code}"])[-1]
        (finding,) = examine([HostAnswer(host, reached=False, error=said)])
        return LookedAt(host, {}, f"{finding.problem}: {finding.mend}")
    found = [json.loads(line) for line in out.partition(f"{MARK}\n")[2].splitlines()]
    if not found:
        return LookedAt(host, {}, f"there is no Python: {apt(host, 'python3 python3-venv')}")
    least, ours = list(wanted[:2]), list(wanted[2:])
    new = [facts for facts in found if facts["version"][:2] >= least]
    made = [facts for facts in new if facts["python"].startswith(f"{environment}/")]
    same = [facts for facts in new if facts["version"][:2] == ours]
    facts = [*made, *same, *new, *found][0]
    return LookedAt(host, facts, _trouble(host, facts, environment, least))


def apt(host: str, packages: str) -> str:
    """Return the line that installs Debian packages on a board."""
    return f"ssh {host} sudo apt install {packages}"


def _trouble(host: str, facts: Mapping[str, Any], environment: Path, least: Sequence[int]) -> str:
    version, wanted = ".".join(map(str, facts["version"])), ".".join(map(str, least))
    if facts["version"][:2] < list(least):
        return (
            f"its newest Python is {version}, Hepti needs {wanted}: install Debian 12 or newer, on a Pi "
            "Raspberry Pi OS 12, or leave the board out"
        )
    if facts["bits"] != 64 or facts["machine"] not in MACHINES:
        return (
            f"its Python is for {facts['bits']} bits of {facts['machine']}, for which there are no wheels: "
            f"install a 64-bit system ({' or '.join(MACHINES)}), or leave the board out"
        )
    if not facts["glibc"]:
        return "its C library is not glibc, which wheels are made for: install Debian there, or leave the board out"
    if not facts["venv"]:
        return f"its Python {version} has no module venv: {apt(host, 'python3-venv')}"
    if facts["foreign"]:
        return f"{environment} is there and no virtual environment: move it away"
    if not facts["shared"] and not facts["writable"]:
        parent, user = shlex.quote(str(environment.parent)), facts["user"]
        return (
            f"{environment} must be at the same path as here, and {user} may not write in {facts['folder']}: "
            f"ssh {host} sudo install -d -o {user} {parent}"
        )
    return ""


def receive_script(environment: Path) -> str:
    """Return what takes a tar of wheels on standard input."""
    folder = shlex.quote(f"{environment}.wheels")
    return f"mkdir -p {folder} && tar -x -f - -C {folder}"


def install_script(python: str, environment: Path) -> str:
    """Return what makes the environment of the wheels, removes them, and prints its size in KiB."""
    folder, path = shlex.quote(f"{environment}.wheels"), shlex.quote(str(environment))
    return f"sh {folder}/install.sh {shlex.quote(python)} {path} && rm -r {folder} && {size_script(environment)}"


def size_script(environment: Path) -> str:
    """Return what prints the environment's size in KiB."""
    return f"du -sk {shlex.quote(str(environment))}"
