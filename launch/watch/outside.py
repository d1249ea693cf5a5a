"""A machine outside of a lab's hosts, on their network: for a service that starts ranks there and listens for them.

It is an address on the switch. Its links have no limits; those of the hosts hold for what it sends them, and a host
whose cable is cut cannot be reached.
"""

from __future__ import annotations

from launch.base.shell import Command
from launch.lab.lab import SUBNET, Lab
from launch.lab.limits import Cgroups

ADDRESS = f"{SUBNET}.254"  # after the last host's
GROUP = "outside"


def join_commands(lab: Lab) -> list[Command]:
    """Return the commands that give the switch its address, also where it has it already."""
    return [
        ["ip", "-n", lab.switch, "address", "replace", f"{ADDRESS}/24", "dev", "br0"],
        ["ip", "-n", lab.switch, "link", "set", "lo", "up"],
    ]


def enter_command(lab: Lab, cgroups: Cgroups) -> Command:
    """Return what to put before a command that runs outside of the hosts, in the place of the caller.

    It shares the lab's weight against other programs on this machine, and has no quota: the hosts, with all their
    weight, would keep it waiting. Names and keys are those that the hosts have.
    """
    group = cgroups.cpu_group(lab.name, GROUP)
    join = f'mkdir -p {group} && echo $$ > {group}/cgroup.procs || exit 1; exec "$@"'
    mounts = (
        f"mount --bind {lab.directory}/hosts /etc/hosts && "
        f'mount --bind {lab.directory}/ssh/ssh_config /etc/ssh/ssh_config || exit 1; exec "$@"'
    )
    enter = ["nsenter", f"--net=/run/netns/{lab.switch}", "unshare", "--mount", "bash", "-c", mounts, "bash"]
    return ["bash", "-c", join, "bash", *enter]
