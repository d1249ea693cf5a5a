"""Why hosts did not start: what the doctor finds that keeps mpirun from it."""

from __future__ import annotations

import sys

from launch.doctor.ask import look_at_all
from launch.doctor.findings import NO_SUCH_NAME, examine
from launch.front.places import StartPlace
from solver.base.errors import HeptiError

# Checks of the doctor without which nothing starts, in the order in which one is the reason of the next.
STOPPING = ("ssh", "interpreter", "mpi", "package", "python", "interface")


def host_trouble(place: StartPlace) -> str | None:
    """Return which host cannot start, why, and its mend; None where the doctor finds nothing.

    Raises
    ------
    HeptiError
        If there is no host of that name: that is no host in trouble, but a wrong word of who asks.
    """
    if not place.hosts:
        return None
    answers = look_at_all(place.hosts, sys.executable, place.agent)
    found = [finding for finding in examine(answers) if finding.check in STOPPING]
    if not found:
        return None
    first = min(found, key=lambda finding: (finding.problem != NO_SUCH_NAME, STOPPING.index(finding.check)))
    others = list(dict.fromkeys(finding.host for finding in found if finding.host != first.host))
    more = f"; and look at {' and '.join(others)}" if others else ""
    line = f"{first.host}: {first.problem}: {first.mend}{more}"
    if first.problem == NO_SUCH_NAME:
        raise HeptiError(line)
    return line
