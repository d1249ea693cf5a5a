"""Regions as arrays: what ranks have, need and share of a value, of many plans at once.

A span is [..., 2], start and stop; with the ranks of some plans [n, p, 2]. Empty spans may lie anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from solver.base.spans import Span
from solver.model.kinds.part import KnownRegion, Region, Spans, Value, there, whole
from solver.plan.layout import Box

Lengths = NDArray[np.int64]


def spans_of(partition: list[tuple[int, int]] | NDArray[np.int64]) -> Spans:
    """Return the spans of one plan, [1, p, 2]."""
    return np.array(partition, np.int64).reshape(1, -1, 2)


def taking(ranks: Collection[int], devices: int) -> Spans:
    """Return 1 for some of the ranks, else 0, [1, p, 1]."""
    return np.array([rank in ranks for rank in range(devices)], np.int64)[None, :, None]


def some_have(value: Value, ranks: Collection[int], devices: int) -> Region:
    """Return that some ranks have all of a value."""
    some = taking(ranks, devices)
    return {axis: some * whole(length) for axis, length in zip(value.axes, value.shape, strict=True)}


def lengths(spans: Spans) -> Lengths:
    """Return how long spans are, [...]."""
    return np.asarray(np.maximum(spans[..., 1] - spans[..., 0], 0))


def cut_in_pieces(spans: Spans, counts: Lengths) -> Spans:
    """Return spans cut in so many nearly equal pieces, at most one for each of their units, [pieces, ..., 2].

    Empty ones are the last; an empty span has none.
    """
    size = lengths(spans)
    counts = np.minimum(counts, size)
    edges = np.minimum(np.arange(max(int(counts.max()), 1) + 1).reshape(-1, *[1] * size.ndim), counts)
    ends = spans[..., 0] + size * edges // np.maximum(counts, 1)
    return np.stack([ends[:-1], ends[1:]], -1) * (edges[1:] > edges[:-1])[..., None]


def cut_in_tiles(spans: Spans, rows: int) -> Spans:
    """Return spans cut in nearly equal tiles of about so many rows, as `solver.base.spans.tiles`; 0: one each."""
    return cut_in_pieces(spans, np.maximum(np.rint(lengths(spans) / rows), 1).astype(np.int64) if rows else np.array(1))


def volume(region: Region) -> Lengths:
    """Return in how many units a region has numbers, [...]."""
    return np.asarray(reduce(np.multiply, [lengths(spans) for spans in region.values()]))


def hull(one: Region | None, other: Region) -> Region:
    """Return the least region that contains two."""
    if one is None:
        return other
    first, second = there(one), there(other)
    both, found = (first & second)[..., None], {}
    every = both.all()
    for axis, spans in one.items():
        joined = np.minimum(spans, other[axis])
        joined[..., 1] = np.maximum(spans[..., 1], other[axis][..., 1])
        found[axis] = joined if every else np.where(both, joined, np.where(first[..., None], spans, other[axis]))
    return KnownRegion(found, first | second)


def same(one: Region, other: Region, axes: Iterable[str]) -> NDArray[np.bool_]:
    """Return where two regions are the same along some axes, [...]."""
    ends = reduce(np.logical_and, [one[axis] == other[axis] for axis in axes])
    return np.asarray(ends[..., 0] & ends[..., 1])


def within(one: Region, other: Region) -> NDArray[np.bool_]:
    """Return where a region is contained in another, or empty, [...]."""
    inside = [
        (other[axis][..., 0] <= spans[..., 0]) & (spans[..., 1] <= other[axis][..., 1]) for axis, spans in one.items()
    ]
    return np.asarray(~there(one) | reduce(np.logical_and, inside))


def overlaps(have: Region, want: Region) -> Lengths:
    """Return how much rank i has of what rank j wants, [..., i, j]."""
    (found,) = shared(packed([have], have), packed([want], have))
    return np.asarray(found)


def packed(regions: Iterable[Region], axes: Collection[str]) -> Spans:
    """Return the spans of several regions along some axes, [regions, axes, ..., 2]; all of one shape."""
    every = [region[axis] for region in regions for axis in axes]
    if not every:
        return np.zeros((0, len(axes), 1, 1, 2), np.int64)
    return np.concatenate(every).reshape(len(every) // len(axes), len(axes), *every[0].shape)


def volumes(spans: Spans) -> Lengths:
    """Return in how many units packed regions have numbers, [regions, ...]."""
    return np.asarray(np.multiply.reduce(lengths(spans), 1))


def alike(one: Spans, other: Spans) -> NDArray[np.bool_]:
    """Return where packed regions are the same, [regions, ...]."""
    ends = one == other
    return np.asarray(np.logical_and.reduce(ends[..., 0] & ends[..., 1], 1))


def shared(have: Spans, want: Spans) -> Lengths:
    """Return how much rank i has of what rank j wants, [regions, ..., i, j], of packed regions."""
    one, other = have[..., :, None, :], want[..., None, :, :]
    common = np.minimum(one[..., 1], other[..., 1])
    common -= np.maximum(one[..., 0], other[..., 0])
    np.maximum(common, 0, out=common)
    return np.asarray(common[:, 0] if common.shape[1] == 1 else np.multiply.reduce(common, 1))


def box_of(region: Region, axes: tuple[str, ...], rank: int, plan: int = 0) -> Box:
    """Return a rank's box under one of the plans."""
    spans = (region[axis][plan, rank].tolist() for axis in axes)
    return Box(tuple(Span(start, max(start, stop)) for start, stop in spans))


def boxes(region: Region, axes: tuple[str, ...], plan: int = 0) -> list[Box]:
    """Return every rank's box under one of the plans."""
    own = [region[axis][plan].tolist() for axis in axes]
    return [Box(tuple(Span(start, max(start, stop)) for start, stop in spans)) for spans in zip(*own, strict=True)]
