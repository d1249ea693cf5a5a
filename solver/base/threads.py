"""How many threads a person allows, as the environment says it; the one place that reads such a number."""

from __future__ import annotations

import os


def thread_count(text: str) -> int | None:
    """Return the first number of an OpenMP list: "4,2" is 4 threads, and 2 in a region within them.

    None where it is not a whole number above 0: OpenMP takes no notice of such a setting.
    """
    first = text.partition(",")[0].strip()
    # Not isdigit: "²" is a digit, but int() refuses it.
    return int(first) or None if first.isdecimal() else None


def omp_threads() -> int | None:
    """Return what OMP_NUM_THREADS allows; None where it allows anything."""
    return thread_count(os.environ.get("OMP_NUM_THREADS", ""))
