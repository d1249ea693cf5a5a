"""What a rank computes of a part, and what it holds for it, whatever computes: a run of parts, bound to its arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from hepti_mpi.kernels.blocks import Blocks
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span
from solver.model.kinds.part import HIDDEN, Part, PartTensor, RankRegion

Matrix = Array | Blocks  # an Array is [in, out], or such a view of one that lies as [out, in]

Known = dict[int, tuple[Numbers, object]]  # by the numbers of objects: arrays, and what a graph takes of each


class TensorSource(Protocol):
    """Where a rank's share of tensors comes from."""

    def matrix(self, tensor: PartTensor, rows: Span) -> Matrix:
        """Return some rows of a matrix's first dimension."""

    def vector(self, tensor: PartTensor, rows: Span) -> Array:
        """Return some numbers of a vector."""


class PartRun(Protocol):
    """What a rank computes of some parts, one after the other: a session of onnxruntime, or numpy's."""

    @property
    def inputs(self) -> Sequence[str]:
        """The names of what it takes."""

    def bound(
        self, inputs: Mapping[str, Numbers], outputs: Mapping[str, Numbers], known: Known
    ) -> Callable[[], object]:
        """Return a call that computes these arrays of those; what it takes of an array is made once, and in `known`."""


class MakeRun(Protocol):
    """Makes a run of parts."""

    def __call__(
        self, run: Sequence[tuple[Part, RankRegion]], leaves: Collection[str], source: TensorSource, *, cache: str
    ) -> PartRun:
        """Return it, of which the values of these names come out, of tensors from `source`.

        `cache`: what keys and values are kept in.
        """


def rows_of(tensor: PartTensor, region: RankRegion) -> Span:
    """Return which rows of a tensor a region needs."""
    return tensor.rows(region[tensor.axis]) if tensor.axis else Span(0, tensor.weight.shape[0])


def columns_of(tensor: PartTensor, part: Part, region: RankRegion) -> Span | None:
    """Return which columns of a tensor a region of its part needs; None: all."""
    width = part.columns(tensor, 1) if HIDDEN in region else None
    return None if width is None or region[HIDDEN].size == part.axes[HIDDEN] else region[HIDDEN].scaled(width)
