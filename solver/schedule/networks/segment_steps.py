"""What a plan of a convolutional network costs: a step a segment, the exchange that brings what it needs, and compute.

    segment 0  pixels of the image go from rank 0 to whose rows need them; each computes its share
    segment k  what others' pieces have of what a rank needs comes to it; it computes, piece by piece
    hand in    the outputs go to rank 0

Tiles are priced as if rank 0 handed out all of them first, and whoever has computed one sent it to who needs it next.
The engine hands out one at a time, while others are computed, and brings them back by way of rank 0. Strips are priced
as if they were there and went out with the tiles that take them, but these begin when all that give any are computed.

What every rank needs, computes and leaves says `solver.plan.segments`. Ranks do not wait for all others: each begins a
segment when it has ended the one before, and has what it needs, which its neighbours have sent as soon as they had
computed that piece (`solver.schedule.clocks`). So where edges come first, a neighbour may be late by all of its
interior, and nobody waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from solver.base.errors import InfeasiblePlanError
from solver.base.spans import Span
from solver.cluster.cluster import MIB, PROGRAM_BYTES, Cluster
from solver.cluster.curves import Floats, Kernel
from solver.cluster.nodes import NodeSpeeds
from solver.model.convnet import FLOAT_BYTES, NOTHING, ConvNet, MapBox, Node
from solver.model.operators import ELEMENTWISE, LARGE_PRODUCT, Reach, Strip, Walk, flop, tensors_of
from solver.plan.plan import Prediction, Wire
from solver.plan.segments import (
    Held,
    MapBoxes,
    Piece,
    SegmentPlan,
    SegmentShares,
    all_on_root,
    handed_in,
    image_on_root,
    moved_bytes,
    only_on,
    unrolled,
)
from solver.schedule.clocks import ClockStep, Messages, Moment, computed, exchanged, follow
from solver.schedule.exchange import Mask
from solver.schedule.price import Price, PricedStep
from solver.schedule.timing import Machine

Pieced = Sequence[Mapping[str, MapBox]]  # boxes of values, piece by piece
Ints = NDArray[np.intp]
Areas = Ints  # of many ranks where their rows begin and end, and their channels, [4, ..., p]


@dataclass(frozen=True, slots=True, eq=False)
class NetSetting:
    """A convolutional network and a cluster: all that a cost depends on besides the plan."""

    net: ConvNet
    machine: Machine
    speeds: tuple[NodeSpeeds, ...]
    tables: dict[int, Floats]  # by node, as they are asked for

    @property
    def devices(self) -> int:
        """Number of devices, p."""
        return len(self.speeds)

    def table(self, number: int) -> Floats:
        """Return the seconds of a node on every device for every number of its rows, [p, H + 1]."""
        if number not in self.tables:
            node = self.net.nodes[number]
            alike = {id(speeds): speeds for speeds in self.speeds}
            tables = {key: speeds.table(self.net, node) for key, speeds in alike.items()}
            self.tables[number] = np.stack([tables[id(speeds)] for speeds in self.speeds])
        return self.tables[number]

    def whole_s(self, nodes: Span) -> Floats:
        """Return what every device takes for a run of nodes alone, [p]."""
        return sum((self.table(number)[:, -1] for number in range(nodes.start, nodes.stop)), np.zeros(self.devices))

    def node_s(self, number: int, device: int, reach: Reach, part: MapBox | None) -> float:
        """Return the seconds of a box of a node's output; of a summand, over a part of its input."""
        net, node = self.net, self.net.nodes[number]
        every, made = net.extent(node.output), reach.made
        narrow = made.channels.size * made.columns.size / (every.channels.size * every.columns.size)
        if part is not None:
            narrow *= flop(net, node, made, part) / flop(net, node, made)
        return float(self.table(number)[device, made.rows.size]) * narrow


def net_setting(net: ConvNet, cluster: Cluster) -> NetSetting:
    """Prepare to price plans of a network on a cluster."""
    return NetSetting(net, Machine.of(cluster), tuple(device.node_speeds for device in cluster.devices), {})


def compute_s(s: NetSetting, shares: SegmentShares) -> Floats:
    """Return what every device computes of a segment, [p] seconds, without copies of what is not where it needs it."""
    return np.array([sum(_made_s(s, rank, piece, shares) for piece in own) for rank, own in enumerate(shares.pieces)])


def pieces_s(s: NetSetting, shares: SegmentShares, lying: Sequence[Pieced]) -> Floats:
    """Return what every device takes for a segment, piece by piece, copies included: [pieces, p] seconds.

    Parameters
    ----------
    lying
        Of every device, which boxes lie there as a piece of the segment can take them.
    """
    numbers = np.zeros((max(1, *map(len, shares.pieces)), s.devices))
    made_s = np.zeros_like(numbers)
    for rank, own in enumerate(shares.pieces):
        for number, piece in enumerate(own):
            made_s[number, rank] = _made_s(s, rank, piece, shares)
            coming = _coming(s.net, piece)
            numbers[number, rank] = sum(
                box.size for value, box in coming if all(there.get(value) != box for there in lying[rank])
            )
            numbers[number, rank] += sum(joined(piece.walk).values()) + sum(strip.box.size for strip in piece.given)
    seconds = made_s + s.machine.bank.seconds(Kernel.ADD, numbers)
    return _waiting(shares, seconds) if shares.segment.reuse else seconds


def _waiting(shares: SegmentShares, seconds: Floats) -> Floats:
    """Add to the first tile that takes strips, on every rank, the wait until the last that gives any is computed."""
    takes = np.zeros(seconds.shape, bool)
    for rank, own in enumerate(shares.pieces):
        takes[: len(own), rank] = [bool(piece.walk.taken) for piece in own]
    giving_s = np.where(takes, 0.0, seconds).sum(0)
    first = takes & (takes.cumsum(0) == 1)
    return np.asarray(seconds + first * (giving_s.max() - giving_s))


def _made_s(s: NetSetting, rank: int, piece: Piece, shares: SegmentShares) -> float:
    return _piece_s(s, rank, piece, tuple(shares.parts[rank].items()))


@lru_cache(maxsize=1 << 12)
def _piece_s(s: NetSetting, rank: int, piece: Piece, parts: tuple[tuple[str, MapBox], ...]) -> float:
    """Return what a piece takes: nodes, the call, and what enters its graph and gets another layout there."""
    if not piece.walk.made:
        return 0.0
    entering_s = s.speeds[rank].entering_s * sum(box.size for _, box in _coming(s.net, piece))
    part_of = dict(parts)
    nodes = (
        s.node_s(number, rank, reach, part_of.get(s.net.nodes[number].output))
        for number, reach in piece.walk.made.items()
    )
    return sum(nodes) + s.speeds[rank].session_s + entering_s


def _coming(net: ConvNet, piece: Piece) -> Iterator[tuple[str, MapBox]]:
    """Yield what a piece needs from before its segment, and strips."""
    made, made_by, taken = piece.walk.made, net.made_by, piece.walk.taken
    within = {strip.value for strip in taken}
    yield from ((v, box) for v, box in piece.walk.needs.items() if made_by[v] not in made and v not in within)
    yield from ((strip.value, strip.box) for strip in taken)


def joined(walk: Walk) -> dict[str, int]:
    """Return the numbers of every value that is put together of strips and what is made."""
    return {strip.value: walk.needs[strip.value].size for strip in walk.taken}


def _lying(before: SegmentShares | None, shares: SegmentShares) -> Sequence[Pieced]:
    """Return of every rank which boxes a piece of a segment can take where they lie, piece by piece.

    Not where they are added up, nor where rank 0 hands them out as tiles; and they lie in one run. What only passes a
    segment lies in what that needed of it.
    """
    if shares.tiles or any(held.summands for held in shares.before.values()):
        return [[] for _ in shares.pieces]
    if before is None or before.tiles:
        return [
            [{value: held.boxes[rank] for value, held in shares.before.items()}] for rank in range(len(shares.pieces))
        ]

    def in_one_run(piece: Piece) -> dict[str, MapBox]:
        around = piece.walk.needs
        return {
            value: box
            for value, box in piece.boxes.items()
            if value not in around or (around[value].rows, around[value].columns) == (box.rows, box.columns)
        }

    return [[in_one_run(piece) for piece in own] for own in before.pieces]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentStep(ClockStep):
    """What ranks send each other of a segment's pieces, and what they compute of the next: its name, and its nodes'."""

    name: str
    nodes: tuple[str, ...]


def network_steps(s: NetSetting, plan: SegmentPlan) -> list[SegmentStep]:
    """Return the steps of an image."""
    every = unrolled(s.net, plan)
    return [step_at(s, every, number, plan.wire) for number in range(len(every) + 1)]


def step_at(s: NetSetting, every: Sequence[SegmentShares], number: int, wire: Wire) -> SegmentStep:
    """Return a step of an image, of what follows from every segment; the last brings the outputs to rank 0."""
    ranks = range(s.devices)
    image = {s.net.input: s.net.extent(s.net.input)}
    pieces: list[list[Mapping[str, MapBox]]] = [[image] if rank == 0 else [] for rank in ranks]
    if number:
        pieces = [[piece.boxes for piece in own] for own in every[number - 1].pieces]
    if number == len(every):
        held = every[-1].after if every else image_on_root(s.net, s.devices)
        moved = _moved(s.net, pieces, handed_in(s.net, held), wire)
        return SegmentStep(_messages(s.machine, moved), np.zeros((1, s.devices)), "hand in", ())
    own = every[number]
    moved = _moved(s.net, pieces, own.needs, wire)
    for rank, tiles in enumerate(own.pieces if own.tiles else ()):
        for tile in tiles:
            moved[0] += _from_root(s.net, tile, rank, own, wire)
            if rank:
                moved[0, 0, rank] += _strips_bytes(tile.walk.taken, wire)
                moved[0, rank, 0] += _strips_bytes(tile.given, wire)
    lying = _lying(every[number - 1] if number else None, own)
    return SegmentStep(_messages(s.machine, moved), pieces_s(s, own, lying), f"segment {number}", _names(s.net, own))


def _messages(machine: Machine, moved: Floats) -> Messages:
    """Return so many bytes from rank to rank, [..., pieces, p, p], with the seconds in which ranks handle them."""
    messages = moved > 0
    sent, received = messages.sum(-1), messages.sum((-3, -2))
    sizes = moved.sum(-1) / np.maximum(sent, 1), moved.sum((-3, -2)) / np.maximum(received, 1)
    seconds = machine.bank.seconds(Kernel.MESSAGE, np.concatenate([sizes[0], sizes[1][..., None, :]], -2))
    return Messages(moved, (seconds[..., :-1, :] * sent).sum(-2), seconds[..., -1, :] * received)


def _from_root(net: ConvNet, tile: Piece, rank: int, shares: SegmentShares, wire: Wire) -> Floats:
    """Return what rank 0 sends of what a rank's tile needs: all of it, overlaps included; [p, p]."""
    ranks = len(shares.pieces)
    held = all_on_root(net, shares.before, ranks)
    needs = {value: only_on(rank, tile.walk.needs.get(value, NOTHING), ranks) for value in shares.before}
    return np.array(moved_bytes(net, held, needs, wire), float)


def _strips_bytes(strips: Iterable[Strip], wire: Wire) -> int:
    return sum(strip.box.size * wire.bits // 8 for strip in strips)


def _moved(
    net: ConvNet, pieces: Sequence[Sequence[Mapping[str, MapBox]]], needs: Mapping[str, MapBoxes], wire: Wire
) -> Floats:
    most = max(map(len, pieces))
    moved = np.zeros((most, len(pieces), len(pieces)))
    for number in range(most):
        own = [pieces[rank][number] if number < len(pieces[rank]) else {} for rank in range(len(pieces))]
        held = {value: Held(tuple(boxes.get(value, NOTHING) for boxes in own)) for value in needs}
        if held:
            moved[number] = moved_bytes(net, held, needs, wire)
    return moved


def areas_of(several: Sequence[MapBoxes]) -> Areas:
    """Return the rows and channels of boxes of all ranks, each of several ways."""
    ends = [
        [(box.rows.start, box.rows.stop, box.channels.start, box.channels.stop) for box in boxes] for boxes in several
    ]
    return np.moveaxis(np.array(ends, np.intp), -1, 0)


def brought(net: ConvNet, have: Mapping[str, Areas], needs: Mapping[str, Areas], wire: Wire) -> Floats:
    """Return the bytes that ranks send each other, [..., sender, receiver], of what some have and others need."""
    moved: Floats = np.zeros(1)
    for value, wanted in needs.items():
        number_bytes = 1 if value == net.input else FLOAT_BYTES * wire.bits / 32
        own, other = have[value][..., :, None], wanted[..., None, :]
        rows, channels = np.maximum(np.minimum(own[1::2], other[1::2]) - np.maximum(own[::2], other[::2]), 0)
        moved = moved + net.extent(value).columns.stop * number_bytes * rows * channels
    return moved * ~np.eye(moved.shape[-1], dtype=bool)


def copied(
    net: ConvNet, have: Mapping[str, Areas], needs: Mapping[str, Areas], lies: Mapping[str, Mask | bool]
) -> Floats:
    """Return the numbers that ranks copy, [..., p]: of what they need and have not just so, or not as it must lie."""
    numbers: Floats = np.zeros(1)
    for value, wanted in needs.items():
        same = (have[value] == wanted).all(0) & lies[value]
        rows, channels = wanted[1::2] - wanted[::2]
        numbers = numbers + net.extent(value).columns.stop * rows * channels * ~same
    return numbers


def all_ended(machine: Machine, ready: Floats, moved: Floats, compute: Floats) -> Floats:
    """Return when ranks have ended a segment that each computes in one piece, as they do the one before, [n, p].

    Parameters
    ----------
    ready, compute : [n, p]
        When they have ended the one before, and what this one takes.
    moved : [n, p, p] bytes
        What each sends each other.
    """
    there = exchanged(machine, Moment.at(ready), _messages(machine, moved[:, None]))
    return computed(machine, there, compute[:, None]).ready


def _names(net: ConvNet, shares: SegmentShares) -> tuple[str, ...]:
    nodes = shares.segment.nodes
    if not nodes.size:
        return ()
    first, last = net.nodes[nodes.start], net.nodes[nodes.stop - 1]
    return (first.name,) if nodes.size == 1 else (f"{first.name} to {last.name}",)


def plan_seconds(s: NetSetting, plan: SegmentPlan) -> float:
    """Return the seconds of an image."""
    return seconds_of(s.machine, network_steps(s, plan))


def seconds_of(machine: Machine, steps: Iterable[SegmentStep]) -> float:
    """Return the seconds of an image, by its steps."""
    return math.fsum(float(times.end.max()) for _, times in follow(machine, steps))


def price_segments(s: NetSetting, plan: SegmentPlan) -> Price:
    """Price a plan, step by step."""
    steps = [
        PricedStep(step.name, step.name, step.nodes, (), 1, times, step.messages.sent, step.messages.received)
        for step, times in follow(s.machine, network_steps(s, plan))
    ]
    return Price(tuple(steps), tuple(weights_of(s.net, plan)))


def weights_of(net: ConvNet, plan: SegmentPlan) -> list[int]:
    """Return the bytes of weights that every rank holds.

    Every piece of a segment has its own graph, with its own weights; all tiles have the same.
    """
    needed = [0] * len(plan.devices)
    for shares in unrolled(net, plan):
        for rank in range(len(plan.devices)):
            pieces = computed_by(shares, rank)
            if shares.tiles and pieces:
                pieces = [max(pieces, key=lambda tile: len(tile.walk.made))]
            parts = tuple(shares.parts[rank].items())
            needed[rank] += sum(_piece_bytes(net, piece, parts) for piece in pieces)
    return needed


def computed_by(shares: SegmentShares, rank: int) -> Sequence[Piece]:
    """Return what a rank may have to compute of a segment."""
    return [shares.tiles[number] for number in shares.able(rank)] if shares.tiles else shares.pieces[rank]


@lru_cache(maxsize=1 << 12)
def _piece_bytes(net: ConvNet, piece: Piece, parts: tuple[tuple[str, MapBox], ...]) -> int:
    """Return the bytes of weights of a piece's graph: what several nodes have in common is there once."""
    part_of, made = dict(parts), piece.walk.made
    held: dict[tuple[object, ...], int] = {}
    for number, reach in made.items():
        held |= _held(net, number, reach, part_of.get(net.nodes[number].output))
    return sum(held.values())


def weights_bytes(net: ConvNet, node: Node) -> int:
    """Return the bytes of all of a node's tensors."""
    return _bytes_of(net, tensors_of(net, node))


def run_bytes(net: ConvNet, nodes: Span) -> int:
    """Return the bytes of all tensors of a run of nodes: what several have in common counts once."""
    own = net.nodes[nodes.slice]
    return _bytes_of(net, {name for node in own for name in tensors_of(net, node)})


def _bytes_of(net: ConvNet, tensors: Iterable[str]) -> int:
    return FLOAT_BYTES * sum(math.prod(net.tensors[name]) for name in tensors)


def _held(net: ConvNet, number: int, reach: Reach, part: MapBox | None) -> dict[tuple[object, ...], int]:
    """Return the bytes of a node's tensors that a rank holds for a box of its output, by what they are.

    Of convolutions and products these are some output or input channels; a large product has graphs of its own.
    """
    node, found = net.nodes[number], dict[tuple[object, ...], int]()
    for name in tensors_of(net, node):
        shape = net.tensors[name]
        numbers = int(np.prod(shape))
        key: tuple[object, ...] = (name,)
        if node.op in ("Conv", "Gemm") and shape:
            numbers = numbers // shape[0] * reach.made.channels.size
            if part is not None and len(shape) > 1:
                numbers = numbers // shape[1] * part.channels.size
            key = (name, reach.made.channels, part)
        own_graph = node.op == "Gemm" and numbers > LARGE_PRODUCT
        found[(*key, number) if own_graph else key] = FLOAT_BYTES * numbers
    return found


def memory_of(net: ConvNet, plan: SegmentPlan) -> list[int]:
    """Return the bytes that every rank needs beside the program: weights, and what it needs and leaves of segments.

    All tiles of a rank use the same memory, for what lies within them and for what they need and leave. Rank 0 has all
    strips.
    """
    needed = weights_of(net, plan)
    for shares in unrolled(net, plan):
        for rank in range(len(plan.devices)):
            boxes = [held.boxes[rank] for held in shares.after.values()]
            boxes += [own[rank] for own in shares.needs.values()]
            pieces = computed_by(shares, rank)
            numbers = sum(box.size for box in boxes)
            numbers += sum(room_of(shares, pieces).values()) if shares.tiles else 0
            numbers += max((numbers_within(net, piece) for piece in pieces), default=0)
            numbers += 0 if rank else sum(strip.box.size for tile in shares.tiles for strip in tile.given)
            needed[rank] += FLOAT_BYTES * numbers
    return needed


def room_of(shares: SegmentShares, tiles: Sequence[Piece]) -> dict[str, int]:
    """Return the numbers of the largest box of every value, or strip, that one of these tiles needs or leaves."""
    most: dict[str, int] = {}
    for tile in tiles:
        for name, (_, box) in (shares.coming(tile) | tile.going).items():
            most[name] = max(most.get(name, 0), box.size)
    return most


@lru_cache(maxsize=1 << 12)
def numbers_within(net: ConvNet, piece: Piece) -> int:
    """Return how many numbers that its nodes make a graph has at a time, at most.

    A node's output is there until the last node that needs it; what is computed number by number takes its place. What
    is put together of strips is there twice.
    """
    made, whole = piece.walk.made, joined(piece.walk)
    last = {value: number for number in sorted(made) for value in net.values_of(net.nodes[number])}
    lies = {value: size for value, size in whole.items() if net.made_by[value] not in made}
    most = 0
    for number in sorted(made):
        node = net.nodes[number]
        ended = [value for value in net.values_of(node) if last[value] == number]
        if node.op in ELEMENTWISE:
            lies = {value: size for value, size in lies.items() if value not in ended}
        lies[node.output] = made[number].made.size + whole.get(node.output, 0)
        most = max(most, sum(lies.values()))
        lies = {value: size for value, size in lies.items() if value not in ended}
    return most


def lacking(net: ConvNet, cluster: Cluster, plan: SegmentPlan) -> dict[int, int]:
    """Return the bytes that devices which take part need more than they have."""
    found = {}
    for rank, needed in enumerate(memory_of(net, plan)):
        more = needed + PROGRAM_BYTES - cluster.devices[rank].memory_bytes
        if rank in (0, *plan.active) and more > 0:
            found[rank] = more
    return found


def check_memory(net: ConvNet, cluster: Cluster, plan: SegmentPlan) -> None:
    """Refuse a plan that some device has no memory for.

    Raises
    ------
    InfeasiblePlanError
        Naming the device, what it needs and what it has.
    """
    for rank, more in lacking(net, cluster, plan).items():
        device = cluster.devices[rank]
        raise InfeasiblePlanError(
            f"{net.name} needs {(device.memory_bytes + more) / MIB:.0f} MiB on {device.name}, which has "
            f"{device.memory_bytes / MIB:.0f} MiB free: add devices or memory"
        )


def predicted(s: NetSetting, plan: SegmentPlan) -> SegmentPlan:
    """Return the plan with what is predicted of it."""
    prediction: Prediction = price_segments(s, plan).prediction
    return replace(plan, predicted=prediction)
