"""Where a convolutional network is cut into segments, and who computes which rows of each: a shortest path.

A state is a point of the graph and a crew, the devices that share out the rows there, or, where few rows are left, the
channels; whole rows make the slowest of the crew as fast as can be. An edge is a segment: what it costs to bring its
crew what that needs from where the crew before has it, and what the slowest computes, halos that fusing makes it
compute twice included. Points are where rows of others are needed (`solver.model.operators.levels`); all that lies
between is fused. After the rows every product is on one device, or by columns on several. So fusing against
exchanging, who takes part where, and how deep rows are shared out are one search (as AOFL's over blocks, SEC 2019,
section 4, but with halos from device to device). Ranks do not wait for all others: a path carries the moment when each
has ended it, and of those to a crew at a point the one is kept whose last rank ends first. Where memory is scarce a
path also carries the weights that each holds; those that fit nowhere are dropped, several are kept, and channels may be
shared out everywhere (resource-constrained shortest path by labels: Irnich and Desaulniers, "Shortest Path Problems
with Resource Constraints", 2005).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from solver.base.arrays import Numbers
from solver.base.spans import Span
from solver.cluster.curves import Floats, Kernel
from solver.model.kinds.operator import CHANNEL, IMAGE_ROW
from solver.model.kinds.part import Region, Spans, full, whole
from solver.model.operators import GLOBAL_POOLS, channel_points, cut_points, parts_of
from solver.plan.plan import Wire
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, alone_on
from solver.programs.convnets.segment_polish import CHANNEL_PARTS, apportioned, coarsest, seconds_by_rows
from solver.schedule.networks.segment_steps import (
    Ints,
    NetSetting,
    all_ended,
    compute_s,
    copied,
    made_s,
    run_bytes,
    weights_bytes,
)
from solver.schedule.networks.steps import (
    Held,
    Regions,
    computation,
    handed_in,
    image_on_root,
    live_on,
    moved_between,
    moved_bytes,
    numbers_across,
    segment_shares,
    spans_of,
)
from solver.schedule.regions import hull, lengths

# When ranks have ended a path, and links have sent, [2, p], the bytes of weights that ranks hold, [p], its segments,
# and where values lie after it.
WholePath = tuple[Floats, Floats, list[Segment], Mapping[str, Held]]
FEW = 4  # devices of which every set is tried as a crew; of more, the fastest ones
FUSED = 8  # levels that a segment may have
# Where fewer rows are left for each device, kernels lose by it: at 2 of 7 rows a sixth to a half.
FEW_ROWS = 8
LABELS = 4  # paths to a crew at a point that are kept where memory is scarce, each with other weights


@dataclass(frozen=True, slots=True, eq=False)
class WeightsRoom:
    """Where memory is scarce: what devices have room for, bytes of weights, and what a byte costs, seconds, [p]."""

    most_bytes: Floats
    byte_s: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Reached:
    """What the crews at a point cost and need where the segment that ends there begins at another point.

    Parameters
    ----------
    seconds : [crews, p]
        What every device computes.
    needs
        Of every value that is there where the segment begins, what every device needs.
    weights : [crews, p]
        Bytes that every device holds.
    """

    seconds: Floats
    needs: Regions
    weights: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """Paths to a point.

    Parameters
    ----------
    ends : [paths, 2, p]
        When ranks have ended them, and when their links have sent.
    held : [paths, p]
        Bytes of weights that ranks hold for them.
    crew : [paths]
        Who has what there: crews that share out rows come first, then those that share out channels.
    before : [paths, 2]
        From which point each comes, and which of the paths there it follows.
    """

    ends: Floats
    held: Floats
    crew: Ints
    before: Ints

    def of(self, numbers: Ints) -> Paths:
        """Return some of them."""
        return Paths(self.ends[numbers], self.held[numbers], self.crew[numbers], self.before[numbers])


class Search:
    """The shortest path over points and crews.

    Parameters
    ----------
    s
        The network and the cluster.
    wire
        How numbers travel.
    scarce
        What room there is for weights, and what it costs; None where memory limits nothing.
    """

    def __init__(self, s: NetSetting, wire: Wire, scarce: WeightsRoom | None = None) -> None:
        self._s, self._net, self._wire, self._scarce = s, s.net, wire, scarce
        speed = self._speeds()
        self._order = np.argsort(-speed, kind="stable")
        self._crews = [np.array(sorted(crew), np.intp) for crew in self._crew_sets()]
        levels = cut_points(s.net)
        # Where few rows are left for each, channels may be shared out, from one node that needs all of them to the
        # next.
        few = (at for at in levels[1:] if self._height(at, levels) < FEW_ROWS * s.devices)
        if s.devices == 1:
            deep = levels[-1]
        elif scarce is None:
            deep = next(few, levels[-1])
        else:  # by channels each holds a part of the weights, by rows all of them
            deep = levels[0]
        self._points = sorted({*levels, *(at for at in channel_points(s.net) if at > deep)})
        self._levels = {self._points.index(at) for at in levels}
        self._deep = self._points.index(deep)
        self._channel_shares = np.concatenate([self._in_proportion(own) for own in (speed, *self._roomy())])
        self._had: dict[tuple[str, int], Region] = {}
        self._spans: dict[tuple[int, int], Spans] = {}

    def plans(self, devices: Sequence[str]) -> Iterator[SegmentPlan]:
        """Yield the best path, without and with edges first, and what rank 0 or the fastest device does alone."""
        yield from self.paths(devices)
        every = Span(0, len(self._net.nodes))
        for rank in {0, int(self._order[0])}:
            yield self._plan([Segment(every, SegmentCut.ROWS, alone_on(rank, len(devices)))], devices)

    def paths(self, devices: Sequence[str]) -> Iterator[SegmentPlan]:
        """Yield the best path, without and with edges first; none where devices have room for the weights of none."""
        if path := self._to_the_end(self._through_rows()):
            yield self._plan(path, devices)
            # Edges of one segment gain nothing where those of the next do not come first, too.
            firsts = [len(own.active) > 1 and own.cut is SegmentCut.ROWS for own in path]
            yield self._plan(
                [replace(own, edges_first=first) for own, first in zip(path, firsts, strict=True)], devices
            )

    def _plan(self, segments: Sequence[Segment], devices: Sequence[str]) -> SegmentPlan:
        plan = SegmentPlan(tuple(_merged(segments)), tuple(devices), self._net.name, self._net.fingerprint)
        return replace(plan, wire=self._wire)

    def _speeds(self) -> Floats:
        """Return the speed of every device, [p], by what all nodes take."""
        every = Span(0, len(self._net.nodes))
        return np.asarray(1 / np.maximum(self._s.whole_s(every), 1e-12))

    def _crew_sets(self) -> Iterator[tuple[int, ...]]:
        count, order = self._s.devices, self._order.tolist()
        if count <= FEW:
            sets = (crew for size in range(1, count + 1) for crew in combinations(range(count), size))
            yield from (crew for crew in sets if self._takes_first(crew) and self._has_room(crew))
            return
        order = [rank for rank in order if self._has_room([rank])]
        sizes = sorted({*range(1, FEW + 1), *(round(FEW * 1.5**step) for step in range(1, 12)), len(order)})
        yield from (tuple(order[:size]) for size in sizes if size <= len(order))
        if order[:1] != [0]:
            yield (0,)

    def _has_room(self, crew: Sequence[int]) -> bool:
        """Return whether all devices of a crew have room for some weights."""
        return self._scarce is None or bool((self._scarce.most_bytes[list(crew)] > 0).all())

    def _takes_first(self, crew: Sequence[int]) -> bool:
        """Return whether a crew has no device whose like, with the same links, stands before it and is not in it."""
        s, network = self._s, self._s.machine.network
        if network.narrow:
            return True

        def alike(one: int, other: int) -> bool:
            return s.speeds[one] == s.speeds[other] and network.bandwidth[one] == network.bandwidth[other]

        return not any(alike(rank, other) and other not in crew for rank in crew for other in range(rank))

    @cached_property
    def _limits(self) -> Floats | None:
        """What devices have room for, [p]; None where weights have a price at most."""
        scarce = self._scarce
        return None if scarce is None or np.isinf(scarce.most_bytes).any() else scarce.most_bytes

    def _roomy(self) -> list[Floats]:
        """Return what devices have room for, [p], where that is limited and some have any.

        Shares are in proportion to it: next to nothing stands for none.
        """
        if self._limits is None or not (self._limits > 0).any():
            return []
        return [np.maximum(self._limits, 1e-6 * self._limits.max())]

    def _in_proportion(self, able: Floats) -> Floats:
        """Return the shares of channels of crews that may share them out, [crews, p]: parts of `CHANNEL_PARTS`.

        The most able devices, [p], each in proportion to that.
        """
        sizes, order = sorted({2, (1 + self._s.devices) // 2, self._s.devices} - {1}), np.argsort(-able, kind="stable")
        crews = [np.sort(order[:size]) for size in sizes if 1 < size <= min(self._s.devices, CHANNEL_PARTS)]
        return apportioned(np.arange(CHANNEL_PARTS + 1) / able[:, None], crews) / CHANNEL_PARTS

    def _kept(self, ends: Floats, held: Floats, group: Ints) -> Ints:
        """Return the numbers of paths that are kept, the best of each group, the first groups first.

        Parameters
        ----------
        ends : [paths, 2, p]
            When ranks have ended them, and when links have sent.
        held : [paths, p]
            Bytes of weights. Several of a group are kept where room is limited: of those that hold the same, one.
        group : [paths]
        """
        costs, limits = ends[:, 0].max(-1), self._limits
        if self._scarce is not None:
            fits = (held <= self._scarce.most_bytes).all(-1)
            costs = np.where(fits, costs + held @ self._scarce.byte_s, np.inf)
        order = np.lexsort((costs, group))
        order = order[np.isfinite(costs[order])]
        if limits is not None:
            known = np.column_stack([group[order], np.round(held[order])])
            order = order[np.sort(np.unique(known, axis=0, return_index=True)[1])]
        own, most = group[order], 1 if limits is None else LABELS
        kept: Ints = order[np.arange(own.size) - np.searchsorted(own, own) < most]
        return kept

    # The part that is shared out by rows or channels.

    def _through_rows(self) -> list[Paths]:
        """Return the paths to every point that are kept."""
        nothing, first = np.zeros((1, self._s.devices)), np.zeros(1, np.intp)
        there = [Paths(np.zeros((1, 2, self._s.devices)), nothing, first, np.zeros((1, 2), np.intp))]
        for to in range(1, len(self._points)):
            ways = [(0, at, found) for at, found in self._backwards(to)] if to in self._levels else []
            if to > self._deep and len(self._channel_shares):
                ways.append((len(self._crews), to - 1, self._by_channels(to)))
            every = [self._onwards(first, at, there[at], reached) for first, at, reached in ways if there[at].crew.size]
            if not every:
                there.append(there[0].of(np.zeros(0, np.intp)))
                continue
            ends, held, moved, copies, compute, crew, before = (np.concatenate(own) for own in zip(*every, strict=True))
            compute = compute + self._s.machine.bank.seconds(Kernel.ADD, copies)
            found = Paths(all_ended(self._s.machine, ends, moved, compute), held, crew, before)
            there.append(found.of(self._kept(found.ends, held, crew)))
        return there

    def _onwards(self, first: int, at: int, paths: Paths, reached: Reached) -> tuple[Numbers, ...]:
        """Return all ways on from some paths at a point, to crews from `first` on: of each what its price takes.

        These are when ranks and links have ended what is before, the weights that ranks hold, what they send each
        other, the numbers that they copy, what they compute, its crew, and its path.
        """
        by_rows = not first and bool((paths.crew < len(self._crews)).all())
        moved, copies = self._brought(at, paths.crew, reached.needs, (IMAGE_ROW,) if by_rows else (CHANNEL, IMAGE_ROW))
        count = copies.shape[:2]
        ends = np.broadcast_to(paths.ends[:, None], (*count, *paths.ends.shape[1:]))
        held = paths.held[:, None] + reached.weights
        before = np.broadcast_to(np.stack([np.full(count[0], at), np.arange(count[0])], 1)[:, None], (*count, 2))
        crew = np.broadcast_to(first + np.arange(count[1]), count)
        compute = np.broadcast_to(reached.seconds, copies.shape)
        return tuple(own.reshape(-1, *own.shape[2:]) for own in (ends, held, moved, copies, compute, crew, before))

    @cached_property
    def _shares(self) -> Mapping[int, Floats]:
        """The shares of rows of every crew at points between levels, [crews, p]: whole rows of the coarsest value."""
        levels = sorted(self._levels)
        found = {}
        for before, at in pairwise(levels):
            height = self._height(self._points[at], [self._points[level] for level in levels])
            seconds = seconds_by_rows(self._s, Span(self._points[before], self._points[at]), height)
            found[at] = apportioned(seconds, self._crews) / height
        return found

    def _height(self, at: int, levels: Sequence[int]) -> int:
        """Return the rows of the coarsest value before a node; of what is pooled, before that."""
        return coarsest(self._net, [self._pooled(value, at, levels) or value for value in self._net.live(at)])

    def _rows_of(self, value: str) -> int:
        return self._net.extent(value).rows.stop

    def _pooled(self, value: str, at: int, points: Sequence[int] | None = None) -> str | None:
        """Return what a value before a node is pooled of, where ranks that share out rows have summands of it there."""
        made = self._net.made_by[value]
        if made < 0 or self._net.nodes[made].op not in GLOBAL_POOLS or self._net.first_use[value] < at:
            return None
        levels = [self._points[level] for level in self._levels] if points is None else points
        before = max(point for point in levels if point < at)
        return self._net.values_of(self._net.nodes[made])[0] if made >= before else None

    def _have(self, value: str, at: int) -> Region:
        """Return which channels and rows the devices of every crew have at a point; none where a crew is not there."""
        if (value, at) not in self._had:
            self._had[value, at] = self._owned(value, at)
        return self._had[value, at]

    def _rows_at(self, at: int, height: int) -> Spans:
        """Return who of every crew at a point has which of so many rows, [crews, p, 2]."""
        if (at, height) not in self._spans:
            self._spans[at, height] = _spans(self._shares[at], height)
        return self._spans[at, height]

    def _owned(self, value: str, at: int) -> Region:
        every, devices = self._net.extent(value), self._s.devices
        if at == 0:
            on_root = image_on_root(self._net, devices)[value].box
            return {axis: on_root[axis] for axis in (CHANNEL, IMAGE_ROW)}
        shares = self._shares.get(at)
        by_rows = np.zeros((len(self._crews), devices)) if shares is None else shares
        member = (by_rows > 0)[..., None] * whole(1)
        if shares is None or self._pooled(value, self._points[at]) is not None:  # who pooled rows has a summand of all
            rows = every.rows.stop * member
        else:
            rows = self._rows_at(at, every.rows.stop)
        channels = _spans(self._channel_shares, every.channels.stop)
        taking = (self._channel_shares > 0)[..., None] * whole(1)
        return {
            CHANNEL: np.concatenate([every.channels.stop * member, channels]),
            IMAGE_ROW: np.concatenate([rows, every.rows.stop * taking]),
        }

    def _backwards(self, to: int) -> Iterator[tuple[int, Reached]]:
        """Walk back from a point; yield every point before it with what the crews at `to` need and compute from there.

        As `solver.schedule.schedule.walk` does, of rows alone, for many plans that end there and begin anywhere.
        """
        net, s, end = self._net, self._s, self._points[to]
        shares, member = self._shares[to], (self._shares[to] > 0)[..., None].astype(np.intp)
        needs: dict[str, Region] = {}
        pooled = {value: source for value in net.live(end) if (source := self._pooled(value, end)) is not None}
        for value in net.live(end):
            of = pooled.get(value, value)
            needs[of] = hull(needs.get(of), {IMAGE_ROW: self._rows_at(to, self._rows_of(of))})
        seconds, levels, weights, parts = np.zeros(shares.shape), 0, 0, parts_of(net)
        for at in range(to - 1, -1, -1):
            rows: dict[int, Spans] = {}
            for number in range(self._points[at + 1] - 1, self._points[at] - 1, -1):
                node = net.nodes[number]
                weights += weights_bytes(net, node)
                if node.output in pooled:
                    part = lengths(needs[pooled[node.output]][IMAGE_ROW]) / self._rows_of(pooled[node.output])
                    seconds = seconds + part * s.table(number)[:, -1]
                elif node.output in needs:
                    own, region = parts[node.output], needs[node.output]
                    rows[number] = region[IMAGE_ROW]
                    for read in own.reads:
                        reach = region
                        if (read.name, IMAGE_ROW) in own.reach:
                            reach = {IMAGE_ROW: full(region) * own.reached(read, IMAGE_ROW, region)}
                        needs[read.name] = hull(needs.get(read.name), reach)
            if rows:
                of_nodes = s.rows_s(np.array([*rows]), np.arange(s.devices), lengths(np.array([*rows.values()])))
                seconds = seconds + of_nodes.sum(0)
            live = [value for value in net.live(self._points[at]) if value in needs]
            coming = {
                value: {CHANNEL: member * whole(net.extent(value).channels.stop), **needs[value]} for value in live
            }
            numbers = sum(numbers_across(net, value, (IMAGE_ROW,)) * lengths(needs[value][IMAGE_ROW]) for value in live)
            own_s = (seconds + s.session_s + s.entering_s * numbers) * member[..., 0]
            yield at, Reached(own_s, coming, np.asarray(weights * member[..., 0], float))
            levels += at in self._levels
            if levels == FUSED:
                return

    def _by_channels(self, to: int) -> Reached:
        """Return what crews that share out channels need and compute from the point before."""
        net, s = self._net, self._s
        nodes = Span(self._points[to - 1], self._points[to])
        compute = computation(net, nodes, SegmentCut.CHANNELS, tuple(map(tuple, self._channel_shares.tolist())))
        seconds = made_s(s, compute, np.arange(s.devices))
        return Reached(seconds, compute.walked[1], run_bytes(net, nodes) * self._channel_shares)

    def _brought(self, at: int, before: Ints, needs: Regions, axes: tuple[str, ...]) -> tuple[Floats, Floats]:
        """Return the bytes that devices send each other, [before, crews, p, p], and the numbers that they copy.

        Along other axes than these who has or needs some does so of all.
        """
        sums = at > 0 and any(self._pooled(value, self._points[at]) is not None for value in needs)
        owned = {value: self._have(value, at) for value in needs}
        have = {value: {axis: region[axis][before, None] for axis in axes} for value, region in owned.items()}
        wanted = {value: _picked(region, None) for value, region in needs.items()}
        moved = moved_bytes(self._net, have, wanted, self._wire)
        return moved, copied(self._net, have, wanted, dict.fromkeys(needs, not sums))

    # What comes after the rows.

    def _to_the_end(self, there: Sequence[Paths]) -> list[Segment]:
        """Return the segments of the best path to the end; none where there is none."""
        net, last = self._net, len(self._points) - 1
        nothing: Mapping[str, Held] = image_on_root(net, self._s.devices)
        paths: list[WholePath] = []
        for number, (ends, held) in enumerate(zip(there[last].ends, there[last].held, strict=True)):
            segments, values = self._path(there, last, number), nothing
            if segments:
                anywhere = live_on(net, segments[-1].nodes.start, 0, self._s.devices)
                values = segment_shares(net, segments[-1], anywhere).after
            paths.append((ends, held, segments, values))
        for nodes in self._behind_rows():
            paths = self._one_further(paths, nodes) if paths else []
        if not paths:
            return []
        ends = self._after(paths, handed_in(net, self._s.devices), np.zeros(self._s.devices))
        best = self._kept(ends, np.array([held for _, held, *_ in paths]), np.zeros(len(paths), np.intp))
        return paths[best[0]][2] if best.size else []

    def _path(self, there: Sequence[Paths], to: int, number: int) -> list[Segment]:
        segments: list[Segment] = []
        while to:
            crew, (at, before) = int(there[to].crew[number]), there[to].before[number].tolist()
            nodes = Span(self._points[at], self._points[to])
            if crew < len(self._crews):
                segments.append(Segment(nodes, SegmentCut.ROWS, tuple(self._shares[to][crew].tolist())))
            else:
                shares = self._channel_shares[crew - len(self._crews)]
                segments.append(Segment(nodes, SegmentCut.CHANNELS, tuple(shares.tolist())))
            to, number = at, before
        return segments[::-1]

    def _behind_rows(self) -> list[Span]:
        """Return the runs of nodes after the rows: from one product to the next."""
        net, start = self._net, self._points[-1]
        starts = [start, *(n for n in range(start + 1, len(net.nodes)) if net.nodes[n].op == "Gemm"), len(net.nodes)]
        # What flattens stands with the product after it.
        if len(starts) > 2 and all(node.op == "Flatten" for node in net.nodes[starts[0] : starts[1]]):
            del starts[1]
        return [Span(*ends) for ends in pairwise(starts) if ends[0] < ends[1]]

    def _one_further(self, paths: Sequence[WholePath], nodes: Span) -> list[WholePath]:
        """Return the best ways to every configuration of the next run of nodes."""
        net, found = self._net, []
        before = np.array([held for _, held, *_ in paths])
        for segment in self._configurations(nodes):
            shares = segment_shares(net, segment, paths[0][3])  # needs the same wherever it lies before
            held = before + run_bytes(net, nodes) * np.array(segment.shares)
            ends = self._after(paths, shares.needs, compute_s(self._s, shares))
            for best in self._kept(ends, held, np.zeros(len(paths), np.intp)).tolist():
                found.append((ends[best], held[best], [*paths[best][2], segment], shares.after))
        return found

    def _after(self, paths: Sequence[WholePath], needs: Regions, compute: Floats) -> Floats:
        """Return when ranks and links have ended what follows paths, [paths, 2, p], by what it needs and computes."""
        moved = np.array([moved_between(self._net, values, needs, self._wire) for *_, values in paths])
        ends = np.array([own for own, *_ in paths])
        return all_ended(self._s.machine, ends, moved, np.broadcast_to(compute, ends[:, 0].shape))

    def _configurations(self, nodes: Span) -> Iterator[Segment]:
        """Yield who may compute a run of nodes: one device, or several by columns, in proportion to their speed.

        Where memory is scarce, also to their room.
        """
        s = self._s
        for device in dict.fromkeys([0, *self._order[:FEW].tolist()]):
            yield Segment(nodes, SegmentCut.ROWS, alone_on(device, s.devices))
        if any(self._net.nodes[number].op == "Gemm" for number in range(nodes.start, nodes.stop)):
            for able in (1 / s.whole_s(nodes), *self._roomy()):
                for crew in self._crews:
                    if crew.size > 1:
                        own = np.where(np.isin(np.arange(s.devices), crew), able, 0.0)
                        yield Segment(nodes, SegmentCut.CHANNELS, tuple((own / own.sum()).tolist()))


def _spans(shares: Floats, length: int) -> Spans:
    """Return who has which of so many rows or channels, [crews, p, 2]; a crew without shares nothing."""
    found = np.zeros((*shares.shape, 2), np.int64)
    if (some := shares.any(-1)).any():
        found[some] = spans_of(tuple(map(tuple, shares[some].tolist())), length)
    return found


def _picked(region: Region, index: Any) -> Region:
    return {axis: spans[index] for axis, spans in region.items()}


def _merged(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Yield segments; those that one device has one after the other as one."""
    kept: Segment | None = None
    for segment in segments:
        if kept is not None and len(kept.active) == 1 and kept.shares == segment.shares:
            kept = replace(kept, nodes=Span(kept.nodes.start, segment.nodes.stop))
            continue
        if kept is not None:
            yield kept
        kept = segment
    if kept is not None:
        yield kept
