"""Products in int8 against float32, and what their weights take."""

import subprocess
import sys

import numpy as np
import pytest

from hepti_mpi.kernels import backends, int8, numpy_kernels
from hepti_mpi.kernels.products import NUMPY

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape, np.float32)


@pytest.mark.parametrize("channel_axis", [0, 1])
def test_quantising_keeps_every_weight_to_half_a_step_of_its_channel(channel_axis):
    """Channels of very different sizes, one of zeros."""
    weight = normal(30, 20) * np.logspace(-6, 3, 20, dtype=np.float32)
    weight[:, 7] = 0

    steps, scale = int8.quantise(weight if channel_axis == 1 else weight.T.copy(), channel_axis)

    assert (steps.dtype, scale.dtype) == (np.int8, np.float32)
    assert steps.flags.c_contiguous
    assert np.abs(steps.astype(int)).max() == 127
    assert (np.abs(steps * scale - weight) <= 0.501 * scale).all()


@pytest.mark.parametrize("activation", numpy_kernels.ACTIVATIONS)
@pytest.mark.parametrize("rows", [0, 1, 19])
def test_a_product_is_near_that_of_float32(activation, rows):
    """Within 2 % of the size of what is activated; rows of any size, one of zeros."""
    weight, bias, x, out = normal(130, 64), normal(130), normal(rows, 64), np.empty((rows, 130), np.float32)
    x[1:2] = 0
    x[2:3] *= 1000
    ours, exact = int8.INT8.product(weight, bias, activation)(x, out), NUMPY.product(weight, bias, activation)(x)

    assert ours is out
    assert (np.abs(ours - exact).sum(axis=1) <= 0.02 * np.abs(x @ weight.T + bias).sum(axis=1)).all()


def test_a_product_without_bias_has_its_weight_the_other_way_round():
    weight, x = normal(130, 64), normal(5, 130)

    assert np.abs(int8.INT8.product(weight, None)(x) - x @ weight).mean() < 0.02 * np.abs(x @ weight).mean()


def test_a_row_does_not_depend_on_the_rows_beside_it():
    """So it is the same however rows are split and batched."""
    product, x = int8.INT8.product(normal(130, 64), normal(130)), normal(9, 64)
    x[3] *= 1000

    together = product(x)

    np.testing.assert_array_equal(together, np.concatenate([product(row[None]) for row in x]))


@pytest.mark.parametrize("shape", [(0, 7), (7, 0)])
def test_an_empty_share_computes_nothing(shape):
    assert int8.INT8.product(normal(*shape), None)(normal(3, shape[0])).shape == (3, shape[1])


@pytest.mark.parametrize(("precision", "least", "most"), [("float32", 1.0, 1.1), ("int8", 0.25, 0.3)])
def test_weights_take_what_their_precision_says(precision, least, most):
    """Resident memory of 64 MiB of float32 weights, once their products are made."""
    program = f"""if True:
        import numpy as np
        from hepti_mpi.kernels.backends import backend
        from hepti_mpi.base.memory import freed_at_once
        def resident():
            return 4096 * int(open("/proc/self/statm").read().split()[1])
        product = backend("onnxruntime", "{precision}").product
        with freed_at_once():
            kept = [product(np.ones((2048, 2048), np.float32), np.ones(2048, np.float32), "gelu")]
            before = resident()
            kept += [product(np.ones((2048, 2048), np.float32), None) for _ in range(4)]
        print((resident() - before) / (64 << 20))"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert 0.95 * least <= float(done.stdout) <= most


def test_what_rows_need_in_a_product_serves_the_next_one():
    """The first request leaves no hole in the heap after each of 24 products: those took 130 MiB."""
    program = """if True:
        import numpy as np
        from hepti_mpi.kernels.backends import backend
        from hepti_mpi.base.memory import freed_at_once
        def resident():
            return 4096 * int(open("/proc/self/statm").read().split()[1])
        make = backend("onnxruntime", "int8").product
        with freed_at_once():
            products = [make(np.ones((1024, 1024), np.float32), np.ones(1024, np.float32)) for _ in range(24)]
        x, before = np.ones((512, 1024), np.float32), resident()
        for product in products:
            product(x)
        print((resident() - before) / (1 << 20))"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert float(done.stdout) < 50


def test_each_precision_has_its_backend():
    assert backends.backend("onnxruntime", "int8") is int8.INT8
    assert backends.backend("onnxruntime") is not int8.INT8


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (13, 7), (1024, 64), (300, 4096)])
def test_a_product_keeps_weights_of_its_own(precision, shape):
    """Those that it was made of may be freed, whatever their shape."""
    weight, x = normal(*shape), normal(3, shape[0])
    product = backends.backend("onnxruntime", precision).product(weight, None)
    before = product(x)

    weight[...] = np.nan

    np.testing.assert_array_equal(product(x), before)
