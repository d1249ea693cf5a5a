"""How long planning takes and how far from the bound it ends: python tests/solver/programs/bench_planning.py.

Median CPU time of several solves on one core, in one process, after imports: from scratch, and again after every
device's speed has changed by some percent. The bar is 30 and 300 ms for 4 devices, 100 ms again for 32, 2 s from
scratch for 1024.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[3]))

from solver.cluster.cluster import GIB, Cluster, Device, Link
from solver.model.named import named_model
from solver.programs.planner import solve

SPEC, ROWS, SOLVES = named_model("bert-large"), 256, 7


def boards(devices: int, memory_gib: float) -> Cluster:
    """Return a mix of boards as people have them, each a little different."""
    rng = np.random.default_rng(devices)
    speeds = rng.choice([10, 24.6, 24.6, 70], devices) * rng.uniform(0.9, 1.1, devices)
    return Cluster(
        tuple(Device(f"d{i}", float(speed) * 1e9, round(memory_gib * GIB)) for i, speed in enumerate(speeds)),
        Link(940e6 / 8, 200e-6),
    )


def drifted(cluster: Cluster, seed: int) -> Cluster:
    """Return the cluster after a few percent of change."""
    factors = np.random.default_rng(seed).uniform(0.93, 1.07, len(cluster.devices))
    devices = zip(cluster.devices, factors, strict=True)
    return replace(cluster, devices=tuple(replace(d, compute_flop_per_s=d.compute_flop_per_s * f) for d, f in devices))


def main() -> None:
    """Print the table."""
    table = Table(title=f"{SPEC.name}, {ROWS} rows, 940 Mbps; milliseconds, median (least)")
    for heading in ("devices", "GiB each", "from scratch", "again", "plan ms", "taking part", "gap"):
        table.add_column(heading, justify="right")
    for devices, memory_gib in ((4, 4), (4, 0.9), (4, 0.75), (4, 0.6), (8, 4), (32, 4), (128, 4), (1024, 4)):
        cluster = boards(devices, memory_gib)
        solve(SPEC, drifted(cluster, 99), ROWS)
        fresh, again = [], []
        for seed in range(SOLVES if devices < 128 else 3):
            started = time.process_time()
            solution = solve(SPEC, drifted(cluster, seed), ROWS)
            fresh.append(time.process_time() - started)
            started = time.process_time()
            solve(SPEC, drifted(cluster, seed + 50), ROWS, solution)
            again.append(time.process_time() - started)
        assert solution.plan.predicted is not None
        times = [f"{1e3 * np.median(taken):.0f} ({1e3 * min(taken):.0f})" for taken in (fresh, again)]
        seconds = f"{1e3 * solution.plan.predicted.seconds:.0f}"
        table.add_row(str(devices), str(memory_gib), *times, seconds, str(len(solution.crew)), f"{solution.gap:.2%}")
    Console().print(table)


if __name__ == "__main__":
    main()
