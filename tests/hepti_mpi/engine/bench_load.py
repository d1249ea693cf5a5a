"""Loading a share against reading its bytes with plain h5py: seconds, and the peak of resident memory.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python -m tests.hepti_mpi.engine.bench_load MODEL.h5 [--runs 5]

Every run is a process of its own, which reads the file once before it is timed, so that the page cache is warm.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from hepti_mpi.comm import group as comm
from hepti_mpi.engine.layers import block_kernels, load
from hepti_mpi.engine.load import WeightsSource
from hepti_mpi.kernels.backends import backend
from solver.model.precision import FLOAT32, INT8
from solver.plan.holdings import weights_bytes
from solver.plan.plan import block_by_rows, blockwise_plan
from weights.file.store import WeightsFile

MIB = 1 << 20
WAYS = ("h5py", "numpy float32", "onnxruntime float32", "onnxruntime int8")


def run(path, way):
    """Load in this process; return what it took."""
    with WeightsFile(path) as file:
        plan = blockwise_plan(file.spec, ("pi-0",), partial(block_by_rows, shares=(1.0,)))
        group = comm.world()
        if way != "h5py":
            name, precision = way.split()
            make = partial(block_kernels, backend(name, precision).graph)
        with path.open("rb", buffering=0) as raw:
            while raw.read(8 * MIB):
                pass
        before = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        held = read_plainly(path) if way == "h5py" else load(WeightsSource(group, file), file.spec, [plan], make)
        seconds = time.perf_counter() - started
        assert held
        size = weights_bytes(file.spec, plan, 0, INT8 if way.endswith("int8") else FLOAT32)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "before": before / MIB, "peak": peak / MIB, "weights": size / MIB}


def read_plainly(path):
    """Return all tensors of the file."""
    with h5py.File(path, locking=False) as file:
        found = {}
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
        return {name: tensor for name, tensor in found.items() if tensor.dtype == np.float32}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--way", choices=WAYS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(run(options.path, options.way)))
        return
    found = {way: [] for way in WAYS}
    for _ in range(options.runs):
        for way in WAYS:
            command = [sys.executable, "-m", "tests.hepti_mpi.engine.bench_load", options.path, "--way", way]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[way].append(json.loads(done.stdout))
    plain = statistics.median(entry["seconds"] for entry in found["h5py"])
    for way, entries in found.items():
        seconds = statistics.median(entry["seconds"] for entry in entries)
        peak, before, weights = (max(entry[name] for entry in entries) for name in ("peak", "before", "weights"))
        print(
            f"{way:20} {seconds:6.3f} s ({seconds / plain:.2f} x), weights {weights:5.0f} MiB, "
            f"resident {before:4.0f} MiB before, {peak:5.0f} at most"
        )


if __name__ == "__main__":
    main()
