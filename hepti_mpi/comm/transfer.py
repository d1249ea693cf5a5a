"""The exchange of boxes: every rank gets what it wants of values; of summands, the sum.

`solver.plan.layout.moves` says who sends whom what. What one rank sends another of a piece that it has computed is one
message: the parts of all values, one after the other. Pixels are bytes and go in a message of their own. Receives are
posted before a rank computes, so that what is ready early is there early. Below are two transports: MPI, and
connections of our own (`comm.direct`) for the few rows of a token.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.mpi import Tag
from hepti_mpi.comm.wires import EXACT, Coding, Message
from solver.base.arrays import Array, Numbers
from solver.plan.layout import Box, Layout, moves

View = Numbers  # a part of a larger array
Index = tuple[slice, ...]
InBox = tuple[Box, Numbers]  # a box of a value, and the array of its numbers


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """A value that changes hands, as one rank has it.

    Parameters
    ----------
    have, want
        Its layouts.
    pieces
        This rank's boxes of `have`, in their order, and where they lie.
    places
        Where what this rank wants goes. Several places may want the same numbers; of summands each becomes their sum.
    """

    have: Layout
    want: Layout
    pieces: Sequence[InBox]
    places: Sequence[InBox]


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """A message to other ranks: parts of values, numbers or bytes.

    By rows every row of a part's last axis has a scale, where numbers travel in few bits; else the message has one.
    """

    peers: Sequence[int]
    views: Sequence[View]
    by_rows: bool = False

    def message(self, coding: Coding) -> Message:
        """Return what is sent."""
        first = self.views[0]
        if len(self.views) == 1 and self.by_rows and first.flags.c_contiguous:
            packed = first.reshape(_rows([first.shape], by_rows=True))
        else:
            packed, start = np.empty(_rows([view.shape for view in self.views], by_rows=self.by_rows), first.dtype), 0
            flat = packed.reshape(-1)
            for view in self.views:
                flat[start : start + view.size].reshape(view.shape)[...] = view
                start += view.size
        return coding.encode(packed) if first.dtype == np.float32 else packed

    def place(self, coding: Coding) -> Message:
        """Return the place for what is sent."""
        return _place([view.shape for view in self.views], self.views[0].dtype, coding, by_rows=self.by_rows)


@dataclass(frozen=True, slots=True, eq=False)
class Arriving:
    """A part of a value that arrives: its shape, and where it goes, part by part, since pieces need the same rows."""

    shape: tuple[int, ...]
    places: Sequence[tuple[Index, View]]

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Incoming:
    """A message from another rank; see `Outgoing`."""

    peer: int
    parts: Sequence[Arriving]
    dtype: np.dtype[Any]
    by_rows: bool = False

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of its parts."""
        return [part.shape for part in self.parts]

    def place(self, coding: Coding) -> Message:
        """Return the place for it."""
        return _place(self.shapes, self.dtype, coding, by_rows=self.by_rows)

    @property
    def landing(self) -> list[View]:
        """The arrays that its parts fill; none where a part goes to several places, or is only some of one."""
        places = [part.places for part in self.parts]
        if any(len(own) != 1 or own[0][1].size != part.size for own, part in zip(places, self.parts, strict=True)):
            return []
        return [own[0][1] for own in places]

    def numbers(self, message: Message, coding: Coding) -> Numbers:
        """Return the place for its numbers: its own, where they are not coded."""
        if self.dtype != np.float32 or coding is EXACT:
            return message
        return np.empty(_rows(self.shapes, by_rows=self.by_rows), np.float32)

    def opened(
        self, message: Message, numbers: Numbers, coding: Coding
    ) -> tuple[Sequence[Callable[[], object]], list[Numbers]]:
        """Return what is called once the message is here, and the arrays that have its parts then."""
        calls: list[Callable[[], object]] = []
        if numbers is not message:
            calls.append(partial(coding.decode, message, numbers))
        ends = list(accumulate(part.size for part in self.parts))
        flat = np.split(numbers.reshape(-1), ends[:-1])
        arrays = [array.reshape(part.shape) for array, part in zip(flat, self.parts, strict=True)]
        for part, array in zip(self.parts, arrays, strict=True):
            calls += [partial(np.copyto, place, array[index]) for index, place in part.places]
        return calls, arrays

    def take(self, message: Message, coding: Coding) -> None:
        """Write what has arrived where it belongs."""
        _call(self.opened(message, self.numbers(message, coding), coding)[0])


# Where messages arrive and their numbers lie, by what they are; exchanges of which one runs at a time share them.
Rooms = dict[tuple[object, ...], tuple[Message, Numbers]]
Where = tuple[int, int] | View  # a part of a message that arrives, by their numbers; or what this rank has itself


@dataclass(frozen=True, slots=True, eq=False)
class _Summand:
    """What is added to a place: where it is, which part of that, and to what."""

    where: Where
    source: Index
    target: View
    whole: bool  # whether that is all of the place


class RankExchange:
    """A rank's part in an exchange; made once, it may run any number of times, one run after the other.

    Summands are added in the order of their ranks, this one's among them, so that the result does not depend on which
    arrives first.

    Parameters
    ----------
    group
        The ranks; all make this, with the same layouts.
    items
        What changes hands.
    coding
        How numbers travel.
    by_rows
        Whether every row of a value's last axis has a scale, where numbers travel in few bits; else a message has one.
    equal
        Whether all ranks go on with what travelled, so that they have equal numbers, to the last bit. Else a rank keeps
        what it has itself as it is.
    rooms
        Where messages arrive, by MPI; None: in its own.
    """

    def __init__(
        self, group: Group, items: Sequence[Item], coding: Coding, *, by_rows: bool = True, equal: bool = False,
        rooms: Rooms | None = None,
    ) -> None:  # fmt: skip
        self._group, self._coding = group, coding
        self._rooms: Rooms = {} if rooms is None else rooms
        self._requests: list[Any] = []
        self._places: list[Message] = []  # where messages arrive by MPI, made by the first that is awaited
        self._taking: list[Sequence[Callable[[], object]]] = []  # what is called once each is here
        self._last: list[Callable[[], object]] = []  # and once all are
        leaving: dict[tuple[int, str, int], list[tuple[tuple[int, Box], View]]] = defaultdict(list)
        coming: dict[tuple[int, int, str], list[tuple[int, Box]]] = defaultdict(list)
        for number, item in enumerate(items):
            for move in moves(item.have, item.want):
                if move.sender == group.rank:
                    box, array = item.pieces[move.piece]
                    view = array[move.box.within(box)]
                    leaving[move.piece, view.dtype.str, move.receiver].append(((number, move.box), view))
                elif move.receiver == group.rank:
                    coming[move.sender, move.piece, item.places[0][1].dtype.str].append((number, move.box))
        self.pieces = max((len(item.pieces) for item in items), default=0)
        self._sends = _sends(group, leaving, by_rows)
        # In the order in which each rank sends.
        order = sorted(coming)
        boxes = [coming[key] for key in order]
        self._receives = [
            Incoming(key[0], [_arriving(items[number], box) for number, box in parts], np.dtype(key[2]), by_rows)
            for key, parts in zip(order, boxes, strict=True)
        ]
        travels = [equal and coding is not EXACT and bool(moves(item.have, item.want)) for item in items]
        self._kept = [
            (*pair, rounds)
            for item, rounds in zip(items, travels, strict=True)
            if not item.have.partial
            for pair in _kept(item, rounds)
        ]
        # Of own summands those that are added as they travel: from, to.
        self._rounded: list[tuple[View, View]] = []
        self._sums: list[tuple[View, list[_Summand]]] = []
        for number, item in enumerate(items):
            if item.have.partial:
                own = [(box, self._own(array, rounds=travels[number])) for box, array in item.pieces]
                self._sums += _sums(group, number, item, own, self._receives, boxes)

    def _own(self, array: View, *, rounds: bool) -> View:
        if not rounds:
            return array
        self._rounded.append((array, np.empty_like(array)))
        return self._rounded[-1][1]

    def post(self) -> None:
        """Post all receives."""
        if not self._last and not self._places:
            rooms = [self._room(number, incoming) for number, incoming in enumerate(self._receives)]
            self._places = [place for place, _ in rooms]
            opened = [own.opened(*room, self._coding) for own, room in zip(self._receives, rooms, strict=True)]
            self._taking = [calls for calls, _ in opened]
            self._last = self._adding([arrays for _, arrays in opened])
        self._requests = [
            self._group.post_receive(place, incoming.peer, Tag.WHOLE)
            for incoming, place in zip(self._receives, self._places, strict=True)
        ]

    def _room(self, number: int, incoming: Incoming) -> tuple[Message, Numbers]:
        """Return where a message arrives, and where its numbers lie."""
        key = number, *incoming.shapes, incoming.dtype.str, incoming.by_rows, self._coding is EXACT
        if key not in self._rooms:
            place = incoming.place(self._coding)
            self._rooms[key] = place, incoming.numbers(place, self._coding)
        return self._rooms[key]

    def send(self, piece: int) -> None:
        """Send what others want of a piece that is computed."""
        for outgoing in self._sends.get(piece, ()):
            message = outgoing.message(self._coding)
            for peer in outgoing.peers:
                self._group.post_send(message, peer, Tag.WHOLE)

    def here(self) -> bool:
        """Return whether all that arrives is here; receives are posted where they are not yet."""
        if not self._requests:
            self.post()
        return self._group.all_here(self._requests)

    def finish(self) -> None:
        """Wait for all that arrives, and put it, and what this rank has itself, where it is wanted."""
        self._keep()
        left = len(self._requests)
        while left:
            for number in self._group.wait_some(self._requests):
                left -= 1
                _call(self._taking[number])
        self._requests = []
        _call(self._last)

    def run(self) -> None:
        """Exchange at once."""
        self.post()
        for piece in range(self.pieces):
            self.send(piece)
        self.finish()

    def over(self, direct: Direct) -> Callable[[], None]:
        """Return what exchanges at once by connections of our own, always the same arrays."""
        coding = self._coding
        leaving = [(own, own.place(coding)) for sends in self._sends.values() for own in sends]
        # What lies as it travels is sent from there, and arrives there.
        there = [_as_it_lies(own.views, coding) for own, _ in leaving]
        sent = [message if own is None else own for (_, message), own in zip(leaving, there, strict=True)]
        fresh = [pair for pair, own in zip(leaving, there, strict=True) if own is None]
        lands = [_as_it_lies(incoming.landing, coding) for incoming in self._receives]
        places = [
            incoming.place(coding) if own is None else own for incoming, own in zip(self._receives, lands, strict=True)
        ]
        exchange = direct.exchange(
            [(peer, message) for (own, _), message in zip(leaving, sent, strict=True) for peer in own.peers],
            [(incoming.peer, message) for incoming, message in zip(self._receives, places, strict=True)],
        )
        opened = [
            incoming.opened(place, incoming.numbers(place, coding), coding)
            for incoming, place in zip(self._receives, places, strict=True)
        ]
        last = [call for (calls, _), own in zip(opened, lands, strict=True) if own is None for call in calls]
        last += self._adding([arrays for _, arrays in opened])

        def run() -> None:
            for outgoing, message in fresh:
                message[...] = outgoing.message(coding)
            self._keep()
            exchange.run()
            _call(last)

        return run

    def _keep(self) -> None:
        for source, place, rounds in self._kept:
            np.copyto(place, _travelled(source, self._coding) if rounds else source)
        for source, place in self._rounded:
            np.copyto(place, _travelled(source, self._coding))

    def _adding(self, arrays: Sequence[Sequence[Numbers]]) -> list[Callable[[], object]]:
        """Return the calls that add up what has arrived in these arrays, and what this rank has itself."""
        calls: list[Callable[[], object]] = []

        def source(own: _Summand) -> View:
            array = arrays[own.where[0]][own.where[1]] if isinstance(own.where, tuple) else own.where
            return array[own.source]

        for place, summands in self._sums:
            found = [(source(own), own) for own in summands]
            if all(own.whole for own in summands[:2]):
                first, *others = found
                if others:
                    calls.append(partial(np.add, first[0], others[0][0], out=place))
                elif not np.may_share_memory(first[0], place):
                    calls.append(partial(np.copyto, place, first[0]))
                found = others[1:]
            else:
                calls.append(partial(place.fill, 0))
            calls += [partial(np.add, own.target, array, out=own.target) for array, own in found]
        return calls


def exchanged(group: Group, array: Array, have: Sequence[Box], want: Sequence[Box], *, summands: bool = False) -> Array:
    """Return what this rank wants of a value, as a new array.

    Parameters
    ----------
    group
        The ranks; all call this.
    array
        This rank's box of it.
    have, want
        Of every rank, what it has and what it wants; empty boxes of who has or wants nothing.
    summands
        Whether that is what ranks have: what is wanted is their sum.
    """
    mine, wanted = have[group.rank], want[group.rank]
    out = np.empty(wanted.shape, np.float32)
    pieces, places = ([(box, own)] if box.size else [] for box, own in ((mine, array), (wanted, out)))
    RankExchange(group, [Item(Layout.of(have, partial=summands), Layout.of(want), pieces, places)], group.coding).run()
    return out


def _sends(
    group: Group, leaving: Mapping[tuple[int, str, int], list[tuple[tuple[int, Box], View]]], by_rows: bool
) -> dict[int, list[Outgoing]]:
    """Return the messages of every piece, bytes first; ranks that get the same get one message."""
    found: dict[int, list[Outgoing]] = defaultdict(list)
    for piece, dtype in sorted({key[:2] for key in leaving}):
        of_peers = [(peer, leaving[piece, dtype, peer]) for peer in group.others() if (piece, dtype, peer) in leaving]
        alike: dict[tuple[tuple[int, Box], ...], list[int]] = defaultdict(list)
        views = {}
        for peer, parts in of_peers:
            what = tuple(part for part, _ in parts)
            alike[what].append(peer)
            views[what] = [view for _, view in parts]
        found[piece] += [Outgoing(peers, views[what], by_rows) for what, peers in alike.items()]
    return found


def _arriving(item: Item, box: Box) -> Arriving:
    """Return where a box that arrives goes: to every place that wants some of it."""
    common = [(own.intersect(box), own, array) for own, array in item.places]
    places = [] if item.have.partial else common  # summands are added where they are read
    return Arriving(
        box.shape, [(part.within(box), array[part.within(own)]) for part, own, array in places if part.size]
    )


def _kept(item: Item, rounds: bool) -> Iterator[tuple[View, View]]:
    """Yield what a rank has itself and wants elsewhere, or as it travels: from, to."""
    for box, array in item.pieces:
        for wanted, place in item.places:
            part = box.intersect(wanted)
            if part.size:
                source, target = array[part.within(box)], place[part.within(wanted)]
                if rounds or not np.may_share_memory(source, target):
                    yield source, target


def _sums(
    group: Group, number: int, item: Item, own: Sequence[InBox], receives: Sequence[Incoming],
    boxes: Sequence[Sequence[tuple[int, Box]]],
) -> Iterator[tuple[View, list[_Summand]]]:  # fmt: skip
    """Yield every place of an item, with what is added to it in rank order."""
    arriving = [
        (incoming.peer, box, (message, part))
        for message, (incoming, parts) in enumerate(zip(receives, boxes, strict=True))
        for part, (of, box) in enumerate(parts)
        if of == number
    ]
    every: list[tuple[int, Box, Where]] = [*arriving, *((group.rank, box, array) for box, array in own)]
    every.sort(key=lambda found: found[0])
    for wanted, place in (own for own in item.places if own[0].size):
        common = [(box.intersect(wanted), box, where) for _, box, where in every]
        yield (
            place,
            [
                _Summand(where, part.within(box), place[part.within(wanted)], part == wanted)
                for part, box, where in common
                if part.size
            ],
        )


def _rows(shapes: Sequence[tuple[int, ...]], *, by_rows: bool) -> tuple[int, int]:
    """Return the rows of a message, and their width."""
    size = sum(map(math.prod, shapes))
    width = shapes[0][-1] if by_rows and len(shapes) == 1 else size
    return size // width, width


def _place(shapes: Sequence[tuple[int, ...]], dtype: np.dtype[Any], coding: Coding, *, by_rows: bool) -> Message:
    array = np.empty(_rows(shapes, by_rows=by_rows), dtype)
    return coding.message(array) if dtype == np.float32 else array


def _as_it_lies(views: Sequence[View], coding: Coding) -> View | None:
    """Return the array of a message that travels as it lies; None where it has to be coded or packed."""
    if len(views) != 1 or not views[0].flags.c_contiguous or (coding is not EXACT and views[0].dtype == np.float32):
        return None
    return views[0]


def _travelled(x: View, coding: Coding) -> Array:
    """Return numbers as others get them."""
    rows = np.empty((x.size // x.shape[-1], x.shape[-1]), np.float32)
    coding.decode(coding.encode(x.reshape(rows.shape)), rows)
    return rows.reshape(x.shape)


def _call(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()
