"""What a backend computes: products with constant weights, and attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hepti_mpi.base.arrays import Array
from hepti_mpi.comm.wires import Cast
from hepti_mpi.kernels import numpy_kernels


class Product(Protocol):
    """x [rows, in] -> act(x W + b) [rows, out], into `out` where it is given."""

    def __call__(self, x: Array, out: Array | None = None) -> Array:
        """Compute."""


class MakeProduct(Protocol):
    """Makes a product.

    `weight` is [out, in] with a bias [out], as query, key, value and up lie; or, without a bias, [in, out], as the
    attention output and down do.
    """

    def __call__(self, weight: Array, bias: Array | None, activation: str = "identity") -> Product:
        """Make."""


class Attend(Protocol):
    """Attention over all keys at once, as `numpy_kernels.attend`."""

    def __call__(self, q: Array, k: Array, v: Array, pieces: Iterable[tuple[slice, slice]], head_dim: int) -> Array:
        """Compute."""


class AttendPart(Protocol):
    """Attention over some of the keys, as `numpy_kernels.attend_part`."""

    def __call__(self, q: Array, k: Array, v: Array, head_dim: int, out: Array | None = None) -> tuple[Array, Array]:
        """Compute."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What computes a rank's share."""

    product: MakeProduct
    attend: Attend
    attend_part: AttendPart
    cast: Cast


def numpy_product(weight: Array, bias: Array | None, activation: str = "identity") -> Product:
    """Make a product of numpy's; it packs the weights anew at every call."""
    activate = numpy_kernels.ACTIVATIONS[activation]

    def product(x: Array, out: Array | None = None) -> Array:
        if bias is None:
            return np.matmul(x, weight, out=out)
        return activate(numpy_kernels.linear(x, weight, bias, out))

    return product


NUMPY = Backend(numpy_product, numpy_kernels.attend, numpy_kernels.attend_part, np.copyto)
