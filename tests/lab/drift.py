"""How much this machine's own speed moves while something is measured on it: a lab can be no steadier than that."""

import os

import pytest

from launch.lab.measure import core_speed

TRIES = 3


def assert_near(asked, measure, tolerance=0.05):
    """Measure until every value is near what is asked for, at most three times.

    Near is within the lab's own tolerance, and what this machine's speed moved between before and after.
    """
    for _ in range(TRIES):
        before = own_speed()
        found = measure()
        near = pytest.approx(asked, rel=tolerance + moved(before, own_speed()))
        if found == near:
            break
    assert found == near


def own_speed():
    """Return the FLOP a second of a core of this machine, all of them at work outside of any lab."""
    return core_speed(len(os.sched_getaffinity(0)))


def moved(before, after):
    """Return by which part of itself a speed moved."""
    return abs(after - before) / min(before, after)
