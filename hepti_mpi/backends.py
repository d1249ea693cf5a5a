"""Which backend computes the products: numpy, the reference, or onnxruntime."""

from __future__ import annotations

from importlib.util import find_spec

from hepti_mpi.memory import keep_freed
from hepti_mpi.products import NUMPY, Backend
from solver.errors import HeptiError

NAMES = ("auto", "numpy", "onnxruntime")


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


def check_precision(precision: str, name: str) -> None:
    """Refuse a precision that a backend does not have.

    Raises
    ------
    HeptiError
        If int8 is asked of numpy.
    """
    if precision == "int8" and name == "numpy":
        raise HeptiError(
            "--precision int8 needs --backend onnxruntime, here it is numpy: take that (if it lacks: pip install "
            "onnxruntime onnx), or float32"
        )


def backend(name: str, precision: str = "float32") -> Backend:
    """Return what computes: "numpy" or "onnxruntime", in "float32" or, the latter, in "int8"."""
    keep_freed()
    if name == "numpy":
        return NUMPY
    from hepti_mpi import int8, ort  # an import of 0.3 s and 50 MiB that numpy does without

    return int8.INT8 if precision == "int8" else ort.FLOAT32
