"""Parts of a schedule that are placed wrongly: what checks a schedule is to notice it."""

from functools import cached_property

import numpy as np

from solver.schedule.schedule import PlacedPart


def shorten(monkeypatch, role):
    """Let nobody compute the last unit that somebody has of parts of this role, along the axis of their cut."""
    own = PlacedPart.own.func

    def shorter(placed):
        region = dict(own(placed))
        if placed.part.role == role and placed.axis in region:
            spans = region[placed.axis].copy()
            last = np.flatnonzero(spans[0, :, 1] > spans[0, :, 0])[-1:]
            spans[0, last, 1] -= 1
            region[placed.axis] = spans
        return region

    changed = cached_property(shorter)
    changed.__set_name__(PlacedPart, "own")
    monkeypatch.setattr(PlacedPart, "own", changed)
