"""What a wire makes of numbers."""

import numpy as np
import pytest

from hepti_mpi.wires import coding
from solver.plan import Wire

X = (np.random.default_rng(0).standard_normal((7, 48)) * 3.0 ** np.arange(-3, 4)[:, None]).astype(np.float32)


def travelled(wire, x):
    code = coding(wire)
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


def test_int8_is_within_half_a_step_of_its_rows_scale():
    out, size = travelled(Wire.INT8, X)

    assert (np.abs(out - X) <= np.abs(X).max(1, keepdims=True) / 254 * (1 + 1e-5)).all()
    assert size == X.size + 4 * len(X)


@pytest.mark.parametrize("wire", Wire)
def test_rows_of_zeros_stay_zeros(wire):
    assert not travelled(wire, np.zeros((2, 5), np.float32))[0].any()
