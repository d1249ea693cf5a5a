"""What the probes' answers add up to."""

import pytest

from launch.lab_measure import FLOP, _Probes, summary
from solver.errors import HeptiError


def test_a_round_is_summed_up_by_windows():
    """Forty products of 25 ms, a quarter of it on the CPU: 21.5 GFLOP/s of a core that does 86."""
    found = summary([(0.025, 0.00625)] * 40, 1.0)

    assert found.flop_per_s == pytest.approx(FLOP / 0.025)
    assert found.core_flop_per_s == pytest.approx(FLOP / 0.00625)
    assert found.share == pytest.approx(0.25)


def test_one_slow_window_does_not_count():
    found = summary([(0.025, 0.00625)] * 40 + [(0.5, 0.00625)], 1.0)

    assert found.flop_per_s == pytest.approx(FLOP / 0.025)


def test_a_host_that_is_too_slow_is_refused():
    with pytest.raises(HeptiError, match="only 1 products in a round, 6 are needed"):
        summary([(1.0, 0.01)], 1.0)


def test_at_a_scale_seconds_are_the_labs():
    """A lab at a quarter: a product of 100 ms by the clock takes 25 ms of the lab's time."""
    found = summary([(0.1, 0.025)] * 40, 0.25)

    assert found.flop_per_s == pytest.approx(FLOP / 0.025)
    assert found.core_flop_per_s == pytest.approx(FLOP / 0.00625)
    assert found.share == pytest.approx(0.25)


def test_a_probe_that_says_anything_else_is_refused_with_its_words():
    with (
        pytest.raises(HeptiError, match="a measuring program on a host said 'Killed', not JSON"),
        _Probes([["bash", "-c", "echo Killed; cat"]]),
    ):
        pass
