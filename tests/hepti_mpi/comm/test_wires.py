"""What a wire makes of numbers."""

import numpy as np
import pytest

from hepti_mpi.comm.wires import CLIPS, coding
from hepti_mpi.kernels.backends import backend
from solver.plan.plan import STAGE_WIRES, Wire

X = (np.random.default_rng(0).standard_normal((7, 48)) * 3.0 ** np.arange(-3, 4)[:, None]).astype(np.float32)


def travelled(wire, x, cast=np.copyto):
    code = coding(wire, cast)
    sent = code.encode(x)
    out = np.empty_like(x)
    message = code.message(out)
    assert (message.nbytes, message.flags.c_contiguous) == (sent.nbytes, True)
    message[...] = sent
    code.decode(message, out)
    return out, sent.nbytes


def test_float32_travels_as_it_is():
    out, size = travelled(Wire.FLOAT32, X)

    assert (out == X).all()
    assert size == X.nbytes


def test_float16_takes_half_of_the_bytes_and_rounds_to_nearest():
    out, size = travelled(Wire.FLOAT16, X)

    assert (out == X.astype(np.float16)).all()
    assert size == X.nbytes // 2


@pytest.mark.parametrize("name", ["numpy", "onnxruntime"])
def test_float16_keeps_large_numbers_finite(name):
    """Hidden states of some models have them; what is infinite or no number stays so."""
    if name == "onnxruntime":
        pytest.importorskip("onnxruntime", reason="the extra `fast` is not installed")
    x = np.array([[1, 65504, 65519, 65520, 1e30], [-2, -65504, -65519, -65520, -1e30]], np.float32)
    odd = np.array([[np.inf, 7, 1e9], [-np.inf, 7, -1e9], [np.nan, 7, 70000]], np.float32)

    out, _ = travelled(Wire.FLOAT16, x, backend(name).cast)
    np.testing.assert_array_equal(out, np.clip(x, -65504, 65504))
    for row in (0, 1):  # either sign alone
        np.testing.assert_array_equal(travelled(Wire.FLOAT16, x[[row]], backend(name).cast)[0], out[[row]])
    out, _ = travelled(Wire.FLOAT16, odd, backend(name).cast)
    np.testing.assert_array_equal(out, [[np.inf, 7, 65504], [-np.inf, 7, -65504], [np.nan, 7, 65504]])


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_an_int8_row_with_a_number_that_is_not_finite_has_no_finite_one(odd):
    x = X.copy()
    x[2, 5] = odd

    out, _ = travelled(Wire.INT8, x)

    assert not np.isfinite(out[2]).any()
    np.testing.assert_array_equal(np.delete(out, 2, 0), np.delete(travelled(Wire.INT8, X)[0], 2, 0))


def test_int8_is_within_half_a_step_of_its_rows_scale():
    out, size = travelled(Wire.INT8, X)

    assert (np.abs(out - X) <= np.abs(X).max(1, keepdims=True) / 254 * (1 + 1e-5)).all()
    assert size == X.size + 4 * len(X)


@pytest.mark.parametrize("width", [48, 1, 2, 3, 5, 50])
@pytest.mark.parametrize("wire", STAGE_WIRES)
def test_a_message_has_the_bytes_of_the_formula(wire, width):
    """Four numbers of 2 or 6 bits and two of 4 fill whole bytes together; a scale and a least value a row."""
    x = np.resize(X, (5, width))
    packed = {32: 4 * width, 16: 2 * width, 8: width, 6: -(-width // 4) * 3, 4: -(-width // 2), 2: -(-width // 4)}
    bounds = {32: 0, 16: 0, 8: 4}.get(wire.bits, 8)

    _, size = travelled(wire, x)

    assert size == 5 * wire.row_bytes(width) == 5 * (packed[wire.bits] + bounds)


@pytest.mark.parametrize("wire", CLIPS)
def test_few_bits_take_the_nearest_of_their_levels(wire):
    """By hand: values on the levels come back as they are; others within half a step, those outside at the bound."""
    steps = 2**wire.bits - 1
    levels = np.arange(steps + 1, dtype=np.float32)[None] * 0.25 - 3

    assert travelled(wire, levels)[0] == pytest.approx(levels)
    np.testing.assert_allclose(travelled(wire, levels + 0.1)[0], levels + 0.1, atol=1e-5)
    out, _ = travelled(wire, X)
    assert ((out >= X.min(1, keepdims=True) - 1e-5) & (out <= X.max(1, keepdims=True) + 1e-5)).all()
    assert all(len(np.unique(row)) <= steps + 1 for row in out)


@pytest.mark.parametrize("wire", CLIPS)
def test_bounds_are_the_papers_where_these_err_less(wire):
    """Of Laplace's distribution mean ± W(3 · 4^bits) b, here b = 1: W(z) e^W(z) = z. A row of two values is whole."""
    clip = CLIPS[wire]
    assert clip * np.exp(clip) == pytest.approx(3 * 4**wire.bits, rel=1e-5)
    x = np.random.default_rng(1).laplace(5, 1, (1, 200_000)).astype(np.float32)

    assert np.abs(travelled(wire, x)[0] - 5).max() == pytest.approx(clip, rel=0.02)
    two = np.array([[-1, 40, -1, -1]], np.float32)
    assert travelled(wire, two)[0] == pytest.approx(two)


@pytest.mark.parametrize("draw", ["laplace", "standard_normal", "standard_cauchy"])
def test_fewer_bits_err_more(draw):
    x = getattr(np.random.default_rng(2), draw)(size=(9, 384)).astype(np.float32)
    errors = [float(np.square(travelled(wire, x)[0] - x).sum()) for wire in STAGE_WIRES]

    assert errors[0] == 0
    assert errors == sorted(errors)
    assert len(set(errors)) == len(errors)


@pytest.mark.parametrize("wire", STAGE_WIRES)
def test_rows_of_zeros_stay_zeros(wire):
    assert not travelled(wire, np.zeros((2, 5), np.float32))[0].any()
