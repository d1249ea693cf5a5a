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
from solver.base.spans import Span
from solver.model.decoder import Decoder, Weight, decoder_tensors
from solver.model.spec import ModelSpec, inputs_first, tensor_shapes
from weights.decoders.file import DecoderWriter
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


def synthesize_decoder(
    path: Path, model: Decoder, seed: int = 0, precision: str = "float32", dtype: str = "float32"
) -> None:
    """Write a language model's weights file of random numbers, slice by slice.

    Parameters
    ----------
    precision, dtype
        As of `DecoderWriter`.

    Raises
    ------
    HeptiError
        If the file cannot be written; nothing is left behind.
    """
    tensors = decoder_tensors(model)
    total = sum(4 * math.prod(weight.shape) for weight in tensors.values())
    source = f"synthesized {model.name}, seed {seed}"
    with (
        DecoderWriter(path, model, source, precision, dtype) as weights,
        progress("synthesizing", total) as advance,
    ):
        for name, weight in tensors.items():
            spread = _decoder_spread(model, name, weight)
            for rows in row_spans(weight.shape):
                block = synthetic_rows(name, weight.shape, rows, seed, spread)
                weights.write(name, rows.start, block)
                advance(block.nbytes)


def synthetic_rows(name: str, shape: tuple[int, ...], rows: Span, seed: int = 0, spread: float | None = None) -> Array:
    """Make some rows of one synthetic tensor.

    Parameters
    ----------
    name, shape
        As in `solver.model.spec.tensor_shapes`, or `solver.model.decoder.decoder_tensors`.
    rows
        Which rows.
    seed
        Of the whole model.
    spread
        Of the numbers; None: as an encoder needs it.

    Returns
    -------
    [rows, …] float32
    """
    first = rows.start // BLOCK_ROWS
    spread = _spread(name, shape) if spread is None else spread
    blocks = [_block(name, shape, block, seed, spread) for block in range(first, -(-rows.stop // BLOCK_ROWS))]
    start = first * BLOCK_ROWS
    return np.concatenate([np.empty((0, *shape[1:]), np.float32), *blocks])[rows.start - start : rows.stop - start]


def _block(name: str, shape: tuple[int, ...], block: int, seed: int, spread: float) -> Array:
    size = (min(BLOCK_ROWS, shape[0] - block * BLOCK_ROWS), *shape[1:])
    generator = Generator(SFC64([seed, zlib.crc32(name.encode()), block]))
    numbers = generator.standard_normal(size, dtype=np.float32)
    numbers *= spread
    if name.endswith("norm/weight"):
        numbers += 1
    return numbers


def _spread(name: str, shape: tuple[int, ...]) -> float:
    """Return a spread that keeps every part of the result visible at any size, 0.02 for matrices with 1024 inputs."""
    if len(shape) == 1:
        return 0.1
    if name.startswith("embeddings/") and not name.startswith("embeddings/patch"):
        return 0.5
    inputs = shape[0] if inputs_first(name) else shape[1]
    return 0.64 / math.sqrt(inputs)


def _decoder_spread(model: Decoder, name: str, weight: Weight) -> float:
    """Return a spread with which the likeliest tokens vary, and depend on all before.

    The spread of logits is 2, that of the stream about 4 in the end. Words are far smaller than the stream, else a tied
    head would say the last token again. Scores are sharp, and the MLP adds more than attention does: means over a
    context make its rows alike, and the same token comes for ever (seen with equal spreads: 22 times of 30).
    """
    if name in ("embedding/weight", "positions/weight", model.head):
        return 2 / math.sqrt(model.hidden)
    if weight.summed is None:
        return 0.1
    gains = {
        "query": 2.0,
        "key": 2.0,
        "output": 1 / math.sqrt(len(model.layers)),
        "down": 6 / math.sqrt(len(model.layers)),
    }
    return gains.get(name.split("/")[-2], 1.0) / math.sqrt(weight.shape[weight.summed])
