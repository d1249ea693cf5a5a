"""Where a benchmark runs: a lab, started and ended here unless it is up already, or the hosts of a hostfile."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from launch.base import shell
from launch.lab import run as lab_run
from launch.lab.agent import on_host
from launch.lab.lab import Lab, lab_name, load_lab, plan_lab, running
from launch.lab.up import brought_up
from launch.start.hostfile import read_hostfile
from launch.start.mpirun import mpirun_command, mpirun_environment, need_mpirun
from launch.start.reach import remote
from solver.cluster.named import find_cluster

ALONE_S = 600.0  # at most for a program on one host


@dataclass(frozen=True, slots=True)
class BenchHosts:
    """Hosts in rank order, and the two ways to use them.

    `mpirun` starts one rank a host of a program whose words end up in a log, and returns the exit code; `alone` runs a
    program on one host, by its number, and returns exit code, output and errors.
    """

    name: str
    hosts: tuple[str, ...]
    mpirun: Callable[[Sequence[str], Path], int]
    alone: Callable[[int, Sequence[str]], tuple[int, str, str]]
    scale: float = 1.0  # of a lab: all seconds are its own


def host_count(cluster: str) -> int:
    """Return how many hosts a lab has, or would have."""
    name = lab_name(cluster)
    return len(load_lab(name).hosts if name in running() else find_cluster(cluster).devices)


@contextmanager
def lab_of(cluster: str) -> Iterator[Lab]:
    """Yield the lab of a cluster file, or ready file; what is brought up here is taken down again."""
    name = lab_name(cluster)
    if name in running():
        yield load_lab(name)
        return
    with brought_up(plan_lab(name, find_cluster(cluster))) as lab:
        yield lab


@contextmanager
def lab_stage(cluster: str) -> Iterator[BenchHosts]:
    """Yield a lab as a stage."""
    with lab_of(cluster) as lab:
        yield stage_of(lab, len(lab.hosts))


def stage_of(lab: Lab, count: int) -> BenchHosts:
    """Return the first hosts of a lab as a stage."""

    def mpirun(program: Sequence[str], log: Path) -> int:
        return lab_run.run(lab, count, program, log)

    def alone(number: int, program: Sequence[str]) -> tuple[int, str, str]:
        return shell.attempt(on_host(lab, lab.hosts[number], program), ALONE_S / lab.scale)

    return BenchHosts(lab.name, tuple(host.name for host in lab.hosts[:count]), mpirun, alone, lab.scale)


def hosts_stage(hostfile: Path) -> BenchHosts:
    """Return the hosts of a hostfile as a stage, one rank each; files that rank 0 reads lie on this machine."""
    need_mpirun()
    hosts = tuple(dict.fromkeys(entry.host for entry in read_hostfile(hostfile)))

    def mpirun(program: Sequence[str], log: Path) -> int:
        command = mpirun_command(len(hosts), len(hosts), hostfile, None, program)
        code = shell.wait(shell.start_logged(command, mpirun_environment(), log))
        return 1 if code is None else code

    return BenchHosts(hostfile.stem, hosts, mpirun, partial(_alone, hosts))


def _alone(hosts: Sequence[str], number: int, program: Sequence[str]) -> tuple[int, str, str]:
    script = f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(program)}"
    return shell.attempt(remote(hosts[number], "", script), ALONE_S)
