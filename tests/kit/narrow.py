"""Tables as they are in 80 columns, kept as expected texts (`tests/kit/kept.py`): one file a room, `NAME.txt`."""

import re

from tests.kit import kept

WIDTH = 80


def check(file, name, text, *, figures=True):
    """Assert that a table is as it is kept under its name, and no wider than 80 columns.

    Without `figures` digits do not count: what a planner predicts may change in the last one.
    """
    shown = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")
    if not figures:
        # Not those of names: pi-1, resnet50.
        shown = re.sub(r"(?<![\w/.-])\d[\d.]*", lambda found: re.sub(r"\d", "0", found[0]), shown)
    assert max(map(len, shown.splitlines())) <= WIDTH
    kept.check(file, name, shown)
