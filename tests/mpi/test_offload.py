"""Five products on two devices: what comes back is what one device computes."""

import numpy as np
import pytest

from hepti_mpi.kernels.products import NUMPY
from hepti_mpi.measure.offload import WAYS, offload
from solver.base.spans import Partition
from tests import sweeps

WIDTH = 24


@pytest.mark.parametrize(("way", "counts"), sweeps.cycled(8, WAYS, [(100, 0), (57, 43), (1, 99), (0, 100)]))
def test_the_chain_on_two_devices_is_the_chain_on_one(world, way, counts):
    if world.size == 1:
        pytest.skip("offloading is between two ranks, and here is one: 2, 3 and 5 run this")
    pair = world.subgroup([0, 1])
    if pair is None:  # the third rank and the others
        return
    numbers = np.random.default_rng(0)
    weights = [numbers.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 5 for _ in range(5)]
    x = numbers.standard_normal((100, WIDTH)).astype(np.float32)
    here = x if pair.rank == 0 else x[:0]

    y, total_s, compute_s = offload(
        here, [NUMPY.product(w, None) for w in weights], Partition.of_counts(counts), pair, way
    )

    assert compute_s > 0
    assert total_s > 0
    expected = np.linalg.multi_dot([x.astype(np.float64), *weights]) if pair.rank == 0 else x[:0]
    np.testing.assert_allclose(y, expected, atol=1e-5)
