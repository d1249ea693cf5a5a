"""Random weights of real architectures at real sizes: the same numbers however they are cut or written.

A tensor's numbers come in blocks of `BLOCK_ROWS` rows, each from a generator of its own, seeded by the seed, the
tensor's name and the block's number; so any rank can make any span without the rest.
"""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np

# numpy imports it when it is first used, and swallows a Ctrl-C that comes meanwhile.
from numpy.random import SFC64, Generator

from solver.base.arrays import Array
from solver.base.progress import progress
from solver.model.spec import ModelSpec, inputs_first, tensor_shapes
from solver.plan.spans import Span
from weights.file.layout import row_spans
from weights.file.store import WeightsWriter

BLOCK_ROWS = 64


def synthesize(path: Path, spec: ModelSpec, seed: int = 0, dtype: str = "float32") -> None:
    """Write a weights file of random numbers, slice by slice.

    Raises
    ------
    HeptiError
        If the file cannot be written; nothing is left behind.
    """
    shapes = tensor_shapes(spec)
    total = sum(4 * math.prod(shape) for shape in shapes.values())
    with (
        WeightsWriter(path, spec, f"synthesized {spec.name}, seed {seed}", dtype) as weights,
        progress("synthesizing", total) as advance,
    ):
        for name, shape in shapes.items():
            for rows in row_spans(shape):
                block = synthetic_rows(name, shape, rows, seed)
                weights.write(name, rows.start, block)
                advance(block.nbytes)


def synthetic_rows(name: str, shape: tuple[int, ...], rows: Span, seed: int = 0) -> Array:
    """Make some rows of one synthetic tensor.

    Parameters
    ----------
    name, shape
        As in `solver.model.spec.tensor_shapes`.
    rows
        Which rows.
    seed
        Of the whole model.

    Returns
    -------
    [rows, …] float32
    """
    first = rows.start // BLOCK_ROWS
    blocks = [_block(name, shape, block, seed) for block in range(first, -(-rows.stop // BLOCK_ROWS))]
    start = first * BLOCK_ROWS
    return np.concatenate([np.empty((0, *shape[1:]), np.float32), *blocks])[rows.start - start : rows.stop - start]


def _block(name: str, shape: tuple[int, ...], block: int, seed: int) -> Array:
    size = (min(BLOCK_ROWS, shape[0] - block * BLOCK_ROWS), *shape[1:])
    generator = Generator(SFC64([seed, zlib.crc32(name.encode()), block]))
    numbers = generator.standard_normal(size, dtype=np.float32)
    numbers *= _scale(name, shape)
    if name.endswith("norm/weight"):
        numbers += 1
    return numbers


def _scale(name: str, shape: tuple[int, ...]) -> float:
    """Return a spread that keeps every part of the result visible at any size, 0.02 for matrices with 1024 inputs."""
    if len(shape) == 1:
        return 0.1
    if name.startswith("embeddings/") and not name.startswith("embeddings/patch"):
        return 0.5
    inputs = shape[0] if inputs_first(name) else shape[1]
    return 0.64 / math.sqrt(inputs)
