"""Rows counted in stretches, so that a schedule is found once for passes of any length.

Of where rows are cut a schedule asks only which cut comes before which. `PassRows` has all cuts that there are, and
stretches are what lies between two of them. Counted in stretches, passes of many lengths have the same rows, so the
same steps, and what a rank has of values are the same boxes; how many rows a stretch has is asked only where memory is
taken (`solver.schedule.places`), and where bytes are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from solver.base.spans import Partition, Span, tiles
from solver.model.kinds.part import Spans
from solver.plan.layout import Box, Layout
from solver.schedule.regions import cut_in_tiles

# Which rows each of some ranks adds up; (): columns are shared out; None: it is made in one step.
SumRows = tuple[Span, ...] | None


@dataclass(frozen=True, slots=True)
class PassRows:
    """The rows of a pass, and where they are cut: all that a schedule knows of them.

    Parameters
    ----------
    count
        How many there are.
    asked
        Those of which the next word is asked for.
    shares
        Of every stage those of every rank; (): it is not cut by rows.
    sums
        How sums are made, by the rows that they are of and how many ranks want them.
    """

    count: int
    asked: Span
    shares: tuple[tuple[Span, ...], ...] = ()
    sums: tuple[tuple[Span, int, SumRows], ...] = ()

    def summed(self, rows: Span, ranks: int) -> SumRows:
        """Return how a sum of rows is made that so many ranks want."""
        return {(some, number): own for some, number, own in self.sums}[rows, ranks]

    def in_stretches(self) -> tuple[PassRows, Stretches]:
        """Return the same, counted in stretches, and where these are."""
        spans = [Span(0, self.count), self.asked, *(span for own in self.shares for span in own)]
        spans += [span for some, _, own in self.sums for span in (some, *(own or ()))]
        found = Stretches.between(spans)

        def counted(some: Iterable[Span]) -> tuple[Span, ...]:
            return tuple(map(found.counted, some))

        sums = [(found.counted(some), ranks, own and counted(own)) for some, ranks, own in self.sums]
        asked, shares = found.counted(self.asked), tuple(map(counted, self.shares))
        return PassRows(len(found.edges) - 1, asked, shares, tuple(sums)), found


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of a batch, and where a stage of an encoder cuts them: all that a schedule knows of them.

    Parameters
    ----------
    requests
        Those of every request, one after the other.
    shares
        By shares of the ranks, their rows.
    sums
        Which rows each of so many ranks adds up of all, where a sum is made in two steps.
    tile_rows
        In tiles of about so many rows values are made and added up; 0: at once.
    """

    requests: tuple[Span, ...]
    shares: Mapping[tuple[float, ...], tuple[Span, ...]]
    sums: Mapping[int, tuple[Span, ...]]
    tile_rows: int = 0

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.requests[-1].stop

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many every request has."""
        return tuple(request.size for request in self.requests)

    def tiled(self, rows: Spans) -> Spans:
        """Return the tiles of rows, [..., 2], as [tiles, ..., 2]; empty ones are the last."""
        return cut_in_tiles(rows, self.tile_rows)

    def summed(self, rows: Span, ranks: int) -> SumRows:
        """Return how a sum of all rows is made that so many ranks want."""
        return self.sums.get(ranks)

    def in_stretches(self) -> tuple[StretchedRows, Stretches]:
        """Return the same, counted in stretches, and where these are."""
        cut = {span for own in (*self.shares.values(), *self.sums.values()) for span in own if span.size}
        tiled = {span: tuple(tiles(span, self.tile_rows)) for span in cut}
        every = [self.requests, *self.shares.values(), *tiled.values(), *self.sums.values()]
        found = Stretches.between([Span(0, self.count), *(span for own in every for span in own)])

        def counted(some: Iterable[Span]) -> tuple[Span, ...]:
            return tuple(map(found.counted, some))

        shares = {own: counted(some) for own, some in self.shares.items()}
        sums = {ranks: counted(some) for ranks, some in self.sums.items()}
        known = {found.counted(rows): counted(own) for rows, own in tiled.items()}
        return StretchedRows(counted(self.requests), shares, sums, tiles=known), found


@dataclass(frozen=True, slots=True, kw_only=True)
class StretchedRows(BatchRows):
    """The same, counted in stretches; `tiles` has those of all rows that are made or added up in tiles."""

    tiles: Mapping[Span, tuple[Span, ...]]

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from others."""
        return self.requests, *(tuple(own.items()) for own in (self.shares, self.sums, self.tiles))

    def tiled(self, rows: Spans) -> Spans:
        """Return the tiles of rows, [..., 2], as [tiles, ..., 2]; empty ones are the last."""
        own = [self.tiles[Span(start, stop)] if start < stop else () for start, stop in rows.reshape(-1, 2).tolist()]
        found = np.zeros((max(1, *map(len, own)), len(own), 2), np.int64)
        for number, some in enumerate(own):
            for piece, tile in enumerate(some):
                found[piece, number] = tile.start, tile.stop
        return found.reshape(-1, *rows.shape)


@dataclass(frozen=True, slots=True)
class Stretches:
    """Where stretches of rows begin and end: the first edge is 0, and none is empty."""

    edges: tuple[int, ...]

    @classmethod
    def between(cls, spans: Iterable[Span]) -> Stretches:
        """Return those between which some spans begin and end."""
        return cls(tuple(sorted({edge for span in spans for edge in (span.start, span.stop)})))

    def counted(self, rows: Span) -> Span:
        """Return in which stretches rows are, which begin and end with one."""
        return Span(self.edges.index(rows.start), self.edges.index(rows.stop))

    def rows(self, stretches: Span) -> Span:
        """Return the rows of some stretches."""
        return Span(self.edges[stretches.start], self.edges[stretches.stop])

    def box(self, box: Box) -> Box:
        """Return a box of a value, of which rows are the first axis, with rows in place of stretches."""
        return Box((self.rows(box.spans[0]), *box.spans[1:]))

    def layout(self, layout: Layout) -> Layout:
        """Return a layout with rows in place of stretches."""
        return Layout(tuple(tuple(map(self.box, own)) for own in layout.boxes), layout.partial)


def rows_to_add(rows: Span, columns: int, ranks: int) -> tuple[Span, ...]:
    """Return which rows each of some ranks adds up of a sum in two steps; (): it is columns that are shared out.

    Rows are where that leaves the largest part no larger: they lie as they travel.
    """
    if -(-rows.size // ranks) * columns > -(-columns // ranks) * rows.size:
        return ()
    return shared_alike(rows, ranks)


def shared_alike(some: Span, ranks: int) -> tuple[Span, ...]:
    """Return the parts of ranks that have as much of something as each other."""
    parts = Partition.of_shares([1.0] * ranks, some.size)
    return tuple(Span(some.start + own.start, some.start + own.stop) for own in parts)
