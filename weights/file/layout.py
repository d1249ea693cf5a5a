"""How tensors lie in the file, and the arithmetic of reading them fast.

Chunks, measured on [4096, 1024] float32, one core, page cache warm, plain h5py reading everything / an odd span of rows
/ 300 columns, MiB/s: whole rows in 64 KiB 1680 / 1850 / 550, in 256 KiB 1730 / 2160 / 670, in 1 MiB 2020 / 1600 / 690,
in 4 MiB 2090 / 860 / 690. So chunks are whole rows of about 256 KiB, and tiles for the two matrices that cut `columns`
reads by axis 1: 64 × 256 gives 1630 / 1830 / 1000. Calls to h5py cost 50 µs, so reads go in steps of 4 MiB.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from solver.base.arrays import Array, Numbers
from solver.base.spans import Span
from solver.plan.holdings import TensorSlice

STEP_BYTES = 4 << 20

_CHUNK_ROWS, _TILE_COLUMNS = 64, 256


def row_spans(shape: tuple[int, ...]) -> Iterator[Span]:
    """Cut the first axis of a tensor into spans of whole chunks that are worth a call: about 4 MiB of float32."""
    step = max(1, STEP_BYTES // (4 * math.prod(shape[1:]) * _CHUNK_ROWS)) * _CHUNK_ROWS
    for start in range(0, shape[0], step):
        yield Span(start, min(start + step, shape[0]))


def chunk_shape(shape: tuple[int, ...], *, inputs_first: bool) -> tuple[int, ...]:
    """Return the shape of the pieces that a dataset is stored, and checked, in."""
    if len(shape) == 1:
        return (min(shape[0], 1 << 16),)
    tiles = -(-shape[1] // _TILE_COLUMNS) if inputs_first else 1
    return min(shape[0], _CHUNK_ROWS), -(-shape[1] // tiles)  # equal tiles: 384 as 256 + 128 would be stored as 512


def row_chunk(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of such pieces of whole rows only, of about 256 KiB: a power of two, so that steps fit."""
    rows = min(_CHUNK_ROWS, max(1, (1 << 16) // math.prod(shape[1:])))
    return min(shape[0], 1 << (rows.bit_length() - 1)), *shape[1:]


def steps(piece: TensorSlice, shape: tuple[int, ...], most: int) -> Iterator[Span]:
    """Yield spans of the rows of `piece` of at most so many numbers, ending where chunks end: none is decoded twice."""
    parts = (*piece.index, *[slice(None)] * (len(shape) - len(piece.index)))
    if tuple(len(range(length)[part]) for length, part in zip(shape, parts, strict=True)) != piece.shape:
        raise ValueError(f"{piece} does not lie in {shape}")
    rows = max(1, most // (math.prod(piece.shape[1:]) or 1))
    if rows > _CHUNK_ROWS:
        rows -= rows % _CHUNK_ROWS
    start = piece.span.start
    while start < piece.span.stop:
        stop = min((start // rows + 1) * rows, piece.span.stop)
        yield Span(start, stop)
        start = stop


def widen(half: NDArray[np.float16], out: Array) -> None:
    """Convert float16 to float32, bit by bit: 5000 MiB/s where numpy does 1150 and HDF5 280.

    The exponent is moved to its place, then its bias is mended by one multiplication, which is exact for subnormal
    numbers too. NaN and infinity become finite numbers from 65536 on.
    """
    bits = out.view(np.int32)
    bits[...] = half.view(np.int16)
    bits <<= 13
    bits &= -0x70002000  # the sign, which int16 to int32 spread over four bits, and the fifteen others
    out *= 2.0**112


def is_finite(block: Numbers, limit: float) -> bool:
    """Tell whether every value is below `limit` in size, at the speed of a dot product; numpy has none of float16."""
    flat = block.reshape(-1)
    if flat.dtype == np.float16:
        return bool((np.abs(flat) < limit).all())
    with np.errstate(all="ignore"):
        # Squares may overflow where values do not, and many add up: a suspicion is looked at closely.
        return bool(np.dot(flat, flat) < limit * limit or (np.abs(flat) < limit).all())
