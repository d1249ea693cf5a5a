"""Which backend computes the products: numpy, the reference, or onnxruntime."""

from __future__ import annotations

from importlib.util import find_spec

from hepti_mpi.memory import keep_freed
from hepti_mpi.products import NUMPY, Backend
from solver.errors import HeptiError


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
    """Return what computes: "numpy" or "onnxruntime"."""
    keep_freed()
    if name == "numpy":
        return NUMPY
    from hepti_mpi import ort  # an import of 0.3 s and 50 MiB that numpy does without

    return ort.FLOAT32
