"""Weights as parts need them: rows of tensors, in float32 or in blocks as they are stored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hepti_mpi.base.memory import Lent
from hepti_mpi.kernels.blocks import Blocks
from hepti_mpi.kernels.kinds.held import Matrix, columns_of, rows_of
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span
from solver.model.kinds.part import Part, PartTensor, RankRegion
from solver.model.kinds.weight import BLOCK, PRECISIONS
from solver.model.precision import FLOAT32
from solver.plan.holdings import TensorSlice


class RunTensors:
    """The tensors of a run of parts, as a rank has them.

    Parameters
    ----------
    precision
        What matrices are held in.
    run
        The parts, and the rank's region of each.

    Attributes
    ----------
    places
        Where slices of them lie; to be filled before a matrix or a vector is taken. A matrix in blocks is taken out,
        since kernels have it in another place.
    """

    def __init__(self, precision: str, run: Sequence[tuple[Part, RankRegion]]) -> None:
        self._precision = PRECISIONS[precision]
        self._arrays: dict[str, Numbers] = {}
        self._columns: dict[str, int] = {}
        self.places: list[tuple[TensorSlice, Numbers]] = []
        own = {
            tensor.name: (tensor, rows_of(tensor, region), columns_of(tensor, part, region))
            for part, region in run
            for tensor in part.tensors
        }
        for tensor, rows, columns in own.values():
            self._allocate(tensor, rows, columns)

    def _allocate(self, tensor: PartTensor, rows: Span, columns: Span | None) -> None:
        stored = tensor.weight.stored(self._precision)
        self._columns[tensor.name] = columns.size if columns else tensor.shape[-1]
        if len(stored) > 1:
            if tensor.weight.summed == 0:
                rows = in_blocks(rows)
            elif columns is not None:
                columns = in_blocks(columns)
        types = (np.uint8, np.float16) if len(stored) > 1 else (np.float32,)
        for (suffix, shape), dtype in zip(stored.items(), types, strict=True):
            second = shape[1:2] if columns is None else (columns.size,)
            name, array = tensor.name + suffix, np.empty((rows.size, *second, *shape[2:]), dtype)
            self._arrays[name] = array
            self.places.append((TensorSlice(name, rows, array.shape, columns), array))

    def matrix(self, tensor: PartTensor, rows: Span) -> Matrix:
        """Return some rows of a matrix's first dimension."""
        summed, own = tensor.weight.summed, tensor.weight.held_in(self._precision)
        if own is FLOAT32:
            matrix = self._arrays[tensor.name]
            return matrix.T if summed else matrix
        self.places.clear()
        levels, scales = (self._arrays.pop(tensor.name + suffix) for suffix in ("", "/scale"))
        if not summed:
            levels, scales = levels.swapaxes(0, 1), scales.swapaxes(0, 1)
        length, minima, scales = self._columns[tensor.name] if summed else rows.size, None, scales.astype(np.float32)
        if own.minima:
            scales, minima = scales[..., 0], scales[..., 1].T
            if own.bits == 4:  # whose products count from the level in the middle
                minima = minima + np.float32(8) * scales.T
            minima = np.ascontiguousarray(minima)
        return Blocks(Lent(levels), Lent(scales), own.bits, length, minima)

    def vector(self, tensor: PartTensor, rows: Span) -> Array:
        """Return some numbers of a vector."""
        return self._arrays[tensor.name]


def in_blocks(numbers: Span) -> Span:
    """Return the blocks in which some numbers are."""
    return Span(numbers.start // BLOCK, -(-numbers.stop // BLOCK))
