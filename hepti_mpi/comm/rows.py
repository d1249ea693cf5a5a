"""Rows that come in tiles: gathered where they are wanted, or added up there.

A rank's rows come in tiles (`solver.base.spans.tiles`): a finished tile is on its way while the next is computed, and a
layer computes on those that are here while others are on the wire. An empty span sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from hepti_mpi.comm.exchange import ItemArrays, RankExchange
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.messages import ItemLayouts, RankMessages, rank_messages
from solver.base.arrays import Array
from solver.base.spans import Partition, Span, tiles
from solver.plan.layout import Box, Layout
from solver.plan.routes import Route

Product = Callable[[Span, Array], object]  # computes some rows [rows, width] into an array


class RowBlocks(Protocol):
    """Rows on their way or being computed: `array` [rows, width] fills as one iterates over its spans."""

    array: Array

    def __iter__(self) -> Iterator[Span]:
        """Yield spans within `array` as they are filled."""


class Tiles:
    """An array that fills tile by tile.

    Parameters
    ----------
    array : [rows, width]
        Where the tiles go.
    spans
        Yields every tile once it is there; exhausting it may take computing.
    """

    def __init__(self, array: Array, spans: Iterable[Span]) -> None:
        self.array = array
        self._spans = iter(spans)

    @classmethod
    def here(cls, array: Array) -> Tiles:
        """Return rows that are all there."""
        return cls(array, [Span(0, array.shape[0])] if array.shape[0] else [])

    def __iter__(self) -> Iterator[Span]:
        return self._spans


def whole(blocks: RowBlocks) -> Array:
    """Return the array once all of it is there."""
    for _ in blocks:
        pass
    return blocks.array


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return spans in ascending order, neighbours as one."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        if found and found[-1].stop == span.start:
            found[-1] = Span(found[-1].start, span.stop)
        else:
            found.append(span)
    return found


def in_order(blocks: RowBlocks, tiles: Sequence[Span]) -> Iterator[tuple[int, Span]]:
    """Yield tiles that cover the array, in order and with their numbers, each once it is filled.

    In the end the blocks are exhausted.
    """
    filled: list[Span] = []
    spans = iter(blocks)
    for number, tile in enumerate(tiles):
        while not any(tile.intersect(span) == tile for span in filled):
            filled = merged([*filled, next(spans)])
        yield number, tile
    for _ in spans:  # what a rank that needs no more has to send to others
        pass


@lru_cache(maxsize=256)
def gathering(
    rank: int, have: Partition, want: tuple[Span, ...], row: tuple[int, ...], columns: tuple[Span, ...] | None,
    tile_rows: int, route: Route,
) -> RankMessages:  # fmt: skip
    """Return a rank's part in giving every rank the rows that it wants; arguments as in `RowExchange`."""
    every = tuple(Span(0, length) for length in row)
    having = Layout(tuple(tuple(Box((tile, *every)) for tile in tiles(own, tile_rows)) for own in have))
    last = [every[-1]] * len(want) if columns is None else columns
    wanting = Layout.of(Box((rows, *every[:-1], some)) for rows, some in zip(want, last, strict=True))
    return rank_messages(rank, [ItemLayouts(having, wanting, wanting.boxes[rank])], route)


@lru_cache(maxsize=256)
def crossing(rank: int, rows: Partition, parts: tuple[tuple[Span, ...], ...], width: int) -> RankMessages:
    """Return a rank's part in giving the owners of rows all columns, of which each has some of all rows, in pieces."""
    everything = Span(0, rows.total)
    having = Layout(tuple(tuple(Box((everything, columns)) for columns in of_rank) for of_rank in parts))
    wanting = Layout.of(Box((own, Span(0, width))) for own in rows)
    return rank_messages(rank, [ItemLayouts(having, wanting, wanting.boxes[rank])])


class RowExchange:
    """Gives every rank the rows that it wants; where all want all, this is the all-gather.

    Write the own rows into `own`, and `put` every tile that is done, in order; then iterate over what arrives, spans
    within `array` [wanted rows, …]. The own rows that are wanted are in `array`, too (`kept`), not iterated over.

    Parameters
    ----------
    group
        The ranks; all make this.
    have
        Who has which rows.
    want
        For every rank the rows that it needs; they may be empty and may overlap.
    row
        The shape of a row. With scales on the wire, what lies along its last axis has its own.
    own : [own rows, …]
        The own rows, where they lie already; None: they are to be written into `own`.
    columns
        For every rank what it needs of a row's last axis; None: all.
    tile_rows, route
        As in the plan.
    """

    def __init__(
        self, group: Group, have: Partition, want: Sequence[Span], row: tuple[int, ...], own: Array | None = None, *,
        columns: Sequence[Span] | None = None, tile_rows: int = 0, route: Route = Route.DIRECT,
    ) -> None:  # fmt: skip
        mine, wanted = have[group.rank], want[group.rank]
        some = None if columns is None else tuple(columns)
        messages = gathering(group.rank, have, tuple(want), row, some, tile_rows, route)
        width = row[-1] if some is None else some[group.rank].size
        self.array = np.empty((wanted.size, *row[:-1], width), np.float32)
        common = mine.intersect(wanted)
        self.kept = common.within(wanted)
        if own is None:
            inside = common == mine and width == row[-1]
            own = self.array[self.kept.slice] if inside else np.empty((mine.size, *row), np.float32)
        self.own = own
        self.tiles = tuple(tile.within(mine) for tile in tiles(mine, tile_rows))
        self._wanted = wanted
        arrays = ItemArrays([own[tile.slice] for tile in self.tiles], [self.array])
        self._exchange = RankExchange(group, messages, [arrays], group.coding)
        self._exchange.post()

    def put(self, number: int) -> None:
        """Send one of the own tiles, which is done, all before it have been; pass on what has arrived meanwhile."""
        self._exchange.send(number)
        self._exchange.look()

    def pass_on(self) -> None:
        """Pass on what has arrived for others, too."""
        self._exchange.look()

    def __iter__(self) -> Iterator[Span]:
        for boxes in self._exchange.arriving():
            yield from merged(box.spans[0].within(self._wanted) for box in boxes)


def gather_rows(
    group: Group, x: RowBlocks, have: Partition, want: Sequence[Span], tile_rows: int = 0, route: Route = Route.DIRECT
) -> RowBlocks:
    """Give every rank the rows of x that it wants: its own once they are computed, then the others' as they come.

    Arguments as in `RowExchange`; `x` are this rank's rows. Every rank has to exhaust what it gets: its own rows are
    sent only then.
    """
    mine, wanted = have[group.rank], want[group.rank]
    if mine == wanted and not any(mine.intersect(other).size for peer, other in enumerate(want) if peer != group.rank):
        return x
    exchange = RowExchange(group, have, want, x.array.shape[1:], x.array, tile_rows=tile_rows, route=route)

    def spans() -> Iterator[Span]:
        # What others wait for comes before what this rank computes next.
        for number, _ in in_order(x, exchange.tiles):
            exchange.put(number)
        if exchange.kept.size:
            yield exchange.kept
        yield from exchange

    return Tiles(exchange.array, spans())


@lru_cache(maxsize=256)
def summing(
    rank: int, want: tuple[Span, ...], parts: tuple[Span, ...], width: int, tile_rows: int
) -> tuple[tuple[Span, ...], RankMessages]:
    """Return the rows of a rank's summands, and its part in adding them up; arguments as in `sum_rows`."""
    ranks = list(range(len(want)))

    def summands(own: int) -> tuple[Span, ...]:
        others = [tile for peer in ranks[own + 1 :] + ranks[:own] for tile in tiles(want[peer], tile_rows)]
        return tuple(rows for rows in dict.fromkeys([*others, want[own]]) if rows.size and parts[own].size)

    having = Layout(tuple(tuple(Box((rows, parts[own])) for rows in summands(own)) for own in ranks), partial=True)
    wanting = Layout.of(Box((rows, Span(0, width))) for rows in want)
    return summands(rank), rank_messages(rank, [ItemLayouts(having, wanting, wanting.boxes[rank])])


def sum_rows(
    group: Group, part: Product, want: Sequence[Span], parts: Sequence[Span], width: int, tile_rows: int = 0
) -> Array:
    """Add the ranks' summands on the rows that each rank wants: the reduce-scatter.

    Parameters
    ----------
    group
        The ranks; all call this.
    part
        Computes this rank's summand of some rows: the other ranks' rows first, sent a tile at a time, its own last.
    want
        For every rank the rows whose sum it needs; disjoint, or all rows of all.
    parts
        For every rank the columns of a row that its summands have; a rank with none sends nothing.
    width
        Of a row of the sum.
    tile_rows
        As in the plan.

    Returns
    -------
    [own rows, width]
        A new array, summed in rank order: the result does not depend on who was first.
    """
    own, messages = summing(group.rank, tuple(want), tuple(parts), width, tile_rows)
    summands = [np.empty((rows.size, parts[group.rank].size), np.float32) for rows in own]
    total = np.empty((want[group.rank].size, width), np.float32)
    exchange = RankExchange(group, messages, [ItemArrays(summands, [total])], group.coding)
    exchange.post()
    for number, (rows, array) in enumerate(zip(own, summands, strict=True)):
        part(rows, array)
        exchange.send(number)
    exchange.finish()
    return total


def sum_everywhere(
    group: Group, part: Product, rows: int, parts: Sequence[Span], width: int, tile_rows: int = 0
) -> Array:
    """Add the ranks' summands [S, width] on all ranks; arguments as in `sum_rows`, `rows` is S."""
    everywhere = [Span(0, rows)] * group.size
    if group.size <= 2:
        # One swap moves what reduce-scatter and all-gather would move, in one message instead of two.
        return sum_rows(group, part, everywhere, parts, width)
    own = Partition.of_shares([1.0] * group.size, rows)
    x_rows = sum_rows(group, part, own.spans, parts, width, tile_rows)
    return whole(gather_rows(group, Tiles.here(x_rows), own, everywhere))
