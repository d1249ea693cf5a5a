"""Products with constant weights: what a backend computes."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Protocol

import numpy as np

from hepti_mpi import kernels
from hepti_mpi.arrays import Array
from solver.errors import HeptiError


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


def chosen(name: str) -> str:
    """Return what `--backend auto` stands for here, onnxruntime where it is installed, or the name itself.

    Raises
    ------
    HeptiError
        If onnxruntime is asked for and not installed.
    """
    installed = find_spec("onnxruntime") is not None and find_spec("onnx") is not None
    if name == "onnxruntime" and not installed:
        raise HeptiError("--backend onnxruntime is not installed: pip install 'hepti[fast]', or take --backend numpy")
    return ("onnxruntime" if installed else "numpy") if name == "auto" else name


def backend(name: str) -> Backend:
    """Return what makes products: "numpy" or "onnxruntime"."""
    if name == "numpy":
        return numpy_product
    from hepti_mpi.ort import onnxruntime_product  # an import of 0.3 s and 50 MiB that numpy does without

    return onnxruntime_product


def numpy_product(weight: Array, bias: Array | None, activation: str = "identity") -> Product:
    """Make a product of numpy's; it packs the weights anew at every call."""
    activate = kernels.ACTIVATIONS[activation]

    def product(x: Array, out: Array | None = None) -> Array:
        if bias is None:
            return np.matmul(x, weight, out=out)
        return activate(kernels.linear(x, weight, bias, out))

    return product
