"""What a backend computes: graphs of a rank's share between two exchanges, and attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from hepti_mpi.comm.wires import Cast
from hepti_mpi.kernels import numpy_kernels
from hepti_mpi.kernels.kinds.held import Known
from solver.base.arrays import Array


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """x [rows, in] -> act(x W + b) [rows, out].

    `weight` is [out, in] with a bias [out], as query, key, value and up lie; or, without a bias, [in, out], as the
    attention output and down do.
    """

    weight: Array
    bias: Array | None
    activation: str = "identity"


@dataclass(frozen=True, slots=True, eq=False)
class AddBias:
    """x [rows, out] -> act(x + b): what is made of a sum of products."""

    bias: Array
    activation: str = "identity"


@dataclass(frozen=True, slots=True, eq=False)
class AddResidual:
    """x [rows, H] -> x + bias + residual, the graph's second input."""

    bias: Array


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """x [rows, H] -> every row with mean 0 and variance 1, scaled and shifted."""

    weight: Array
    bias: Array
    eps: float


Operation = Linear | AddBias | AddResidual | Norm


class Graph(Protocol):
    """Operations one after the other on x [rows, in], into `out` [rows, width] where it is given."""

    def __call__(self, x: Array, out: Array | None = None, residual: Array | None = None) -> Array:
        """Compute."""

    def bound(
        self, x: Array, out: Array, residual: Array | None = None, known: Known | None = None
    ) -> Callable[[], object]:
        """Return a call that computes always these arrays, of one row or more; all are contiguous.

        What it takes of an array is made once, and in `known`.
        """


class MakeGraph(Protocol):
    """Makes a graph; at least one operation."""

    def __call__(self, operations: Sequence[Operation]) -> Graph:
        """Make."""


class Attend(Protocol):
    """Attention over all keys at once, as `numpy_kernels.attend`."""

    def __call__(
        self, q: Array, k: Array, v: Array, pieces: Iterable[tuple[slice, slice]], head_dim: int,
        *, out: Array | None = None,
    ) -> Array:  # fmt: skip
        """Compute."""


class AttendPart(Protocol):
    """Attention over some of the keys, as `numpy_kernels.attend_part`."""

    def __call__(self, q: Array, k: Array, v: Array, head_dim: int, out: Array | None = None) -> tuple[Array, Array]:
        """Compute."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What computes a rank's share."""

    graph: MakeGraph
    attend: Attend
    attend_part: AttendPart
    cast: Cast

    def product(self, weight: Array, bias: Array | None, activation: str = "identity") -> Graph:
        """Make a graph of one product; arguments as in `Linear`."""
        return self.graph([Linear(weight, bias, activation)])


@dataclass(frozen=True, slots=True, eq=False)
class NumpyGraph:
    """A graph of numpy's; it packs the weights anew at every call."""

    operations: Sequence[Operation]

    def __call__(self, x: Array, out: Array | None = None, residual: Array | None = None) -> Array:
        """Compute."""
        last = self.operations[-1]
        for operation in self.operations:
            x = _computed(operation, x, residual, out if operation is last else None)
        return x

    def bound(
        self, x: Array, out: Array, residual: Array | None = None, known: Known | None = None
    ) -> Callable[[], object]:
        """Return a call."""
        return partial(self, x, out, residual)


def _computed(operation: Operation, x: Array, residual: Array | None, out: Array | None) -> Array:
    if isinstance(operation, Norm):
        return numpy_kernels.layer_norm(x, operation.weight, operation.bias, operation.eps, out)
    if isinstance(operation, AddResidual):
        assert residual is not None
        total = np.add(x, residual, out=out)
        total += operation.bias
        return total
    if isinstance(operation, AddBias):
        return numpy_kernels.ACTIVATIONS[operation.activation](np.add(x, operation.bias, out=out))
    if operation.bias is None:
        return np.matmul(x, operation.weight, out=out)
    y = numpy_kernels.linear(x, operation.weight, operation.bias, out)
    return numpy_kernels.ACTIVATIONS[operation.activation](y)


NUMPY = Backend(NumpyGraph, numpy_kernels.attend, numpy_kernels.attend_part, np.copyto)
