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

import math
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from hepti_mpi.comm.group import Group
from hepti_mpi.comm.messages import Opened, View, opened, packed
from hepti_mpi.comm.mpi import Tag
from hepti_mpi.comm.wires import Coding, Message
from hepti_mpi.kernels.slab import Bind, PieceGraph, Placed, Shared, Slab, part, shape_of
from solver.base.arrays import Numbers
from solver.model.convnet import ConvNet, MapBox
from solver.schedule.networks.pieces import Piece, map_box, tile_pieces
from solver.schedule.networks.steps import SegmentShares

NO_MORE = -1
LOOK_S = 1e-3  # so often rank 0 looks for messages while it computes


class TileTasks:
    """What a rank does of a segment that is cut by tiles. The loop over segments takes it for a slab.

    Parameters
    ----------
    net, shares, group
        The network, what follows from the segment, and all ranks.

    Attributes
    ----------
    graphs
        What computes tiles, as nodes; it runs when they are bound to those that are made.
    needs, leaves
        On rank 0 all that comes in, and all that the segment leaves; on others nothing.
    computed
        How many tiles this rank has computed.
    """

    def __init__(self, net: ConvNet, shares: SegmentShares, group: Group) -> None:
        self.net, self.group, self.computed = net, group, 0
        assert shares.tiles is not None
        self.tiles, self.owners, self.beside = tile_pieces(shares), shares.tiles.owners, shares.tiles.beside
        self.thieves = shares.segment.active if shares.segment.stealing else ()
        rank = group.rank
        needed = {value: map_box(region, (0, rank)) for value, region in shares.needs.items()}
        self.needs: Placed = {
            value: (box, Shared().array(net, value, box)) for value, box in needed.items() if box.size
        }
        self.leaves: Placed = {}
        for value in shares.after if rank == 0 else ():
            every = net.extent(value)
            made = np.empty(shape_of(net, value, every), np.float32)
            self.leaves[value] = self.needs[value] if value in shares.before else (every, made)
        self._strips: list[Placed] = [
            {strip.name: (strip.box, Shared().array(net, strip.value, strip.box)) for strip in tile.given}
            for tile in (self.tiles if rank == 0 else ())
        ]
        able = shares.able(rank)
        shared = Shared(_room(net, [self.tiles[number] for number in able]), in_place=True)
        self._slabs = {number: Slab(net, self.tiles[number], shared) for number in able}

    @property
    def graphs(self) -> Sequence[PieceGraph]:  # noqa: D102
        return [graph for slab in self._slabs.values() for graph in slab.graphs]

    def bind(self, ready: Mapping[bytes, Bind]) -> None:
        """Take the graphs that are ready to run, by their keys."""
        for slab in self._slabs.values():
            slab.bind(ready)

    def run(self) -> None:
        """Compute tiles until there are no more; on rank 0, until all are there."""
        if self.group.rank == 0:
            Gateway(self).run()
            return
        while (number := int(self._receive(np.empty(1, np.int64))[0])) != NO_MORE:
            slab = self._slabs[number]
            for views in _messages(self.net, slab.needs):
                coming = _awaited(views, self.group.coding)
                self._receive(coming.message)
                coming.take()
            slab.run()
            self.computed += 1
            for views in _messages(self.net, slab.leaves):
                self.group.post_send(packed(views, self.group.coding, by_rows=False), 0, Tag.TILE)

    def _receive(self, message: Message) -> Message:
        self.group.wait_some([self.group.post_receive(message, 0, Tag.TILE)])
        return message

    def compute_own(self, number: int) -> int:
        """Compute a tile on rank 0, and return its number."""
        slab = self._slabs[number]
        for value, (_, array) in slab.needs.items():
            np.copyto(array, self.needed(number)[value][1])
        slab.run()
        for value, (_, array) in slab.leaves.items():
            np.copyto(self.left(number)[value][1], array)
        self.computed += 1
        return number

    def needed(self, number: int) -> Placed:
        """Return what a tile needs, of what rank 0 has."""
        walk, beside = self.tiles[number].walk, self.beside[number]
        needs = {value: walk.needs[value] for value in self.needs if value in walk.needs}
        strips = {strip.name: self._strips[beside[strip.side]][strip.name] for strip in walk.taken}
        return _parts(self.net, self.needs, needs) | strips

    def left(self, number: int) -> Placed:
        """Return where on rank 0 goes what a tile leaves."""
        return _parts(self.net, self.leaves, self.tiles[number].boxes) | self._strips[number]


class Gateway:
    """An image's tiles on rank 0: whose are left, which are here, who computes which, and what comes back."""

    def __init__(self, tasks: TileTasks) -> None:
        self._tasks, self._group, self._net = tasks, tasks.group, tasks.net
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
            for views in _messages(self._net, self._tasks.needed(number)):
                self._group.post_send(packed(views, self._group.coding, by_rows=False), peer, Tag.TILE)
            given.append(number)
            if len(given) == 1:
                self._expect(peer)
        if not (given or self._left[peer] or (peer in self._tasks.thieves and any(self._left))):
            self._group.post_send(np.array([NO_MORE]), peer, Tag.TILE)
            del self._given[peer]

    def _expect(self, peer: int) -> None:
        """Post the receive of what the tile leaves that a rank computes."""
        (views,) = _messages(self._net, self._tasks.left(self._given[peer][0]))
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


def _parts(net: ConvNet, of: Placed, boxes: Mapping[str, MapBox]) -> Placed:
    """Return boxes of values as views into arrays of larger ones."""
    return {value: (box, part(net, value, of[value][1], of[value][0], box)) for value, box in boxes.items()}


def _messages(net: ConvNet, parts: Placed) -> list[list[View]]:
    """Return the messages with these parts, in the order of their names: pixels of the image, and numbers."""
    found = [[parts[value][1] for value in sorted(parts) if (value == net.input) is pixels] for pixels in (True, False)]
    return [views for views in found if views]


def _awaited(views: Sequence[View], coding: Coding) -> Opened:
    """Return the place for a message that fills these arrays."""
    places = [[((), view)] for view in views]
    return opened([view.shape for view in views], places, views[0].dtype, coding, by_rows=False)


def _room(net: ConvNet, tiles: Sequence[Piece]) -> dict[str, Numbers]:
    """Return memory for the largest box of every value, or strip, that a tile needs or leaves."""
    most: dict[str, int] = {}
    for tile in tiles:
        for name, (value, box) in (tile.coming | tile.going).items():
            most[name] = max(most.get(name, 0), math.prod(shape_of(net, value, box)))
    return {name: np.empty(size, np.uint8 if name == net.input else np.float32) for name, size in most.items()}
