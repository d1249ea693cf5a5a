"""`lab run`: mpirun on a lab's hosts, watched, so that nothing of it outlives the command."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from launch.base import shell
from launch.lab.agent import RUN, on_host
from launch.lab.down import machine_cgroups, processes, sweep, sweep_dead_runs
from launch.lab.lab import Host, Lab, load_lab
from launch.lab.limits import Cgroups, kills_file, parse_kills
from launch.start.mpirun import mpirun_command, mpirun_environment, need_mpirun
from solver.base.errors import HeptiError
from solver.base.stopping import handled_by
from solver.cluster.cluster import GIB

POLL_S = 0.1
# mpirun that is told to end may never do so: it hung for a quarter of an hour after all ranks had raised at once.
GRACE_S = 10.0
# Now and then it waits for ever where programs end as soon as they have begun: one run in five of nine times `hostname`
# (as in open-mpi/ompi#10586). Whoever starts anything has started it after so long.
IDLE_S = 60.0
LOOK_S = 1.0
STARTERS = {"mpirun", "prterun", "prted", "orted", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy"}
# mpirun's quota ran out between starting an agent and a call that the agent has made itself meanwhile.
HARMLESS = rb"\[[^\]]*\] plm:ssh: Warning: setpgid\([^)]*\) failed in parent with errno=Permission denied\(13\)\n"


def run(lab: Lab, ranks: int, program: Sequence[str], log: Path | None = None) -> int:
    """Run a program on the lab under mpirun; return mpirun's exit code.

    mpirun starts on the first host and gets our terminal, or writes to `log`. If we are killed, the kernel tells
    mpirun to end; if mpirun is killed, we end its processes on every host.
    """
    if not program:
        raise HeptiError(f"nothing to run: hepti lab run {lab.name} -- python -m hepti_mpi …")
    need_mpirun()
    environment = mpirun_environment(lab.agent)
    if shutil.which(program[0], path=environment["PATH"]) is None:
        raise HeptiError(f"there is no program {program[0]}, which the hosts of {lab.name} are to run")
    cgroups = machine_cgroups()
    sweep_dead_runs(lab)
    name = f"run-{os.getpid()}"
    mpirun = mpirun_command(ranks, len(lab.hosts), lab.hostfile, lab.agent, program)
    command = ["setpriv", "--pdeathsig", "TERM", "--", *on_host(lab, lab.hosts[0], mpirun)]
    kills = count_kills(lab, cgroups, name)
    environment[RUN] = name
    if log is None:
        process = shell.start_here(command, environment, hush=HARMLESS)
    else:
        process = shell.start_logged(command, environment, log)
    told: list[tuple[int, float]] = []

    def pass_on(number: int, _: object) -> None:
        told.append((number, time.monotonic()))
        # Ctrl-C reaches mpirun itself, which ends its ranks in order; we wait for that.
        if number != signal.SIGINT:
            process.send_signal(number)

    with handled_by(pass_on):
        looked_at = busy_at = time.monotonic()
        idle = False
        try:
            while (code := shell.wait(process, POLL_S)) is None:
                kills = _report_kills(lab, cgroups, name, ranks, kills)
                now = time.monotonic()
                if now - looked_at > LOOK_S:
                    looked_at = now
                    busy_at = busy_at if _only_starters(lab, name) else now
                if now - busy_at > IDLE_S and not idle:
                    print(
                        f"mpirun has run nothing for {IDLE_S:g} s, and does not end: ended", file=sys.stderr, flush=True
                    )
                    idle = True
                    sweep(lab, name)
                if told and time.monotonic() - told[0][1] > GRACE_S:
                    sweep(lab, name)
            _report_kills(lab, cgroups, name, ranks, kills)
            code = 1 if idle else code
            if code == 0 and (killed := _killed_hosts(lab)):
                # mpirun says 0 when a whole host vanishes.
                print(f"{' and '.join(killed)} was killed while the program ran", file=sys.stderr)
                code = 1
        finally:
            sweep(lab, name)
    if told:
        signal.raise_signal(told[0][0])  # we end, too: where it is one program of many, the next one must not start
    return code if code >= 0 else 128 - code


def _only_starters(lab: Lab, run: str) -> bool:
    """Return whether nothing runs on the hosts but what starts ranks."""
    names = set()
    for group in machine_cgroups().groups(lab.name):
        for process in {one for found in group.glob(f"*/{run}") for one in processes(found)}:
            with suppress(OSError):  # it has just ended
                names.add(Path("/proc", process, "comm").read_text().strip())
    return names <= STARTERS


def count_kills(lab: Lab, cgroups: Cgroups, run: str) -> list[int]:
    """Return, per host, how many processes were killed for breaking the memory cap."""
    groups = [cgroups.memory_group(lab.name, host.name) for host in lab.hosts]
    files = [kills_file(cgroups.memory_version, group, run) for group in groups]
    return [parse_kills(file.read_text()) if file.exists() else 0 for file in files]


def killed_line(host: Host, position: int, hosts: int, ranks: int) -> str:
    """Return the message for a process that broke the cap of its host; ranks are dealt to the hosts in turn."""
    mine = [str(rank) for rank in range(position, ranks, hosts)]
    who = " or ".join(mine)
    return f"rank {who} on {host.name} was killed: it broke its memory cap of {host.memory_bytes / GIB:.2f} GiB"


def _killed_hosts(before: Lab) -> list[str]:
    """Return the hosts that `lab kill` has ended since the run began."""
    now = load_lab(before.name)
    return [host.name for host, old in zip(now.hosts, before.hosts, strict=True) if host.kills > old.kills]


def _report_kills(lab: Lab, cgroups: Cgroups, run: str, ranks: int, before: list[int]) -> list[int]:
    now = count_kills(lab, cgroups, run)
    for position, (host, old, new) in enumerate(zip(lab.hosts, before, now, strict=True)):
        if new > old:
            print(killed_line(host, position, len(lab.hosts), ranks), file=sys.stderr, flush=True)
    return now
