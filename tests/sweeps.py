"""How many cases a sweep over random ones has: a few in `make test`, all in `make test-all`.

The few are the same every time. Of all, the others are drawn anew every day: HEPTI_TEST_SEED=N repeats those of a day,
and pytest says N at the top.
"""

import datetime
import itertools
import math
import os

ALL = os.environ.get("HEPTI_TESTS") == "all"
SEED = int(os.environ.get("HEPTI_TEST_SEED") or datetime.datetime.now(datetime.UTC).strftime("%y%m%d"))


def seeds(few, many):
    """Return the seeds of a sweep: `few`, and in `make test-all` new ones up to `many`."""
    return [*range(few), *(1000 * SEED + number for number in range(few, many) if ALL)]


def cycled(few, *axes):
    """Return cases of all combinations: in `make test-all` every one, else a few that have every value of every axis.

    Every further time round the longest axis the others are shifted against it: few pairs of values come twice.
    """
    axes = [[*axis] for axis in axes]
    if ALL:
        return [*itertools.product(*axes)]
    longest = max(axes, key=len)
    cases = min(max(few, len(longest)), math.prod(map(len, axes)))
    return [
        tuple(axis[(number + (axis is not longest) * (number // len(longest))) % len(axis)] for axis in axes)
        for number in range(cases)
    ]


def count(few, many):
    """Return how many examples hypothesis draws, or how many cases a loop has."""
    return many if ALL else few


def pairs(*axes):
    """Return as many of the combinations as the longest axis has values, with every value of every axis."""
    return cycled(0, *axes)
