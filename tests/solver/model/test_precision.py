"""Bytes of weights: by hand for a few shapes, and what holds for all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.model.precision import FLOAT32, INT8, PRECISIONS, Precision

INT4 = Precision("int4", bits=4, group=32, scale_bytes=2)
SIZES = st.integers(1, 300)


@pytest.mark.parametrize(
    ("precision", "shape", "summed", "size"),
    [
        (FLOAT32, (3, 5), 1, 4 * 15),
        (INT8, (3, 5), 1, 15),
        (INT8, (3, 5), None, 4 * 15),
        (INT8, (5,), None, 4 * 5),
        (INT4, (3, 64), 1, 3 * 2 * (16 + 2)),
        (INT4, (3, 65), 1, 3 * 3 * (16 + 2)),
        (INT4, (64, 3), 0, 3 * 2 * (16 + 2)),
        (INT4, (64, 3), None, 4 * 64 * 3),
        (INT4, (0, 64), 1, 0),
        (INT4, (0, 64), 0, 0),
        (Precision("rows", bits=4, scale_bytes=4), (3, 5), 1, 3 * (3 + 4)),
    ],
)
def test_bytes_of_a_tensor(precision, shape, summed, size):
    """A group has its scale, and takes the room of a full one; vectors and what lies outside the layers are float32."""
    assert precision.bytes_of(shape, summed) == size


@given(SIZES, SIZES, st.sampled_from([FLOAT32, INT8, INT4]))
def test_a_large_matrix_takes_what_a_weight_takes(outputs, groups, precision):
    inputs = 32 * groups

    assert precision.bytes_of((outputs, inputs), 1) == precision.weight_bytes * outputs * inputs
    assert precision.bytes_of((inputs, outputs), 0) == precision.weight_bytes * outputs * inputs


@given(SIZES, SIZES, SIZES, st.sampled_from([FLOAT32, INT8, INT4]))
def test_what_is_cut_between_outputs_takes_no_more_in_all(one, other, inputs, precision):
    parts = [precision.bytes_of((outputs, inputs), 1) for outputs in (one, other)]

    assert sum(parts) == precision.bytes_of((one + other, inputs), 1)


def test_a_weight_of_four_bits_in_groups_of_32_takes_nine_sixteenths_of_a_byte():
    assert INT4.weight_bytes == 0.5625


def test_precisions_are_found_by_the_names_of_cluster_files():
    assert {"float32": FLOAT32, "int8": INT8} == PRECISIONS
