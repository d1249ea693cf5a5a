"""How well a profile repeats and predicts, in the lab: python tests/lab/bench_profile.py [BACKEND …] [--times N].

As root, on the ready cluster mixed4, with bert-large. Every device profiles itself and then times shapes that no
profile measures, several times in one run. Shown per device and kernel: how far profiles lie from their mean, and how
far off they predict (mean and worst of all points, times and shapes). The bar is 5 and 8 %.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from solver.curves import Bank, Kernel, curves_from_table, curves_to_table, derived_curves
from solver.model import named_model

ROOT = Path(__file__).parents[2]
NAME, MODEL = "profile-bench", "bert-large"


def launch(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "launch", "lab", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def spread(profiles: list[dict]) -> dict[str, np.ndarray]:
    """Return how far every point of every curve lies from its mean over the profiles."""
    found = {}
    for kernel in profiles[0].keys() - {"head_dim"}:
        seconds = np.array([np.array(profile[kernel]["seconds"]) for profile in profiles])
        found[kernel] = np.abs(seconds / seconds.mean(0) - 1).ravel()
    return found


def errors(profile: dict, shapes: list) -> dict[str, list[float]]:
    """Return by how much the profile's times of the shapes are off."""
    message = curves_to_table(derived_curves(1e9))["message"]
    bank = Bank([curves_from_table({**profile, "message": message})])
    found = defaultdict(list)
    for kernel, first, second, heads, taken in shapes:
        if kernel == "mlp in":
            elements = first * second / named_model(MODEL).hidden
            predicted = bank.seconds(Kernel.PROJECT, first, second) + bank.seconds(Kernel.ACTIVATE, elements)
        else:
            predicted = heads * bank.seconds(Kernel(kernel), first, second)
        found[kernel].append(float(predicted[0]) / taken - 1)
    return found


def main() -> None:
    """Print a table for every backend."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", default=["onnxruntime", "numpy"])
    parser.add_argument("--times", default="3", help="profiles of every device (default: 3)")
    options = parser.parse_args()
    launch("up", "mixed4", "--name", NAME)
    try:
        for backend in options.backends:
            measure(backend, options.times)
    finally:
        launch("down", NAME)


def measure(backend: str, times: str) -> None:
    """Print one backend's table."""
    with TemporaryDirectory() as folder:
        command = ["hepti_mpi", "profile", "--model", MODEL, "--backend", backend, "--out", f"{folder}/cluster.toml"]
        began = time.perf_counter()
        launch("run", NAME, "--", sys.executable, "-m", *command)
        print(f"{backend}: a profile takes {time.perf_counter() - began:.1f} s, start and end included")
    program = str(Path(__file__).with_name("programs") / "shapes.py")
    show(json.loads(launch("run", NAME, "--", sys.executable, program, MODEL, backend, times)))


def show(found: dict) -> None:
    """Print who repeats and predicts how well."""
    table = Table(title="percent: mean, worst")
    for heading in ("device", "kernel", "repeats", "predicts"):
        table.add_column(heading)
    for host, runs in found.items():
        repeats = spread([curves for curves, _ in runs])
        predicts = defaultdict(list)
        for curves, shapes in runs:
            for kernel, values in errors(curves, shapes).items():
                predicts[kernel] += values
        for kernel in sorted({*repeats, *predicts}):
            cells = [np.abs(values[kernel]) * 100 if kernel in values else None for values in (repeats, predicts)]
            table.add_row(
                host, kernel, *("" if cell is None else f"{cell.mean():.1f}  {cell.max():.0f}" for cell in cells)
            )
        everything = [np.abs(np.concatenate(list(values.values()))) * 100 for values in (repeats, predicts)]
        table.add_row(host, "all", *(f"{cell.mean():.1f}  {cell.max():.0f}" for cell in everything), end_section=True)
    Console().print(table)


if __name__ == "__main__":
    main()
