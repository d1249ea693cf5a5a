"""Devices measured alike get the mean of their curves; others keep their own. What of links and models is measured."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hepti_mpi.measure import profile_command, profile_links
from hepti_mpi.measure.profile import ALIKE, kinds, pooled
from solver.cluster.cluster import Link
from solver.cluster.curves import Curves, derived_curves
from solver.model.convnet import ConvNet
from solver.model.decoder import Decoder
from solver.model.spec import ModelSpec


def measured(gflops, error=0.0, seed=0):
    """Return a board's curves, every point a normal `error` off."""
    rng = np.random.default_rng(seed)
    curves = derived_curves(gflops * 1e9)

    def off(curve):
        noise = rng.normal(0.0, error, (len(curve.first), len(curve.second)))
        return replace(curve, seconds=tuple(map(tuple, (np.array(curve.seconds) * np.exp(noise)).tolist())))

    return Curves(curves.head_dim, {kernel: off(curve) for kernel, curve in curves.kernels.items()})


RESTLESS, STEADY = 3e-3, 1e-4  # jitter of a host under a CPU quota, and of a board of its own


@pytest.mark.parametrize(
    ("curves", "jitter_s", "expected"),
    [
        ([measured(24.6, 0.04, seed) for seed in range(4)], RESTLESS, [[0, 1, 2, 3]]),
        ([measured(24.6 * pace, 0.02, seed) for seed, pace in enumerate((0.97, 1.05, 1.0))], RESTLESS, [[0, 1, 2]]),
        ([measured(24.6 * pace, 0.02, seed) for seed, pace in enumerate((0.97, 1.05, 1.0))], STEADY, [[0], [1], [2]]),
        (
            [measured(speed, 0.04, seed) for seed, speed in enumerate((24.6, 70, 24.6, 10))],
            RESTLESS,
            [[0, 2], [1], [3]],
        ),
        ([measured(24.6, 0.02, 1), measured(20, 0.02, 2)], RESTLESS, [[0], [1]]),
        ([measured(24.6, 0.3, 1), measured(24.6, 0.3, 2)], RESTLESS, [[0], [1]]),
        ([measured(24.6)] * 2, 0.0, [[0, 1]]),
        ([measured(24.6)], 0.0, [[0]]),
    ],
    ids=["equal", "restless", "steady", "mixed", "slower", "another shape", "the same", "alone"],
)
def test_devices_of_a_kind_differ_by_less_than_their_steps_do(curves, jitter_s, expected):
    points = [np.concatenate([np.ravel(own.kernels[kernel].seconds) for kernel in ALIKE]) for own in curves]
    assert sorted(map(sorted, kinds(points, [jitter_s] * len(points)))) == expected


def test_those_of_a_kind_get_the_mean():
    """The geometric mean of every point, all kernels'; who is alone keeps what was measured."""
    curves = [measured(24.6, 0.04, 1), measured(70, 0.04, 2), measured(24.6, 0.04, 3)]

    one, fast, other = pooled(curves, [(1e-3, 4e-3), (0.0, 1e-3), (3e-3, 2e-3)])

    assert one == other
    assert one[1:] == pytest.approx((2e-3, 3e-3))
    assert fast[1:] == (0.0, 1e-3)
    for kernel, curve in one[0].kernels.items():
        first, alone, last = (np.array(own.kernels[kernel].seconds) for own in curves)
        np.testing.assert_allclose(curve.seconds, np.sqrt(first * last))
        np.testing.assert_allclose(fast[0].kernels[kernel].seconds, alone)


@pytest.mark.parametrize(("looks", "exceptions"), [([60e6, 117e6], 0), ([30e6, 30e6, 31e6], 1)])
def test_a_pair_is_an_exception_only_if_further_looks_agree(monkeypatch, looks, exceptions):
    """Of three devices, the first two seem slow; the best of three looks counts, and less where one shows them fast."""
    first = iter(looks)
    monkeypatch.setattr(profile_links, "_own", lambda group, rank: 117e6)
    monkeypatch.setattr(
        profile_links, "_pair", lambda group, pair: Link(next(first) if pair == (0, 1) else 117e6, 200e-6)
    )

    found = profile_links.measure_links(SimpleNamespace(size=3)).exceptions("abc")

    assert len(found) == exceptions
    assert all(link.bandwidth_bytes_per_s == 31e6 for link in found.values())


@pytest.mark.parametrize(
    ("name", "kind", "precision"),
    [("minilm-l6", ModelSpec, "float32"), ("resnet18", ConvNet, "float32"), ("llama-3.2-1b", Decoder, "int4")],
)
def test_a_model_of_any_family_is_measured_by_name(name, kind, precision):
    model, stored = profile_command._described(name)

    assert (type(model), stored) == (kind, precision)
