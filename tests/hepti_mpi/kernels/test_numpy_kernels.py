"""The arithmetic against the oracle's, which is float64."""

import math

import numpy as np
import pytest
from scipy.special import erf

from hepti_mpi.engine.batch import Batch
from hepti_mpi.kernels import numpy_kernels
from solver.base.spans import Span
from tests.kit import reference

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape, np.float32)


def test_gelu_is_exact_to_the_last_digits_of_float32():
    """Everywhere, the far ends and every size of number included."""
    x = np.concatenate([
        np.linspace(-12, 12, 400_001), np.geomspace(1e-38, 1e18, 2001), -np.geomspace(1e-38, 1e18, 2001), [0.0],
    ]).astype(np.float32)  # fmt: skip
    exact = 0.5 * x.astype(float) * (1 + erf(x.astype(float) / math.sqrt(2)))

    ours = numpy_kernels.gelu(x.copy())

    assert ours.dtype == np.float32
    # 5e-7, or float32's own rounding where numbers are large.
    np.testing.assert_allclose(ours, exact, rtol=1e-7, atol=5e-7)


@pytest.mark.parametrize("name", numpy_kernels.ACTIVATIONS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (0, 7), (5, 0), (130, 251)])
def test_activations_work_in_place_at_any_size(name, shape):
    """Shapes that are less than a tile, nothing, and no multiple of one."""
    x = 3 * normal(*shape)
    exact = reference.ACTIVATIONS[name](x.astype(float))

    ours = numpy_kernels.ACTIVATIONS[name](x)

    assert ours is x
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, exact, rtol=1e-6, atol=2e-6)


def test_an_activation_that_could_not_work_in_place_is_a_mistake():
    """A copy would be computed and thrown away."""
    with pytest.raises(ValueError, match="copy"):
        numpy_kernels.gelu(normal(4, 6)[:, :3])


@pytest.mark.parametrize("shape", [(1, 1), (2, 40), (511, 77), (0, 8)])
def test_layer_norm(shape):
    x, weight, bias = normal(*shape) + 3, normal(shape[1]), normal(shape[1])
    exact = reference.layer_norm(*(a.astype(float) for a in (x, weight, bias)), 1e-5)

    ours, before = numpy_kernels.layer_norm(x, weight, bias, 1e-5), x.copy()
    in_place = numpy_kernels.layer_norm(x, weight, bias, 1e-5, out=x)

    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, exact, atol=2e-5)
    assert in_place is x
    np.testing.assert_array_equal(in_place, ours)
    assert shape[0] == 0 or not np.array_equal(before, in_place)


def test_layer_norm_of_equal_numbers_is_its_bias():
    x = np.full((2, 16), 7, np.float32)

    np.testing.assert_array_equal(numpy_kernels.layer_norm(x, normal(16), bias := normal(16), 1e-12), [bias, bias])


@pytest.mark.parametrize("shape", [(1, 1), (3, 40), (511, 511), (0, 8)])
def test_softmax(shape):
    """Scores of any size: hundreds do not overflow."""
    x = 100 * normal(*shape)
    exact = reference.softmax(x.astype(float))

    ours = numpy_kernels.softmax(x)

    assert ours is x
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, exact, atol=1e-6)


def test_linear():
    x, weight, bias = normal(5, 7), normal(3, 7), normal(3)
    out = np.empty((5, 3), np.float32)

    ours = numpy_kernels.linear(x, weight, bias, out=out)

    assert ours is out
    assert numpy_kernels.linear(x, weight, bias).dtype == np.float32
    np.testing.assert_allclose(ours, x.astype(float) @ weight.T.astype(float) + bias, atol=1e-5)


@pytest.mark.parametrize("rows", [Span(0, 12), Span(2, 7), Span(5, 5), Span(11, 12)])
def test_attention_keeps_to_each_requests_rows(rows):
    """Requests of 4, 1 and 7 rows, heads of 3: as if each had been computed alone."""
    batch, head_dim = Batch.of_lengths([4, 1, 7]), 3
    q, k, v = normal(12, 6), normal(12, 6), normal(12, 6)
    exact = np.empty((12, 6))
    for request in batch.requests:
        for head in (slice(0, 3), slice(3, 6)):
            scores = q[request.slice, head].astype(float) @ k[request.slice, head].T / math.sqrt(head_dim)
            exact[request.slice, head] = reference.softmax(scores) @ v[request.slice, head]

    keys = batch.keys_of(rows)
    ours = numpy_kernels.attend(q[rows.slice], k[keys.slice], v[keys.slice], batch.pieces(rows, keys), head_dim)

    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, exact[rows.slice], atol=1e-5)


def attend_each(q, k, v, cuts, head_dim, attend_part=numpy_kernels.attend_part):
    """Return what `attend_part` gives for the keys between the cuts."""
    blocks = zip(np.split(k, cuts), np.split(v, cuts), strict=True)
    return [attend_part(q, k_block, v_block, head_dim) for k_block, v_block in blocks]


@pytest.mark.parametrize("cuts", [[], [1], [5], [3, 4], [0, 6, 9]])
@pytest.mark.parametrize("rows", [0, 1, 4])
def test_parts_of_the_keys_merge_to_all_of_them(cuts, rows):
    """However the keys are cut, parts without any included; scores of hundreds do not overflow."""
    q, k, v = 300 * normal(rows, 6), normal(9, 6), normal(9, 6)

    ours = numpy_kernels.merge(attend_each(q, k, v, cuts, 3))

    assert ours.dtype == np.float32
    np.testing.assert_allclose(
        ours, numpy_kernels.attend(q, k, v, [(slice(0, rows), slice(0, 9))], 3), rtol=0, atol=2e-5
    )


def test_a_part_says_what_it_weighs():
    """The logarithm of the sum of exp(q k / √d) per row and head; nothing where there are no keys."""
    q, k, v = normal(4, 6), normal(5, 6), normal(5, 6)
    by_head = np.einsum("rad,kad->rak", q.reshape(4, 2, 3), k.reshape(5, 2, 3)) / math.sqrt(3)

    (context, lse), (nothing, no_weight) = attend_each(q, k, v, [5], 3)

    assert lse.dtype == context.dtype == np.float32
    np.testing.assert_allclose(lse, np.log(np.exp(by_head).sum(axis=2)), atol=1e-5)
    assert not nothing.any()
    assert np.isneginf(no_weight).all()


@pytest.mark.parametrize("lengths", [[5], [3, 9, 1]])
def test_attention_without_keys_is_attention(lengths):
    """Rows 2 and on of all requests; biases of K, which changes nothing, and of V."""
    H, head_dim, rows = 24, 8, sum(lengths)
    x, q, w_k, w_v, b_k, b_v = normal(rows, H), normal(rows - 2, H), normal(H, H), normal(H, H), normal(H), normal(H)
    batch = Batch.of_lengths(lengths)
    pieces = batch.pieces(Span(2, rows), Span(0, rows))
    exact = numpy_kernels.attend(q, x @ w_k.T + b_k, x @ w_v.T + b_v, pieces, head_dim)

    ours = numpy_kernels.attend_without_keys(q, x, numpy_kernels.KeyWeights(w_k, w_v, b_v), pieces, head_dim)

    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, exact, atol=1e-4)
