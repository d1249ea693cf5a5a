"""Why hosts did not start: what the doctor finds that keeps mpirun from it."""

from __future__ import annotations

import sys

from launch.doctor.ask import look_at_all
from launch.doctor.findings import examine
from launch.front.places import StartPlace

# Checks of the doctor without which nothing starts, in the order in which one is the reason of the next.
STOPPING = ("ssh", "interpreter", "mpi", "package", "python", "interface")


def host_trouble(place: StartPlace) -> str | None:
    """Return which host cannot start, why, and its mend; None where the doctor finds nothing."""
    if not place.hosts:
        return None
    answers = look_at_all(place.hosts, sys.executable, place.agent)
    found = [finding for finding in examine(answers) if finding.check in STOPPING]
    if not found:
        return None
    first = min(found, key=lambda finding: STOPPING.index(finding.check))
    others = list(dict.fromkeys(finding.host for finding in found if finding.host != first.host))
    more = f"; and look at {' and '.join(others)}" if others else ""
    return f"{first.host}: {first.problem}: {first.mend}{more}"
