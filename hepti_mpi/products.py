"""Products with constant weights: what a backend computes."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hepti_mpi import kernels
from hepti_mpi.arrays import Array


class Product(Protocol):
    """x [rows, in] -> act(x W + b) [rows, out], into `out` where it is given."""

    def __call__(self, x: Array, out: Array | None = None) -> Array:
        """Compute."""


class Backend(Protocol):
    """Makes a product.

    `weight` is [out, in] with a bias [out], as query, key, value and up lie; or, without a bias, [in, out], as the
    attention output and down do.
    """

    def __call__(self, weight: Array, bias: Array | None, activation: str = "identity") -> Product:
        """Make."""


def numpy_product(weight: Array, bias: Array | None, activation: str = "identity") -> Product:
    """Make a product of numpy's; it packs the weights anew at every call."""
    activate = kernels.ACTIVATIONS[activation]

    def product(x: Array, out: Array | None = None) -> Array:
        if bias is None:
            return np.matmul(x, weight, out=out)
        return activate(kernels.linear(x, weight, bias, out))

    return product
