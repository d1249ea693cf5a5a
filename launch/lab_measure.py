"""What a lab's hosts and links achieve, measured by `lab_probe` on all of them at once, and the quotas that follow."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch import shell
from launch.lab import Host, Lab
from launch.lab_agent import on_host
from solver.errors import HeptiError

PROBE = str(Path(__file__).with_name("lab_probe.py"))
FLOP = 2 * 256 * 1024 * 1024  # of the probe's product
# One window of the speed measurement: long against the quota period (10 ms at 10 %), short against other people's load.
WINDOW_S = 0.25
ROUND_S = 1.5
MAX_ROUNDS = 6
# Calibrated when every quota is this near to what a round says; its own noise is about 1 %.
CLOSE = 0.015
# A virtual machine's cores drop from 93 to 60 GFLOP/s for seconds when its neighbours work: such rounds are repeated.
SLOW = 0.97
STREAM_S = 1.3
# Of a core's speed, the part that is left when the quota cuts it in pieces: a first guess, and the least there can be.
# A host that gets less is being robbed (by another lab); it is asked again, and its quota is not raised further.
START = 0.98
LEAST_LEFT = 0.94


@dataclass(frozen=True, slots=True)
class Round:
    """What one host did in one round of products."""

    flop_per_s: float  # of wall time, median of the windows
    core_flop_per_s: float  # of CPU time, median of the windows
    share: float  # CPU time by wall time


def core_speed() -> float:
    """Return the FLOP a second of one free core: by CPU time, so that other load on this machine hardly counts."""
    with _Probes([["env", "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", sys.executable, PROBE, "matmul"]]) as probes:
        return summary(probes.ask(0.6)[0]).core_flop_per_s


def calibrate(lab: Lab, limit: Callable[[Lab, Host], None]) -> tuple[Lab, list[float]]:
    """Adjust the quotas until every host achieves the speed it is asked for; all hosts work at the same time.

    A host's speed is the speed of its core times the share of it that it gets, and that is the quota less what cutting
    it in pieces costs. Both are measured in every round and the best counts: other load only makes them worse.

    Parameters
    ----------
    limit : function of lab and host
        Puts a host's quota in force.

    Returns
    -------
    lab : Lab
        With `core_flop_per_s` as found.
    achieved : list of float
        FLOP per second of each host, in the last round.
    """
    cores = [0.0] * len(lab.hosts)
    left = [LEAST_LEFT] * len(lab.hosts)
    with _Probes([on_host(lab, host, [sys.executable, PROBE, "matmul"]) for host in lab.hosts]) as probes:
        for _ in range(MAX_ROUNDS):
            rounds = [summary(products) for products in probes.ask(ROUND_S)]
            settled = True
            for number, (host, found) in enumerate(zip(lab.hosts, rounds, strict=True)):
                cores[number] = max(cores[number], found.core_flop_per_s)
                left[number] = min(1.0, max(left[number], found.share / host.cores))
                effective = cores[number] * left[number]
                settled &= found.core_flop_per_s > SLOW * cores[number] and found.share > LEAST_LEFT * host.cores
                if abs(effective / host.core_flop_per_s - 1) > CLOSE:
                    settled = False
                    changed = replace(host, core_flop_per_s=effective)
                    lab = lab.with_host(changed)
                    limit(lab, changed)
            if settled:
                break
    return lab, [found.flop_per_s for found in rounds]


def summary(products: Sequence[tuple[float, float]]) -> Round:
    """Sum up the wall and CPU seconds of a round's products."""
    windows = []
    count, wall, cpu = 0, 0.0, 0.0
    for wall_s, cpu_s in products:
        count, wall, cpu = count + 1, wall + wall_s, cpu + cpu_s
        if wall >= WINDOW_S:
            windows.append((count * FLOP / wall, count * FLOP / cpu))
            count, wall, cpu = 0, 0.0, 0.0
    if not windows or len(products) < 2:
        raise HeptiError(f"only {len(products)} products in a round: the host is too slow to be measured, raise gflops")
    speeds, cores = zip(*windows, strict=True)
    share = sum(cpu_s for _, cpu_s in products) / sum(wall_s for wall_s, _ in products)
    return Round(statistics.median(speeds), statistics.median(cores), share)


def throughput(lab: Lab, group: Path) -> list[float]:
    """Return the bytes per second that reach each host from the one before it, while all send: both ways of every link.

    It is the link that is asked about, so the probes run in `group`, which has the lab's weight but no quota.
    """
    commands = []
    for host, peer in zip(lab.hosts, (*lab.hosts[1:], lab.hosts[0]), strict=True):
        probe = [sys.executable, PROBE, "stream", host.address, peer.address]
        enter = ["nsenter", f"--net=/run/netns/{lab.namespace(host)}", *probe]
        commands.append(["bash", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "bash", *enter])
    with _Probes(commands) as probes:
        return [float(found) for found in probes.ask(STREAM_S)]


class _Probes:
    """Probes that run at the same time, asked together."""

    def __init__(self, commands: Sequence[shell.Command]) -> None:
        self.processes = [shell.start(command) for command in commands]

    def __enter__(self) -> _Probes:
        self._answers()
        return self

    def ask(self, seconds: float) -> list[Any]:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")
        return self._answers()

    def _answers(self) -> list[Any]:
        lines = [process.stdout.readline() for process in self.processes if process.stdout is not None]
        if not all(lines):
            raise HeptiError("a measuring program on a host ended early: its own message stands above")
        return [json.loads(line) for line in lines]

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            process.wait(timeout=30)
