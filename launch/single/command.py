"""`python -m launch.single`: one device alone, without Hepti: the stack of a model's layers on a common runtime.

What a split must beat. `launch bench compare` starts it on a device; it prints the seconds of every timed request.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from solver.base import clock
from solver.base.arrays import Array
from solver.base.errors import HeptiError
from solver.model.spec import ModelSpec, encoder_blocks

# One layer's weights, all for y = x W + b: qkv [H, 3 H], out [H, H], up [H, F], down [F, H]; norm scales and shifts.
LayerWeights: TypeAlias = dict[str, Array]
LayersProgram: TypeAlias = Callable[[Array], Array]

# What a benchmark can ask for, as (backend, precision).
RUNTIMES = {
    "torch": ("torch", "float32"),
    "onnxruntime": ("onnxruntime", "float32"),
    "onnxruntime-int8": ("onnxruntime", "int8"),
}
BACKENDS = tuple(dict.fromkeys(backend for backend, _ in RUNTIMES.values()))


def main(arguments: Sequence[str]) -> int:
    """Run a command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m launch.single", description=__doc__)
    parser.add_argument(
        "--spec", required=True, metavar="JSON", help="the model, as solver.model.spec.ModelSpec writes it"
    )
    parser.add_argument("--rows", required=True, type=int, metavar="S")
    parser.add_argument("--backend", choices=BACKENDS, required=True)
    parser.add_argument("--precision", choices=("float32", "int8"), default="float32")
    parser.add_argument("--warmup", type=int, default=1, metavar="N")
    parser.add_argument("--repeat", type=int, default=1, metavar="N")
    options = parser.parse_args(arguments)
    try:
        spec = ModelSpec.from_json(options.spec)
        run = prepared(options.backend, options.precision, spec, random_layers(spec))
    except HeptiError as error:
        print(f"python -m launch.single: {error}", file=sys.stderr)
        return 2
    x = np.random.default_rng(1).standard_normal((options.rows, spec.hidden), np.float32)
    print(json.dumps({"seconds": timed(run, x, options.warmup, options.repeat)}))
    return 0


def prepared(backend: str, precision: str, spec: ModelSpec, layers: Sequence[LayerWeights]) -> LayersProgram:
    """Return the runtime's program [S, H] -> [S, H], its weights packed where it packs weights.

    Raises
    ------
    HeptiError
        If the runtime is not installed on this device.
    """
    try:
        module: Any = import_module(f"launch.single.on_{backend}")
    except ImportError as error:
        raise HeptiError(f"{error.name} is not installed on this device: pip install {error.name}") from error
    run: LayersProgram = module.prepare(spec, layers, precision)
    return run


def random_layers(spec: ModelSpec, seed: int = 0) -> list[LayerWeights]:
    """Return random weights of all layers, at a spread that keeps every part of the result visible."""
    numbers = np.random.Generator(np.random.SFC64(seed))
    H, F = spec.hidden, encoder_blocks(spec)[1].ffn

    def matrix(inputs: int, outputs: int) -> Array:
        # Uniform: a slow device makes it in a quarter of the time of normal numbers.
        weight = numbers.random((inputs, outputs), np.float32)
        weight -= 0.5
        weight *= 0.64 * math.sqrt(12 / inputs)
        return weight

    def vector(size: int, mean: float = 0.0) -> Array:
        return (mean + 0.1 * numbers.standard_normal(size, np.float32)).astype(np.float32)

    return [
        {
            "qkv": matrix(H, 3 * H), "qkv_bias": vector(3 * H), "out": matrix(H, H), "out_bias": vector(H),
            "attention_norm": vector(H, 1.0), "attention_norm_bias": vector(H),
            "up": matrix(H, F), "up_bias": vector(F), "down": matrix(F, H), "down_bias": vector(H),
            "mlp_norm": vector(H, 1.0), "mlp_norm_bias": vector(H),
        }
        for _ in range(spec.layers)
    ]  # fmt: skip


def timed(run: LayersProgram, x: Array, warmup: int, repeat: int) -> list[float]:
    """Return the seconds of every request that counts."""
    seconds = []
    for number in range(warmup + repeat):
        started = clock.now()
        run(x)
        if number >= warmup:
            seconds.append(clock.now() - started)
    return seconds
