"""The backend on onnxruntime against numpy's, which is the reference."""

import math
import sys

import numpy as np
import pytest

from hepti_mpi.engine.batch import Batch
from hepti_mpi.kernels import int8, numpy_kernels, ort
from hepti_mpi.kernels.products import NUMPY, AddResidual, Linear, Norm
from solver.base.spans import Span
from tests import sweeps

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _same_numbers_each_time(monkeypatch):
    """Whichever tests ran before."""
    monkeypatch.setattr(sys.modules[__name__], "RNG", np.random.default_rng(0))


def normal(*shape):
    return RNG.standard_normal(shape, np.float32)


@pytest.mark.parametrize("activation", numpy_kernels.ACTIVATIONS)
@pytest.mark.parametrize("rows", [0, 1, 19])
def test_a_product_is_numpys(activation, rows):
    """With a bias and an activation, into a given array or a new one."""
    weight, bias, x, out = normal(13, 7), normal(13), normal(rows, 7), np.empty((rows, 13), np.float32)
    ours = ort.FLOAT32.product(weight, bias, activation)

    assert ours(x, out) is out
    np.testing.assert_array_equal(ours(x), out)
    np.testing.assert_allclose(out, NUMPY.product(weight, bias, activation)(x), atol=1e-5)


def test_a_product_without_bias_has_its_weight_the_other_way_round():
    weight, x = normal(13, 7), normal(5, 13)

    np.testing.assert_allclose(ort.FLOAT32.product(weight, None)(x), x @ weight, atol=1e-5)


@pytest.mark.parametrize("threads", ["4,2", "abc", ""])
def test_threads_may_be_a_list_or_garbage(threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    weight, x = normal(13, 7), normal(5, 13)

    np.testing.assert_allclose(ort.FLOAT32.product(weight, None)(x), x @ weight, atol=1e-5)


def test_a_product_is_right_wherever_its_arrays_lie_next():
    """The same place with other numbers, another place, the same place with fewer rows."""
    weight, bias = normal(13, 7), normal(13)
    ours, numpys = ort.FLOAT32.product(weight, bias), NUMPY.product(weight, bias)
    x, out = normal(19, 7), np.empty((19, 13), np.float32)
    for rows, into in ((x, out), (x, out), (normal(19, 7), out), (x, np.empty_like(out)), (x[:5], out[:5])):
        np.testing.assert_allclose(ours(rows, into), numpys(rows), atol=1e-5)
    x[:] = normal(19, 7)

    np.testing.assert_allclose(ours(x, out), numpys(x), atol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 19])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_whole_block_is_one_graph(precision, rows):
    """Norm, up, activation, down, residual, norm: as numpy does them one after the other."""
    width, ffn = 24, 56
    norms = [Norm(normal(width), normal(width), 1e-5) for _ in range(2)]
    up, down = Linear(normal(ffn, width), normal(ffn), "gelu"), Linear(normal(ffn, width), None)
    operations = [norms[0], up, down, AddResidual(normal(width)), norms[1]]
    x, residual, out = normal(rows, width), normal(rows, width), np.empty((rows, width), np.float32)
    graph = (ort.FLOAT32 if precision == "float32" else int8.INT8).graph(operations)

    assert graph(x, out, residual) is out
    np.testing.assert_allclose(
        out, NUMPY.graph(operations)(x, residual=residual), atol=1e-4 if precision == "float32" else 0.1
    )


@pytest.mark.parametrize("shape", [(0, 7), (7, 0)])
def test_an_empty_share_computes_nothing(shape):
    assert ort.FLOAT32.product(normal(*shape), None)(normal(3, shape[0])).shape == (3, shape[1])


HEADS = ((0, 3), (1, 1), (2, 3), (3, 64))  # how many, and how wide


@pytest.mark.parametrize(
    ("heads", "rows"), sweeps.cycled(8, HEADS, [Span(0, 12), Span(2, 7), Span(5, 5), Span(11, 12)])
)
def test_attention_is_numpys(rows, heads):
    """Requests of 4, 1 and 7 rows; k and v are views whose rows do not follow one another."""
    heads, head_dim = heads
    batch, width = Batch.of_lengths([4, 1, 7]), heads * head_dim
    q, k, v = np.split(normal(12, 3 * width), 3, axis=1)
    keys = batch.keys_of(rows)
    arguments = (q[rows.slice], k[keys.slice], v[keys.slice], batch.pieces(rows, keys), head_dim)

    ours = ort.attend(*arguments)

    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, numpy_kernels.attend(*arguments), atol=1e-5)


@pytest.mark.parametrize(("sizes", "heads"), sweeps.cycled(10, [(0, 3), (3, 0), (1, 1), (9, 5), (5, 9)], HEADS))
def test_attention_over_some_keys_is_numpys(sizes, heads, monkeypatch):
    """Context and log-sum-exp, at a time as many rows as fit; scores of hundreds do not overflow."""
    (rows, keys), (heads, head_dim) = sizes, heads
    monkeypatch.setattr(ort, "SCORES", 4 * 5 * max(heads, 1))
    q, (k, v) = 100 * normal(rows, heads * head_dim), np.split(normal(keys, 2 * heads * head_dim), 2, axis=1)
    out = np.empty_like(q)

    context, lse = ort.attend_part(q, k, v, head_dim, out)
    expected, expected_lse = numpy_kernels.attend_part(q, k, v, head_dim)

    assert context is out
    assert lse.dtype == np.float32
    # A score is off by half a unit in the last place of its terms, here and there; so much, relatively, is its weight.
    by_head = (np.abs(x).reshape(len(x), heads, head_dim) for x in (q, k))
    terms = np.einsum("rhd,khd->hrk", *by_head).max(initial=0)
    off = np.finfo(np.float32).eps * terms / math.sqrt(head_dim)
    np.testing.assert_allclose(context, expected, atol=1e-6 + off * np.abs(v).max(initial=0))
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-5, atol=1e-5)
