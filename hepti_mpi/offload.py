"""Five chained MatMuls on two devices, the second taking a part of the rows: the motivation figures of the papers.

    mpirun -np 2 python -m hepti_mpi.offload --rows 256 --percent 0,10,20 --out FILE.json

`launch bench offload` starts this under several conditions and sets the result beside the published figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from hepti_mpi.arrays import Array
from hepti_mpi.comm import Group, world
from hepti_mpi.exchange import Tiles, gather_rows, whole
from solver.errors import HeptiError
from solver.spans import Partition, Span

WIDTH = 1024
PRODUCTS = 5  # the MatMuls of one self-attention
WARM_UP = 2


def offload(x: Array, weights: list[Array], parts: Partition, group: Group, waits: bool) -> tuple[float, float]:
    """Compute the chain once, rank 1 on its part of the rows.

    Parameters
    ----------
    x : [m, 1024] on rank 0, [0, 1024] on rank 1
        The rows, all on the primary device.
    parts
        The rows that each rank computes.
    waits : bool
        As the papers count: nobody computes while rows travel. Else rank 0 computes meanwhile.

    Returns
    -------
    total_s, compute_s
        Rank 0's seconds from first to last; the slower rank's seconds in the products.
    """
    everything = Span(0, parts.total)
    at_primary, nothing = Partition.of_counts([parts.total, 0]), Span(0, 0)
    group.on_all(lambda: None)
    started = time.perf_counter()
    x_rows = whole(gather_rows(group, Tiles.here(x), at_primary, parts.spans))
    if waits:
        group.on_all(lambda: None)
    computing = time.perf_counter()
    for weight in weights:
        x_rows = x_rows @ weight
    compute_s = time.perf_counter() - computing
    if waits:
        group.on_all(lambda: None)
    whole(gather_rows(group, Tiles.here(x_rows), parts, [everything, nothing]))
    total_s = time.perf_counter() - started
    group.finish_sending()
    return total_s, max(group.on_all(lambda: compute_s))


def measure(rows: list[int], percents: list[int], runs: int, group: Group) -> list[dict[str, Any]]:
    """Measure every combination, the runs of all of them interleaved; the result is rank 0's."""
    numbers = np.random.default_rng(0)
    # Products of standard normal numbers grow by 32 a step; scaled, the chain stays in range.
    scale = np.float32(1 / 32)
    weights = [scale * numbers.standard_normal((WIDTH, WIDTH), np.float32) for _ in range(PRODUCTS)]
    x = numbers.standard_normal((max(rows), WIDTH), np.float32)
    cases = [(count, percent, waits) for count in rows for percent in percents for waits in (True, False)]
    times: dict[tuple[int, int, bool], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(WARM_UP + runs):
        for count, percent, waits in cases:
            away = round(count * percent / 100)
            parts = Partition.of_counts([count - away, away])
            here = x[:count] if group.rank == 0 else x[:0]
            times[count, percent, waits].append(offload(here, weights, parts, group, waits))
    return [
        {
            "rows": count,
            "percent": percent,
            "waits": waits,
            "seconds": [total_s for total_s, _ in times[count, percent, waits][WARM_UP:]],
            "compute_s": [compute_s for _, compute_s in times[count, percent, waits][WARM_UP:]],
        }
        for count, percent, waits in cases
    ]


def main(arguments: list[str]) -> int:
    """Run both ranks; rank 0 writes the file."""
    parser = argparse.ArgumentParser(prog="python -m hepti_mpi.offload", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", default="256", help="m, comma-separated")
    parser.add_argument("--percent", default="0,90", help="rows that rank 1 computes, comma-separated")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    group = world()
    try:
        if group.size != 2:
            raise HeptiError(f"{group.size} ranks: offloading is between 2, start mpirun with -np 2")
        rows = [int(word) for word in options.rows.split(",")]
        percents = [int(word) for word in options.percent.split(",")]
        found = measure(rows, percents, options.runs, group)
    except (HeptiError, ValueError) as error:
        if group.rank == 0:
            print(f"python -m hepti_mpi.offload: {error}", file=sys.stderr)
        return 2
    if group.rank == 0:
        options.out.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
