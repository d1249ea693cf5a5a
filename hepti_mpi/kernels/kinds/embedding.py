"""The embedding of a rank that has the file: rows of words and places, read as they come."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from solver.base.arrays import Array
from solver.base.spans import Span
from solver.model.kinds.embedding import PLACES, WORDS, Embedding
from solver.schedule.decoders.memory import WORDS_KEPT


class ReadsRows(Protocol):
    """Where rows of tensors come from, in float32."""

    def read(self, name: str, rows: Span | None = None) -> Array:
        """Return some rows of a tensor."""


class ReadEmbedding:
    """The whole embedding, on a rank that has the file: rows of tokens, read as they come.

    Parameters
    ----------
    embedding
        Its kind.
    reads
        The weights; stays open.
    """

    def __init__(self, embedding: Embedding, reads: ReadsRows) -> None:
        self._embedding, self._reads = embedding, reads
        # A row from the file takes 72 us of a core.
        self._word = lru_cache(WORDS_KEPT)(self._read)

    def __call__(self, tokens: NDArray[np.int64], starts: Sequence[int], hidden: int) -> Array:
        """Return the rows [sequences, rows, hidden] of consecutive tokens [sequences, rows], after so many others."""
        out: Array = np.empty((*tokens.shape, hidden), np.float32)
        for row, token in zip(out.reshape(-1, hidden), tokens.reshape(-1).tolist(), strict=True):
            row[...] = self._word(token)
        for rows, start in zip(out, starts, strict=True) if self._embedding.positions else ():
            rows += self._reads.read(PLACES, Span(start, start + len(rows)))
        return out

    def _read(self, token: int) -> Array:
        row: Array = self._reads.read(WORDS, Span(token, token + 1))[0]
        row *= self._embedding.scale
        return row
