"""Matrices in blocks: their products, and that they are not held twice."""

import gc
import platform

import numpy as np
import pytest

from hepti_mpi.base.memory import Lent, give_back, own_bytes
from hepti_mpi.kernels.blocks import Blocks
from hepti_mpi.kernels.kinds.block_nodes import block_node, constants_of, give_back_unread
from hepti_mpi.kernels.ort import Session, make_session
from solver.model.kinds.weight import BLOCK, PRECISIONS
from solver.schedule.decoders.memory import HELD
from tests import sweeps
from weights.decoders.quantise import dequantise, quantise

helper = pytest.importorskip("onnx").helper
pytest.importorskip("onnxruntime")


def product(matrix: Blocks) -> Session:
    values = [helper.make_tensor_value_info(n, 1, ["rows", w]) for n, w in (("x", matrix.summed), ("y", matrix.out))]
    constants = {name: part.array for name, part in constants_of(matrix, "y").items()}
    node = block_node(matrix, "x", "y")
    session = make_session([node], values[:1], values[1:], packed=constants, shares_constants=True)
    give_back_unread(matrix)
    return session


@pytest.mark.parametrize(
    ("rows", "shape", "precision"),
    sweeps.cycled(8, [1, 3, 8, 70], [(1, 32), (37, 96), (21, 100), (200, 320)], ["int4", "int8"]),
)
def test_gives_the_product_when_its_pages_are_given_back(precision: str, shape: tuple[int, int], rows: int) -> None:
    random = np.random.default_rng(0)
    out, inner = shape
    weight, x = (random.standard_normal(shape, np.float32) for shape in ((out, inner), (rows, inner)))
    levels, scales = quantise(weight, 1, precision)
    matrix = Blocks(Lent(levels), Lent(scales.astype(np.float32)), PRECISIONS[precision].bits, inner)
    y = np.empty((rows, out), np.float32)
    product(matrix).run({"x": x}, {"y": y})
    exact = x @ dequantise(levels, scales, 1, inner, precision).T
    assert np.abs(y - exact).max() < 0.02 * inner**0.5 * np.abs(x).max() * np.abs(weight).max()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="ARM's products hold other numbers")
@pytest.mark.parametrize(("precision", "held"), [("int4", 24), ("int8", 40)])
def test_holds_only_what_the_product_reads_and_no_more_than_is_predicted(precision: str, held: int) -> None:
    bits = PRECISIONS[precision].bits
    product(
        Blocks(Lent(np.zeros((8, 1, 4 * bits), np.uint8)), Lent(np.ones((8, 1), np.float32)), bits, BLOCK)
    )  # imports
    out, blocks = 8192, 64
    gc.collect()
    give_back()
    before = own_bytes()
    levels = Lent(np.full((out, blocks, 4 * bits), 0x78, np.uint8))
    matrix = Blocks(levels, Lent(np.ones((out, blocks), np.float32)), bits, blocks * BLOCK)
    session = product(matrix)
    give_back()
    # If it held what it was made of, too, it would be 44 of int4 and 76 of int8.
    assert own_bytes() - before == pytest.approx(held * out * blocks, rel=0.08)
    assert held * out * blocks <= HELD[precision].bytes_of((out, blocks * BLOCK), 1)
    del session


def test_lends_what_it_was_given_and_then_zeros() -> None:
    lent = Lent(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert lent.array.tolist() == [[0, 1, 2], [3, 4, 5]]
    lent.give_back()
    assert not lent.array.any()
    assert Lent(np.empty((0, 4), np.uint8)).array.shape == (0, 4)
