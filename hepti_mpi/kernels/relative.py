"""What distances between rows add to the scores of heads: T5's buckets, as MPNet has them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from solver.base.arrays import Array
from solver.base.spans import Span

FARTHEST = 128  # from this distance on all are in one bucket


@dataclass(frozen=True, slots=True, eq=False)
class Relative:
    """A number for every head and every bucket of distances [A, buckets]."""

    table: Array

    def between(self, heads: Span, rows: Span, keys: Span) -> Array:
        """Return what is added to the scores of some rows and keys of a request [heads, rows, keys], not to be written.

        By the distance alone: the rows of it are one line, each read from another place.
        """
        distances = np.arange(keys.start - rows.stop + 1, keys.stop - rows.start)
        line = self.table[heads.slice][:, buckets(self.table.shape[1])[distances + _MOST]]
        return np.lib.stride_tricks.sliding_window_view(line, keys.size, axis=1)[:, ::-1]


_MOST = 1 << 15  # rows of a request, and more


@lru_cache(maxsize=4)
def buckets(count: int) -> NDArray[np.int64]:
    """Return the bucket of every distance, key minus row, from -_MOST to _MOST."""
    distances = np.arange(-_MOST, _MOST + 1)
    half = count // 2
    exact = half // 2
    far = np.maximum(np.abs(distances), 1).astype(np.float32)
    large = np.log(far / np.float32(exact)) / np.float32(math.log(FARTHEST / exact)) * np.float32(half - exact)
    bucket = np.where(np.abs(distances) < exact, np.abs(distances), exact + large.astype(np.int64))
    found: NDArray[np.int64] = np.minimum(bucket, half - 1) + half * (distances > 0)
    return found
