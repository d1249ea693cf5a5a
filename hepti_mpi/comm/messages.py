"""What one rank sends another in an exchange: which boxes go in one message, where they go, and how they are packed.

`solver.plan.layout.moves` says who gets what. What one rank sends another of a piece that it has computed is one
message: the parts of all values, one after the other. Pixels are bytes and go in a message of their own. A message that
several ranks get alike may go from one of them to the next (`solver.plan.routes`).
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

from hepti_mpi.comm.wires import EXACT, Coding, Message
from solver.base.arrays import Numbers
from solver.plan.layout import Box, Boxes, Layout, moves
from solver.plan.routes import Route, of_owner, sources

View = Numbers  # a part of a larger array
Index = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class ItemLayouts:
    """A value in an exchange, as one rank has it.

    Parameters
    ----------
    have, want
        Its layouts.
    places
        The boxes of this rank's places. Several may want the same numbers; of summands each becomes their sum.
    kind
        What its numbers are, as numpy says it.
    """

    have: Layout
    want: Layout
    places: Boxes
    kind: str = np.dtype(np.float32).str


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that a rank sends: to whom, and of which values which part of the piece at hand."""

    peers: tuple[int, ...]
    parts: tuple[tuple[int, Index], ...]


@dataclass(frozen=True, slots=True)
class Arriving:
    """A part of a message that arrives: of which value, which box, and where it goes.

    `places` are, for every place that wants some of it: which place, what of the box, and where that is in the place.
    Summands have none: they are added where they are read.
    """

    value: int
    box: Box
    places: tuple[tuple[int, Index, Index], ...]


@dataclass(frozen=True, slots=True)
class Received:
    """A message that a rank gets: from whom, whose it is, what, and to whom it goes on from here."""

    source: int
    owner: int
    parts: tuple[Arriving, ...]
    onward: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Summand:
    """What is added to a place: where it is, which part of that, to what, and whether that is all of the place.

    It is a part of a message that arrives, by their numbers, or one of this rank's own pieces.
    """

    where: tuple[int, int] | int
    source: Index
    target: Index
    whole: bool


@dataclass(frozen=True, slots=True)
class RankMessages:
    """A rank's part in an exchange.

    Parameters
    ----------
    sends
        Of every piece its messages.
    receives
        In the order in which each owner sends.
    kept
        Of every piece what this rank has itself and wants: of which value, what of the piece, which place, and where.
    sums
        Of every place of summands, its value and its number, what is added, in rank order.
    travels
        Of every value, whether anything of it is sent by anybody.
    """

    sends: Mapping[int, Sequence[Sent]]
    receives: tuple[Received, ...]
    kept: Mapping[int, Sequence[tuple[int, Index, int, Index]]]
    sums: tuple[tuple[int, int, tuple[Summand, ...]], ...]
    travels: tuple[bool, ...]


def rank_messages(rank: int, items: Sequence[ItemLayouts], route: Route = Route.DIRECT) -> RankMessages:
    """Return a rank's part in an exchange; a route is for messages that several get alike, with all of a piece."""
    routed = route is not Route.DIRECT
    every = [moves(item.have, item.want) for item in items]
    contents: dict[tuple[int, int, str], dict[int, list[tuple[int, Box]]]] = defaultdict(lambda: defaultdict(list))
    for number, (item, own) in enumerate(zip(items, every, strict=True)):
        for move in own:
            if routed or rank in (move.sender, move.receiver):
                contents[move.sender, move.piece, item.kind][move.receiver].append((number, move.box))
    ranks = range(items[0].have.ranks if routed else 0)
    sizes = [sum(box.size for item in items for box in item.have.boxes[owner]) for owner in ranks]
    sends: dict[int, list[Sent]] = defaultdict(list)
    receives: list[Received] = []
    for (owner, piece, _), of_peers in sorted(contents.items()):
        came_from = {}
        if routed:
            all_of_it = [(number, item.have.boxes[owner][piece]) for number, item in enumerate(items)]
            alike = [peer for peer, parts in of_peers.items() if parts == all_of_it]
            came_from = sources(of_owner(route, sizes, owner), owner, piece, alike, len(sizes))
        if rank == owner:
            sends[piece] += _sent(items, owner, piece, of_peers, came_from)
        elif rank in of_peers:
            parts = tuple(_arriving(items[number], number, box) for number, box in of_peers[rank])
            onward = tuple(peer for peer, source in came_from.items() if source == rank)
            receives.append(Received(came_from.get(rank, owner), owner, parts, onward))
    kept: dict[int, list[tuple[int, Index, int, Index]]] = defaultdict(list)
    for number, item in enumerate(items):
        for piece, box in enumerate(() if item.have.partial else item.have.boxes[rank]):
            for place, wanted in enumerate(item.places):
                if box.touches(wanted):
                    part = box.intersect(wanted)
                    kept[piece].append((number, part.within(box), place, part.within(wanted)))
    sums = tuple(own for number in range(len(items)) for own in _sums(rank, items[number], number, receives))
    return RankMessages(sends, tuple(receives), kept, sums, tuple(map(bool, every)))


def _sent(
    items: Sequence[ItemLayouts], owner: int, piece: int, of_peers: Mapping[int, list[tuple[int, Box]]],
    came_from: Mapping[int, int],
) -> Iterator[Sent]:  # fmt: skip
    """Yield the messages of a piece, the next rank's first; ranks that get the same get one message."""
    together: dict[tuple[tuple[int, Box], ...], list[int]] = defaultdict(list)
    for peer in sorted(of_peers, key=lambda peer: (peer - owner) % items[0].have.ranks):
        if came_from.get(peer, owner) == owner:
            together[tuple(of_peers[peer])].append(peer)
    for parts, peers in together.items():
        yield Sent(
            tuple(peers), tuple((number, box.within(items[number].have.boxes[owner][piece])) for number, box in parts)
        )


def _arriving(item: ItemLayouts, number: int, box: Box) -> Arriving:
    common = ((place, own, box.intersect(own)) for place, own in enumerate(item.places) if own.touches(box))
    places = tuple((place, part.within(box), part.within(own)) for place, own, part in common)
    return Arriving(number, box, () if item.have.partial else places)


def _sums(
    rank: int, item: ItemLayouts, number: int, receives: Sequence[Received]
) -> Iterator[tuple[int, int, tuple[Summand, ...]]]:
    """Yield the places of a value's sums, with what is added to each in rank order."""
    if not item.have.partial:
        return
    every: list[tuple[int, Box, tuple[int, int] | int]] = [
        (received.owner, arriving.box, (message, part))
        for message, received in enumerate(receives)
        for part, arriving in enumerate(received.parts)
        if arriving.value == number
    ]
    every += [(rank, box, piece) for piece, box in enumerate(item.have.boxes[rank])]
    every.sort(key=lambda found: found[0])
    for place, wanted in enumerate(item.places):
        common = [(box.intersect(wanted), box, where) for _, box, where in every if box.touches(wanted)]
        if wanted.size:
            yield (
                number,
                place,
                tuple(
                    Summand(where, part.within(box), part.within(wanted), part == wanted) for part, box, where in common
                ),
            )


def packed(views: Sequence[View], coding: Coding, *, scaled: int) -> Message:
    """Return the message of parts of values, numbers or bytes.

    Where numbers travel in few bits, what lies along so many of a part's last axes has a scale, and an array that
    travels as it lies is sent from there; 0: the message has one scale, and is always a copy: what computes by pieces,
    or by tiles, writes the next one in the same place.
    """
    first = views[0]
    if scaled and len(views) == 1 and first.flags.c_contiguous:
        numbers = first.reshape(rows_of([first.shape], scaled))
    else:
        numbers, start = np.empty(rows_of([view.shape for view in views], scaled), first.dtype), 0
        flat = numbers.reshape(-1)
        for view in views:
            flat[start : start + view.size].reshape(view.shape)[...] = view
            start += view.size
    return coding.encode(numbers) if first.dtype == np.float32 else numbers


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A message that is awaited: the place for it, and the arrays that have its parts once it is taken."""

    message: Message
    arrays: Sequence[Numbers]
    calls: Sequence[Callable[[], object]]

    def take(self) -> None:
        """Turn what has arrived into numbers, where they belong."""
        for call in self.calls:
            call()


Target = tuple[Index, View]  # what of a part goes there
# Where messages arrive, and their numbers, by their turn in an exchange and shape: exchanges share it of which one
# runs at a time.
Rooms = dict[tuple[object, ...], Message]


def opened(
    shapes: Sequence[tuple[int, ...]], places: Sequence[Sequence[Target]], dtype: np.dtype[Any], coding: Coding,
    *, scaled: int, rooms: Rooms | None = None, turn: int = 0,
) -> Opened:  # fmt: skip
    """Return the place for a message; a part that fills a place of its own arrives there, others are copied.

    Parameters
    ----------
    shapes, places
        Of its parts: their shapes, and where they go.
    dtype, scaled
        As in `packed`.
    rooms, turn
        Where it arrives otherwise; None: in an array of its own.
    """
    rooms = {} if rooms is None else rooms
    lies = _lies(shapes, places)
    shape = rows_of(shapes, scaled)
    key = (turn, *shape, dtype.str)
    if lies is not None:
        numbers = lies.reshape(shape, copy=False)
    else:
        if key not in rooms:
            rooms[key] = np.empty(shape, dtype)
        numbers = rooms[key]
    message, calls = numbers, list[Callable[[], object]]()
    if dtype == np.float32 and coding is not EXACT:
        if ("coded", *key) not in rooms:
            rooms["coded", *key] = coding.message(numbers)
        message = rooms["coded", *key]
        calls.append(partial(coding.decode, message, numbers))
    if len(shapes) == 1:
        arrays = [numbers.reshape(shapes[0])]
    else:
        flat = np.split(numbers.reshape(-1), list(accumulate(map(math.prod, shapes)))[:-1])
        arrays = [array.reshape(shape) for array, shape in zip(flat, shapes, strict=True)]
    if lies is None:
        for own, array in zip(places, arrays, strict=True):
            calls += [partial(np.copyto, place, array[index]) for index, place in own]
    return Opened(message, arrays, calls)


def _lies(shapes: Sequence[tuple[int, ...]], places: Sequence[Sequence[Target]]) -> View | None:
    """Return the array that all of a message fills; None where there is none."""
    if len(shapes) > 1 or len(places[0]) != 1:
        return None
    place = places[0][0][1]
    return place if place.size == math.prod(shapes[0]) and place.flags.c_contiguous else None


def rows_of(shapes: Sequence[tuple[int, ...]], scaled: int) -> tuple[int, int]:
    """Return the rows of a message, each with a scale, and their width; arguments as of `packed`."""
    size = sum(map(math.prod, shapes))
    width = math.prod(shapes[0][-scaled:]) if scaled and len(shapes) == 1 else size
    return size // width, width
