from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solver.cluster.cluster import read_cluster, write_cluster
from solver.cluster.curves import Bank, Curve, Curves, Kernel, curves_from_table, curves_to_table, derived_curves
from tests.kit import refused
from tests.kit.clusters import pis


def bank(*speeds):
    return Bank([derived_curves(speed) for speed in speeds])


def test_declared_speed_is_that_of_a_product_of_256_rows():
    seconds = bank(24.6e9, 70e9).seconds(Kernel.PROJECT, 256, 2**20)

    assert seconds == pytest.approx([2 * 256 * 2**20 / 24.6e9, 2 * 256 * 2**20 / 70e9], rel=0.01)


def test_derived_curves_follow_the_measured_table():
    """Six weights [1024, 4096] at 97 GFLOP/s: 14.8, 37.4 and 130.3 ms (design, section 7)."""
    seconds = [6 * bank(98.9e9).seconds(Kernel.PROJECT, rows, 2**22)[0] for rows in (8, 53, 256)]

    assert seconds == pytest.approx([14.8e-3, 37.4e-3, 130.3e-3], rel=0.07)


def test_nothing_takes_no_time():
    assert bank(1e9).seconds(Kernel.PROJECT, 0, 2**20) == 0


def test_curve_is_linear_between_points_and_beyond_them():
    curve = Curve((1, 3), (10, 20), ((1.0, 2.0), (3.0, 5.0)))
    kernels = {**derived_curves(1e9).kernels, Kernel.ATTEND: curve}

    seconds = Bank([Curves(64, kernels)]).seconds(Kernel.ATTEND, np.array([[2], [5]]), 15)

    assert seconds.ravel() == pytest.approx([2.75, 6.5])


def test_devices_may_be_measured_on_different_grids():
    """The grids' union changes no curve."""
    one, other = Curve((1, 5), (1, 9), ((1, 2), (3, 8))), Curve((2, 4, 8), (3, 9), ((1, 2), (3, 8), (9, 9.5)))
    banks = [Bank([Curves(64, {**derived_curves(1e9).kernels, Kernel.PROJECT: curve})]) for curve in (one, other)]
    both = Bank([Curves(64, {**derived_curves(1e9).kernels, Kernel.PROJECT: curve}) for curve in (one, other)])

    for rows, weights in ((2.5, 4), (3, 3), (4.5, 8)):
        alone = [bank.seconds(Kernel.PROJECT, rows, weights)[0] for bank in banks]
        assert both.seconds(Kernel.PROJECT, rows, weights) == pytest.approx(alone)


def test_more_work_never_takes_less_time():
    noisy = Curve((1, 2, 3), (0, 1), ((2.0, 2.0), (1.5, 1.5), (3.0, 3.0)))
    bank = Bank([Curves(64, {**derived_curves(1e9).kernels, Kernel.NORM: noisy})])

    assert bank.seconds(Kernel.NORM, 2)[0] == 2


def test_long_form_survives_the_file(tmp_path):
    cluster = pis(24.6, 70)
    measured = replace(cluster.devices[0], curves=derived_curves(3e9), bandwidth_bytes_per_s=30e6)
    cluster = replace(cluster, devices=(measured, cluster.devices[1]), profile={"backend": "numpy"})

    write_cluster(cluster, tmp_path / "c.toml")

    assert read_cluster(tmp_path / "c.toml") == cluster
    assert read_cluster(tmp_path / "c.toml").fingerprint == cluster.fingerprint


def test_damaged_curves_are_refused_by_name(kept):
    cases = [
        {"project": None},
        {"projet": {}},
        {"head_dim": 0},
        {"norm": {"elements": [1, 2], "seconds": [1.0]}},
        {"norm": {"elements": [2, 1], "seconds": [1.0, 2.0]}},
        {"norm": {"elements": [1, 2], "seconds": [1.0, -2.0]}},
        {"norm": {"elements": [1, 2], "seconds": [1.0, "x"]}},
        {"norm": {"rows": [1, 2], "seconds": [1.0, 2.0]}},
        {"norm": {"elements": [1], "seconds": [1.0]}},
    ]

    kept(
        refused.said(
            lambda change: curves_from_table(refused.without_none({**curves_to_table(derived_curves(1e9)), **change})),
            cases,
        )
    )
