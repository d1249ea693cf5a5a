"""Exchanges between layouts: nonblocking messages with true, nonuniform counts, a tile at a time.

A rank's rows come in tiles (`solver.base.spans.tiles`): a finished tile is on its way while the next is computed, and a
layer computes on those that are here while others are on the wire. An empty span sends nothing. What has been handed
to an exchange is not changed afterwards: it may still be on its way.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from hepti_mpi.comm.group import Group
from hepti_mpi.comm.mpi import Tag
from hepti_mpi.comm.wires import Message
from solver.base.arrays import Array
from solver.base.spans import Partition, Span, tiles
from solver.plan.routes import Route, of_owner, sources

Product = Callable[[Span], Array]  # rows -> [rows, width]


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


def merged(spans: Sequence[Span]) -> list[Span]:
    """Return spans in ascending order, neighbours as one."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        if found and found[-1].stop == span.start:
            found[-1] = Span(found[-1].start, span.stop)
        else:
            found.append(span)
    return found


def in_order(blocks: RowBlocks, tiles: Sequence[Span]) -> Iterator[Span]:
    """Yield tiles that cover the array, in order, each once it is filled; in the end the blocks are exhausted."""
    filled: list[Span] = []
    spans = iter(blocks)
    for tile in tiles:
        while not any(tile.intersect(span) == tile for span in filled):
            filled = merged([*filled, next(spans)])
        yield tile
    for _ in spans:  # what a rank that needs no more has to send to others
        pass


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message that a rank receives: from whom, whose rows, where in its array, and who gets it from here."""

    source: int
    owner: int
    span: Span
    onward: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TileSchedule:
    """A rank's messages in a gather of rows: to whom its own tiles go (rows within its own), and what arrives."""

    departures: tuple[tuple[tuple[int, Span], ...], ...]  # of every own tile: receivers with their rows
    arrivals: tuple[Arrival, ...]  # of every owner, its tiles in order


@lru_cache(maxsize=256)
def schedule(have: Partition, want: tuple[Span, ...], tile_rows: int, route: Route, rank: int) -> TileSchedule:
    """Return a rank's part in giving every rank the rows that it wants; arguments as in `Gather`."""
    departures, arrivals = [], []
    for owner, span in enumerate(have):
        via = of_owner(route, have.counts, owner)
        for number, tile in enumerate(tiles(span, tile_rows)):
            parts = {
                peer: part for peer in range(len(have)) if peer != owner and (part := tile.intersect(want[peer])).size
            }
            # Who wants a part only gets it from the owner.
            came_from = sources(via, owner, number, [peer for peer, part in parts.items() if part == tile], len(have))
            direct = {peer for peer in parts if came_from.get(peer, owner) == owner}
            if rank == owner:
                order = sorted(direct, key=lambda peer: (peer - owner) % len(have))
                departures.append(tuple((peer, parts[peer].within(span)) for peer in order))
            elif rank in parts:
                onward = tuple(peer for peer, source in came_from.items() if source == rank)
                arrivals.append(Arrival(came_from.get(rank, owner), owner, parts[rank].within(want[rank]), onward))
    return TileSchedule(tuple(departures), tuple(arrivals))


class Gather:
    """Gives every rank the rows that it wants; where all want all, this is the all-gather.

    Write the own rows into `own`, and `put` every tile that is done, in order; then iterate over what arrives, spans
    within `array` [wanted rows, width]. The own rows that are wanted are in `array`, too (`kept`), not iterated over.

    A message's tag says whose rows it has, and no more: MPI keeps what one rank sends another under one tag in order,
    so the n-th that is sent is the n-th that was asked for. Both ends count the same way. A rank asks for an owner's
    tiles in ascending order, one gather after the other. It sends its own in that order, as they are put, and passes on
    others' in that order: tiles of one owner may arrive out of order, and an early one waits for the lower ones. This
    ends: the lowest waits for none, and every other for lower ones only. What is put in one gather is put before
    anything is put in the next; one that passes on is iterated to its end before that.

    Parameters
    ----------
    group
        The ranks; all call this.
    have
        Who has which rows.
    want
        For every rank the rows that it needs; they may be empty and may overlap.
    width
        Of a row.
    tile_rows, route
        As in the plan.
    tensors
        How many tensors lie side by side in a row: with scales on the wire, each has its own.
    """

    def __init__(
        self, group: Group, have: Partition, want: Sequence[Span], width: int,
        tile_rows: int = 0, route: Route = Route.DIRECT, tensors: int = 1,
    ) -> None:  # fmt: skip
        self._group, self._tensors = group, tensors
        # Before anything can fail: `__del__` looks at them.
        self._departures: Iterator[tuple[tuple[int, Span], ...]] = iter(())
        self._requests: list[Any] = []
        mine, wanted = have[group.rank], want[group.rank]
        self.array = np.empty((wanted.size, width), np.float32)
        common = mine.intersect(wanted)
        self.kept = common.within(wanted)
        self._kept_of_own, self._inside = common.within(mine), common == mine
        self.own = self.array[self.kept.slice] if self._inside else np.empty((mine.size, width), np.float32)
        self.tiles = tuple(tile.within(mine) for tile in tiles(mine, tile_rows))
        plan = schedule(have, tuple(want), tile_rows, route, group.rank)
        self._departures = iter(plan.departures)
        self._open = plan.arrivals
        self._messages = [group.coding.message(self._by_tensor(self.array[to.span.slice])) for to in self._open]
        self._requests = [
            group.post_receive(message, to.source, Tag.ROWS + to.owner)
            for message, to in zip(self._messages, self._open, strict=True)
        ]
        self._onward: dict[int, deque[int]] = defaultdict(deque)  # of every owner, what is to be passed on
        for number, to in enumerate(self._open):
            if to.onward:
                self._onward[to.owner].append(number)
        self._here: list[Span] = []

    def __del__(self) -> None:
        """Tell the group if something was not put or not taken: others would wait for it for ever."""
        unsent, due = sum(map(bool, self._departures)), sum(map(bool, self._requests))
        if unsent or due:
            self._group.drop(f"{self.array.shape}, {unsent} tiles not put and {due} messages not taken")

    def put(self, tile: Span) -> None:
        """Send the next of the own tiles, which is done; pass on what has arrived meanwhile."""
        tag, message = Tag.ROWS + self._group.rank, None
        for peer, span in next(self._departures):
            if span == tile:
                if message is None:
                    message = self._encode(self.own[tile.slice])
                self._group.post_send(message, peer, tag)
            else:
                self._group.post_send(self._encode(self.own[span.slice]), peer, tag)
        if not self._inside and (part := self._kept_of_own.intersect(tile)).size:
            self.array[self.kept.slice][part.within(self._kept_of_own).slice] = self.own[part.slice]
        self.pass_on()

    def pass_on(self) -> None:
        """Pass on what has arrived for others, too."""
        self._take(self._group.arrived(self._requests))

    def __iter__(self) -> Iterator[Span]:
        while any(self._requests) or self._here:
            if not self._here:
                self._take(self._group.wait_some(self._requests))
            self.pass_on()
            here, self._here = merged(self._here), []
            yield from here

    def _take(self, arrived: Sequence[int]) -> None:
        for number in arrived:
            to, message = self._open[number], self._messages[number]
            waiting = self._onward[to.owner]
            while waiting and not self._requests[waiting[0]]:  # what has arrived is null
                first = waiting.popleft()
                for peer in self._open[first].onward:
                    self._group.post_send(self._messages[first], peer, Tag.ROWS + to.owner)
            self._group.coding.decode(message, self._by_tensor(self.array[to.span.slice]))
            self._here.append(to.span)

    def _encode(self, x: Array) -> Message:
        return self._group.coding.encode(self._by_tensor(x))

    def _by_tensor(self, x: Array) -> Array:
        return x.reshape(x.shape[0] * self._tensors, -1, copy=False) if x.size else x


def gather_rows(
    group: Group, x: RowBlocks, have: Partition, want: Sequence[Span], tile_rows: int = 0, route: Route = Route.DIRECT
) -> RowBlocks:
    """Give every rank the rows of x that it wants: its own once they are computed, then the others' as they come.

    Arguments as in `Gather`; `x` are this rank's rows. Every rank has to exhaust what it gets: its own rows are sent
    only then.
    """
    mine, wanted = have[group.rank], want[group.rank]
    if mine == wanted and not any(mine.intersect(other).size for peer, other in enumerate(want) if peer != group.rank):
        return x
    gather = Gather(group, have, want, x.array.shape[1], tile_rows, route)

    def spans() -> Iterator[Span]:
        # What others wait for comes before what this rank computes next.
        for tile in in_order(x, gather.tiles):
            gather.own[tile.slice] = x.array[tile.slice]
            gather.put(tile)
        if gather.kept.size:
            yield gather.kept
        yield from gather

    return Tiles(gather.array, spans())


def reduce_rows(
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
        For every rank the rows whose sum it needs; disjoint.
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
    mine = want[group.rank]
    own = parts[group.rank].size > 0
    summing = [peer for peer in range(group.size) if parts[peer].size and mine.size]
    summands = {peer: np.empty((mine.size, parts[peer].size), np.float32) for peer in summing if peer != group.rank}
    coming = _receive(
        group,
        [(peer, block[tile.within(mine).slice]) for peer, block in summands.items() for tile in tiles(mine, tile_rows)],
    )
    for peer in group.others() if own else ():
        for tile in tiles(want[peer], tile_rows):
            _send(group, part(tile), [peer])
    if own and mine.size:
        summands[group.rank] = part(mine)
    for _ in coming:
        pass
    total = np.zeros((mine.size, width), np.float32)
    for peer in summing:
        total[:, parts[peer].slice] += summands[peer]
    return total


def all_reduce(group: Group, part: Product, rows: int, parts: Sequence[Span], width: int, tile_rows: int = 0) -> Array:
    """Add the ranks' summands [S, width] on all ranks; arguments as in `reduce_rows`, `rows` is S."""
    everything = Span(0, rows)
    if group.size <= 2:
        # One swap moves what reduce-scatter and all-gather would move, in one message instead of two.
        summing = [peer for peer in range(group.size) if parts[peer].size]
        summands = {peer: np.empty((rows, width), np.float32) for peer in summing if peer != group.rank}
        coming = _receive(group, list(summands.items()))
        if group.rank in summing:
            summands[group.rank] = part(everything)
            _send(group, summands[group.rank], list(group.others()))
        for _ in coming:
            pass
        return np.asarray(sum((summands[peer] for peer in summing[1:]), summands[summing[0]]))
    own = Partition.of_shares([1.0] * group.size, rows)
    x_rows = reduce_rows(group, part, own.spans, parts, width, tile_rows)
    return whole(gather_rows(group, Tiles.here(x_rows), own, [everything] * group.size))


def _send(group: Group, x: Array, peers: Sequence[int]) -> None:
    if x.size and peers:
        message = group.coding.encode(x)
        for peer in peers:
            group.post_send(message, peer, Tag.WHOLE)


def _receive(group: Group, blocks: Sequence[tuple[int, Array]]) -> Iterator[int]:
    """Receive blocks, in order where they are of one peer; yield their numbers as they are filled."""
    messages = [group.coding.message(block) for _, block in blocks]
    requests = [group.post_receive(place, peer, Tag.WHOLE) for (peer, _), place in zip(blocks, messages, strict=True)]

    def arrivals() -> Iterator[int]:
        left = len(requests)
        while left:
            for number in group.wait_some(requests):
                group.coding.decode(messages[number], blocks[number][1])
                left -= 1
                yield number

    return arrivals()
