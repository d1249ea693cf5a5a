"""`SegmentPlan`: how a convolutional network is split, segment by segment.

A segment is a run of nodes that every rank computes without hearing of the others. After it every value that is still
needed lies in boxes, one a rank; or, where nodes add up over what ranks have a part of (a global pool over rows, a
convolution over input channels), every rank has a summand of all of it. What a rank needs for the next segment, its own
rows' receptive field, may be in others' boxes: that is what ranks exchange.

    rows       every rank computes some rows of all values that the segment leaves
    channels   every rank some channels, of all rows
    sums       every rank has some input channels of the segment's first node: the sum over all is the result
    tiles      every rank some tiles of a grid of rows and columns, one after the other

Tiles are DeepThings' fused tile partitioning (Zhao, Barijough, Gerstlauer, TCAD 2018, section IV): rank 0 has all
before and after the segment, hands out what a tile needs, overlaps included, and puts together what comes back. With
reuse (section IV-C) those on white squares of a checkerboard wait for their up to four neighbours, on black ones, and
take from them, by way of rank 0, what these have computed of the values within the segment (`Strip`).

Any of them gives the right result for any network: what cannot be shared out is computed by every rank that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from solver.base.errors import HeptiError
from solver.base.phrases import counted
from solver.base.spans import Partition, Span
from solver.model.convnet import ConvNet, MapBox
from solver.model.operators import GLOBAL_POOLS, SUMS, adds_up
from solver.plan.plan import ROUNDING, Prediction, Wire, check_named, check_ranks

THROUGHPUT = "hepti-throughput"  # the system of plans that run side by side, each with images of its own


class SegmentCut(StrEnum):
    """What of a segment ranks share out."""

    ROWS = "rows"
    CHANNELS = "channels"
    INPUT_CHANNELS = "input_channels"
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
        check_named(self.model_name, self.model_fingerprint, net)
        check_ranks(self.devices, ranks)
        at = 0
        for segment in self.segments:
            where = _where(segment)
            if segment.nodes.start != at:
                raise HeptiError(f"{where}: the next node is {at}, write [{at}, …]")
            at = segment.nodes.stop
            if len(segment.shares) != len(self.devices):
                raise HeptiError(
                    f"{where}: {len(segment.shares)} shares for {len(self.devices)} devices: write one for each"
                )
            if min(segment.shares) < 0 or abs(sum(segment.shares) - 1) > ROUNDING:
                raise HeptiError(
                    f"{where}: shares must be at least 0 and add up to 1, they add up to {sum(segment.shares):g}"
                )
            if min(segment.grid) < 1 or (segment.cut is not SegmentCut.TILES and segment.grid != (1, 1)):
                raise HeptiError(
                    f"{where} is cut by {segment.cut}, its grid is {list(segment.grid)}: a grid is of cut tiles, of at "
                    f"least 1 by 1"
                )
            if segment.cut is SegmentCut.INPUT_CHANNELS and not adds_up(first := net.nodes[segment.nodes.start]):
                op = first.op + " in groups" * (first.op in SUMS)
                raise HeptiError(f"{where} is cut by input channels, {op} adds up nothing: cut it by rows or channels")
            if segment.cut is SegmentCut.INPUT_CHANNELS and segment.nodes.size > 1:
                count = segment.nodes.size
                raise HeptiError(f"{where} is cut by input channels and has {count} nodes: it must have one")
        if at != len(net.nodes):
            raise HeptiError(
                f"the runs end at node {at}, {net.name} has {len(net.nodes)}: write the last as […, {len(net.nodes)}]"
            )

    def unheeded(self, net: ConvNet) -> list[str]:
        """Return what it says that comes to less, in words: shares of fewer rows or channels than devices have some.

        And edges first of what has no edges.
        """
        found = []
        for segment in self.segments:
            parts = whole_parts(net, segment)
            if none := [self.devices[rank] for rank in segment.active if not parts[rank]]:
                unit = segment.cut.replace("_", " ")[:-1]
                get = "get" if len(none) > 1 else "gets"
                found.append(
                    f"{_where(segment)}, cut {segment.cut}: {counted(sum(parts), unit)} for {len(segment.active)} "
                    f"devices: {' and '.join(none)} {get} none"
                )
            if segment.edges_first and segment.cut is not SegmentCut.ROWS:
                found.append(f"{_where(segment)}: edges_first is of rows, of {segment.cut} it changes nothing")
        return found


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
    elif segment.cut is SegmentCut.INPUT_CHANNELS:
        lengths = {net.extent(net.values_of(net.nodes[segment.nodes.start])[0]).channels.stop}
    elif segment.cut is SegmentCut.CHANNELS:
        lengths = {net.extent(value).channels.stop for value in net.live(segment.nodes.stop)}
    else:
        pooled = {net.nodes[number].output: net.nodes[number] for number in pooled_in(net, segment.nodes)}
        live = (net.values_of(pooled[v])[0] if v in pooled else v for v in net.live(segment.nodes.stop))
        lengths = {net.extent(value).rows.stop for value in live}
    return Partition.of_shares(segment.shares, min(lengths - {0, 1}, default=1)).counts


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


def _where(segment: Segment) -> str:
    return f"nodes [{segment.nodes.start}, {segment.nodes.stop}]"
