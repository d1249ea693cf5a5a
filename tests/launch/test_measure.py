"""What the probes' answers add up to."""

import pytest

from launch.lab_measure import FLOP, summary
from solver.errors import HeptiError


def test_a_round_is_summed_up_by_windows():
    """Forty products of 25 ms, a quarter of it on the CPU: 21.5 GFLOP/s of a core that does 86."""
    found = summary([(0.025, 0.00625)] * 40)

    assert found.flop_per_s == pytest.approx(FLOP / 0.025)
    assert found.core_flop_per_s == pytest.approx(FLOP / 0.00625)
    assert found.share == pytest.approx(0.25)


def test_one_slow_window_does_not_count():
    found = summary([(0.025, 0.00625)] * 40 + [(0.5, 0.00625)])

    assert found.flop_per_s == pytest.approx(FLOP / 0.025)


def test_a_host_that_is_too_slow_is_refused():
    with pytest.raises(HeptiError, match="too slow to be measured"):
        summary([(1.0, 0.01)])
