"""Boxes of values change hands: every rank gets what it needs of what lies in the others' boxes, or their sum.

What one rank sends another of a piece that it has computed is one message: the parts of all values, one behind the
other. Pixels of the image are bytes and go in a message of their own. Receives are posted before a rank computes, so
that what is ready early is there early.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hepti_mpi.comm.group import Group
from hepti_mpi.comm.mpi import Tag
from hepti_mpi.comm.wires import Coding, Message
from solver.base.arrays import Numbers

View = Numbers  # a part of a larger array
Index = tuple[slice, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """A message to another rank: parts of values, numbers or pixels."""

    peer: int
    views: Sequence[View]
    pixels: bool

    def message(self, coding: Coding) -> Message:
        """Return what is sent."""
        packed = np.empty((1, sum(view.size for view in self.views)), np.uint8 if self.pixels else np.float32)
        start = 0
        for view in self.views:
            packed[0, start : start + view.size].reshape(view.shape)[...] = view
            start += view.size
        return packed if self.pixels else coding.encode(packed)


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
    """A message from another rank."""

    peer: int
    parts: Sequence[Arriving]
    pixels: bool

    def place(self, coding: Coding) -> Message:
        """Return the place for it."""
        shape = (1, sum(part.size for part in self.parts))
        return np.empty(shape, np.uint8) if self.pixels else coding.message(np.empty(shape, np.float32))

    def take(self, message: Message, coding: Coding, *, adds: bool) -> None:
        """Write what has arrived where it belongs, or add it."""
        flat: NDArray[Any] = message
        if not self.pixels and message.dtype != np.float32:
            flat = np.empty((1, sum(part.size for part in self.parts)), np.float32)
            coding.decode(message, flat)
        start = 0
        for part in self.parts:
            array = flat[0, start : start + part.size].reshape(part.shape)
            start += part.size
            for index, place in part.places:
                _put(place, array[index], adds=adds)


def _put(place: View, array: Numbers, *, adds: bool) -> None:
    if adds:
        place += array
    else:
        np.copyto(place, array)


@dataclass(slots=True, eq=False)
class BoxExchange:
    """A rank's part in an exchange of boxes.

    Parameters
    ----------
    sends
        Of every piece that this rank computes, its messages.
    receives
        From all other ranks, in the order in which each sends.
    kept
        What this rank has itself: from, to.
    summed
        Where something is a sum of what several ranks have: all arrays that are filled. They begin at zero.
    """

    sends: Sequence[Sequence[Outgoing]]
    receives: Sequence[Incoming]
    kept: Sequence[tuple[View, View]]
    summed: Sequence[Numbers] = ()
    _posted: list[tuple[Any, Message]] = field(default_factory=list)

    def post(self, group: Group) -> None:
        """Post all receives."""
        for incoming in self.receives:
            message = incoming.place(group.coding)
            self._posted.append((group.post_receive(message, incoming.peer, Tag.WHOLE), message))

    def send(self, group: Group, piece: int) -> None:
        """Send what others need of a piece that is computed."""
        for outgoing in self.sends[piece]:
            group.post_send(outgoing.message(group.coding), outgoing.peer, Tag.WHOLE)

    def here(self, group: Group) -> bool:
        """Return whether all that arrives is here; receives are posted where they are not yet."""
        if not self._posted:
            self.post(group)
        return group.all_here([request for request, _ in self._posted])

    def finish(self, group: Group) -> None:
        """Copy what is kept, and take what arrives.

        Summands are added in the order of their ranks, this one's among them, so that the result does not depend on
        which arrives first.
        """
        requests, messages = [request for request, _ in self._posted], [message for _, message in self._posted]
        self._posted.clear()
        for array in self.summed:
            array[...] = 0
        if not self.summed:
            self._keep()
        left = len(requests)
        while left:
            for number in group.wait_some(requests):
                left -= 1
                if not self.summed:
                    self.receives[number].take(messages[number], group.coding, adds=False)
        if self.summed:
            for peer in range(group.size):
                if peer == group.rank:
                    self._keep()
                for incoming, message in zip(self.receives, messages, strict=True):
                    if incoming.peer == peer:
                        incoming.take(message, group.coding, adds=True)

    def _keep(self) -> None:
        for source, place in self.kept:
            _put(place, source, adds=bool(self.summed))
