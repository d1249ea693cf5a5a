"""The node of a product with a matrix in blocks, and which of its numbers may go once that is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from onnx import NodeProto, TensorProto, helper

from hepti_mpi.base.memory import Lent
from hepti_mpi.kernels.blocks import Blocks
from hepti_mpi.kernels.ort import CONTRIBUTED, Session, make_session
from solver.base.arrays import Numbers
from solver.model.kinds.weight import BLOCK

TRIED_ROWS = (1, 2, 5, 16, 256)  # kernels differ by them


def constants_of(matrix: Blocks, y: str) -> Mapping[str, Lent]:
    """Return the constants of a product y by their names."""
    return {f"{y}.levels": matrix.levels, f"{y}.scales": matrix.scales}


def block_node(matrix: Blocks, x: str, y: str, bias: Sequence[str] = ()) -> NodeProto:
    """Return the node of y = x · matrix + bias."""
    return helper.make_node(
        "MatMulNBits", [x, *constants_of(matrix, y), *(["", "", *bias] if bias else [])], [y], domain=CONTRIBUTED,
        N=matrix.out, K=matrix.summed, bits=matrix.bits, block_size=BLOCK, accuracy_level=4,
    )  # fmt: skip


def give_back_unread(matrix: Blocks) -> None:
    """Give back the pages of what is not read any more; the session is made."""
    tail = matrix.summed % BLOCK
    if _unread(matrix.bits, tail, "levels"):
        matrix.levels.give_back()
    if _unread(matrix.bits, tail, "scales"):
        matrix.scales.give_back()


@cache
def _unread(bits: int, tail: int, part: str) -> bool:
    """Return whether a product does not read its levels or its scales any more, since it has laid them out anew.

    onnxruntime does not say it, and it depends on the processor: on x86 it is both, of int4 20 bytes a block beside the
    24 of its own layout; on ARM, scales are read. Kernels also differ by whether the last block is a whole one, so
    `tail` is how many numbers that has, 0 for a whole one. So it is tried.
    """
    random = np.random.default_rng(0)
    out, blocks = 40, 3
    levels = random.integers(0, 256, (out, blocks, BLOCK * bits // 8), np.uint8)
    summed = BLOCK * blocks - (-tail % BLOCK)
    matrix = Blocks(Lent(levels), Lent(random.random((out, blocks), np.float32)), bits, summed)
    session = _product(matrix)
    xs = [random.standard_normal((rows, summed), np.float32) for rows in TRIED_ROWS]
    before = [_run(session, x, out) for x in xs]
    getattr(matrix, part).give_back()
    return all(np.array_equal(y, _run(session, x, out)) for x, y in zip(xs, before, strict=True))


def _product(matrix: Blocks) -> Session:
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])
        for name, width in (("x", matrix.summed), ("y", matrix.out))
    )
    constants = {name: part.array for name, part in constants_of(matrix, "y").items()}
    return make_session([block_node(matrix, "x", "y")], [x], [y], packed=constants, shares_constants=True)


def _run(session: Session, x: Numbers, width: int) -> Numbers:
    y = np.empty((len(x), width), np.float32)
    session.run({"x": x}, {"y": y})
    return y
