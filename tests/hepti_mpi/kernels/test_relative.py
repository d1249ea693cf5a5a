"""What distances between rows add to scores: MPNet's buckets, and views of them."""

import numpy as np
import pytest
import torch
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from hepti_mpi.kernels.relative import Relative, buckets
from solver.base.spans import Span

FAR = 2000


@pytest.mark.parametrize("count", [8, 16, 32, 64])
def test_buckets_are_those_of_transformers(count):
    distances = torch.arange(-FAR, FAR + 1)
    wanted = MPNetEncoder.relative_position_bucket(distances, num_buckets=count).numpy()
    ours = buckets(count)
    middle = len(ours) // 2

    np.testing.assert_array_equal(ours[middle - FAR : middle + FAR + 1], wanted)


def test_some_rows_and_keys_of_some_heads_are_a_part_of_all():
    table = np.random.default_rng(0).standard_normal((5, 32), np.float32)
    relative = Relative(table)
    whole = relative.between(Span(0, 5), Span(0, 300), Span(0, 300))
    ours = buckets(32)

    assert whole[3, 7, 250] == table[3, ours[len(ours) // 2 + 250 - 7]]
    part = relative.between(Span(2, 4), Span(17, 90), Span(40, 300))
    np.testing.assert_array_equal(part, whole[2:4, 17:90, 40:300])
