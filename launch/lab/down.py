"""End what a lab has started: a run, everything on a host, the lab, and what a crash has left of it."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from launch.base import shell
from launch.lab.lab import PREFIX, RUNTIME, Lab, require_name, running
from launch.lab.limits import ROUND_ROBIN, USUAL_TURN, Cgroups, find_cgroups
from solver.base.errors import HeptiError


def down(name: str) -> bool:
    """Remove everything that carries the lab's name, also what a crash left; return whether there was anything."""
    require_name(name)
    with _one_at_a_time():
        return _down(name)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Wait for another process that takes a lab down: what it has not removed yet may be gone at the next look."""
    RUNTIME.mkdir(parents=True, exist_ok=True)
    directory = os.open(RUNTIME, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _down(name: str) -> bool:
    groups = [group for group in machine_cgroups().groups(name) if group.exists()]
    namespaces = lab_namespaces(name)
    directory = RUNTIME / name
    kill_everything(groups, namespaces)
    for group in groups:
        remove_groups(group)
    for namespace in namespaces:
        shell.run(["ip", "netns", "delete", namespace])
    existed = bool(groups or namespaces or directory.exists())
    for disk in directory.glob("tmp/*"):
        if disk.is_mount():
            shell.run(["umount", "--lazy", str(disk)])
    if directory.exists():
        shutil.rmtree(directory)
    if ROUND_ROBIN.exists() and not running():
        ROUND_ROBIN.write_text(USUAL_TURN)
    return existed


def sweep(lab: Lab, run: str) -> None:
    """Kill and remove what is left of a run on every host."""
    for group in machine_cgroups().groups(lab.name):
        leftovers = list(group.glob(f"*/{run}"))
        kill_everything(leftovers, [])
        for leftover in leftovers:
            remove_groups(leftover)


def sweep_dead_runs(lab: Lab) -> None:
    """Clear away runs whose launcher was killed: a run's name ends in the launcher's process number."""
    for group in machine_cgroups().groups(lab.name):
        for run in group.glob("*/run-*"):
            if not Path("/proc", run.name.removeprefix("run-")).exists():
                sweep(lab, run.name)


def kill_everything(groups: Iterable[Path], namespaces: Iterable[str]) -> int:
    """Kill all processes in cgroups and network namespaces, and their children born meanwhile; return how many."""
    killed: set[int] = set()
    for _ in range(100):
        alive = {int(line) for group in groups for line in processes(group)}
        for namespace in namespaces:
            alive |= {int(word) for word in shell.run(["ip", "netns", "pids", namespace]).split()}
        if not alive:
            break
        for process in alive:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has just ended by itself
        killed |= alive
        time.sleep(0.05)
    return len(killed)


def processes(group: Path) -> list[str]:
    """Return the process numbers in a cgroup and in those below it."""
    found: list[str] = []
    for folder, _, files in os.walk(group):  # a run that ends at this moment takes its group with it: walk passes over
        if "cgroup.procs" in files:
            with suppress(OSError):
                found += Path(folder, "cgroup.procs").read_text().split()
    return found


def remove_groups(group: Path) -> None:
    """Remove a cgroup and those below it, and kill what joined them late; a killed process holds its group a moment."""
    for folder, _, _ in os.walk(group, topdown=False):
        _remove_group(Path(folder))


def _remove_group(group: Path) -> None:
    share = group / "cpu.rt_runtime_us"
    for _ in range(100):
        try:
            if share.exists():
                # The kernel counts a removed group's share of the real-time class for some milliseconds more: without
                # this, 298 of 300 labs that came up after another were refused theirs.
                share.write_text("0")
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            kill_everything([group], [])
            time.sleep(0.05)
        else:
            return
    raise HeptiError(f"the kernel does not let go of {group}: its processes do not die; see {group}/cgroup.procs")


def lab_namespaces(name: str) -> list[str]:
    """Return the network namespaces that carry a lab's name."""
    names = [line.split()[0] for line in shell.run(["ip", "netns", "list"]).splitlines()]
    return [namespace for namespace in names if namespace.startswith(f"{PREFIX}.{name}.")]


def machine_cgroups() -> Cgroups:
    """Find this machine's controllers."""
    return find_cgroups(Path("/proc/mounts").read_text())
