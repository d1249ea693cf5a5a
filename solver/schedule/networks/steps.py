"""What a network's plan does: its segments as placed parts, and what ranks need, compute and leave of each.

A segment is one computation. Its parts are cut as the plan says where the segment leaves what they make, and computed
with their readers else; where readers within it need more of what it leaves, more is computed (halos). What is there
before it and needed after it is shared out anew. Tiles are, like ranks, boxes of what a segment leaves; rank 0 has all
before and after them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.base.spans import Partition, Span
from solver.cluster.curves import Floats
from solver.model.convnet import NOTHING, ConvNet, MapBox
from solver.model.kinds.operator import CHANNEL, IMAGE_COLUMN, IMAGE_ROW, MAP, NO_STREAM, SUMMED, adding
from solver.model.kinds.part import NodeKind, Part, Region, Spans, Value, there
from solver.model.operators import is_by_rows, map_value, parts_of
from solver.plan.plan import Wire
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, pooled_in, tile_boxes
from solver.schedule.exchange import Mask
from solver.schedule.regions import Lengths, overlaps, packed, shared, some_have, volume
from solver.schedule.schedule import WITH_READER, ComputeStep, ExchangeStep, PlacedPart, Walked, walk

CARRIED = "carried"  # role of what passes a segment
FLOAT_BITS, PIXEL_BITS = 32, 8
# Where a tile's neighbours lie: how many tiles further down, and across.
SIDES = {"above": (-1, 0), "below": (1, 0), "left": (0, -1), "right": (0, 1)}
Regions = Mapping[str, Region]  # by the value
_FAR = 1 << 40  # after the end of every axis
# Of so many pairs of spans what is between fits in a cache: values are compared together, or of many plans one by one.
CACHED = 1 << 18


@dataclass(frozen=True, slots=True)
class Passing(NodeKind):
    """The kind of what passes a segment as it is."""

    curve: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Where a value lies.

    Parameters
    ----------
    box : [pieces, p, 2]
        What every rank has, in the pieces in which it is made.
    partial
        Whether these are summands.
    """

    value: Value
    box: Region
    partial: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TileShares:
    """The tiles of a segment, row by row.

    Parameters
    ----------
    boxes : [1, tiles, 2]
        What each leaves of values that the segment makes.
    walked
        What each computes, and needs from before.
    needs
        What each needs of values within.
    taken
        What of that it takes from its neighbours, by the value and the side.
    beside
        Of every tile: from which others it takes some, by their side.
    owners
        Whose each is first.
    values
        That they leave.
    """

    boxes: Regions
    walked: Walked
    needs: Regions
    taken: Mapping[tuple[str, str], Region]
    beside: tuple[Mapping[str, int], ...]
    owners: tuple[int, ...]
    values: tuple[Value, ...]

    @property
    def joined(self) -> dict[str, Mask]:
        """Of every value that is put together of strips and what is made, which tiles do so, [tiles]."""
        found: dict[str, Mask] = {}
        for (value, _), strip in self.taken.items():
            found[value] = found.get(value, np.zeros(1, bool)) | there(strip)[0]
        return found

    @property
    def given(self) -> list[tuple[str, str, int, int]]:
        """The strips that are there: of which value, at which side of whom, and who gives it."""
        return [
            (value, side, tile, self.beside[tile][side])
            for (value, side), region in self.taken.items()
            for tile in np.flatnonzero(there(region)[0]).tolist()
        ]


@dataclass(frozen=True, eq=False)
class SegmentShares:
    """What follows from a segment of a plan.

    Parameters
    ----------
    before
        Of every value that is there before the segment, where it lies.
    whole, compute
        What ranks compute, all at once, and in their pieces; of tiles what passes them on rank 0.
    """

    segment: Segment
    before: Mapping[str, Held]
    whole: ComputeStep
    compute: ComputeStep
    tiles: TileShares | None = None

    @cached_property
    def needs(self) -> Regions:
        """Of every value from before, the box that every rank needs, [1, p, 2]; of tiles, rank 0 for all."""
        if self.tiles is None:
            return _needs(self.compute)
        needs, own = self.compute.walked[1], self.tiles.walked[1]
        every = {name: [some[name] for some in (needs, own) if name in some] for name in self.before}
        return {name: _on_root(wanted, self.devices) for name, wanted in every.items()}

    @cached_property
    def after(self) -> Mapping[str, Held]:
        """Of every value that is there after the segment, where it lies."""
        if self.tiles is None:
            return left_by(self.compute)
        values = [held.value for held in left_by(self.compute).values()] + [*self.tiles.values]
        return all_on(values, 0, self.devices)

    @property
    def devices(self) -> int:
        """Number of devices, p."""
        return len(self.segment.shares)

    def able(self, rank: int) -> list[int]:
        """Return which tiles a rank may compute: its own, and where there is stealing all, if it has a share."""
        steals = self.segment.stealing and rank in self.segment.active
        owners = self.tiles.owners if self.tiles else ()
        return [number for number, owner in enumerate(owners) if owner == rank or steals]


def unrolled(net: ConvNet, plan: SegmentPlan) -> tuple[SegmentShares, ...]:
    """Return what follows from every segment; the image is on rank 0, and in the end so are the outputs."""
    return _unrolled(net, plan.segments, len(plan.devices))


@lru_cache(maxsize=8)  # time, weights and memory of a plan are asked for one after the other
def _unrolled(net: ConvNet, segments: tuple[Segment, ...], ranks: int) -> tuple[SegmentShares, ...]:
    held: Mapping[str, Held] = image_on_root(net, ranks)
    found: list[SegmentShares] = []
    for segment in segments:
        found.append(segment_shares(net, segment, held))
        held = found[-1].after
    return tuple(with_edges_first(found, handed_in(net, ranks)))


def exchanges_of(before: Mapping[str, Held], needs: Regions) -> list[ExchangeStep]:
    """Return the steps that bring what ranks need of what lies so: what goes from a piece to a rank is one message."""
    found = []
    for name, want in needs.items():
        held = before[name]
        pieces = range(len(held.box[CHANNEL]))
        have = tuple({axis: held.box[axis][number : number + 1] for axis in MAP} for number in pieces)
        found.append(ExchangeStep(name, held.value, have, want, held.partial))
    return found


def image_on_root(net: ConvNet, ranks: int) -> dict[str, Held]:
    """Return where values lie in the beginning: the image, on rank 0."""
    return all_on([map_value(net, net.input)], 0, ranks)


def all_on(values: Iterable[Value], rank: int, ranks: int) -> dict[str, Held]:
    """Return where values lie that a rank has all of."""
    return {value.name: Held(value, some_have(value, [rank], ranks)) for value in values}


def live_on(net: ConvNet, at: int, rank: int, ranks: int) -> dict[str, Held]:
    """Return where values lie before a node if a rank has all of each."""
    return all_on([map_value(net, name) for name in net.live(at)], rank, ranks)


def handed_in(net: ConvNet, ranks: int) -> dict[str, Region]:
    """Return what ranks need in the end: rank 0 all outputs."""
    outputs = [map_value(net, name) for name in net.outputs]
    return {name: held.box for name, held in all_on(outputs, 0, ranks).items()}


def segment_shares(net: ConvNet, segment: Segment, before: Mapping[str, Held]) -> SegmentShares:
    """Return what follows from a segment where values lie so before it."""
    if segment.cut is SegmentCut.TILES:
        return _tiled(net, segment, before)
    compute = _of_one(net, segment.nodes, segment.cut, segment.shares)
    return SegmentShares(segment, before, compute, compute)


@lru_cache(maxsize=1 << 8)  # plans that differ in a segment have all others in common
def _of_one(net: ConvNet, nodes: Span, cut: SegmentCut, shares: tuple[float, ...]) -> ComputeStep:
    return computation(net, nodes, cut, (shares,))


def computation(net: ConvNet, nodes: Span, cut: SegmentCut, shares: tuple[tuple[float, ...], ...]) -> ComputeStep:
    """Return what ranks compute of a run of nodes, cut in several ways: each has shares of its own, [n, p]."""
    placed = (own if own.axis == WITH_READER else _cut(own.part, own.axis, shares) for own in _to_cut(net, nodes, cut))
    return ComputeStep(tuple(placed), frozenset(net.live(nodes.stop)))


@lru_cache(maxsize=16)
def _with_readers(net: ConvNet) -> tuple[PlacedPart, ...]:
    """Return all nodes' parts as computed with their readers."""
    return tuple(PlacedPart(part, WITH_READER) for part in parts_of(net).values())


@lru_cache(maxsize=1 << 8)
def _to_cut(net: ConvNet, nodes: Span, cut: SegmentCut) -> tuple[PlacedPart, ...]:
    """Return the parts of a run of nodes, and along which axis they are cut, whoever has how much."""
    live = net.live(nodes.stop)
    summing = (
        {nodes.start} if cut is SegmentCut.INPUT_CHANNELS else pooled_in(net, nodes) if cut is SegmentCut.ROWS else ()
    )
    axis = IMAGE_ROW if cut is SegmentCut.ROWS else CHANNEL
    placed = []
    for number, own in enumerate(_with_readers(net)[nodes.slice], nodes.start):
        if number in summing:
            placed.append(PlacedPart(adding(own.part), SUMMED))
        else:
            placed.append(PlacedPart(own.part, axis) if own.part.writes.name in live else own)
    carried = (_carried(net, value) for value in live if net.made_by[value] < nodes.start)
    return (*placed, *(PlacedPart(part, axis) for part in carried))


def _cut(part: Part, axis: str, shares: tuple[tuple[float, ...], ...]) -> PlacedPart:
    return PlacedPart(part, axis, spans_of(shares, part.axes[axis]), widens=True)


@lru_cache(maxsize=1 << 7)
def spans_of(shares: tuple[tuple[float, ...], ...], length: int) -> Spans:
    """Return the spans of an axis cut in several ways, [n, p, 2]."""
    every = [[(span.start, span.stop) for span in Partition.of_shares(own, length)] for own in shares]
    return np.array(every, np.int64)


@lru_cache(maxsize=1 << 10)
def _carried(net: ConvNet, name: str) -> Part:
    value = map_value(net, name)
    return Part(name, Passing(), NO_STREAM, CARRIED, dict(zip(MAP, value.shape, strict=True)), (value,), value)


@lru_cache(maxsize=1 << 8)
def left_by(compute: ComputeStep) -> Mapping[str, Held]:
    """Return where values lie after a computation."""
    return {
        own.part.writes.name: Held(own.part.writes, compute.made[own.part.writes.name], own.partial)
        for own in compute.placed
        if own.axis != WITH_READER
    }


# Edges first.


def with_edges_first(every: Sequence[SegmentShares], then: Regions) -> list[SegmentShares]:
    """Return segments whose ranks compute first what others need of them next, where they are of those.

    Parameters
    ----------
    then
        What ranks need after the last of these segments.
    """
    backwards: list[SegmentShares] = []
    for shares in reversed(every):
        backwards.append(_with_edges_first(shares, then))
        then = backwards[-1].needs
    found = backwards[::-1]
    for number in range(1, len(found)):
        if found[number - 1].compute is not every[number - 1].compute:
            found[number] = replace(found[number], before=found[number - 1].after)
    return found


def _with_edges_first(shares: SegmentShares, needed: Regions) -> SegmentShares:
    """Return a segment whose ranks compute first what others need of them next, if it is one of those.

    Rows that those before a rank need are its upper edge, that those after it need its lower one. What needs no
    computing goes with the upper.
    """
    segment = shares.segment
    by_rows = segment.edges_first and segment.cut is SegmentCut.ROWS
    if not by_rows or any(own.partial for own in shares.whole.placed if own.axis == SUMMED):
        return shares
    whole = shares.whole
    rows = {
        name: _first_rows(box) if name in shares.before else _edges(box, needed[name])
        for name, box in whole.made.items()
    }
    empty = ~np.logical_or.reduce([_in_rows(whole.made[name], own) for name, own in rows.items()])
    order = np.argsort(empty, axis=0, kind="stable")[: max(1, (~empty).sum(0).max())]  # none between others
    ordered = tuple((name, own[order, np.arange(shares.devices)].tobytes()) for name, own in rows.items())
    return replace(shares, compute=_in_pieces(whole, ordered))


def _in_rows(box: Region, rows: Spans) -> Mask:
    return np.asarray(there({**box, IMAGE_ROW: rows}))


def _first_rows(box: Region) -> Spans:
    rows = box[IMAGE_ROW]
    return np.concatenate([rows, 0 * rows, 0 * rows])


def _edges(box: Region, needed: Region) -> Spans:
    """Return every rank's rows that others need, above and below, and those between, [3, p, 2]."""
    start, stop = box[IMAGE_ROW][0].T
    needing = overlaps(needed, box)[0] > 0  # by whom, of whom
    after = _after(len(needing))
    above, below = needing & after, needing & after.T
    others = needed[IMAGE_ROW][0][:, None]
    rows = np.empty((3, *box[IMAGE_ROW].shape[1:]), np.int64)
    first = np.minimum(np.where(above, others[..., 1], start).max(0), stop)
    last = np.maximum(np.where(below, others[..., 0], stop).min(0), first)
    rows[0, :, 0], rows[0, :, 1] = start, first
    rows[1, :, 0], rows[1, :, 1] = last, stop
    rows[2, :, 0], rows[2, :, 1] = first, last
    return rows


@lru_cache(maxsize=64)
def _after(ranks: int) -> Mask:
    """Return which rank, in columns, comes after which, [p, p]."""
    return np.triu(np.ones((ranks, ranks), bool), 1)


@lru_cache(maxsize=1 << 8)
def _in_pieces(compute: ComputeStep, rows: tuple[tuple[str, bytes], ...]) -> ComputeStep:
    """Return a computation that leaves these rows of values piece by piece."""
    pieces = {}
    for name, ends in rows:
        box = compute.made[name]
        own = np.frombuffer(ends, np.int64).reshape(-1, *box[IMAGE_ROW].shape[1:])
        some = (own[..., 1:] > own[..., :1]).astype(np.int64)
        pieces[name] = {axis: (own if axis == IMAGE_ROW else spans) * some for axis, spans in box.items()}
    return replace(compute, pieces=pieces)


# Tiles.


def _tiled(net: ConvNet, segment: Segment, before: Mapping[str, Held]) -> SegmentShares:
    """Return what follows from a segment that is cut by tiles: all is on rank 0 before and after it."""
    on_root = tuple(float(rank == 0) for rank in range(len(segment.shares)))
    passing = [name for name in net.live(segment.nodes.stop) if name in before]
    carried = tuple(_cut(_carried(net, name), IMAGE_ROW, (on_root,)) for name in passing)
    compute = ComputeStep(carried, frozenset(passing))
    return SegmentShares(segment, before, compute, compute, _tiles(net, segment))


@lru_cache(maxsize=1 << 8)
def _needs(compute: ComputeStep) -> Regions:
    """Return what every rank needs from before a computation, of all its pieces."""
    return {name: _hull_of(region) for name, region in compute.walked[1].items()}


def _hull_of(pieces: Region) -> Region:
    """Return the least boxes that contain all pieces', [1, p, 2]."""
    if max(map(len, pieces.values())) == 1:
        return pieces
    some, found = there(pieces), {}
    for axis, spans in pieces.items():
        start, stop = np.where(some, spans[..., 0], _FAR).min(0), (some * spans[..., 1]).max(0)
        found[axis] = np.stack([np.minimum(start, stop), stop], -1)[None]
    return found


def _on_root(wanted: Sequence[Region], ranks: int) -> Region:
    """Return that rank 0 has the least box that contains all of these."""
    ends = {axis: np.concatenate([own[axis][there(own)] for own in wanted]) for axis in MAP}
    first = np.arange(ranks)[None, :, None] == 0
    return {
        axis: first * (np.array([own[:, 0].min(), own[:, 1].max()]) if len(own) else np.zeros(2, np.int64))
        for axis, own in ends.items()
    }


@lru_cache(maxsize=64)
def _tiles(net: ConvNet, segment: Segment) -> TileShares:
    """Return all tiles. With reuse those take strips whose row and column add up to an odd number."""
    every = tile_boxes(net, segment)
    numbers = {place: number for number, place in enumerate(every)}
    boxes = _stacked([*every.values()])
    group = _with_readers(net)[segment.nodes.slice]
    near: list[dict[str, int]] = [{} for _ in every]
    for (row, column), number in numbers.items():
        if segment.reuse and (row + column) % 2:
            places = {side: (row + down, column + across) for side, (down, across) in SIDES.items()}
            near[number] = {side: numbers[place] for side, place in places.items() if place in numbers}
    takes = _Taking(net, boxes, {}, {})
    walked = walk(group, boxes, takes.left)
    if segment.reuse:
        of_all = {side: np.array([own.get(side, -1) for own in near]) for side in SIDES}
        takes = _Taking(net, boxes, of_all, takes.needs)
        walked = walk(group, boxes, takes.left)
    givers: list[dict[str, int]] = [{} for _ in near]
    for (_, side), region in takes.taken.items():
        for tile in np.flatnonzero(there(region)[0]).tolist():
            givers[tile][side] = near[tile][side]
    owned = Partition.of_shares(segment.shares, len(every))
    owners = tuple(rank for rank, own in enumerate(owned) for _ in range(own.size))
    values = tuple(map_value(net, name) for name in boxes)
    return TileShares(boxes, walked, takes.needs, takes.taken, tuple(givers), owners, values)


class _Taking:
    """What tiles take of their neighbours, as they are walked; of what one leaves it takes nothing.

    Parameters
    ----------
    near : [tiles]
        By the side: which tile is there; -1 where none is that gives something.
    there
        What tiles have of values within.
    """

    def __init__(self, net: ConvNet, wanted: Regions, near: Mapping[str, Lengths], there: Regions) -> None:
        self._net, self._wanted, self._near, self._there = net, wanted, near, there
        self.needs: dict[str, Region] = {}
        self.taken: dict[tuple[str, str], Region] = {}

    def left(self, part: Part, box: Region) -> Region:
        """Return what of a box no neighbour has, one side after the other, which is a box, too."""
        name = part.writes.name
        self.needs[name] = box
        if not is_by_rows(self._net, self._net.nodes[self._net.made_by[name]]):
            return box
        leaves = there(self._wanted[name]) if name in self._wanted else np.zeros(1, bool)
        for side, tiles in self._near.items():
            strip = {
                axis: _common(box[axis], spans[:, tiles] * (tiles >= 0)[:, None])
                for axis, spans in self._there[name].items()
            }
            rest = _beyond(box, strip, side)
            takes = ~leaves & (volume(strip) > 0) & (volume(strip) + volume(rest) == volume(box))
            if takes.any():
                self.taken[name, side] = {axis: spans * takes[..., None] for axis, spans in strip.items()}
                box = {axis: np.where(takes[..., None], rest[axis], spans) for axis, spans in box.items()}
        return box


def _common(one: Spans, other: Spans) -> Spans:
    return np.stack([np.maximum(one[..., 0], other[..., 0]), np.minimum(one[..., 1], other[..., 1])], -1)


def _beyond(box: Region, strip: Region, side: str) -> Region:
    """Return what of boxes lies beyond strips at a side."""
    axis = IMAGE_ROW if side in ("above", "below") else IMAGE_COLUMN
    own, taken = box[axis], strip[axis]
    ends = (taken[..., 1], own[..., 1]) if side in ("above", "left") else (own[..., 0], taken[..., 0])
    return {**box, axis: np.stack(ends, -1)}


def _stacked(several: Sequence[Mapping[str, MapBox]]) -> dict[str, Region]:
    """Return boxes of all tiles, [1, tiles, 2]; of what a tile has nothing of, empty ones."""
    names = dict.fromkeys(name for boxes in several for name in boxes)
    found: dict[str, Region] = {}
    for name in names:
        spans = [boxes.get(name, NOTHING).spans for boxes in several]
        ends = np.array([[[(span.start, span.stop) for span in own] for own in spans]], np.int64)
        found[name] = {axis: ends[:, :, number] for number, axis in enumerate(MAP)}
    return found


# What is moved.


def moved_bytes(net: ConvNet, have: Regions, needs: Regions, wire: Wire) -> Floats:
    """Return the bytes that ranks send each other, [..., sender, receiver], of what some have and others need.

    Of an axis that is not said they have all. Pixels of the image travel as bytes, all else as `wire` says; a summand
    goes to all who need a part of it.
    """
    if not needs:
        return np.zeros((1, 1))
    having = [have[name] for name in needs]
    axes = tuple(having[0])
    owned, wanted = packed(having, axes), packed(needs.values(), axes)
    weights = np.array([bytes_across(net, name, axes, wire) for name in needs])
    moved: Floats | float = 0.0
    step = max(1, CACHED // max(owned[0].size * wanted[0].size, 1))
    for some in (slice(first, first + step) for first in range(0, len(weights), step)):
        moved = moved + np.einsum("v,v...->...", weights[some], shared(owned[some], wanted[some]))
    return np.asarray(moved * _others(wanted.shape[-2]))


def along(of_values: Sequence[Any], dimensions: int) -> NDArray[Any]:
    """Return what is said of several values, [values, ...], with so many dimensions."""
    found = np.asarray(of_values)
    return found.reshape(*found.shape, *[1] * (dimensions - found.ndim))


@lru_cache(maxsize=1 << 10)
def numbers_across(net: ConvNet, name: str, axes: tuple[str, ...]) -> int:
    """Return how many numbers of a value lie along all axes but these."""
    lengths = zip(MAP, net.extent(name).shape, strict=True)
    return math.prod(length for axis, length in lengths if axis not in axes)


@lru_cache(maxsize=1 << 10)
def bytes_across(net: ConvNet, name: str, axes: tuple[str, ...], wire: Wire) -> float:
    """Return the bytes on the wire of the numbers that lie along all axes but these; of all three, those of one."""
    bits = PIXEL_BITS if name == net.input else wire.bits
    return numbers_across(net, name, axes) * net.bytes_of(name, 1) * bits / FLOAT_BITS


@lru_cache(maxsize=64)
def _others(ranks: int) -> Mask:
    return ~np.eye(ranks, dtype=bool)


def moved_between(net: ConvNet, held: Mapping[str, Held], needs: Regions, wire: Wire) -> Floats:
    """Return the bytes that every rank sends every other, [sender, receiver], of all pieces."""
    return np.asarray(moved_bytes(net, {name: own.box for name, own in held.items()}, needs, wire).sum(0))
