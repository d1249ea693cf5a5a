"""Five chained MatMuls on two devices, the second taking a part of the rows: the motivation figures of the papers.

    mpirun -np 2 python -m hepti_mpi.measure.offload --rows 256 --percent 0,10,20 --out FILE.json

Three ways, interleaved. "waits", as the papers count: nobody computes while rows travel. "overlaps": the primary
computes meanwhile. "tiles", as Hepti's layers do it: the second device computes on tiles as they arrive and returns
each as it is done. All by the kernels that a run takes: by these a lab's hosts have the speed that they are asked for.

`launch bench offload` starts this under several conditions and sets the result beside the published figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hepti_mpi.comm.group import Group, world
from hepti_mpi.comm.rows import RowBlocks, Tiles, gather_rows, whole
from hepti_mpi.kernels import backends
from hepti_mpi.kernels.products import Graph
from solver.base import clock
from solver.base.arrays import Array
from solver.base.errors import HeptiError
from solver.base.spans import Partition, Span

WIDTH = 1024
# Waiting for each other spends a host's CPU quota: without a rest of one of its periods a run begins with none, and by
# tiles takes 37 to 40 ms instead of 33 to 34; alone 105 to 112 instead of 100 to 103.
SETTLE_S = 0.004
PRODUCTS = 5  # the MatMuls of one self-attention
WARM_UP = 2
WAYS = ("waits", "overlaps", "tiles")
TILE_ROWS = 32  # 16, 32, 48 and 96 rows took 33.4, 31.7, 32.3 and 36.6 ms, three quarters of 256 rows at 940 Mbps


def offload(x: Array, chain: Sequence[Graph], parts: Partition, group: Group, way: str) -> tuple[Array, float, float]:
    """Compute the chain once, rank 1 on its part of the rows.

    Parameters
    ----------
    x : [m, 1024] on rank 0, [0, 1024] on rank 1
        The rows, all on the primary device.
    chain
        The five products.
    parts
        The rows that each rank computes.
    way
        One of WAYS.

    Returns
    -------
    y : [m, 1024] on rank 0, [0, 1024] on rank 1
        The last product.
    total_s, compute_s
        Rank 0's seconds from first to last; the slower rank's seconds in the products.
    """
    everything = Span(0, parts.total)
    at_primary, nothing = Partition.of_counts([parts.total, 0]), Span(0, 0)
    tile_rows = TILE_ROWS if way == "tiles" else 0
    compute_s = 0.0

    def computed(x_rows: RowBlocks) -> Iterator[Span]:
        nonlocal compute_s
        for span in x_rows:
            computing = clock.now()
            h = x_rows.array[span.slice]
            for product in chain:
                h = product(h)
            y_rows[span.slice] = h
            compute_s += clock.now() - computing
            yield span

    group.barrier()
    clock.sleep(SETTLE_S)
    started = clock.now()
    x_rows = gather_rows(group, Tiles.here(x), at_primary, parts.spans, tile_rows)
    if way != "tiles":
        x_rows = Tiles.here(whole(x_rows))
    if way == "waits":
        group.barrier()
    y_rows = np.empty_like(x_rows.array)
    y = Tiles(y_rows, computed(x_rows))
    if way != "tiles":
        y = Tiles.here(whole(y))
    if way == "waits":
        group.barrier()
    result = whole(gather_rows(group, y, parts, [everything, nothing], tile_rows))
    total_s = clock.now() - started
    group.finish_sending()
    return result, total_s, max(group.on_all(lambda: compute_s))


def measure(rows: list[int], percents: list[int], runs: int, group: Group) -> list[dict[str, Any]]:
    """Measure every combination, the runs of all of them interleaved; the result is rank 0's."""
    numbers = np.random.default_rng(0)
    # Products of standard normal numbers grow by 32 a step; scaled, the chain stays in range.
    scale = np.float32(1 / 32)
    weights = [scale * numbers.standard_normal((WIDTH, WIDTH), np.float32) for _ in range(PRODUCTS)]
    names, _ = backends.agree("auto", "float32", group)
    kernels, own = backends.of_all(names), backends.backend(names[group.rank])
    chain = [own.product(w, None) for w in weights]
    x = numbers.standard_normal((max(rows), WIDTH), np.float32)
    cases = [(count, percent, way) for count in rows for percent in percents for way in WAYS]
    times: dict[tuple[int, int, str], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(WARM_UP + runs):
        for count, percent, way in cases:
            away = round(count * percent / 100)
            parts = Partition.of_counts([count - away, away])
            here = x[:count] if group.rank == 0 else x[:0]
            times[count, percent, way].append(offload(here, chain, parts, group, way)[1:])
    return [
        {
            "rows": count,
            "percent": percent,
            "way": way,
            "backend": kernels,
            "tile_rows": TILE_ROWS if way == "tiles" else count,
            "seconds": [total_s for total_s, _ in times[count, percent, way][WARM_UP:]],
            "compute_s": [compute_s for _, compute_s in times[count, percent, way][WARM_UP:]],
        }
        for count, percent, way in cases
    ]


def main(arguments: list[str]) -> int:
    """Run both ranks; rank 0 writes the file."""
    parser = argparse.ArgumentParser(
        prog="python -m hepti_mpi.measure.offload", description=(__doc__ or "").split("\n")[0]
    )
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
    except (HeptiError, ValueError) as error:
        if group.rank == 0:
            print(f"python -m hepti_mpi.measure.offload: {error}", file=sys.stderr)
        return 2
    try:
        found = measure(rows, percents, options.runs, group)
    except Exception as error:  # the other rank would wait for this one for ever
        group.abort(f"{type(error).__name__}: {error}", code=1)
    if group.rank == 0:
        options.out.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
