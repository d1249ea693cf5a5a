"""The limit above which a test says why it is slow."""

import pytest

from tests.kit.durations import LIMIT_S, limit_s, too_long


@pytest.mark.parametrize(("load", "longer"), [(0.0, 1.0), (2.0, 1.0), (5.0, 2.5)])
def test_the_limit_grows_with_what_wants_the_cores(load, longer):
    assert limit_s(load, 2) == pytest.approx(limit_s(0, 2) * longer)
    assert limit_s(load, 2) > LIMIT_S


def test_a_test_above_the_limit_without_a_reason_is_named():
    seconds = {"quick": 1.0, "marked": 20.0, "unmarked": 9.0}

    (line,) = too_long(seconds, {"marked"}, 7.5)

    assert "unmarked took 9.0 s of 7.5" in line
