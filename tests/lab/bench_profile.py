"""How well a profile repeats and predicts, in the lab: python tests/lab/bench_profile.py [BACKEND …] [--times N].

As root, on the ready cluster mixed4, with bert-large. Every device profiles itself and then times shapes that no
profile measures, several times in one run. Shown per device, kernel and shape: how far profiles lie from their mean,
and how far off they predict (mean and worst of all points and times). The bar is 5 % for curves and 8 % for shapes.
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

from solver.cluster.curves import Bank, Kernel, curves_from_table, curves_to_table, derived_curves
from solver.model.named import named_model

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
    """Return by how much the profile's times of the shapes are off: of every kernel's calls, and of whole shapes."""
    message = curves_to_table(derived_curves(1e9))["message"]
    bank = Bank([curves_from_table({**profile, "message": message})])
    found, whole = defaultdict(list), defaultdict(lambda: np.zeros(2))
    for shape, kernel, first, second, heads, taken in shapes:
        if kernel == "mlp in":
            elements = first * second / named_model(MODEL).hidden
            predicted = bank.seconds(Kernel.PROJECT, first, second) + bank.seconds(Kernel.ACTIVATE, elements)
        else:
            predicted = heads * bank.seconds(Kernel(kernel), first, second)
        found[kernel].append(float(predicted[0]) / taken - 1)
        whole[shape] += predicted[0], taken
    return {**found, **{shape: [float(predicted / taken - 1)] for shape, (predicted, taken) in whole.items()}}


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
    for heading in ("device", "kernel or shape", "repeats", "predicts"):
        table.add_column(heading)
    for host, runs in found.items():
        repeats = spread([curves for curves, _ in runs])
        predicts = defaultdict(list)
        for curves, shapes in runs:
            for name, values in errors(curves, shapes).items():
                predicts[name] += values
        kernels = [name for name in {*repeats, *predicts} if not name[0].isdigit()]
        shapes = [name for name in predicts if name[0].isdigit()]
        for name in (*sorted(kernels), *shapes):
            table.add_row(host, name, *(cell(values.get(name)) for values in (repeats, predicts)))
        table.add_row(
            host, "all curves, all shapes",
            cell(np.concatenate(list(repeats.values()))), cell(np.concatenate([predicts[name] for name in shapes])),
            end_section=True,
        )  # fmt: skip
    Console().print(table)


def cell(values: np.ndarray | list[float] | None) -> str:
    """Return the mean and the largest of the values' sizes, in percent."""
    return "" if values is None else f"{np.abs(values).mean() * 100:.1f}  {np.abs(values).max() * 100:.0f}"


if __name__ == "__main__":
    main()
