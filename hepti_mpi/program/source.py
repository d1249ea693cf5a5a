"""Weights as parts need them: rows of a tensor, in float32 or in blocks as they are stored."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hepti_mpi.base.memory import Lent
from hepti_mpi.kernels.blocks import Blocks
from hepti_mpi.kernels.kinds.held import Matrix
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span
from solver.model.kinds.part import PartTensor
from solver.model.kinds.weight import BLOCK, PRECISIONS
from solver.model.precision import FLOAT32


class Reads(Protocol):
    """Where weights come from; as `weights.decoders.file.DecoderFile`."""

    def read(self, name: str, rows: Span | None = None) -> Array:
        """Return a tensor, or some rows of it, as float32."""

    def read_blocks(self, name: str, rows: Span | None = None) -> tuple[Numbers, Numbers]:
        """Return a matrix in blocks, or some of it, as stored."""


class FileSource:
    """A model's weights, from where they are stored.

    Parameters
    ----------
    precision
        What matrices are held in.
    reads
        Where they come from.
    """

    def __init__(self, precision: str, reads: Reads) -> None:
        self._precision, self._reads = PRECISIONS[precision], reads

    def matrix(self, tensor: PartTensor, rows: Span) -> Matrix:
        """Return some rows of a matrix's first dimension."""
        summed, own = tensor.weight.summed, tensor.weight.held_in(self._precision)
        if own is FLOAT32:
            matrix = self._reads.read(tensor.name, rows)
            return matrix.T if summed else matrix
        if summed:
            levels, scales = self._reads.read_blocks(tensor.name, rows)
        else:
            blocks = Span(rows.start // BLOCK, -(-rows.stop // BLOCK))
            levels, scales = self._reads.read_blocks(tensor.name, blocks)
            levels, scales = levels.swapaxes(0, 1), scales.swapaxes(0, 1)
        length, minima, scales = tensor.weight.shape[1] if summed else rows.size, None, scales.astype(np.float32)
        if own.minima:
            scales, minima = scales[..., 0], scales[..., 1].T
            if own.bits == 4:  # whose products count from the level in the middle
                minima = minima + np.float32(8) * scales.T
            minima = np.ascontiguousarray(minima)
        return Blocks(Lent(levels), Lent(scales), own.bits, length, minima)

    def vector(self, tensor: PartTensor, rows: Span) -> Array:
        """Return some numbers of a vector."""
        return self._reads.read(tensor.name, rows)
