"""The likeliest words of every rank become those of all."""

import numpy as np

from hepti_mpi.decoding.ranks import likeliest, log_sum, merged


def test_candidates_of_ranks_become_those_of_all():
    values = np.random.default_rng(0).standard_normal((3, 20)).astype(np.float32)
    values[:, 7] = values[:, 15] = 9.0  # equal ones: the lower number first
    parts = [likeliest(values[:, :3], 5, 0), likeliest(values[:, 3:12], 5, 3), likeliest(values[:, 12:], 5, 12)]

    sums = [log_sum(values[:, :3]), log_sum(values[:, 3:12]), log_sum(values[:, 12:])]
    best = merged(parts, 5, sums)

    assert best.ids.tolist() == np.argsort(-values, 1, kind="stable")[:, :5].tolist()
    np.testing.assert_allclose(best.log_sum, np.log(np.exp(values.astype(np.float64)).sum(1)), rtol=1e-6)
    assert merged([likeliest(values, 1, 0)], 1, [log_sum(values)]).ids[:, 0].tolist() == [7, 7, 7]
