"""Numbers in blocks of 32 that share a scale, and back: Q4_0, Q4_1 and Q8_0 of llama.cpp, bit for bit.

Levels lie along the axis that a product sums over; one that is not full is filled up with zeros. Formats:
`solver.model.decoder.Weight.stored`. One core makes 110 (int4) to 170 (int8) million numbers a second.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from solver.base.arrays import Array
from solver.model.kinds.weight import BLOCK

Levels = NDArray[np.uint8]
Scales = NDArray[np.float16]
# The level that means 0, or the minimum where blocks have one.
_ZERO = {"int8": 128, "int4": 8, "int4m": 0, "int8m": 128}
_BITS = {"int8": 8, "int4": 4, "int4m": 4, "int8m": 8}


def quantise(block: Array, summed: int, precision: str) -> tuple[Levels, Scales]:
    """Turn some rows of a matrix into blocks.

    Parameters
    ----------
    block : [out, in] (`summed` 1) or [in, out] (`summed` 0)
        Numbers; a NaN or infinity becomes a scale that is none.
    precision
        int8 or int4; int4m or int8m with minima.

    Returns
    -------
    blocks : [out, b, bytes] or [b, out, bytes]
    scales : [out, b] or [b, out]; with minima [..., 2]
    """
    matrix = np.ascontiguousarray(block if summed else block.T, np.float32)
    if missing := -matrix.shape[1] % BLOCK:
        matrix = np.pad(matrix, ((0, 0), (0, missing)))
    with np.errstate(all="ignore"):  # a number that is none shows in its scale
        levels, scales = _LEVELS[precision](matrix.reshape(len(matrix), -1, BLOCK))
    if _BITS[precision] == 4:
        levels = levels[..., 0::2] | (levels[..., 1::2] << np.uint8(4))
    if not summed:
        levels, scales = levels.swapaxes(0, 1), scales.swapaxes(0, 1)
    return np.ascontiguousarray(levels), np.ascontiguousarray(scales)


def dequantise(blocks: Levels, scales: Scales, summed: int, length: int, precision: str) -> Array:
    """Turn blocks into numbers.

    Parameters
    ----------
    blocks, scales
        As `quantise` returns them.
    length
        Of the summed axis, whose last block may not be full.

    Returns
    -------
    [out, length] (`summed` 1) or [length, out] (`summed` 0), float32
    """
    levels = blocks
    if _BITS[precision] == 4:
        levels = np.empty((*blocks.shape[:2], BLOCK), np.uint8)
        np.bitwise_and(blocks, 15, out=levels[..., 0::2])
        np.right_shift(blocks, 4, out=levels[..., 1::2])
    numbers = levels.astype(np.float32)
    numbers -= _ZERO[precision]
    if precision.endswith("m"):
        scales, minima = scales[..., 0], scales[..., 1]
        numbers *= scales[..., None].astype(np.float32)
        numbers += minima[..., None].astype(np.float32)
    else:
        numbers *= scales[..., None].astype(np.float32)
    if not summed:
        numbers = numbers.transpose(0, 2, 1)
        return np.ascontiguousarray(numbers).reshape(-1, blocks.shape[1])[:length]
    return np.ascontiguousarray(numbers.reshape(len(blocks), blocks.shape[1] * BLOCK)[:, :length])


def _int4(blocks: Array) -> tuple[Levels, Scales]:
    """Give level 0 to the number of largest size; hence the sign of its scale."""
    largest, smallest = blocks.max(axis=-1), blocks.min(axis=-1)
    even = largest == -smallest  # the first of both counts
    extreme = np.where(largest > -smallest, largest, smallest)
    if even.any():
        tied = blocks[even]
        extreme[even] = np.take_along_axis(tied, np.abs(tied).argmax(axis=-1)[:, None], axis=-1)[:, 0]
    scales = extreme / np.float32(-8)
    levels = blocks * _inverse(scales)[..., None]
    levels += np.float32(8.5)
    return np.minimum(levels.astype(np.uint8), 15), scales.astype(np.float16)


def _int8(blocks: Array) -> tuple[Levels, Scales]:
    """Round to the nearest level, from the middle away from zero."""
    scales = np.maximum(blocks.max(axis=-1), -blocks.min(axis=-1)) / np.float32(127)
    levels = blocks * _inverse(scales)[..., None]
    levels += np.copysign(np.float32(0.5), levels)
    return levels.astype(np.int8).view(np.uint8) ^ np.uint8(0x80), scales.astype(np.float16)


def _int4m(blocks: Array) -> tuple[Levels, Scales]:
    """Spread levels from the smallest number to the largest."""
    smallest = blocks.min(axis=-1)
    scales = (blocks.max(axis=-1) - smallest) / np.float32(15)
    levels = (blocks - smallest[..., None]) * _inverse(scales)[..., None] + np.float32(0.5)
    return np.minimum(levels.astype(np.uint8), 15), np.stack([scales, smallest], -1).astype(np.float16)


def _int8m(blocks: Array) -> tuple[Levels, Scales]:
    """As int8, with minima of 0."""
    levels, scales = _int8(blocks)
    return levels, np.stack([scales, np.zeros_like(scales)], -1)


def _inverse(scales: Array) -> Array:
    """Return 1 / scale; 0 for a block of zeros."""
    return np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)


_LEVELS = {"int4": _int4, "int8": _int8, "int4m": _int4m, "int8m": _int8m}
