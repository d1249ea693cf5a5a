"""Regions as arrays: what ranks have, need and share of a value, of many plans at once.

A span is [..., 2], start and stop; with the ranks of some plans [n, p, 2]. Empty spans may lie anywhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from solver.base.spans import Span
from solver.model.kinds.part import Region, Spans, full
from solver.plan.layout import Box

Lengths = NDArray[np.int64]


def spans_of(partition: list[tuple[int, int]] | NDArray[np.int64]) -> Spans:
    """Return the spans of one plan, [1, p, 2]."""
    return np.array(partition, np.int64).reshape(1, -1, 2)


def lengths(spans: Spans) -> Lengths:
    """Return how long spans are, [...]."""
    return np.asarray(np.maximum(spans[..., 1] - spans[..., 0], 0))


def volume(region: Region) -> Lengths:
    """Return in how many units a region has numbers, [...]."""
    return np.asarray(np.multiply.reduce([lengths(spans) for spans in region.values()]))


def there(region: Region) -> NDArray[np.bool_]:
    """Return where a region has something, [...]."""
    return full(region)[..., 0] > 0


def hull(one: Region | None, other: Region) -> Region:
    """Return the least region that contains two."""
    if one is None or all((spans == other[axis]).all() for axis, spans in one.items()):
        return other
    first, second = (there(region)[..., None] for region in (one, other))
    found = {}
    for axis, spans in one.items():
        both = np.stack(
            [np.minimum(spans[..., 0], other[axis][..., 0]), np.maximum(spans[..., 1], other[axis][..., 1])], -1
        )
        found[axis] = np.where(first & second, both, np.where(first, spans, other[axis]))
    return found


def within(one: Region, other: Region) -> NDArray[np.bool_]:
    """Return where a region is contained in another, or empty, [...]."""
    inside = [
        (other[axis][..., 0] <= spans[..., 0]) & (spans[..., 1] <= other[axis][..., 1]) for axis, spans in one.items()
    ]
    return np.asarray(~there(one) | np.logical_and.reduce(inside))


def overlaps(have: Region, want: Region) -> Lengths:
    """Return how much rank i has of what rank j wants, [..., i, j]."""
    found = []
    for axis, spans in have.items():
        one, other = spans[..., :, None, :], want[axis][..., None, :, :]
        found.append(np.maximum(np.minimum(one[..., 1], other[..., 1]) - np.maximum(one[..., 0], other[..., 0]), 0))
    return np.asarray(np.multiply.reduce(found))


def box_of(region: Region, axes: tuple[str, ...], rank: int) -> Box:
    """Return a rank's box under the first of the plans."""
    spans = (region[axis][0, rank].tolist() for axis in axes)
    return Box(tuple(Span(start, max(start, stop)) for start, stop in spans))


def boxes(region: Region, axes: tuple[str, ...], plan: int = 0) -> list[Box]:
    """Return every rank's box under one of the plans."""
    own = [region[axis][plan].tolist() for axis in axes]
    return [Box(tuple(Span(start, max(start, stop)) for start, stop in spans)) for spans in zip(*own, strict=True)]
