"""Blocks of 32: the formats of Q4_0 and Q8_0, number by number."""

import math

import numpy as np
import pytest

from solver.model.kinds.weight import BLOCK, PRECISIONS, Weight
from tests.sweeps import pairs
from weights.decoders.quantise import dequantise, quantise


def numbers(*shape):
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


def by_hand(block, precision):
    """Return levels and scale of 32 numbers as llama.cpp's reference functions find them, one after the other."""
    if precision == "int8":
        scale = np.float32(max(abs(number) for number in block)) / np.float32(127)
        inverse = np.float32(1) / scale if scale else np.float32(0)
        levels = [128 + int(math.copysign(math.floor(abs(float(x * inverse)) + 0.5), x)) for x in block]
    else:
        scale = max(block, key=abs) / np.float32(-8)
        inverse = np.float32(1) / scale if scale else np.float32(0)
        levels = [min(15, int(np.float32(x * inverse) + np.float32(8.5))) for x in block]
    return levels, np.float16(scale)


@pytest.mark.parametrize("precision", ["int8", "int4"])
class TestBlocks:
    def test_are_those_of_the_formats_own_functions(self, precision):
        matrix = numbers(6, 64)
        matrix[1, 5:9], matrix[2, 32:], matrix[3, :2] = 0, 0, (7, -7)
        matrix[4] *= 1e4

        blocks, scales = quantise(matrix, 1, precision)

        for row in range(6):
            for number in range(2):
                levels, scale = by_hand(matrix[row, number * BLOCK : (number + 1) * BLOCK], precision)
                stored = blocks[row, number].tolist()
                if precision == "int4":
                    stored = [level for byte in stored for level in (byte & 15, byte >> 4)]
                assert (stored, scales[row, number]) == (levels, scale)

    @pytest.mark.parametrize(("summed", "shape"), pairs([0, 1], [(64, 96), (50, 70), (1, 33), (33, 1)]))
    def test_have_the_shapes_that_the_model_says(self, precision, summed, shape):
        stored = Weight(shape, summed).stored(PRECISIONS[precision])

        blocks, scales = quantise(numbers(*shape), summed, precision)

        assert (blocks.dtype, scales.dtype) == (np.uint8, np.float16)
        assert {"": blocks.shape, "/scale": scales.shape} == stored

    @pytest.mark.parametrize("summed", [0, 1])
    def test_become_the_numbers_again(self, precision, summed):
        matrix = numbers(50, 70)

        found = dequantise(*quantise(matrix, summed, precision), summed, matrix.shape[summed], precision)

        assert (found.dtype, found.shape) == (np.float32, matrix.shape)
        step = {"int8": 1 / 127, "int4": 1 / 8}[precision] * np.abs(matrix).max()
        assert np.abs(found - matrix).max() <= step  # the level opposite to the extreme one is missing
        assert np.sqrt(np.mean((found - matrix) ** 2)) < {"int8": 0.007, "int4": 0.1}[precision]

    def test_lie_the_same_whichever_axis_is_summed(self, precision):
        matrix = numbers(64, 40)

        blocks, scales = quantise(matrix, 0, precision)
        turned, turned_scales = quantise(np.ascontiguousarray(matrix.T), 1, precision)

        np.testing.assert_array_equal(blocks, turned.transpose(1, 0, 2))
        np.testing.assert_array_equal(scales, turned_scales.T)

    def test_are_filled_up_with_zeros(self, precision):
        blocks, _ = quantise(numbers(3, 33), 1, precision)

        zero = {"int8": 128, "int4": 8 | 8 << 4}[precision]
        assert (blocks[:, 1, 1:] == zero).all()

    def test_have_a_scale_that_is_none_where_a_number_is_none(self, precision):
        matrix = numbers(3, 64)
        matrix[1, 40] = math.nan

        _, scales = quantise(matrix, 1, precision)

        assert np.argwhere(~np.isfinite(scales)).tolist() == [[1, 1]]
