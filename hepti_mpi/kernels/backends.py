"""Which backend computes the products: numpy, the reference, or onnxruntime, where it has shown that it can."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hepti_mpi.base.memory import keep_freed
from hepti_mpi.comm.group import Group, SharedError, host_name
from hepti_mpi.kernels import trial
from hepti_mpi.kernels.products import NUMPY, Backend
from solver.base.environment import install
from solver.base.errors import HeptiError

if TYPE_CHECKING:
    from hepti_mpi.kernels.kinds.held import MakeRun
    from hepti_mpi.kernels.slab import MakeBind
    from solver.model.convnet import Node

ONNXRUNTIME = "onnxruntime"
NAMES = ("auto", "numpy", ONNXRUNTIME)


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


def agree(name: str, precision: str, group: Group, *, chosen: bool = True) -> tuple[list[str], list[str]]:
    """Return what `--backend` stands for on every rank, and what the person should be told of it; a collective step.

    A board on which onnxruntime cannot compute takes numpy's; the others keep theirs.

    Parameters
    ----------
    chosen
        Whether boards of which none has onnxruntime lack it on purpose: then nobody is told.

    Raises
    ------
    SharedError
        If onnxruntime is asked for, by its name or by --precision int8, and cannot compute on a board.
    """
    if name == "numpy":
        return ["numpy"] * group.size, []
    found = troubles(group)
    without = {host: trouble for host, trouble in found if trouble}
    asked = "--backend onnxruntime" if name == "onnxruntime" else "--precision int8"
    if without and (name == "onnxruntime" or precision == "int8"):
        host, trouble = next(iter(without.items()))
        instead = "--backend numpy" if precision == "float32" else "--precision float32"
        raise SharedError(f"{asked} cannot be had on {host}: {trouble}: {mend(trouble)}, or take {instead}")
    if chosen and all(trouble == trial.MISSING for _, trouble in found):
        without = {}
    notes = [f"{host} computes with numpy: {trouble}: {mend(trouble)}" for host, trouble in without.items()]
    return ["numpy" if trouble else "onnxruntime" for _, trouble in found], notes


def need_onnx(model: str, group: Group) -> None:
    """Refuse boards without the package that graphs of a network are written with; a collective step.

    Parameters
    ----------
    model
        The network's name.

    Raises
    ------
    SharedError
        If a board has none.
    """
    for host, has in group.on_all(lambda: (host_name(), find_spec("onnx") is not None)):
        if not has:
            raise SharedError(f"{model} needs onnx, by any backend; it is not installed on {host}: {install('fast')}")


def troubles(group: Group) -> list[tuple[str, str]]:
    """Return of every rank its host, and what keeps onnxruntime from computing there; the first rank of a board tries.

    Where there are several kinds of board on one host, as where some are emulated, each is tried.
    """
    found = group.on_all(lambda: (host_name(), trial.identity(), trial.known()))
    untried = [(host, board) if trouble is None else None for host, board, trouble in found]
    if not any(untried):
        return [(host, trouble or "") for host, _, trouble in found]
    mine = untried[group.rank]
    tries = mine is not None and untried.index(mine) == group.rank
    outcomes = group.on_all(lambda: trial.tried() if tries else "")
    return [
        (host, outcomes[untried.index((host, board))] if trouble is None else trouble) for host, board, trouble in found
    ]


def mend(trouble: str) -> str:
    """Return what helps against a trouble."""
    return install("fast") if trouble == trial.MISSING else "try another version of onnxruntime there"


def of_all(names: Sequence[str]) -> str:
    """Return the backend of all ranks, "auto" where they have several: each its own."""
    return names[0] if len(set(names)) == 1 else "auto"


def backend(name: str, precision: str = "float32") -> Backend:
    """Return what computes: "numpy" or "onnxruntime", in "float32" or, the latter, in "int8"."""
    keep_freed()
    if name == "numpy":
        return NUMPY
    from hepti_mpi.kernels import (
        int8,  # both import onnxruntime: 0.3 s and 50 MiB that numpy does without
        ort,
    )

    return int8.INT8 if precision == "int8" else ort.FLOAT32


def run_maker(name: str) -> MakeRun:
    """Return what makes runs of a language model's parts: numpy's, or graphs of onnxruntime."""
    keep_freed()
    if name == "numpy":
        from hepti_mpi.kernels.kinds.numpy_run import NumpyRun

        return NumpyRun
    from hepti_mpi.kernels.kinds.runs import session_of  # imports onnx, which numpy does without

    return session_of


def graph_maker(name: str, nodes: Sequence[Node], group: Group) -> MakeBind:
    """Return what makes graphs of a network's nodes ready to run on this rank; a collective step.

    Parameters
    ----------
    name
        What computes here: numpy or onnxruntime.
    nodes
        All of the network's.

    Raises
    ------
    SharedError
        If a rank computes with numpy, and that has not the operator of a node.
    """
    keep_freed()
    if name == "numpy":
        from hepti_mpi.kernels.evaluated import check_operators, evaluator  # 0.15 s that onnxruntime does without
    from hepti_mpi.kernels.slab import session  # imports onnx, which other models by numpy do without

    group.on_all(lambda: check_operators(nodes) if name == "numpy" else None)
    return evaluator if name == "numpy" else session
