"""How many cases a sweep over random ones has: a few in `make test`, all in `make test-all`.

The few are the same every time. Of all, the others are drawn anew every day: HEPTI_TEST_SEED=N repeats those of a day,
and pytest says N at the top.
"""

import datetime
import os

ALL = os.environ.get("HEPTI_TESTS") == "all"
SEED = int(os.environ.get("HEPTI_TEST_SEED") or datetime.datetime.now(datetime.UTC).strftime("%y%m%d"))


def seeds(few, many):
    """Return the seeds of a sweep: `few`, and in `make test-all` new ones up to `many`."""
    return [*range(few), *(1000 * SEED + number for number in range(few, many) if ALL)]


def count(few, many):
    """Return how many examples hypothesis draws, or how many cases a loop has."""
    return many if ALL else few
