"""`SegmentPlan`: how a convolutional network is split, and what every rank needs, computes and leaves of a segment.

A segment is a run of nodes that every rank computes without hearing of the others. Behind it every value that is still
needed lies in boxes, one a rank; or, where nodes add up over what ranks have a part of (a global pool over rows, a
convolution over input channels), every rank has a summand of all of it. What a rank needs for the next segment, its own
rows' receptive field, may be in others' boxes: that is what ranks exchange.

    rows       every rank computes some rows of all values that the segment leaves
    channels   every rank some channels, of all rows
    sums       every rank has some input channels of the segment's first node: the sum over all is the result
    tiles      every rank some tiles of a grid of rows and columns, one after the other

Tiles are DeepThings' fused tile partitioning (Zhao, Barijough, Gerstlauer, TCAD 2018, section IV): rank 0 has all
before and behind the segment, hands out what a tile needs, overlaps included, and puts together what comes back. With
reuse (section IV-C) those on white squares of a checkerboard wait for their up to four neighbours, on black ones, and
take from them, by way of rank 0, what these have computed of the values within the segment (`Strip`).

Any of them gives the right result for any network: what cannot be shared out is computed by every rank that needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache, reduce
from itertools import pairwise

from solver.base.errors import HeptiError
from solver.base.spans import Partition, Span
from solver.model.convnet import NOTHING, ConvNet, MapBox
from solver.model.operators import GLOBAL_POOLS, SIDES, SUMS, Strip, Walk, walk
from solver.plan.plan import ROUNDING, Prediction, Wire

MapBoxes = tuple[MapBox, ...]  # of every rank
THROUGHPUT = "hepti-throughput"  # the system of plans that run side by side, each with images of its own


class SegmentCut(StrEnum):
    """What of a segment ranks share out."""

    ROWS = "rows"
    CHANNELS = "channels"
    SUMS = "sums"
    TILES = "tiles"


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of nodes, and who computes how much of what it leaves.

    Parameters
    ----------
    nodes
        By number; of none, where values are only brought elsewhere.
    cut
        What is shared out.
    shares
        Of every device; they add up to one. Of a value with so many rows or channels, whole ones by the largest
        remainder; of tiles, which are consecutive, row by row.
    edges_first
        Whether ranks compute the rows that others need first, and send them while they compute the rest.
    grid
        Of tiles: how many there are one below the other, and side by side.
    stealing
        Whether who is done with its own tiles takes others' that are not begun; all who have a share can compute any.
    reuse
        Whether every other tile takes what its neighbours have computed, and computes the rest.
    """

    nodes: Span
    cut: SegmentCut
    shares: tuple[float, ...]
    edges_first: bool = False
    grid: tuple[int, int] = (1, 1)
    stealing: bool = False
    reuse: bool = False

    @property
    def active(self) -> tuple[int, ...]:
        """The ranks that have a share."""
        return tuple(rank for rank, share in enumerate(self.shares) if share > 0)


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """Who computes what of a convolutional network; `devices` are names in rank order."""

    segments: tuple[Segment, ...]
    devices: tuple[str, ...]
    model_name: str
    model_fingerprint: str = ""
    cluster_fingerprint: str = ""
    system: str = "hepti"
    wire: Wire = Wire.FLOAT32
    predicted: Prediction | None = None

    @property
    def predicted_s(self) -> float:
        """Predicted seconds of an image, of a plan that has been priced."""
        assert self.predicted is not None
        return self.predicted.seconds

    @property
    def active(self) -> tuple[int, ...]:
        """The ranks that compute."""
        return tuple(sorted({rank for segment in self.segments for rank in segment.active}))

    def check(self, net: ConvNet, ranks: int) -> None:
        """Refuse a plan that does not fit a network or the number of ranks.

        Raises
        ------
        HeptiError
            Saying which number does not fit.
        """
        if self.model_fingerprint and self.model_fingerprint != net.fingerprint:
            raise HeptiError(
                f"the plan is for {self.model_name} with fingerprint {self.model_fingerprint}, "
                f"{net.name} has {net.fingerprint}: plan again"
            )
        if len(self.devices) != ranks:
            raise HeptiError(
                f"the plan is for {len(self.devices)} devices, {ranks} ranks run: start {len(self.devices)}"
            )
        at = 0
        for number, segment in enumerate(self.segments):
            where = f"plan: segment {number}"
            if segment.nodes.start != at:
                raise HeptiError(f"{where} has nodes {_text(segment.nodes)}, the next is {at}")
            at = segment.nodes.stop
            if len(segment.shares) != len(self.devices):
                raise HeptiError(f"{where} has {len(segment.shares)} shares, there are {len(self.devices)} devices")
            if min(segment.shares) < 0 or abs(sum(segment.shares) - 1) > ROUNDING:
                raise HeptiError(
                    f"{where}: shares must be at least 0 and add up to 1, they add up to {sum(segment.shares):g}"
                )
            if min(segment.grid) < 1 or (segment.cut is not SegmentCut.TILES and segment.grid != (1, 1)):
                raise HeptiError(f"{where} is cut by {segment.cut}, its grid is {list(segment.grid)}")
            if segment.cut is SegmentCut.SUMS and net.nodes[segment.nodes.start].op not in SUMS:
                raise HeptiError(f"{where} is cut by sums, {net.nodes[segment.nodes.start].op} adds up nothing")
            if segment.cut is SegmentCut.SUMS and segment.nodes.size > 1:
                raise HeptiError(f"{where} is cut by sums and has {segment.nodes.size} nodes: it must have one")
        if at != len(net.nodes):
            raise HeptiError(f"plan: its segments end at node {at}, {net.name} has {len(net.nodes)}")


@dataclass(frozen=True, slots=True)
class Held:
    """Where a value lies: a box of every rank, or of every rank that has any, a summand of that box."""

    boxes: MapBoxes
    summands: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What a rank computes at a time: the boxes that it leaves, the walk from what is there, and what others take."""

    boxes: Mapping[str, MapBox]
    walk: Walk
    given: tuple[Strip, ...] = ()

    @property
    def going(self) -> dict[str, tuple[str, MapBox]]:
        """All that comes out of it, by its name: of which value which box."""
        return _named(self.boxes, self.given)


Pieces = tuple[Piece, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentShares:
    """What follows from a segment of a plan: what there is before it, what ranks need, compute and leave.

    Parameters
    ----------
    segment
        It is of.
    before, after
        Of every value that is there before and behind the segment, where it lies.
    needs
        Of every value from before, the box that every rank needs.
    parts
        Of every rank, by the output of nodes that add up: the box of their input over which it does.
    walks
        What every rank computes in all; of one without a share, nothing. Of tiles, which overlap: see `pieces`.
    pieces
        In which pieces it does, one after the other.
    tiles
        Of a segment that is cut by tiles: all of them, row by row. `pieces` then says whose they are first, and what
        passes the segment on rank 0.
    beside
        Of every tile: from which others it takes strips, by their side.
    """

    segment: Segment
    before: Mapping[str, Held]
    needs: Mapping[str, MapBoxes]
    parts: tuple[Mapping[str, MapBox], ...]
    after: Mapping[str, Held]
    walks: tuple[Walk, ...]
    pieces: tuple[Pieces, ...]
    tiles: Pieces = ()
    beside: tuple[Mapping[str, int], ...] = ()

    def coming(self, piece: Piece) -> dict[str, tuple[str, MapBox]]:
        """Return all that a piece needs to begin, by its name: of which value which box."""
        return _named({v: box for v, box in piece.walk.needs.items() if v in self.before}, piece.walk.taken)

    @property
    def owners(self) -> list[int]:
        """Whose each tile is."""
        owned = Partition.of_shares(self.segment.shares, len(self.tiles))
        return [rank for rank, own in enumerate(owned) for _ in range(own.size)]

    def able(self, rank: int) -> list[int]:
        """Return which tiles a rank may compute: its own, and where there is stealing all, if it has a share."""
        steals = self.segment.stealing and rank in self.segment.active
        return [number for number, owner in enumerate(self.owners) if owner == rank or steals]

    @property
    def left(self) -> list[list[Mapping[str, MapBox]]]:
        """What every rank has behind the segment, piece by piece; rank 0 puts tiles together."""
        if self.tiles:
            ranks = range(len(self.pieces))
            whole = {value: held.boxes[0] for value, held in self.after.items()}
            return [[{} if rank else whole] for rank in ranks]
        return [[piece.boxes for piece in own] for own in self.pieces]


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
    return tuple(with_edges_first(net, found, handed_in(net, held)))


def image_on_root(net: ConvNet, ranks: int) -> dict[str, Held]:
    """Return where values lie in the beginning: the image, on rank 0."""
    return all_on_root(net, [net.input], ranks)


def all_on_root(net: ConvNet, values: Iterable[str], ranks: int) -> dict[str, Held]:
    """Return where values lie that rank 0 has all of."""
    return {value: Held(only_on(0, net.extent(value), ranks)) for value in values}


def handed_in(net: ConvNet, held: Mapping[str, Held]) -> dict[str, MapBoxes]:
    """Return what ranks need in the end: rank 0 all outputs."""
    ranks = len(next(iter(held.values())).boxes)
    return {value: only_on(0, net.extent(value), ranks) for value in net.outputs}


def only_on(rank: int, box: MapBox, ranks: int) -> MapBoxes:
    """Return the box on one rank, nothing on all others."""
    return tuple(box if other == rank else NOTHING for other in range(ranks))


def segment_shares(net: ConvNet, segment: Segment, before: Mapping[str, Held]) -> SegmentShares:
    """Return what follows from a segment where values lie so before it."""
    if segment.cut is SegmentCut.TILES:
        return _tiled(net, segment, before)
    ranks = range(len(segment.shares))
    parts = _parts(net, segment)
    added_up = {value for own in parts for value in own}
    after = {value: Held(owned_boxes(net, segment, value)) for value in net.live(segment.nodes.stop)}
    for value in added_up:  # every rank that has a part has a summand of all
        boxes = tuple(net.extent(value) if value in parts[rank] else NOTHING for rank in ranks)
        after[value] = Held(boxes, summands=True)
    pieces = tuple(
        _pieces(net, segment.nodes, [{value: held.boxes[rank] for value, held in after.items()}], parts[rank])
        for rank in ranks
    )
    walks = tuple(own[0].walk if own else Walk({}, {}) for own in pieces)
    needs = {value: tuple(walk.needs.get(value, NOTHING) for walk in walks) for value in before}
    return SegmentShares(segment, before, needs, parts, after, walks, pieces)


def _tiled(net: ConvNet, segment: Segment, before: Mapping[str, Held]) -> SegmentShares:
    """Return what follows from a segment that is cut by tiles: all is on rank 0 before and behind it."""
    ranks = len(segment.shares)
    live = net.live(segment.nodes.stop)
    passing = {value: net.extent(value) for value in live if value in before}
    on_root = _pieces(net, segment.nodes, [passing], {})
    tiles, beside = _tiles(net, segment)
    owned = Partition.of_shares(segment.shares, len(tiles))
    pieces = tuple((*(on_root if rank == 0 else ()), *tiles[own.slice]) for rank, own in enumerate(owned))
    needs = {}
    for value in before:
        hull = reduce(MapBox.hull, (piece.walk.needs.get(value, NOTHING) for piece in (*on_root, *tiles)), NOTHING)
        needs[value] = only_on(0, hull, ranks)
    after = all_on_root(net, live, ranks)
    parts: tuple[Mapping[str, MapBox], ...] = ({},) * ranks
    return SegmentShares(segment, before, needs, parts, after, (Walk({}, {}),) * ranks, pieces, tiles, beside)


def _tiles(net: ConvNet, segment: Segment) -> tuple[Pieces, tuple[Mapping[str, int], ...]]:
    """Return all tiles, row by row, and from which others each takes strips, by their side.

    With reuse those do whose row and column add up to an odd number; all their neighbours have even ones.
    """
    every = tile_boxes(net, segment)
    numbers = {place: number for number, place in enumerate(every)}
    tiles = list(_pieces(net, segment.nodes, [*every.values()], {}))
    beside: list[dict[str, int]] = [{} for _ in tiles]
    for (row, column), number in numbers.items():
        if not (segment.reuse and (row + column) % 2):
            continue
        places = {side: (row + down, column + across) for side, (down, across) in SIDES.items()}
        near = {side: numbers[place] for side, place in places.items() if place in numbers}
        boxes, there = tiles[number].boxes, {side: tiles[other].walk.needs for side, other in near.items()}
        tiles[number] = Piece(boxes, walk(net, segment.nodes, boxes, beside=there))
        for strip in tiles[number].walk.taken:
            giver = beside[number][strip.side] = near[strip.side]
            tiles[giver] = replace(tiles[giver], given=(*tiles[giver].given, strip))
    return tuple(tiles), tuple(beside)


def tile_boxes(net: ConvNet, segment: Segment) -> dict[tuple[int, int], dict[str, MapBox]]:
    """Return by row and column of every tile the boxes of what the segment makes and leaves; none is empty."""
    down, across = segment.grid
    made = [value for value in net.live(segment.nodes.stop) if net.made_by[value] >= segment.nodes.start]
    cuts = {}
    for value in made:
        every = net.extent(value)
        rows, columns = (
            Partition.of_shares(equal_shares(range(count), count), span.stop)
            for count, span in ((down, every.rows), (across, every.columns))
        )
        cuts[value] = (every.channels, rows, columns)
    found = {}
    for row in range(down):
        for column in range(across):
            boxes = {
                value: MapBox(channels, rows[row], columns[column]) for value, (channels, rows, columns) in cuts.items()
            }
            found[row, column] = {value: box for value, box in boxes.items() if box.size}
    return {place: boxes for place, boxes in found.items() if boxes}


def _named(boxes: Mapping[str, MapBox], strips: Iterable[Strip]) -> dict[str, tuple[str, MapBox]]:
    named = {value: (value, box) for value, box in boxes.items()}
    return named | {strip.name: (strip.value, strip.box) for strip in strips}


def _pieces(
    net: ConvNet, nodes: Span, several: Sequence[Mapping[str, MapBox]], parts: Mapping[str, MapBox]
) -> tuple[Piece, ...]:
    """Return what leaves these boxes, one piece after the other; nothing where they are empty."""
    full = (tuple((value, box) for value, box in boxes.items() if box.size) for boxes in several)
    return tuple(_piece(net, nodes, boxes, tuple(parts.items())) for boxes in full if boxes)


def with_edges_first(net: ConvNet, every: Sequence[SegmentShares], then: Mapping[str, MapBoxes]) -> list[SegmentShares]:
    """Return segments whose ranks compute first what others need of them next, where they are of those.

    Parameters
    ----------
    then
        What ranks need behind the last of these segments.
    """
    needed = [*(shares.needs for shares in every[1:]), then]
    return [_with_edges_first(net, shares, own) for shares, own in zip(every, needed, strict=True)]


def _with_edges_first(net: ConvNet, shares: SegmentShares, needed: Mapping[str, MapBoxes]) -> SegmentShares:
    """Return a segment whose ranks compute first what others need of them next, if it is one of those.

    Rows that those before a rank need are its upper edge, that those behind it need its lower one. What needs no
    computing goes with the upper.
    """
    segment = shares.segment
    if not segment.edges_first or segment.cut is not SegmentCut.ROWS or any(shares.parts):
        return shares
    pieces = []
    for rank in range(len(shares.pieces)):
        upper: dict[str, MapBox] = {}
        lower: dict[str, MapBox] = {}
        inner: dict[str, MapBox] = {}
        for value, held in shares.after.items():
            box = held.boxes[rank]
            if not box.size:
                continue
            if value in shares.before:
                upper[value] = box
                continue
            before, behind = needed[value][:rank], needed[value][rank + 1 :]
            first = max((own.rows.stop for own in before if box.common(own)), default=box.rows.start)
            first = min(first, box.rows.stop)
            last = min((own.rows.start for own in behind if box.common(own)), default=box.rows.stop)
            last = max(first, last)
            ends = (box.rows.start, first, last, box.rows.stop)
            for part, rows in zip((upper, inner, lower), pairwise(ends), strict=True):
                part[value] = replace(box, rows=Span(*rows))
        pieces.append(_pieces(net, segment.nodes, [upper, lower, inner], {}))
    return replace(shares, pieces=tuple(pieces))


@lru_cache(maxsize=1 << 12)  # of plans that differ in a segment all other pieces are the same
def _piece(
    net: ConvNet, nodes: Span, boxes: tuple[tuple[str, MapBox], ...], parts: tuple[tuple[str, MapBox], ...]
) -> Piece:
    return Piece(dict(boxes), walk(net, nodes, dict(boxes), dict(parts)))


def owned_boxes(net: ConvNet, segment: Segment, value: str) -> MapBoxes:
    """Return what of a value every rank has behind a segment."""
    every = net.extent(value)
    by_channels = segment.cut is not SegmentCut.ROWS
    spans = Partition.of_shares(segment.shares, (every.channels if by_channels else every.rows).stop)
    return tuple(
        NOTHING
        if not span.size
        else MapBox(span, every.rows, every.columns)
        if by_channels
        else MapBox(every.channels, span, every.columns)
        for span in spans
    )


def _parts(net: ConvNet, segment: Segment) -> tuple[dict[str, MapBox], ...]:
    """Return over what of their inputs every rank's nodes add up, by their outputs."""
    found: tuple[dict[str, MapBox], ...] = tuple({} for _ in segment.shares)
    if len(segment.active) == 1 or segment.cut is SegmentCut.CHANNELS:
        return found
    for number in [segment.nodes.start] if segment.cut is SegmentCut.SUMS else pooled_in(net, segment.nodes):
        node = net.nodes[number]
        for parts, own in zip(found, owned_boxes(net, segment, net.values_of(node)[0]), strict=True):
            if own.size:
                parts[node.output] = own
    return found


def pooled_in(net: ConvNet, nodes: Span) -> list[int]:
    """Return the global pools of a run of nodes that nothing within it needs: ranks can pool their rows."""
    return [
        number
        for number in range(nodes.start, nodes.stop)
        if net.nodes[number].op in GLOBAL_POOLS and net.first_use[net.nodes[number].output] >= nodes.stop
    ]


def whole_parts(net: ConvNet, segment: Segment) -> tuple[int, ...]:
    """Return how many rows, or channels, every device has of the coarsest value that a segment leaves.

    Of summands those of what they are added up over; of tiles how many.
    """
    if segment.cut is SegmentCut.TILES:
        lengths = {len(tile_boxes(net, segment))}
    elif segment.cut is SegmentCut.SUMS:
        lengths = {net.extent(net.values_of(net.nodes[segment.nodes.start])[0]).channels.stop}
    elif segment.cut is SegmentCut.CHANNELS:
        lengths = {net.extent(value).channels.stop for value in net.live(segment.nodes.stop)}
    else:
        pooled = {net.nodes[number].output: net.nodes[number] for number in pooled_in(net, segment.nodes)}
        live = (net.values_of(pooled[v])[0] if v in pooled else v for v in net.live(segment.nodes.stop))
        lengths = {net.extent(value).rows.stop for value in live}
    return Partition.of_shares(segment.shares, min(lengths - {0, 1}, default=1)).counts


def moved_bytes(net: ConvNet, held: Mapping[str, Held], needs: Mapping[str, MapBoxes], wire: Wire) -> list[list[int]]:
    """Return the bytes that every rank sends every other, [sender][receiver].

    Pixels of the image travel as bytes, all else as `wire` says; a summand goes to all who need a part of it.
    """
    ranks = range(len(next(iter(held.values())).boxes))
    moved = [[0 for _ in ranks] for _ in ranks]
    for value, wanted in needs.items():
        receivers = [(rank, box, box.rows) for rank, box in enumerate(wanted) if box.size]
        bits = 8 if value == net.input else wire.bits
        for sender, own in enumerate(held[value].boxes):
            if not own.size:
                continue
            first, stop = own.rows.start, own.rows.stop  # of a hundred ranks few have rows that one needs
            for receiver, box, rows in receivers:
                if rows.start < stop and first < rows.stop and receiver != sender and (common := own.common(box)):
                    moved[sender][receiver] += net.bytes_of(value, common) // 4 * bits // 8
    return moved


def among(plan: SegmentPlan, devices: Sequence[str], ranks: Sequence[int]) -> SegmentPlan:
    """Return a plan of some devices as one of all of these; `ranks` are theirs, the first of them rank 0."""

    def shares(segment: Segment) -> tuple[float, ...]:
        own = dict(zip(ranks, segment.shares, strict=True))
        return tuple(own.get(rank, 0.0) for rank in range(len(devices)))

    segments = tuple(replace(segment, shares=shares(segment)) for segment in plan.segments)
    return replace(plan, segments=segments, devices=tuple(devices), predicted=None)


def equal_shares(devices: Sequence[int], ranks: int) -> tuple[float, ...]:
    """Return the same share of some of the ranks."""
    return tuple(1 / len(devices) if rank in devices else 0.0 for rank in range(ranks))


def alone_on(rank: int, ranks: int) -> tuple[float, ...]:
    """Return all on one rank."""
    return equal_shares([rank], ranks)


def _text(span: Span) -> str:
    return f"[{span.start}, {span.stop})"
