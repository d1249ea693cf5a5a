"""What a lab's hosts and links achieve, measured by `lab.probe` on all of them at once, and the quotas that follow."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.base import shell
from launch.lab.agent import on_host
from launch.lab.lab import Host, Lab
from launch.lab.limits import LEAST_CORES, brake_of
from solver.base.errors import HeptiError
from solver.base.progress import progress

PROBE = str(Path(__file__).with_name("probe.py"))
FLOP = 2 * 256 * 1024 * 1024  # of the probe's product
# A round is cut in windows: long against the quota period, short against other people's load. A host with little of a
# core has long periods (25 ms at 4 %), a slow core long products: rounds are long enough for both. In windows of ten
# periods hosts seemed up to 9 % faster or slower than in the round before.
WINDOWS = 6
ROUND_S, ROUND_PRODUCTS, WINDOW_PERIODS = 1.5, 12, 25
MAX_ROUNDS = 6
# Calibrated when no quota has to move by more than this. One round's own noise is 2 to 5 %.
CLOSE = 0.015
STREAM_S = 1.3
# How much slower a core is for a host that has less of it is measured at a quarter of the quotas, in turn with the
# whole, so often and so long: twelve such medians were 0.87 to 0.92 on a machine that moved by 15 % meanwhile.
SLOWED, TURNS, TURN_S = 0.25, 4, 0.4
# Of its quota, the least that a host gets by itself. One that gets less is being robbed (by another lab); it is asked
# again, and its quota is not raised further.
LEAST_LEFT = 0.94


@dataclass(frozen=True, slots=True)
class Round:
    """What one host did in one round of products, in seconds of the lab."""

    flop_per_s: float  # of wall time, median of the windows
    core_flop_per_s: float  # of CPU time, median of the windows
    share: float  # CPU time by wall time


def core_speed(cores: int) -> float:
    """Return the FLOP a second of a core by the clock, all cores at work.

    By CPU time, so that other load on this machine hardly counts.
    """
    probe = ["env", "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", sys.executable, PROBE, "matmul"]
    with _Probes([probe] * cores) as probes:
        return statistics.mean(summary(products, 1.0).core_flop_per_s for products in probes.ask(0.6))


def calibrate(lab: Lab, limit: Callable[[Lab, Host], None]) -> tuple[Lab, list[float]]:
    """Adjust the quotas until every host achieves the speed it is asked for; all hosts work at the same time.

    A host's speed is the speed of its core times the share of it that it gets, and that is the quota less what cutting
    it in pieces costs. Both are measured in every round. The median of all rounds counts: of eight hosts on two cores
    the best of six rounds said 424 GFLOP/s for a core where 405 were usual, and all hosts came out 4 % slow.

    Parameters
    ----------
    limit : function of lab and host
        Puts a host's quota in force.

    Returns
    -------
    lab : Lab
        With `core_flop_per_s` and `cores_exponent` as found.
    achieved : list of float
        FLOP per second of each host, in the last round.
    """
    told: list[list[float]] = [[] for _ in lab.hosts]  # by each round: FLOP/s of a core as far as the quota gives it
    slowest = min(lab.hosts, key=lambda host: host.cores)
    period_s = brake_of(lab).quota_us(slowest.cores)[1] / 1e6
    products_s = ROUND_PRODUCTS * FLOP / (slowest.compute_flop_per_s * lab.scale)
    round_s = max(ROUND_S, products_s, WINDOWS * WINDOW_PERIODS * period_s)
    probing = [on_host(lab, host, [sys.executable, PROBE, "matmul"]) for host in lab.hosts]
    with progress(f"calibrating {lab.title}", MAX_ROUNDS, unit="rounds") as advance, _Probes(probing) as probes:
        for number in range(MAX_ROUNDS):
            asked = probes.ask(round_s)
            if min(map(len, asked)) < WINDOWS and number + 1 < MAX_ROUNDS:  # something took the cores for a moment
                advance(1)
                continue
            rounds = [summary(products, lab.scale) for products in asked]
            settled = True
            for host, found, speeds in zip(lab.hosts, rounds, told, strict=True):
                left = min(1.0, max(LEAST_LEFT, found.share / host.cores))
                speeds.append(found.core_flop_per_s * left)
                usual = statistics.median(speeds)
                if abs(usual / host.core_flop_per_s - 1) > CLOSE:
                    settled = False
                    changed = replace(host, core_flop_per_s=usual)
                    lab = lab.with_host(changed)
                    limit(lab, changed)
            advance(1)
            if settled:
                break
        exponent = _cores_exponent(lab, probes, limit)
    hosts = tuple(replace(host, cores_exponent=exponent) for host in lab.hosts)
    return replace(lab, hosts=hosts), [found.flop_per_s for found in rounds]


def _cores_exponent(lab: Lab, probes: _Probes, limit: Callable[[Lab, Host], None]) -> float:
    """Return the power of a speed that quotas go with: all hosts work at a quarter and at the whole in turn.

    A core's speed is by CPU time. At a quarter of the quota it was 0.88 of what it was (quotas of 0.2 ms, of which one
    comes every 11 ms and not every 3): the quota for a quarter of the speed is 0.28 of the whole one, a power of 0.92.
    """

    def core_speeds(cpu: float) -> list[float]:
        for host in lab.hosts:
            limit(lab, replace(host, cpu=max(cpu, LEAST_CORES / host.cores)))
        return [len(products) / sum(cpu_s for _, cpu_s in products) for products in probes.ask(TURN_S)]

    slower = []
    before = core_speeds(1.0)
    for _ in range(TURNS):
        slow, after = core_speeds(SLOWED), core_speeds(1.0)
        slower += [here / math.sqrt(one * other) for here, one, other in zip(slow, before, after, strict=True)]
        before = after
    return math.log(SLOWED) / math.log(SLOWED * statistics.median(slower))


def summary(products: Sequence[tuple[float, float]], scale: float) -> Round:
    """Sum up the wall and CPU seconds, by the clock, of a round's products on a lab of some scale."""
    if len(products) < WINDOWS:
        raise HeptiError(
            f"only {len(products)} products in a round, {WINDOWS} are needed: something else takes this machine's cores"
        )
    wall_s, cpu_s = (sum(column) for column in zip(*products, strict=True))
    windows = []
    count, wall, cpu = 0, 0.0, 0.0
    for wall_here, cpu_here in products:
        count, wall, cpu = count + 1, wall + wall_here, cpu + cpu_here
        if wall >= wall_s / WINDOWS:
            windows.append((count * FLOP / (wall * scale), count * FLOP / (cpu * scale)))
            count, wall, cpu = 0, 0.0, 0.0
    speeds, cores = zip(*windows, strict=True)
    return Round(statistics.median(speeds), statistics.median(cores), cpu_s / wall_s)


def throughput(lab: Lab, group: Path) -> list[float]:
    """Return the bytes that reach each host from the one before it in a second of the lab, while all send.

    So both ways of every link are measured at once. The probes run in `group`, which has the lab's weight but no quota:
    it is the link that is asked about.
    """
    commands = []
    for host, peer in zip(lab.hosts, (*lab.hosts[1:], lab.hosts[0]), strict=True):
        probe = [sys.executable, PROBE, "stream", host.address, peer.address]
        enter = ["nsenter", f"--net=/run/netns/{lab.namespace(host)}", *probe]
        commands.append(["bash", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "bash", *enter])
    with _Probes(commands) as probes:
        return [float(found) / lab.scale for found in probes.ask(STREAM_S)]


class _Probes:
    """Probes that run at the same time, asked together."""

    def __init__(self, commands: Sequence[shell.Command]) -> None:
        self.processes = [shell.start(command) for command in commands]

    def __enter__(self) -> _Probes:
        try:
            self._answers()
        except BaseException as error:
            self.__exit__(type(error))
            raise
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
        try:
            return [json.loads(line) for line in lines]
        except json.JSONDecodeError as error:
            raise HeptiError(f"a measuring program on a host said {error.doc.strip()!r}, not JSON") from error

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        for process in self.processes:
            assert process.stdin is not None
            if error is not None:
                process.kill()
            with suppress(BrokenPipeError):
                process.stdin.close()
        for process in self.processes:
            process.wait(timeout=30)
