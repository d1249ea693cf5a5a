"""A matrix in blocks of int4 or int8, as it is held."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hepti_mpi.base.memory import Lent
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span
from solver.model.kinds.weight import BLOCK
from weights.decoders.quantise import dequantise


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """A matrix in blocks of 32 numbers along its summed axis, as MatMulNBits takes it; of one run of parts.

    Parameters
    ----------
    levels : [out, blocks, bytes] uint8
    scales : [out, blocks] float32
    bits
        Of a number.
    summed
        Length of the summed axis; the last block may have more numbers, zeros.
    minima : [blocks, out] float32
        What the level in the middle means; None: 0, in all blocks.
    """

    levels: Lent
    scales: Lent
    bits: int
    summed: int
    minima: Numbers | None = None

    @property
    def out(self) -> int:
        """Length of the other axis."""
        return len(self.levels.array)

    def numbers(self, some: Span) -> Array:
        """Return some columns of the matrix as numbers, [columns, in]."""
        numbers = dequantise(
            self.levels.array[some.slice], self.scales.array[some.slice], 1, self.summed, f"int{self.bits}"
        )
        if self.minima is not None:
            numbers += np.repeat(self.minima[:, some.slice].T, BLOCK, axis=1)[:, : self.summed]
        return numbers
