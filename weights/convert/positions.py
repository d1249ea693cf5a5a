"""Positions of a picture's patches, fitted to another number of patches than those that a model was trained on."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from solver.base.arrays import Array
from solver.base.errors import HeptiError
from solver.model.spec import ImageInput, TextInput

_SHARPNESS = -0.75  # of the cubic kernel, in PyTorch


def patch_grid(source: ImageInput | TextInput) -> tuple[int, int]:
    """Return how many patches an image has, down and across."""
    assert isinstance(source, ImageInput)
    return source.height // source.patch, source.width // source.patch


def interpolated(table: Array, grid: tuple[int, int]) -> Array:
    """Return positions [1 + patches, H] for another grid of patches, as PyTorch's bicubic interpolation gives them.

    The first row, of the class token, stays.

    Raises
    ------
    HeptiError
        If the table is of no square grid.
    """
    side = math.isqrt(len(table) - 1)
    if side * side != len(table) - 1:
        raise HeptiError(f"config.json: {len(table) - 1} positions are no square, and cannot be fitted to {grid}")
    patches = table[1:].reshape(side, side, -1)
    down, across = (_weights(side, length) for length in grid)
    fitted = np.einsum("ip,jq,pqh->ijh", down, across, patches.astype(np.float64))
    return np.concatenate([table[:1], fitted.reshape(grid[0] * grid[1], -1)]).astype(np.float32)


def _weights(before: int, after: int) -> NDArray[np.float64]:
    """Return what every position of a line counts in the new ones [after, before]; edges are repeated."""
    weights = np.zeros((after, before))
    for row in range(after):
        middle = (row + 0.5) * before / after - 0.5
        first = math.floor(middle)
        for place in range(first - 1, first + 3):
            weights[row, min(max(place, 0), before - 1)] += _cubic(abs(middle - place))
    return weights


def _cubic(x: float) -> float:
    a = _SHARPNESS
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0
