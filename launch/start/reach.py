"""How a program is started on a host: ssh's options, the same whatever is started, and what needs no ssh."""

from __future__ import annotations

import socket

from launch.base.shell import Command

# A host that is off is found out in seconds, nobody is asked for a password in the midst of a start, and what a program
# says is not made a terminal's.
OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
SSH = ("ssh", *OPTIONS)  # after it -- and a host
FAILED = 255  # what ssh itself exits with when it does not get through


def is_here(host: str) -> bool:
    """Tell whether a host is this machine by its own names, for which mpirun takes no ssh either."""
    name = socket.gethostname()
    return host in ("localhost", "127.0.0.1", name, name.partition(".")[0])


def remote(host: str, agent: str, script: str) -> Command:
    """Return the command that runs a shell script on a host; an agent replaces ssh, this machine needs neither."""
    if agent:
        return [agent, host, script]
    if is_here(host):
        return ["bash", "-c", script]
    return [*SSH, "--", host, script]
