"""Rows that come in tiles, gathered where they are wanted: between stages, and where links are measured.

A rank's rows come in tiles (`solver.base.spans.tiles`): a finished tile is on its way while the next is computed, and a
layer computes on those that are here while others are on the wire. An empty span sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    rank: int, have: Partition, want: tuple[Span, ...], row: tuple[int, ...], tile_rows: int, route: Route,
) -> RankMessages:  # fmt: skip
    """Return a rank's part in giving every rank the rows that it wants; arguments as in `RowExchange`."""
    every = tuple(Span(0, length) for length in row)
    having = Layout(tuple(tuple(Box((tile, *every)) for tile in tiles(own, tile_rows)) for own in have))
    wanting = Layout.of(Box((rows, *every)) for rows in want)
    return rank_messages(rank, [ItemLayouts(having, wanting, wanting.boxes[rank])], route)


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
    tile_rows, route
        As in the plan.
    """

    def __init__(
        self, group: Group, have: Partition, want: Sequence[Span], row: tuple[int, ...], own: Array | None = None, *,
        tile_rows: int = 0, route: Route = Route.DIRECT,
    ) -> None:  # fmt: skip
        mine, wanted = have[group.rank], want[group.rank]
        messages = gathering(group.rank, have, tuple(want), row, tile_rows, route)
        self.array = np.empty((wanted.size, *row), np.float32)
        common = mine.intersect(wanted)
        self.kept = common.within(wanted)
        if own is None:
            own = self.array[self.kept.slice] if common == mine else np.empty((mine.size, *row), np.float32)
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
