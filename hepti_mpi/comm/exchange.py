"""The exchange: every rank gets what it wants of values; of summands, the sum.

Receives are posted before a rank computes, so that what is ready early is there early: a piece is on its way while the
next one is computed, and who gets it computes on what is here while the rest is on the wire. Below are two transports:
MPI, and connections of our own (`comm.direct`) for the few rows of a token.

A message's tag says whose numbers it has, and no more: MPI keeps what one rank sends another under one tag in order, so
the n-th that is sent is the n-th that was asked for. Both ends count the same way: a rank asks for an owner's pieces in
ascending order, one exchange after the other. It sends its own in that order, and passes on others' in that order:
pieces of one owner may arrive out of order, and an early one waits for the lower ones. This ends: the lowest waits for
none, and every other for lower ones only. What is sent in one exchange is sent before anything is sent in the next; one
that passes on is taken to its end before that. What has been sent is not changed afterwards: it may be on its way.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.messages import (
    Index,
    ItemLayouts,
    Opened,
    RankMessages,
    Received,
    Rooms,
    View,
    opened,
    packed,
    rank_messages,
    rows_of,
)
from hepti_mpi.comm.mpi import Tag
from hepti_mpi.comm.wires import EXACT, Coding
from solver.base.arrays import Array, Numbers
from solver.plan.layout import Box, Layout
from solver.plan.routes import Route

InBox = tuple[Box, Numbers]  # a box of a value, and the array of its numbers


@dataclass(frozen=True, slots=True, eq=False)
class ItemArrays:
    """Where a rank has a value: what its pieces are, in their order, and where what it wants goes."""

    pieces: Sequence[Numbers]
    places: Sequence[Numbers]


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

    @property
    def layouts(self) -> ItemLayouts:
        """What of it does not depend on arrays."""
        # What is empty may be of any kind.
        kind = next((array.dtype.str for _, array in (*self.places, *self.pieces) if array.size), "")
        return ItemLayouts(self.have, self.want, tuple(box for box, _ in self.places), kind)

    @property
    def arrays(self) -> ItemArrays:
        """And the arrays."""
        return ItemArrays([array for _, array in self.pieces], [array for _, array in self.places])


class RankExchange:
    """A rank's part in an exchange; made once, it may run any number of times, one run after the other.

    Summands are added in the order of their ranks, this one's among them, so that the result does not depend on which
    arrives first.

    Parameters
    ----------
    group
        The ranks; all make this.
    messages
        This rank's part.
    arrays
        Of every value.
    coding
        How numbers travel.
    scaled
        Where numbers travel in few bits, what lies along so many of a value's last axes has a scale; 0: a message has
        one.
    equal
        Whether all ranks go on with what travelled, so that they have equal numbers, to the last bit. Else a rank keeps
        what it has itself as it is.
    rooms
        Where messages arrive, if others use it too; None: it is this exchange's own.
    """

    def __init__(
        self, group: Group, messages: RankMessages, arrays: Sequence[ItemArrays], coding: Coding, *,
        scaled: int = 1, equal: bool = False, rooms: Rooms | None = None,
    ) -> None:  # fmt: skip
        self._group, self._messages, self._arrays, self._coding = group, messages, arrays, coding
        self._scaled, self._rooms = scaled, {} if rooms is None else rooms
        self._unsent: set[int] = set()
        self._requests: list[Any] = []
        self._leaving: list[Any] = []  # of what is sent
        self._opened: list[Opened] = []
        self._last: list[Callable[[], object]] = []  # what is called once all are here
        self._here: list[int] = []  # messages that have arrived since they were asked for
        self._onward: dict[int, deque[int]] = {}  # of every owner, what is to be passed on
        self._rounds = [equal and coding is not EXACT and travels for travels in messages.travels]
        self._rounded: dict[tuple[int, int], tuple[View, View]] = {}  # own summands: as they are, as they travel

    @classmethod
    def of(
        cls, group: Group, items: Sequence[Item], coding: Coding, *, route: Route = Route.DIRECT, scaled: int = 1,
        equal: bool = False, rooms: Rooms | None = None,
    ) -> RankExchange:  # fmt: skip
        """Return a rank's part in an exchange of these values."""
        messages = rank_messages(group.rank, [item.layouts for item in items], route)
        return cls(group, messages, [item.arrays for item in items], coding, scaled=scaled, equal=equal, rooms=rooms)

    def __del__(self) -> None:
        """Tell the group if something was not sent or not taken: others would wait for it for ever."""
        due = sum(map(bool, self._requests))
        if self._unsent or due:
            self._group.drop(f"{len(self._unsent)} pieces not sent and {due} messages not taken")

    @property
    def pieces(self) -> int:
        """How many pieces this rank has."""
        return max((len(own.pieces) for own in self._arrays), default=0)

    @property
    def coming(self) -> Sequence[Box]:
        """What arrives, message by message."""
        return [part.box for received in self._messages.receives for part in received.parts]

    def post(self) -> None:
        """Post all receives."""
        self._open()
        self._requests = [
            self._group.post_receive(own.message, received.source, Tag.PARTS + received.owner)
            for own, received in zip(self._opened, self._messages.receives, strict=True)
        ]
        self._unsent = {*self._messages.sends}
        self._onward = defaultdict(deque)
        for number, received in enumerate(self._messages.receives):
            if received.onward:
                self._onward[received.owner].append(number)

    def _open(self) -> None:
        if not self._opened:
            self._opened = [self._place(turn, received) for turn, received in enumerate(self._messages.receives)]
            self._last = self._adding()

    def _place(self, turn: int, received: Received) -> Opened:
        """Return the place for a message."""
        places = [
            [(index, self._arrays[part.value].places[place][target]) for place, index, target in part.places]
            for part in received.parts
        ]
        dtype = self._arrays[received.parts[0].value].places[0].dtype
        return opened(
            [part.box.shape for part in received.parts], places, dtype, self._coding, scaled=self._scaled,
            rooms=self._rooms, turn=turn,
        )  # fmt: skip

    def _views(self, piece: int, parts: Sequence[tuple[int, Index]]) -> list[View]:
        return [self._arrays[number].pieces[piece][index] for number, index in parts]

    def send(self, piece: int) -> None:
        """Send what others want of a piece that is computed; what this rank wants of it itself goes to its place."""
        for sent in self._messages.sends.get(piece, ()):
            message = packed(self._views(piece, sent.parts), self._coding, scaled=self._scaled)
            for peer in sent.peers:
                self._leaving.append(self._group.post_send(message, peer, Tag.PARTS + self._group.rank))
        self._unsent.discard(piece)
        self._keep(self._kept(piece))

    def _kept(self, piece: int) -> Iterator[tuple[View, View, bool]]:
        """Yield what of a piece this rank keeps elsewhere, or as it travels: from, to, and whether it is that."""
        for number, index, place, target in self._messages.kept.get(piece, ()):
            own, rounds = self._arrays[number], self._rounds[number]
            source, to = own.pieces[piece][index], own.places[place][target]
            if rounds or not np.may_share_memory(source, to):
                yield source, to, rounds

    def _keep(self, kept: Iterable[tuple[View, View, bool]]) -> None:
        for source, to, rounds in kept:
            np.copyto(to, _travelled(source, self._coding, self._scaled) if rounds else source)

    def here(self) -> bool:
        """Return whether all that arrives is here; receives are posted where they are not yet."""
        if self._messages.receives and not self._requests:
            self.post()
        return self._group.all_here(self._requests)

    def look(self) -> None:
        """Take what has arrived, and pass on what others get from here."""
        self._take(self._group.arrived(self._requests))

    def arriving(self) -> Iterator[list[Box]]:
        """Yield the boxes that have arrived, once they lie where they are wanted; when all have, sums are made."""
        while any(self._requests) or self._here:
            if not self._here:
                self._take(self._group.wait_some(self._requests))
            self.look()
            here, self._here = self._here, []
            yield [part.box for number in here for part in self._messages.receives[number].parts]
        self._requests = []
        self._round()
        _call(self._last)

    def finish(self) -> None:
        """Wait for all that arrives, and put it where it is wanted."""
        for _ in self.arriving():
            pass

    def sent(self) -> None:
        """Wait until all that was sent has left: where it lies may be written again."""
        self._group.wait_sent(self._leaving)
        self._leaving.clear()

    def run(self) -> None:
        """Exchange at once."""
        self.post()
        for piece in range(self.pieces):
            self.send(piece)
        self.finish()

    def _take(self, arrived: Sequence[int]) -> None:
        receives = self._messages.receives
        for number in arrived:
            owner = receives[number].owner
            waiting = self._onward.get(owner)
            while waiting and not self._requests[waiting[0]]:  # what has arrived is null
                first = waiting.popleft()
                for peer in receives[first].onward:
                    self._leaving.append(self._group.post_send(self._opened[first].message, peer, Tag.PARTS + owner))
            self._opened[number].take()
            self._here.append(number)

    def over(self, direct: Direct) -> Callable[[], None]:
        """Return what exchanges at once by connections of our own, always the same arrays."""
        coding, scaled = self._coding, self._scaled
        views = [
            (sent.peers, self._views(piece, sent.parts))
            for piece, sends in self._messages.sends.items()
            for sent in sends
        ]
        # What lies as it travels is sent from there.
        messages = [packed(own, coding, scaled=scaled) for _, own in views]
        fresh = [
            (own, message)
            for (_, own), message in zip(views, messages, strict=True)
            if not np.may_share_memory(own[0], message)
        ]
        self._open()
        exchange = direct.exchange(
            [(peer, message) for (peers, _), message in zip(views, messages, strict=True) for peer in peers],
            [
                (received.source, own.message)
                for received, own in zip(self._messages.receives, self._opened, strict=True)
            ],
        )
        last = [call for own in self._opened for call in own.calls] + self._last
        kept = [own for piece in self._messages.kept for own in self._kept(piece)]

        def run() -> None:
            for own, message in fresh:
                message[...] = packed(own, coding, scaled=scaled)
            self._keep(kept)
            self._round()
            exchange.run()
            _call(last)

        return run

    def _round(self) -> None:
        for source, place in self._rounded.values():
            np.copyto(place, _travelled(source, self._coding, self._scaled))

    def _own(self, number: int, piece: int) -> View:
        """Return an own piece as it is added."""
        array = self._arrays[number].pieces[piece]
        if not self._rounds[number]:
            return array
        return self._rounded.setdefault((number, piece), (array, np.empty_like(array)))[1]

    def _adding(self) -> list[Callable[[], object]]:
        """Return the calls that add up what has arrived, and what this rank has itself."""
        calls: list[Callable[[], object]] = []
        for number, place_number, summands in self._messages.sums:
            place = self._arrays[number].places[place_number]
            found = []
            for own in summands:
                if isinstance(own.where, tuple):
                    message, part = own.where
                    array = self._opened[message].arrays[part]
                else:
                    array = self._own(number, own.where)
                found.append((array[own.source], place[own.target]))
            if all(own.whole for own in summands[:2]):
                (first, _), *others = found
                if others:
                    calls.append(partial(np.add, first, others[0][0], out=place))
                elif not np.may_share_memory(first, place):
                    calls.append(partial(np.copyto, place, first))
                found = others[1:]
            else:
                calls.append(partial(place.fill, 0))
            calls += [partial(np.add, target, array, out=target) for array, target in found]
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
    item = Item(Layout.of(have, partial=summands), Layout.of(want), pieces, places)
    RankExchange.of(group, [item], group.coding).run()
    return out


def _travelled(x: View, coding: Coding, scaled: int) -> Array:
    """Return numbers as others get them."""
    rows = np.empty(rows_of([x.shape], scaled or 1), np.float32)
    coding.decode(coding.encode(x.reshape(rows.shape)), rows)
    return rows.reshape(x.shape)


def _call(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()
