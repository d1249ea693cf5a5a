"""Where a rank's values lie in an image, and what memory a network's plan needs: places, weights, and graphs.

What comes into a graph lies side by side, and so does what leaves it. Of a map [C, H, W] some rows do not: so every
graph has places of its own, but that what is left just as the next one needs it lies there already. A place is taken
when its first numbers may arrive, which is while the segment before is computed, and is free again after the last
graph that reads it, and where the last of it is sent. The image stays where it is, since the next one may come while
the outputs of this one do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from solver.base.arrays import FLOAT_BYTES
from solver.base.spans import Span
from solver.cluster.cluster import PROGRAM_BYTES, Cluster
from solver.cluster.curves import Floats
from solver.model.convnet import NOTHING, ConvNet, MapBox, Node
from solver.model.kinds.operator import MAP
from solver.model.kinds.part import Region
from solver.model.operators import LARGE_PRODUCT
from solver.plan.layout import Box, Layout, moves
from solver.plan.segments import SegmentPlan
from solver.schedule.networks.pieces import Reach, Walk, map_box, pieces_of
from solver.schedule.networks.segment_steps import entering_numbers, numbers_within, run_bytes, weights_of
from solver.schedule.networks.steps import (
    Regions,
    SegmentShares,
    TileShares,
    exchanges_of,
    handed_in,
    image_on_root,
    unrolled,
)
from solver.schedule.places import OwnExchange, OwnItem, OwnStep, Places, Used, arriving, places_of
from solver.schedule.regions import Lengths, volume
from solver.schedule.schedule import ComputeStep, ExchangeStep
from solver.schedule.shortage import does_not_fit

IMAGE = "image"  # its place
EveryBox = Mapping[str, Sequence[Sequence[Box]]]  # of values, [pieces][ranks]
Lies = Mapping[str, tuple[str, Box]]  # by the value, or strip: the place, and the box of the value that lies there


@dataclass(frozen=True, slots=True, eq=False)
class OwnPiece:
    """What a rank computes of a segment at a time.

    Parameters
    ----------
    shares, number
        The segment, and which of the rank's pieces of it (`pieces_of`).
    coming, leaving
        What comes in, and what goes out.
    between
        What graphs of it leave each other.
    """

    shares: SegmentShares
    number: int
    coming: Lies
    leaving: Lies
    between: Lies

    @property
    def used(self) -> Used:
        """The boxes that it has of values."""
        return [own for lies in (self.coming, self.between, self.leaving) for own in lies.values()]

    @property
    def lying(self) -> Iterator[tuple[str, Box, str]]:
        """The values that it leaves side by side, with boxes and places: all, but parts of what lies otherwise."""
        there = {**self.coming, **self.between}
        for name, (place, box) in self.leaving.items():
            if name not in there or box.lies_together(there[name][1]):
                yield name, box, place


@dataclass(frozen=True, slots=True, eq=False)
class OwnTiles:
    """What a rank computes of a segment that is cut by tiles.

    Parameters
    ----------
    shares
        The segment.
    coming, leaving
        On rank 0 all that comes in, and all that the segment leaves; on others nothing.
    strips
        On rank 0, of every tile those that it gives.
    room
        For the largest box of every value, or strip, that a tile needs or leaves: tiles have it in turn.
    """

    shares: SegmentShares
    coming: Lies
    leaving: Lies
    strips: Sequence[Lies]
    room: Lies

    @property
    def used(self) -> Used:
        """The boxes that it has of values."""
        return [own for lies in (self.coming, self.leaving, *self.strips, self.room) for own in lies.values()]

    @property
    def lying(self) -> Iterator[tuple[str, Box, str]]:
        """The values that it leaves, their boxes and places."""
        return ((name, box, place) for name, (place, box) in self.leaving.items())


@dataclass(frozen=True, slots=True, eq=False)
class OwnImage:
    """A rank's part in an image.

    Parameters
    ----------
    steps
        In every step.
    outputs
        Where outputs lie in the end.
    places
        Where everything lies.
    """

    steps: Sequence[OwnStep]
    outputs: Lies
    places: Places


def boxed(net: ConvNet, value: str, box: MapBox) -> Box:
    """Return a box by the axes that its array has: of what is no map, all of it or nothing; one number has an axis."""
    axes = net.axes(value)
    if axes:
        return Box(box.spans[:axes]) if box.size else Box.whole(*[0] * axes)
    shape = net.shapes[value] or (1,)
    return Box.whole(*(shape if box.size else [0] * len(shape)))


def graphs_of(net: ConvNet, walk: Walk) -> list[Walk]:
    """Return what each graph computes of a walk: one all of it, but for large products.

    While a session is made there are three copies of its weights: as read, as the graph has them, as they are laid out
    anew. So of a large product several sessions compute some columns each, made one after the other.
    """
    runs: list[dict[int, Reach]] = [{}]
    for number in sorted(walk.made):
        pieces = _by_columns(net, net.nodes[number], walk.made[number])
        if len(pieces) == 1:
            runs[-1][number] = walk.made[number]
        else:
            runs += [*({number: piece} for piece in pieces), {}]
    return [_graph(net, walk, made) for made in runs if made]


def coming_into(net: ConvNet, walk: Walk) -> list[str]:
    """Return the values that nodes of a walk need, and none of them makes, nor is taken of neighbours."""
    within = {net.nodes[number].output for number in walk.made} | {strip.value for strip in walk.taken}
    of_nodes = [(net.values_of(net.nodes[number]), reach.needs) for number, reach in walk.made.items()]
    used = {value for values, boxes in of_nodes for value, box in zip(values, boxes, strict=True) if box.size}
    return [value for value in walk.needs if value in used - within]


def own_image(net: ConvNet, plan: SegmentPlan, rank: int) -> OwnImage:
    """Return a rank's part in an image, and where all that it has lies."""
    every = unrolled(net, plan)
    brought = _brought(net, every)
    image: Lies = {net.input: (IMAGE, boxed(net, net.input, net.extent(net.input)))} if rank == 0 else {}
    wanted = {name: net.extent(name) for name in net.outputs} if rank == 0 else {}
    outputs: Lies = {name: (f"end {name}", boxed(net, name, box)) for name, box in wanted.items()}
    have, lying = [image], {(name, box): place for name, (place, box) in image.items()}
    steps = list[OwnStep]()
    for number, shares in enumerate(every):
        own: Sequence[OwnPiece | OwnTiles] = (
            [*_own_pieces(net, shares, rank, number, lying)]
            if shares.tiles is None
            else [_own_tiles(net, shares, shares.tiles, rank, number)]
        )
        steps += [_own_exchange(rank, brought[number], have, [some.coming for some in own]), *own]
        have = [some.leaving for some in own]
        lying = {(name, box): place for some in own for name, box, place in some.lying}
    steps.append(_own_exchange(rank, brought[-1], have, [outputs]))
    pixels = {IMAGE, *(place for step in steps for place in _pixels(net, step))}
    places = places_of([(step, str) for step in steps], [*image.values()], pixels, stays=True)
    return OwnImage(steps, outputs, places)


def _pixels(net: ConvNet, step: OwnStep) -> Iterator[str]:
    """Yield the places of pixels."""
    lies = (step.coming, step.leaving) if isinstance(step, OwnPiece | OwnTiles) else ()
    yield from (own[net.input][0] for own in lies if net.input in own)
    if isinstance(step, OwnTiles) and net.input in step.room:
        yield step.room[net.input][0]


def _own_pieces(
    net: ConvNet, shares: SegmentShares, rank: int, segment: int, lying: Mapping[tuple[str, Box], str]
) -> Iterator[OwnPiece]:
    """Yield what a rank computes of a segment. What it needs lies where it was left, if no summands are added up."""
    if any(own.partial for own in shares.before.values()):
        lying = {}
    large = any(_is_large(net, node) for node in net.nodes[shares.segment.nodes.slice])
    pieces = pieces_of(shares, rank) if large else ()
    for number, (leaves, comes) in enumerate(_pieces(net, shares, rank)):
        at = f"{segment}.{number}"
        coming = {name: (lying.get((name, box), f"into {at} {name}"), box) for name, box in comes.items()}
        between = {}
        if large:
            walk = pieces[number].walk
            names = {name for graph in graphs_of(net, walk) for name in coming_into(net, graph)} - coming.keys()
            between = {name: (f"into {at} {name}", boxed(net, name, walk.needs[name])) for name in sorted(names)}
        there = coming | between
        leaving = {name: (there[name][0] if name in there else f"of {at} {name}", box) for name, box in leaves.items()}
        yield OwnPiece(shares, number, coming, leaving, between)


def _pieces(net: ConvNet, shares: SegmentShares, rank: int) -> list[tuple[dict[str, Box], dict[str, Box]]]:
    """Return what leaves every piece of a rank, and what comes into it."""
    made, needs = _made_and_needed(net, shares.compute)
    count = max(map(len, made.values()), default=0)
    every = ((_of_rank(made, piece, rank), _of_rank(needs, piece, rank)) for piece in range(count))
    return [own for own in every if own[0]]


def _boxes(net: ConvNet, name: str, region: Region) -> list[list[Box]]:
    """Return the boxes of a value of every rank, piece by piece, [pieces][ranks]."""
    spans = [region[axis].tolist() for axis in MAP]
    axes, nothing = net.axes(name), boxed(net, name, NOTHING)
    whole = boxed(net, name, net.extent(name))
    found = []
    for piece in range(max(map(len, spans))):
        of_axes = [own[min(piece, len(own) - 1)] for own in spans]
        found.append(
            [
                nothing
                if any(start >= stop for start, stop in ends)
                else Box(tuple([Span(*own) for own in ends[:axes]]))
                if axes
                else whole
                for ends in zip(*of_axes, strict=True)
            ]
        )
    return found


def _of_rank(boxes: EveryBox, piece: int, rank: int) -> dict[str, Box]:
    """Return what there is of values of one piece and rank; some are the same for all pieces."""
    own = {name: every[min(piece, len(every) - 1)][rank] for name, every in boxes.items()}
    return {name: box for name, box in own.items() if box.size}


@lru_cache(maxsize=1 << 8)  # of plans that differ in a segment all others are the same
def _made_and_needed(net: ConvNet, compute: ComputeStep | TileShares) -> tuple[EveryBox, EveryBox]:
    """Return the boxes of what is left of a segment, and of what is needed for it."""
    made, needs = compute.boxes if isinstance(compute, TileShares) else compute.made, compute.walked[1]
    return _boxes_of(net, made), _boxes_of(net, needs)


def _boxes_of(net: ConvNet, regions: Regions) -> EveryBox:
    """Return the boxes of several values."""
    return {name: _boxes(net, name, region) for name, region in regions.items()}


def _own_tiles(net: ConvNet, shares: SegmentShares, tiles: TileShares, rank: int, segment: int) -> OwnTiles:
    coming: Lies = {}
    leaving: Lies = {}
    strips: list[dict[str, tuple[str, Box]]] = []
    if rank == 0:
        needs = _of_rank(_boxes_of(net, shares.needs), 0, rank)
        coming = {name: (f"into {segment} {name}", box) for name, box in needs.items()}
        leaving = {
            name: coming[name]
            if name in shares.before
            else (f"of {segment} {name}", boxed(net, name, net.extent(name)))
            for name in shares.after
        }
        strips = [{} for _ in tiles.owners]
        for value, side, taker, giver in tiles.given:
            name, box = f"{value}:{side}", map_box(tiles.taken[value, side], (0, taker))
            strips[giver][name] = f"strip {segment}.{giver} {name}", boxed(net, value, box)
    able = shares.able(rank)
    sizes = {name: int(own[able].max(initial=0)) * _numbers(net, name) for name, own in _rooms(tiles).items()}
    room = {name: (f"tile {segment} {name}", Box.whole(size)) for name, size in sizes.items() if size}
    return OwnTiles(shares, coming, leaving, strips, room)


def of_tiles(net: ConvNet, own: OwnTiles, rank: int) -> list[tuple[Lies, Lies]]:
    """Return of every tile what it needs, and what it leaves, of what rank 0 has; of other ranks nothing."""
    tiles = own.shares.tiles
    assert tiles is not None
    found: list[tuple[Lies, Lies]] = []
    for number, beside in enumerate(() if rank else tiles.beside):
        leaves, needs = (_of_rank(boxes, 0, number) for boxes in _made_and_needed(net, tiles))
        strips = {}
        for (value, side), region in tiles.taken.items():
            if map_box(region, (0, number)).size:
                strips[f"{value}:{side}"] = own.strips[beside[side]][f"{value}:{side}"]
        coming = {name: (own.coming[name][0], box) for name, box in needs.items()}
        leaving = {name: (own.leaving[name][0], box) for name, box in leaves.items()}
        found.append(({**coming, **strips}, {**leaving, **own.strips[number]}))
    return found


def _numbers(net: ConvNet, name: str) -> int:
    """Return how many numbers are in a unit of a value's box; strips are of maps."""
    return 1 if name not in net.shapes or net.axes(name) else math.prod(net.shapes[name])


def _rooms(tiles: TileShares) -> dict[str, Lengths]:
    """Return the units of every value, or strip, that tiles need or leave, [tiles]."""
    found = {
        name: np.broadcast_to(sizes[0], len(tiles.owners)).copy() for name, sizes in entering_numbers(tiles).items()
    }
    for name, box in tiles.boxes.items():
        found[name] = np.maximum(found.get(name, 0), volume(box)[0])
    for value, side, taker, giver in tiles.given:
        own = found[f"{value}:{side}"]
        own[giver] = max(own[giver], volume(tiles.taken[value, side])[0, taker])
    return found


Brought = Sequence[tuple[ExchangeStep, OwnItem]]  # steps, and what all ranks have and want; no rank's places yet


@lru_cache(maxsize=8)  # what is brought is the same for all ranks
def _brought(net: ConvNet, every: tuple[SegmentShares, ...]) -> tuple[Brought, ...]:
    """Return what is brought before every segment of a plan, and in the end."""
    image, outputs = image_on_root(net, every[0].devices), handed_in(net, every[0].devices)
    held = [image, *(shares.after for shares in every)]
    needs = [*(shares.needs for shares in every), outputs]
    have = [_boxes_of(net, {name: own.box for name, own in image.items()}), *(_left(net, shares) for shares in every)]
    want = [*(_needed(net, shares) for shares in every), _boxes_of(net, outputs)]
    return tuple(
        [(step, _item(lies[step.value.name], wanted[step.value.name], step)) for step in exchanges_of(before, then)]
        for before, then, lies, wanted in zip(held, needs, have, want, strict=True)
    )


def _left(net: ConvNet, shares: SegmentShares) -> EveryBox:
    """Return the boxes of what lies after a segment."""
    if shares.tiles is None:
        return _made_and_needed(net, shares.compute)[0]
    return _boxes_of(net, {name: held.box for name, held in shares.after.items()})


def _needed(net: ConvNet, shares: SegmentShares) -> EveryBox:
    """Return the boxes of what ranks need for a segment, all of their pieces."""
    own = _made_and_needed(net, shares.compute)[1]
    alone = shares.tiles is None and all(len(pieces) == 1 for pieces in own.values())
    return own if alone else _boxes_of(net, shares.needs)


def _item(have: Sequence[Sequence[Box]], want: Sequence[Sequence[Box]], step: ExchangeStep) -> OwnItem:
    """Return what all ranks have and want of a value; of what they have empty pieces, too, since these are counted."""
    layouts = Layout(tuple(zip(*have, strict=True)), partial=step.partial), Layout.of(want[0])
    return OwnItem(*layouts, moves(*layouts), (), ())


def _own_exchange(rank: int, brought: Brought, have: Sequence[Lies], needs: Sequence[Lies]) -> OwnExchange:
    """Return a rank's part in exchanges that are one, from the pieces that it has to those that it needs."""
    items = []
    for step, own in brought:
        name = step.value.name
        pieces = [lies.get(name, ("", box)) for lies, box in zip(have, own.have.boxes[rank], strict=False)]
        items.append(OwnItem(own.have, own.want, own.moves, pieces, [lies[name] for lies in needs if name in lies]))
    return OwnExchange(tuple(step for step, _ in brought), tuple(items), by_rows=False, ahead=True)


def _graph(net: ConvNet, walk: Walk, made: Mapping[int, Reach]) -> Walk:
    """Return a walk's part with some nodes: it needs of their outputs what these make, and strips nobody else has."""
    others = {net.nodes[number].output for number in walk.made.keys() - made.keys()}
    taken = tuple(strip for strip in walk.taken if strip.value not in others)
    joined = {strip.value for strip in taken}
    outputs = ((net.nodes[number].output, reach.made) for number, reach in made.items())
    own = {value: walk.needs[value].intersect(box) for value, box in outputs if value not in joined}
    return Walk({**walk.needs, **own}, made, taken)


def _is_large(net: ConvNet, node: Node) -> bool:
    """Return whether all of a product is too large for one graph."""
    return node.op == "Gemm" and math.prod(net.tensors[node.inputs[1]]) > LARGE_PRODUCT


def _by_columns(net: ConvNet, node: Node, reach: Reach) -> list[Reach]:
    """Return a node's box in one piece, or that of a large product in pieces for which few weights are read."""
    own = reach.made.channels
    pieces = -(-own.size * net.tensors[node.inputs[1]][1] // LARGE_PRODUCT) if node.op == "Gemm" else 1
    step = -(-own.size // max(pieces, 1))
    every = (Span(start, min(start + step, own.stop)) for start in range(own.start, own.stop, step))
    boxes = (replace(reach.made, channels=channels) for channels in every)
    return [replace(reach, wanted=reach.wanted.intersect(box), made=box) for box in boxes]


# What a plan needs.


def places_bytes(net: ConvNet, plan: SegmentPlan) -> list[int]:
    """Return the bytes of where a plan's values lie on every rank, and of where messages arrive."""
    found = []
    for rank in range(len(plan.devices)):
        own = own_image(net, plan, rank)
        messages = arriving([(step, str) for step in own.steps], rank, own.places, lambda _: plan.wire)
        found.append(FLOAT_BYTES * own.places.numbers + messages)
    return found


def memory_of(net: ConvNet, plan: SegmentPlan) -> list[int]:
    """Return the bytes that every rank needs beside the program: weights, where values lie, and what graphs take.

    All tiles of a rank use the same memory, for what lies within them and for what they need and leave. Rank 0 has all
    strips.
    """
    within = np.zeros(len(plan.devices), np.int64)
    for shares in unrolled(net, plan):
        most = np.zeros(shares.devices, np.int64) + numbers_within(net, shares.compute).max(0)
        if shares.tiles is not None:
            inner = np.broadcast_to(numbers_within(net, shares.tiles), (1, len(shares.tiles.owners)))[0]
            most = np.array([max([own, *inner[shares.able(rank)].tolist()]) for rank, own in enumerate(most.tolist())])
        within += most
    return [
        weights + lies + FLOAT_BYTES * inner
        for weights, lies, inner in zip(weights_of(net, plan), places_bytes(net, plan), within.tolist(), strict=True)
    ]


def lacking(net: ConvNet, cluster: Cluster, plan: SegmentPlan) -> dict[int, int]:
    """Return the bytes that devices which take part need more than they have."""
    found = {}
    for rank, needed in enumerate(memory_of(net, plan)):
        more = needed + PROGRAM_BYTES - cluster.devices[rank].memory_bytes
        if rank in (0, *plan.active) and more > 0:
            found[rank] = more
    return found


def room_bytes(cluster: Cluster) -> Floats:
    """Return what devices have beside the program, [p]; nothing where they have not even room for that."""
    return np.array([max(0.0, device.memory_bytes - PROGRAM_BYTES) for device in cluster.devices])


def may_hold(net: ConvNet, cluster: Cluster) -> bool:
    """Return whether devices have memory for the weights together, each of these once, beside the program."""
    return bool(run_bytes(net, Span(0, len(net.nodes))) <= room_bytes(cluster).sum())


def check_memory(net: ConvNet, cluster: Cluster, plan: SegmentPlan) -> None:
    """Refuse a plan that some device has no memory for.

    Raises
    ------
    InfeasiblePlanError
        Saying how much is missing, and where.
    """
    if more := lacking(net, cluster, plan):
        short_bytes = np.array([float(more.get(rank, 0)) for rank in range(len(cluster.devices))])
        raise does_not_fit(net.name, cluster, short_bytes)
