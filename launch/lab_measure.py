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
# Calibrated when every host is this near; a round's own noise is about 1 %.
CLOSE = 0.01
# A virtual machine's cores drop from 93 to 60 GFLOP/s for seconds when its neighbours work: such rounds are repeated.
SLOW = 0.97
STREAM_S = 1.3
# Share of the speed of a free core that is left when the quota cuts it in pieces: where calibration starts, and where
# it stops blaming the quota for what another lab takes away.
START = 0.97
LEAST_LEFT = 0.85


@dataclass(frozen=True, slots=True)
class Round:
    """What one host did in one round of products."""

    flop_per_s: float  # of wall time; upper quartile of the windows, since other load only takes speed away
    share: float  # CPU time by wall time; upper quartile
    core_flop_per_s: float  # of CPU time; median


def core_speed() -> float:
    """Return the FLOP a second of one free core: by CPU time, so that other load on this machine hardly counts."""
    with _Probes([["env", "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", sys.executable, PROBE, "matmul"]]) as probes:
        return summary(probes.ask(0.6)[0]).core_flop_per_s


def calibrate(lab: Lab, limit: Callable[[Lab, Host], None]) -> tuple[Lab, list[float]]:
    """Adjust the quotas until every host achieves the speed it is asked for; all hosts work at the same time.

    A host's speed is the share of a core that it gets times the speed of that core. The first follows from the quota
    and is measured anew in every round; of the second the best round counts.

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
    best = [0.0] * len(lab.hosts)
    with _Probes([on_host(lab, host, [sys.executable, PROBE, "matmul"]) for host in lab.hosts]) as probes:
        for _ in range(MAX_ROUNDS):
            rounds = [summary(products) for products in probes.ask(ROUND_S)]
            best = [max(old, new.core_flop_per_s) for old, new in zip(best, rounds, strict=True)]
            settled = True
            for host, found, core in zip(lab.hosts, rounds, best, strict=True):
                ratio = found.share * core / host.compute_flop_per_s
                if abs(ratio - 1) > CLOSE:
                    settled = False
                    effective = min(max(host.core_flop_per_s * ratio, LEAST_LEFT * core), core)
                    changed = replace(host, core_flop_per_s=effective)
                    lab = lab.with_host(changed)
                    limit(lab, changed)
            if settled and all(now.core_flop_per_s > SLOW * top for now, top in zip(rounds, best, strict=True)):
                break
    return lab, [found.flop_per_s for found in rounds]


def summary(products: Sequence[tuple[float, float]]) -> Round:
    """Sum up the wall and CPU seconds of a round's products, window by window."""
    windows = []
    count, wall, cpu = 0, 0.0, 0.0
    for wall_s, cpu_s in products:
        count, wall, cpu = count + 1, wall + wall_s, cpu + cpu_s
        if wall >= WINDOW_S:
            windows.append((count * FLOP / wall, cpu / wall, count * FLOP / cpu))
            count, wall, cpu = 0, 0.0, 0.0
    if len(windows) < 2:
        raise HeptiError(f"only {len(products)} products in a round: the host is too slow to be measured, raise gflops")
    speeds, shares, cores = zip(*windows, strict=True)
    return Round(_upper_quartile(speeds), _upper_quartile(shares), statistics.median(cores))


def _upper_quartile(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=4, method="inclusive")[2]


def throughput(lab: Lab) -> list[float]:
    """Return the bytes per second that reach each host while all send to the next one: every link in both directions.

    Measured outside the CPU quotas: it is the link that is asked about.
    """
    ring = zip(lab.hosts, (*lab.hosts[1:], lab.hosts[0]), strict=True)
    commands = [
        [
            "nsenter",
            f"--net=/run/netns/{lab.namespace(host)}",
            sys.executable,
            PROBE,
            "stream",
            host.address,
            to.address,
        ]
        for host, to in ring
    ]
    with _Probes(commands) as probes:
        return list(probes.ask(STREAM_S))


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
