"""What a lab's hosts and links achieve, measured by `lab_probe` on all of them at once, and the quotas that follow."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
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
ROUNDS = 5
# Calibrated when every host is this near; a round's own noise is about 1 %.
CLOSE = 0.01
STREAM_S = 1.3
# Share of the speed of a free core that is left when the quota cuts it in pieces; calibration starts here.
START = 0.97


def core_speed() -> float:
    """Return the FLOP a second of one free core: by CPU time, so that other load on this machine hardly counts."""
    with _Probes([["env", "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", sys.executable, PROBE, "matmul"]]) as probes:
        (products,) = probes.ask(0.5)
    return FLOP / float(statistics.median(cpu_s for _, cpu_s in products))


def calibrate(lab: Lab, limit: Callable[[Lab, Host], None]) -> tuple[Lab, list[float]]:
    """Adjust the quotas until every host achieves the speed it is asked for; all hosts work at the same time.

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
    with _Probes([on_host(lab, host, [sys.executable, PROBE, "matmul"]) for host in lab.hosts]) as probes:
        for _ in range(ROUNDS):
            achieved = [speed(products) for products in probes.ask(ROUND_S)]
            ratios = [got / host.compute_flop_per_s for got, host in zip(achieved, lab.hosts, strict=True)]
            if all(abs(ratio - 1) < CLOSE for ratio in ratios):
                break
            for host, ratio in zip(lab.hosts, ratios, strict=True):
                changed = replace(host, core_flop_per_s=host.core_flop_per_s * ratio)
                lab = lab.with_host(changed)
                limit(lab, changed)
    return lab, achieved


def speed(products: Sequence[tuple[float, float]]) -> float:
    """Return FLOP per second: the upper quartile of windows, since other load on this machine only takes speed away."""
    windows, count, seconds = [], 0, 0.0
    for wall_s, _ in products:
        count, seconds = count + 1, seconds + wall_s
        if seconds >= WINDOW_S:
            windows.append(count * FLOP / seconds)
            count, seconds = 0, 0.0
    if len(windows) < 2:
        return len(products) * FLOP / sum(wall_s for wall_s, _ in products)
    return statistics.quantiles(windows, n=4, method="inclusive")[2]


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
