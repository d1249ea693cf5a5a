"""A segment that is cut by tiles, as a loop of tasks: rank 0 hands out tiles and puts together what comes back.

DeepThings' fused tile partitioning, work stealing and reuse (Zhao, Barijough, Gerstlauer, TCAD 2018, sections IV-A to
IV-C); rank 0 is the gateway, and has the image. All messages are `Tag.TILE`:

1. Rank 0 sends a tile's number, then what the tile needs. A number below zero: there are no more.
2. A rank computes it and sends back what it leaves, which asks for the next.
3. Of its own tiles a rank has one ahead, so that it need not wait. Where there is stealing, who has no own ones left
   gets the last of who has most left, when it has nothing else to do.
4. Where there is reuse, a tile leaves the strips that its neighbours take, too, and needs those that it takes: it can
   begin when all of these are at rank 0. Tiles that take none are handed out first. Who finds none that can begin
   waits for one; while any is computed or can begin, there will be one.

Rank 0 computes tiles of its own in a thread, and looks for what comes meanwhile. All tiles of a rank use the same
memory, one after the other, and those of one shape within the image the same session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from hepti_mpi.comm.group import Group
from hepti_mpi.comm.messages import Opened, View, opened, packed
from hepti_mpi.comm.mpi import Tag
from hepti_mpi.comm.wires import Coding, Message
from hepti_mpi.kernels.slab import Placed, Slab
from solver.base.arrays import Numbers
from solver.schedule.networks.steps import SegmentShares

NO_MORE = -1
LOOK_S = 1e-3  # so often rank 0 looks for messages while it computes


Parts = Mapping[str, Numbers]  # by the value, or strip: a part of it


class TileTasks:
    """What a rank does of a segment that is cut by tiles, which runs as a piece of others does.

    Parameters
    ----------
    shares, group
        The segment, and all ranks.
    slabs
        What computes tiles on this rank, by their numbers.
    parts
        On rank 0, of every tile what it needs and what it leaves, where these lie.

    Attributes
    ----------
    computed
        How many tiles this rank has computed.
    """

    def __init__(
        self, shares: SegmentShares, group: Group, slabs: Mapping[int, Slab], parts: Sequence[tuple[Parts, Parts]]
    ) -> None:
        assert shares.tiles is not None
        self.group, self.computed, self._slabs, self._parts = group, 0, slabs, parts
        self.owners, self.beside = shares.tiles.owners, shares.tiles.beside
        self.thieves = shares.segment.active if shares.segment.stealing else ()

    def run(self) -> None:
        """Compute tiles until there are no more; on rank 0, until all are there."""
        if self.group.rank == 0:
            Gateway(self).run()
            return
        while (number := int(self._receive(np.empty(1, np.int64))[0])) != NO_MORE:
            slab = self._slabs[number]
            for views in _messages(_arrays(slab.needs)):
                coming = _awaited(views, self.group.coding)
                self._receive(coming.message)
                coming.take()
            slab.run()
            self.computed += 1
            for views in _messages(_arrays(slab.leaves)):
                self.group.post_send(packed(views, self.group.coding, scaled=0), 0, Tag.TILE)

    def _receive(self, message: Message) -> Message:
        self.group.wait_some([self.group.post_receive(message, 0, Tag.TILE)])
        return message

    def compute_own(self, number: int) -> int:
        """Compute a tile on rank 0, and return its number."""
        slab, needed, left = self._slabs[number], self.needed(number), self.left(number)
        for name, (_, array) in slab.needs.items():
            array.reshape(needed[name].shape, copy=False)[...] = needed[name]
        slab.run()
        for name, (_, array) in slab.leaves.items():
            left[name][...] = array.reshape(left[name].shape)
        self.computed += 1
        return number

    def needed(self, number: int) -> Parts:
        """Return what a tile needs, of what rank 0 has."""
        return self._parts[number][0]

    def left(self, number: int) -> Parts:
        """Return where on rank 0 goes what a tile leaves."""
        return self._parts[number][1]


class Gateway:
    """An image's tiles on rank 0: whose are left, which are here, who computes which, and what comes back."""

    def __init__(self, tasks: TileTasks) -> None:
        self._tasks, self._group = tasks, tasks.group
        self._beside = tasks.beside
        self._left: list[list[int]] = [[] for _ in range(tasks.group.size)]
        for number in sorted(range(len(tasks.owners)), key=lambda number: len(self._beside[number]) > 0):
            self._left[tasks.owners[number]].append(number)
        self._here: set[int] = set()
        # What each has that asks for more, or waits for it.
        self._given: dict[int, deque[int]] = {peer: deque() for peer in self._group.others()}
        self._coming: dict[int, tuple[Any, Opened]] = {}  # of who computes, what it leaves

    def run(self) -> None:
        """Hand out tiles, take back what comes of them, and compute what rank 0 has itself."""
        with ThreadPoolExecutor(1) as thread:
            own: Future[int] | None = None
            while True:
                for peer in [*self._given]:
                    self._supply(peer)
                if own is None and (number := self._next(0)) is not None:
                    own = thread.submit(self._tasks.compute_own, number)
                if own is None and not self._coming:
                    return
                self._look(own)
                if own is not None and own.done():
                    self._here.add(own.result())
                    own = None

    def _next(self, rank: int, *, idle: bool = True) -> int | None:
        """Return the number of the tile that a rank computes next, if there is one for it that can begin."""
        able = [[n for n in left if self._here.issuperset(self._beside[n].values())] for left in self._left]
        most = max(able, key=len) if idle and rank in self._tasks.thieves else []
        if not (able[rank] or most):
            return None
        number = able[rank][0] if able[rank] else most[-1]
        self._left[self._tasks.owners[number]].remove(number)
        return number

    def _supply(self, peer: int) -> None:
        """Hand a rank a tile, and one of its own ahead; or say that there are no more."""
        given = self._given[peer]
        while len(given) < 2 and (number := self._next(peer, idle=not given)) is not None:
            self._group.post_send(np.array([number]), peer, Tag.TILE)
            for views in _messages(self._tasks.needed(number)):
                self._group.post_send(packed(views, self._group.coding, scaled=0), peer, Tag.TILE)
            given.append(number)
            if len(given) == 1:
                self._expect(peer)
        if not (given or self._left[peer] or (peer in self._tasks.thieves and any(self._left))):
            self._group.post_send(np.array([NO_MORE]), peer, Tag.TILE)
            del self._given[peer]

    def _expect(self, peer: int) -> None:
        """Post the receive of what the tile leaves that a rank computes."""
        (views,) = _messages(self._tasks.left(self._given[peer][0]))
        coming = _awaited(views, self._group.coding)
        self._coming[peer] = self._group.post_receive(coming.message, peer, Tag.TILE), coming

    def _look(self, own: Future[int] | None) -> None:
        """Take what has come; wait for it, or a little for rank 0's own tile where it computes one."""
        peers = list(self._coming)
        requests = [self._coming[peer][0] for peer in peers]
        if own is not None:
            wait([own], LOOK_S)
        for place in self._group.arrived(requests) if own is not None else self._group.wait_some(requests):
            peer = peers[place]
            _, coming = self._coming.pop(peer)
            coming.take()
            self._here.add(self._given[peer].popleft())
            if self._given[peer]:
                self._expect(peer)


def _arrays(placed: Placed) -> Parts:
    return {name: array for name, (_, array) in placed.items()}


def _messages(parts: Parts) -> list[list[View]]:
    """Return the messages with these parts, in the order of their names: pixels of the image, and numbers."""
    found = [
        [parts[name] for name in sorted(parts) if (parts[name].dtype == np.uint8) is pixels] for pixels in (True, False)
    ]
    return [views for views in found if views]


def _awaited(views: Sequence[View], coding: Coding) -> Opened:
    """Return the place for a message that fills these arrays."""
    places = [[((), view)] for view in views]
    return opened([view.shape for view in views], places, views[0].dtype, coding, scaled=0)
