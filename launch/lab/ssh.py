"""A real sshd on every host of a lab, with keys of its own, as texts; nothing here starts it.

Clients on the hosts find keys and known hosts through the lab's ssh_config, which stands in the place of this machine's
in the mount namespace of whatever runs on a host. So `ssh pi-1` works there, and nothing is left when the lab is down.
"""

from __future__ import annotations

import shlex

from launch.base.shell import Command
from launch.lab.lab import Host, Lab
from solver.base.clock import LAB_VARIABLE, SCALE_VARIABLE


def key_commands(lab: Lab) -> list[Command]:
    """Return the commands that make the hosts' key and the user's."""
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", ""]
    return [
        [*make, "-C", f"hosts of lab {lab.name}", "-f", f"{lab.directory}/ssh/host_key"],
        [*make, "-C", f"user of lab {lab.name}", "-f", f"{lab.directory}/ssh/user_key"],
    ]


def sshd_command(lab: Lab, host: Host, sshd: str) -> Command:
    """Return the command, to be run on the host, that starts its sshd in the background."""
    return [sshd, "-f", f"{lab.directory}/ssh/{host.name}/sshd_config", "-E", f"{lab.directory}/ssh/{host.name}/log"]


def sshd_config(lab: Lab, host: Host, path: str) -> str:
    """Return the configuration of a host's sshd.

    Parameters
    ----------
    path : str
        PATH of the sessions: what is installed for us is installed on the hosts. Set by the command, since what some
        shells read first comes after `SetEnv`.
    """
    files = f"{lab.directory}/ssh"
    threads = " ".join(f"{library}_NUM_THREADS={host.threads}" for library in ("OMP", "OPENBLAS", "MKL"))
    # A shell that has SHLVL takes itself for one within another: bash then reads no .bashrc of this machine's person,
    # which a board would not have. A version manager's took 0.65 of the 0.95 s of a session on a quarter of a core.
    return f"""\
ListenAddress {host.address}
HostKey {files}/host_key
AuthorizedKeysFile {files}/{host.name}/authorized_keys
PidFile none
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PrintLastLog no
MaxStartups 100
SetEnv SHLVL=1 TMPDIR={lab.disk(host)} {SCALE_VARIABLE}={lab.scale!r} {LAB_VARIABLE}={lab.identity} {threads}
ForceCommand export PATH={shlex.quote(path)}; exec bash --norc ${{SSH_ORIGINAL_COMMAND:+-c "$SSH_ORIGINAL_COMMAND"}}
"""


def ssh_config(lab: Lab) -> str:
    """Return the client configuration on every host."""
    files = f"{lab.directory}/ssh"
    return f"""\
Host *
    User root
    IdentityFile {files}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {files}/known_hosts
    StrictHostKeyChecking yes
"""


def known_hosts(lab: Lab, host_key: str) -> str:
    """Return the known hosts: all have the same key."""
    return "".join(f"{host.name},{host.address} {host_key.strip()}\n" for host in lab.hosts)
