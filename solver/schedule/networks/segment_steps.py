"""What a plan of a convolutional network costs: a turn a segment, the exchange that brings what it needs, and compute.

    segment 0  pixels of the image go from rank 0 to whose rows need them; each computes its share
    segment k  what others' pieces have of what a rank needs comes to it; it computes, piece by piece
    result     the outputs go to rank 0

Tiles are priced as if rank 0 handed out all of them first, and whoever has computed one sent it to who needs it next.
The engine hands out one at a time, while others are computed, and brings them back by way of rank 0. Strips are priced
as if they were there and went out with the tiles that take them, but these begin when all that give any are computed.

What every rank needs, computes and leaves says `solver.schedule.networks.steps`. Ranks do not wait for all others: each
begins a segment when it has ended the one before, and has what it needs, which its neighbours have sent as soon as they
had computed that piece (`solver.schedule.clocks`). So where edges come first, a neighbour may be late by all of its
interior, and nobody waits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.base.arrays import FLOAT_BYTES
from solver.base.spans import Span
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats, Kernel
from solver.cluster.nodes import NodeSpeeds
from solver.model.convnet import ConvNet, Node
from solver.model.kinds.operator import CHANNEL, ELEMENTWISE, IMAGE_COLUMN, IMAGE_ROW, MAP, SUMMED
from solver.model.kinds.part import Part, Region, Spans, there
from solver.model.operators import LARGE_PRODUCT, flop, kind_of, parts_of, tensors_of
from solver.plan.plan import Prediction, Wire
from solver.plan.segments import SegmentPlan
from solver.schedule.bound import shared_s
from solver.schedule.clocks import Messages, Moment, advanced
from solver.schedule.exchange import Mask
from solver.schedule.networks.steps import (
    CARRIED,
    Regions,
    SegmentShares,
    TileShares,
    along,
    bytes_across,
    handed_in,
    image_on_root,
    moved_bytes,
    numbers_across,
    unrolled,
)
from solver.schedule.price import Price
from solver.schedule.regions import Lengths, alike, lengths, packed, same, volume, volumes
from solver.schedule.schedule import ComputeStep, PlacedPart
from solver.schedule.timing import Machine
from solver.schedule.turns import ClockTurn, priced, together_s

_OF_WEIGHTS = (CHANNEL, SUMMED)  # axes along which ranks have some of a convolution's weights
Ints = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class NetSetting:
    """A convolutional network and a cluster: all that a cost depends on besides the plan.

    What was priced once is kept: of what is computed before a segment, of the segment, and of the wire.
    """

    net: ConvNet
    machine: Machine
    speeds: tuple[NodeSpeeds, ...]
    kept: dict[tuple[ComputeStep | None, ComputeStep, Wire], tuple[Messages, Floats]] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """Number of devices, p."""
        return len(self.speeds)

    def table(self, number: int) -> Floats:
        """Return the seconds of a node on every device for every number of its rows, [p, H + 1]."""
        seconds, starts = self._tables
        return seconds[:, starts[number] : starts[number + 1]]

    @cached_property
    def _tables(self) -> tuple[Floats, Ints]:
        """The tables of all nodes side by side, [p, ...], and where each begins."""
        net, alike = self.net, {id(speeds): speeds for speeds in self.speeds}
        every = []
        for node, part in zip(net.nodes, parts_of(net).values(), strict=True):
            facts = part.kind.curve, kind_of(net, node), flop(net, node), part.axes[IMAGE_ROW]
            tables = {key: speeds.table(*facts) for key, speeds in alike.items()}
            every.append(np.stack([tables[id(speeds)] for speeds in self.speeds]))
        empty = np.zeros((self.devices, 0))
        return np.concatenate([empty, *every], 1), np.cumsum([0, *(table.shape[1] for table in every)])

    @cached_property
    def session_s(self) -> Floats:
        """The seconds of a call of a graph on every device, [p]."""
        return np.array([own.session_s for own in self.speeds])

    @cached_property
    def entering_s(self) -> Floats:
        """The seconds in which a number enters a graph on every device, [p]."""
        return np.array([own.entering_s for own in self.speeds])

    def rows_s(self, numbers: Ints, devices: Ints, rows: Lengths) -> Floats:
        """Return the seconds of so many rows of some nodes on these devices, [nodes, ..., devices]."""
        seconds, starts = self._tables
        return np.asarray(seconds[devices, starts[numbers][:, None, None] + rows])

    def whole_s(self, nodes: Span) -> Floats:
        """Return what every device takes for a run of nodes alone, [p]."""
        return sum((self.table(number)[:, -1] for number in range(nodes.start, nodes.stop)), np.zeros(self.devices))

    @property
    def bound_s(self) -> float:
        """The seconds of an image below which no plan is; what is sent counts nothing, and no graph's call."""
        tables = [self.table(number)[:, 1:] for number in range(len(self.net.nodes))]
        best = [table.shape[1] * (table / np.arange(1, table.shape[1] + 1)).min(1) for table in tables]
        return shared_s(np.array(best))

    def part_s(self, placed: PlacedPart, region: Region, devices: Ints) -> Floats:
        """Return the seconds of regions of a part on these devices, [..., devices]; of summands by what they add up."""
        made, number = placed.part.made(region), np.array([self.net.made_by[placed.part.writes.name]])
        (seconds,) = self.rows_s(number, devices, lengths(made[IMAGE_ROW])[None])
        return np.asarray(seconds * part_of(placed, made, (CHANNEL, IMAGE_COLUMN)))


def part_of(placed: PlacedPart, made: Region, axes: Sequence[str] = MAP) -> Floats:
    """Return which part of all of a part regions are, [...], along these axes and along what they add up."""
    every, found = placed.part.axes, np.ones(1)
    for axis in (*axes, SUMMED) if placed.axis == SUMMED else axes:
        found = found * lengths(made[axis])
        found /= every[axis]
    return found


def net_setting(net: ConvNet, cluster: Cluster) -> NetSetting:
    """Prepare to price plans of a network on a cluster."""
    return NetSetting(net, Machine.of(cluster), tuple(device.node_speeds for device in cluster.devices))


def computed_parts(compute: ComputeStep | TileShares) -> list[tuple[PlacedPart, Region]]:
    """Return what is computed, and not just passed on, with the region of each."""
    return [own for own in compute.walked[0] if own[0].part.role != CARRIED]


def of_devices(shares: SegmentShares) -> Iterator[tuple[PlacedPart, Region, Ints]]:
    """Yield what is computed of a segment: of pieces on all devices, of tiles on those whose they are."""
    everyone = np.arange(shares.devices)
    yield from ((placed, region, everyone) for placed, region in computed_parts(shares.compute))
    if shares.tiles is not None:
        owners = np.array(shares.tiles.owners, np.intp)
        yield from ((placed, region, owners) for placed, region in computed_parts(shares.tiles))


def pieces_flop(net: ConvNet, compute: ComputeStep | TileShares) -> Floats:
    """Return the floating-point operations of pieces, [pieces, p]."""
    found: Floats = np.zeros((1, 1))
    for placed, region in computed_parts(compute):
        node = net.nodes[net.made_by[placed.part.writes.name]]
        found = found + flop(net, node) * part_of(placed, placed.part.made(region))
    return found


def compute_s(s: NetSetting, shares: SegmentShares) -> Floats:
    """Return what every device computes of a segment, [p] seconds, without copies of what is not where it needs it."""
    seconds = _made_s(s, shares.compute).sum(0)
    if shares.tiles is not None:
        np.add.at(seconds, list(shares.tiles.owners), _tiles_s(s, shares.tiles))
    return np.asarray(seconds)


@lru_cache(maxsize=1 << 8)
def _made_s(s: NetSetting, compute: ComputeStep) -> Floats:
    return made_s(s, compute, np.arange(s.devices))


@lru_cache(maxsize=64)
def _tiles_s(s: NetSetting, tiles: TileShares) -> Floats:
    return np.asarray(made_s(s, tiles, np.array(tiles.owners, np.intp))[0])


def made_s(s: NetSetting, compute: ComputeStep | TileShares, devices: Ints) -> Floats:
    """Return what pieces take, or plans, [..., devices]: nodes, the call, and what enters and gets another layout."""
    parts = computed_parts(compute)
    if not parts:
        return np.zeros((1, len(devices)))
    made = [placed.part.made(region) for placed, region in parts]
    size = lengths(np.array([[own[axis] for axis in MAP] for own in made]))  # [nodes, axes, ..., devices]
    numbers, across = _nodes_of(s.net, tuple(placed.part for placed, _ in parts))
    seconds = s.rows_s(numbers, devices, size[:, 1]) * (size[:, 0] * size[:, 2] / across)
    for number, (placed, region) in enumerate(parts):
        if placed.axis == SUMMED:
            seconds[number] *= part_of(placed, region, ())
    busy = size.all(1).any(0)
    entering = sum(entering_numbers(compute).values(), np.zeros(1))
    return np.asarray(seconds.sum(0) + busy * (s.session_s[devices] + s.entering_s[devices] * entering))


@lru_cache(maxsize=1 << 8)
def _nodes_of(net: ConvNet, parts: tuple[Part, ...]) -> tuple[Ints, Ints]:
    """Return the numbers of parts' nodes, and how many numbers a row of each one's output has, [nodes, 1, 1]."""
    across = np.array([part.axes[CHANNEL] * part.axes[IMAGE_COLUMN] for part in parts])
    return np.array([net.made_by[part.writes.name] for part in parts]), across[:, None, None]


@lru_cache(maxsize=1 << 8)
def _needed(compute: ComputeStep | TileShares) -> tuple[Spans, Lengths]:
    """Return what is needed of values from before, packed, and how many numbers, [values, ..., p]."""
    spans = packed(compute.walked[1].values(), MAP)
    return spans, volumes(spans)


@lru_cache(maxsize=1 << 8)
def entering_numbers(compute: ComputeStep | TileShares) -> dict[str, Lengths]:
    """Return how many numbers of each come into graphs, [..., p]: of values from before, and strips."""
    found = dict(zip(compute.walked[1], _needed(compute)[1], strict=True))
    if isinstance(compute, TileShares):
        for (value, side), strip in compute.taken.items():
            found[f"{value}:{side}"] = volume(strip)
    return found


def pieces_s(s: NetSetting, shares: SegmentShares, lying: Lying | None) -> Floats:
    """Return what every device takes for a segment, piece by piece, copies included: [pieces, p] seconds.

    Parameters
    ----------
    lying
        Of every device, which boxes lie there as a piece of the segment can take them; None: all is copied.
    """
    spans, numbers = _needed(shares.compute)
    if lying is not None:
        numbers = numbers * ~lying.just(shares.compute.walked[1], spans)
    seconds = np.asarray(_made_s(s, shares.compute) + s.machine.bank.seconds(Kernel.ADD, numbers.sum(0)))
    return seconds if shares.tiles is None else _with_tiles_s(s, shares, shares.tiles, seconds)


def _with_tiles_s(s: NetSetting, shares: SegmentShares, tiles: TileShares, passing: Floats) -> Floats:
    """Return the seconds of tiles, with the copies of all that they need, and put together of strips, and give."""
    copied = sum(entering_numbers(tiles).values(), np.zeros((1, len(tiles.owners))))[0]
    for value, joined in tiles.joined.items():
        copied = copied + volume(tiles.needs[value])[0] * joined
    for value, side, taker, giver in tiles.given:
        copied[giver] += volume(tiles.taken[value, side])[0, taker]
    owners = list(tiles.owners)
    costs = s.machine.bank.seconds(Kernel.ADD, np.tile(copied[:, None], s.devices))
    seconds = _placed(shares, passing, _tiles_s(s, tiles) + costs[np.arange(len(owners)), owners])
    if not shares.segment.reuse:
        return seconds
    # The first tile that takes strips, on every rank, waits until the last that gives any is computed.
    takes = _placed(shares, 0 * passing, np.array([len(own) > 0 for own in tiles.beside], float)) > 0
    giving_s = np.where(takes, 0.0, seconds).sum(0)
    first = takes & (takes.cumsum(0) == 1)
    return np.asarray(seconds + first * (giving_s.max() - giving_s))


def _placed(shares: SegmentShares, passing: NDArray[Any], of_tiles: NDArray[Any]) -> NDArray[Any]:
    """Return what is said of every rank's tiles, one after the other, after what passes them, [pieces, p, ...]."""
    assert shares.tiles is not None
    places, passes = _places(shares)
    found = np.zeros((max([1, *(place + 1 for place, _ in places)]), *passing.shape[1:]), of_tiles.dtype)
    found[:passes] = passing[:passes]
    for own, place in zip(of_tiles, places, strict=True):
        found[place] = own
    return found


def _places(shares: SegmentShares) -> tuple[list[tuple[int, int]], int]:
    """Return of every tile which of its owner's pieces it is, and the owner; and how many pieces pass on rank 0."""
    assert shares.tiles is not None
    passes = int(any(there(region).any() for region in shares.compute.made.values()))
    before, places = [passes, *[0] * (shares.devices - 1)], []
    for owner in shares.tiles.owners:
        places.append((before[owner], owner))
        before[owner] += 1
    return places, passes


@dataclass(frozen=True, slots=True, eq=False)
class Lying:
    """Boxes of values that ranks have.

    Parameters
    ----------
    numbers
        Of every value, which it is.
    boxes : [values, axes, boxes, p, 2]
        Packed.
    in_one_run : [values, boxes, p]
        Which of them lie in one run.
    """

    numbers: Mapping[str, int]
    boxes: Spans
    in_one_run: Mask

    @classmethod
    def of(cls, boxes: Regions, in_one_run: Mask) -> Lying:
        """Return these boxes."""
        return cls({name: number for number, name in enumerate(boxes)}, packed(boxes.values(), MAP), in_one_run)

    def just(self, values: Iterable[str], needs: Spans) -> Mask:
        """Return whether what pieces need is just one of the boxes that lie in one run, [values, pieces, p]."""
        places = [self.numbers[name] for name in values]
        found = alike(needs[:, :, :, None], self.boxes[places][:, :, None]) & self.in_one_run[places][:, None]
        return np.asarray(found.any(2))


def _lying(before: SegmentShares | None, shares: SegmentShares) -> Lying | None:
    """Return of every rank which boxes a piece of a segment can take where they lie, piece by piece.

    Not where they are added up, nor where rank 0 hands them out as tiles; and they lie in one run. What only passes a
    segment lies in what that needed of it.
    """
    if shares.tiles or any(held.partial for held in shares.before.values()):
        return None
    if before is None or before.tiles:
        boxes = {name: held.box for name, held in shares.before.items()}
        return Lying.of(boxes, np.ones((len(boxes), 1, 1), bool))
    return _left_lying(before.compute)


@lru_cache(maxsize=1 << 8)
def _left_lying(compute: ComputeStep) -> Lying:
    return Lying.of(compute.made, np.array([in_one_run(compute, name) for name in compute.made]))


def in_one_run(compute: ComputeStep, name: str) -> Mask:
    """Return whether what ranks leave of a value lies in one run, and not within what they need of it, [pieces, p]."""
    runs, needs = compute.walked
    around = needs.get(name) or next(region for own, region in runs if own.part.writes.name == name)
    box = compute.made[name]
    return same(around, box, (IMAGE_ROW, IMAGE_COLUMN))


def network_turns(s: NetSetting, plan: SegmentPlan) -> list[ClockTurn]:
    """Return the turns of an image."""
    every = unrolled(s.net, plan)
    return [turn_at(s, every, number, plan.wire) for number in range(len(every) + 1)]


def turn_at(s: NetSetting, every: Sequence[SegmentShares], number: int, wire: Wire) -> ClockTurn:
    """Return a turn of an image, of what follows from every segment; the last brings the outputs to rank 0."""
    before = every[number - 1] if number else None
    if number == len(every):
        return ClockTurn((_brought(s, before, handed_in(s.net, s.devices), wire),), "result")
    own = every[number]
    name = f"what segment {number} needs" if number else "pixels"
    return ClockTurn(_segment_parts(s, before, own, wire), name, _names(s.net, own), Span(number, number + 1))


def _segment_parts(
    s: NetSetting, before: SegmentShares | None, own: SegmentShares, wire: Wire
) -> tuple[Messages, Floats]:
    """Return what brings what a segment needs, and what it computes; of the same computations once."""
    key = before.compute if before else None, own.compute, wire
    by_tiles = own.tiles or (before and before.tiles)
    if by_tiles or key not in s.kept:
        messages = _brought(s, before, own.needs, wire, own.tiles)
        found = messages, pieces_s(s, own, _lying(before, own))
        if by_tiles:
            return found
        s.kept[key] = found
    return s.kept[key]


def _brought(
    s: NetSetting, before: SegmentShares | None, needs: Regions, wire: Wire, tiles: TileShares | None = None
) -> Messages:
    """Return what brings what ranks need, or tiles, from where it was made."""
    made = _made_by(before) if before else {name: own.box for name, own in image_on_root(s.net, s.devices).items()}
    moved = np.zeros((1, s.devices, s.devices)) + moved_bytes(s.net, made, needs, wire)
    if tiles is not None:
        moved[0] += _of_tiles(s.net, tiles, wire, s.devices)
    return _messages(s.machine, moved)


def _made_by(shares: SegmentShares) -> Regions:
    """Return what every rank leaves of a segment, piece by piece; of tiles, whoever computes them first."""
    tiles = shares.tiles
    if tiles is None:
        return shares.compute.made
    empty = np.zeros((1, shares.devices, 2), np.int64)
    passing, found = shares.compute.made, {}
    for name in shares.after:
        of_tiles = tiles.boxes.get(name, dict.fromkeys(MAP, np.zeros((1, len(tiles.owners), 2), np.int64)))
        own = passing.get(name, dict.fromkeys(MAP, empty))
        found[name] = {axis: _placed(shares, own[axis], of_tiles[axis][0]) for axis in MAP}
    return found


def _of_tiles(net: ConvNet, tiles: TileShares, wire: Wire, devices: int) -> Floats:
    """Return the bytes between rank 0 and those who have tiles, [p, p]: all that tiles need, overlaps included."""
    moved = np.zeros((devices, devices))
    root = 0
    for name, need in tiles.walked[1].items():
        (sizes,) = volume(need)
        for owner, size in zip(tiles.owners, sizes.tolist(), strict=True):
            moved[root, owner] += size * bytes_across(net, name, MAP, wire)
    for value, side, taker, giver in tiles.given:
        size = int(volume(tiles.taken[value, side])[0, taker]) * wire.bits / 8
        moved[root, tiles.owners[taker]] += size
        moved[tiles.owners[giver], root] += size
    moved[root, root] = 0
    return moved


def _messages(machine: Machine, moved: Floats) -> Messages:
    """Return so many bytes from rank to rank, [..., pieces, p, p], with the seconds in which ranks handle them."""
    messages = moved > 0
    sent, received = messages.sum(-1), messages.sum((-3, -2))
    sizes = moved.sum(-1) / np.maximum(sent, 1), moved.sum((-3, -2)) / np.maximum(received, 1)
    seconds = machine.bank.seconds(Kernel.MESSAGE, np.concatenate([sizes[0], sizes[1][..., None, :]], -2))
    return Messages(moved, (seconds[..., :-1, :] * sent).sum(-2), seconds[..., -1, :] * received)


def copied(net: ConvNet, have: Regions, needs: Regions, lies: Mapping[str, Mask | bool]) -> Floats:
    """Return the numbers that ranks copy, [..., p]: of what they need and have not just so, or not as it must lie.

    Axes of which is not said what they have are whole.
    """
    if not needs:
        return np.zeros(1)
    having = [have[name] for name in needs]
    axes = tuple(having[0])
    wanted = packed(needs.values(), axes)
    just_so = alike(packed(having, axes), wanted)
    copied = ~(just_so & along([lies[name] for name in needs], just_so.ndim)) * volumes(wanted)
    return np.asarray(np.einsum("v,v...->...", [numbers_across(net, name, axes) for name in needs], copied))


def all_ended(machine: Machine, ends: Floats, moved: Floats, compute: Floats) -> Floats:
    """Return when ranks have ended a segment that each computes in one piece, as they do the one before.

    Parameters
    ----------
    ends : [n, 2, p]
        When they have ended the one before, and when their links have sent what was to be sent; so is the result.
    moved : [n, p, p] bytes
        What each sends each other.
    compute : [n, p]
        What this one takes.
    """
    before = Moment.at(ends[:, 0], ends[:, 1])
    now = advanced(machine, before, (_messages(machine, moved[:, None]), compute[:, None]))
    return np.stack([now.ready, now.sent_at], 1)


def _names(net: ConvNet, shares: SegmentShares) -> tuple[str, ...]:
    nodes = shares.segment.nodes
    if not nodes.size:
        return ()
    first, last = net.nodes[nodes.start], net.nodes[nodes.stop - 1]
    return (first.name,) if nodes.size == 1 else (f"{first.name} to {last.name}",)


def plan_seconds(s: NetSetting, plan: SegmentPlan) -> float:
    """Return the seconds of an image."""
    return float(together_s(s.machine, network_turns(s, plan)))


def price_segments(s: NetSetting, plan: SegmentPlan) -> Price:
    """Price a plan, step by step."""
    return Price(tuple(priced(s.machine, network_turns(s, plan))), tuple(weights_of(s.net, plan)))


def weights_of(net: ConvNet, plan: SegmentPlan) -> list[int]:
    """Return the bytes of weights that every rank holds."""
    return [int(own) for own in held_bytes(net, unrolled(net, plan))]


def held_bytes(net: ConvNet, every: Sequence[SegmentShares]) -> Lengths:
    """Return the bytes of weights that every rank holds for segments, [p].

    Every piece of a segment has its own graph, with its own weights; all tiles have the same.
    """
    needed = np.zeros(every[0].devices, np.int64)
    for shares in every:
        needed += _weights(net, shares.compute).sum(0)
        if shares.tiles is not None and shares.tiles.owners:
            sizes = np.broadcast_to(_weights(net, shares.tiles), (1, len(shares.tiles.owners)))[0]
            nodes = np.sum([there(region)[0] for _, region in computed_parts(shares.tiles)], 0)
            for rank in range(needed.size):
                if able := shares.able(rank):
                    needed[rank] += sizes[max(able, key=lambda tile: nodes[tile])]
    return needed


@lru_cache(maxsize=1 << 8)
def _weights(net: ConvNet, compute: ComputeStep | TileShares) -> Lengths:
    """Return the bytes of weights of pieces' graphs, [pieces, p]: what several nodes have in common is there once.

    Of convolutions and products these are some output or input channels; a large product has graphs of its own.
    """
    found: Lengths = np.zeros((1, 1), np.int64)
    parts = [
        (net.nodes[net.made_by[own.part.writes.name]], own.part.made(region)) for own, region in computed_parts(compute)
    ]
    uses = Counter(name for node, _ in parts for name in tensors_of(net, node))
    known: dict[tuple[str, bool], list[tuple[Mask, Region]]] = {}
    for node, made in parts:
        here, channels = there(made), lengths(made[CHANNEL])
        summed = lengths(made[SUMMED]) if SUMMED in made else None
        for name in tensors_of(net, node):
            shape, new = net.tensors[name], here
            numbers: Lengths = np.full(1, math.prod(shape))
            by_channels = node.op in ("Conv", "Gemm") and len(shape) > 0
            if by_channels:
                numbers = numbers // shape[0] * channels
                if summed is not None and len(shape) > 1:
                    numbers = numbers // shape[1] * summed
            if uses[name] > 1:
                others = known.setdefault((name, by_channels), [])
                own_graph = (numbers > LARGE_PRODUCT) & (node.op == "Gemm")
                new = here & (own_graph | ~_among(made, others, by_channels))
                others.append((here, made))
            found = found + FLOAT_BYTES * numbers * new
    return found


def _among(made: Region, others: Sequence[tuple[Mask, Region]], by_channels: bool) -> Mask:
    """Return whether others need the same of a tensor, [...]: all, or the same output and input channels."""
    found: Mask = np.zeros(1, bool)
    axes = [axis for axis in _OF_WEIGHTS if axis in made] if by_channels else []
    for here, other in others:
        found = found | (here & same(made, other, axes) if axes else here)
    return found


def weights_bytes(net: ConvNet, node: Node) -> int:
    """Return the bytes of all of a node's tensors."""
    return _bytes_of(net, tensors_of(net, node))


def run_bytes(net: ConvNet, nodes: Span) -> int:
    """Return the bytes of all tensors of a run of nodes: what several have in common counts once."""
    own = net.nodes[nodes.slice]
    return _bytes_of(net, {name for node in own for name in tensors_of(net, node)})


def _bytes_of(net: ConvNet, tensors: Iterable[str]) -> int:
    return FLOAT_BYTES * sum(math.prod(net.tensors[name]) for name in tensors)


@lru_cache(maxsize=1 << 8)
def numbers_within(net: ConvNet, compute: ComputeStep | TileShares) -> Lengths:
    """Return how many numbers that its nodes make a graph has at a time, at most, [pieces, p].

    A node's output is there until the last node that needs it; what is computed number by number takes its place. What
    is put together of strips is there twice.
    """
    computed_here = [
        (net.made_by[placed.part.writes.name], volume(placed.part.result(placed.part.made(region))), there(region))
        for placed, region in computed_parts(compute)
    ]
    last: dict[str, Lengths] = {}
    for number, _, here in computed_here:
        for value in net.values_of(net.nodes[number]):
            last[value] = np.where(here, number, last.get(value, -1))
    whole: dict[str, Lengths] = {}
    if isinstance(compute, TileShares):
        whole = {value: volume(compute.needs[value]) * joined for value, joined in compute.joined.items()}
    made_here = {net.nodes[number].output: here for number, _, here in computed_here}
    lies = {value: size * ~made_here[value] for value, size in whole.items()}
    most: Lengths = np.zeros((1, 1), np.int64)
    total = sum(lies.values(), most)
    for number, made, here in computed_here:
        node = net.nodes[number]
        ended = {value: lies[value] * (last[value] == number) for value in {*net.values_of(node)} & lies.keys()}
        before = lies.get(node.output, 0)
        lies[node.output] = np.where(here, made + whole.get(node.output, 0), before)
        with_all = total - before + lies[node.output]
        total = with_all - sum(ended.values())
        most = np.maximum(most, np.where(here, total if node.op in ELEMENTWISE else with_all, 0))
        lies |= {value: lies[value] - size for value, size in ended.items()}
    return most


def predicted(s: NetSetting, plan: SegmentPlan) -> SegmentPlan:
    """Return the plan with what is predicted of it."""
    prediction: Prediction = price_segments(s, plan).prediction
    return replace(plan, predicted=prediction)
