"""What is done to a network's plan once it is cut: moves for a descent, and shares for devices as they are now.

The descent is that of all families (`solver.programs.moves.descend`), by the price of the whole plan, in which ranks do
not wait for all others (`solver.schedule.clocks`). Of the moves of a segment the first that makes the plan faster is
made: what comes after it is priced anew for each, so no others are priced for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise, takewhile

import numpy as np

from solver.base.spans import Partition, Span
from solver.cluster.curves import Floats
from solver.model.convnet import ConvNet
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, alone_on
from solver.schedule.clocks import Moment, waited_for
from solver.schedule.networks.segment_steps import Ints, NetSetting, held_bytes, network_turns, turn_at
from solver.schedule.networks.steps import handed_in, segment_shares, unrolled, with_edges_first
from solver.schedule.turns import ClockTurn, timed

CHANNEL_PARTS = 32  # of which shares of channels are made: multiples of 8 and 16, which kernels compute at a time
PRICE = 10  # of how many nodes the walks take as long as a price does besides
LEAST_GAIN = 1e-9  # of a plan's seconds: less may be rounding


def apportioned(seconds: Floats, crews: Sequence[Ints]) -> Ints:
    """Return whole rows of every device, [crews, p], by which the slowest of each crew is as fast as can be.

    Parameters
    ----------
    seconds : [p, rows + 1]
        What every device takes for so many rows, which does not fall with them.
    crews
        Their devices.
    """
    devices, rows = seconds.shape[0], seconds.shape[1] - 1
    # The rows that end first, whose they may be: of each device its first ones, since more rows take no less.
    owners = np.argsort(seconds[:, 1:].T.ravel(), kind="stable") % devices
    counts = np.zeros((len(crews), devices), np.intp)
    for own, crew in zip(counts, crews, strict=True):
        own += np.bincount(owners[np.isin(owners, crew)][:rows], minlength=devices)
    return counts


def seconds_by_rows(s: NetSetting, nodes: Span, rows: int) -> Floats:
    """Return what every device takes for that part of a run of nodes which makes so many of its rows, [p, rows + 1].

    What neighbours compute, too, is left out.
    """
    part = np.arange(rows + 1) / rows
    seconds = np.zeros((s.devices, rows + 1))
    for number in range(nodes.start, nodes.stop):
        table = s.table(number)
        most = table.shape[1] - 1
        seconds += table[:, np.ceil(part * most - 1e-9).astype(np.intp)] if most > 1 else table[:, -1:] * part
    return seconds


def shared_out(s: NetSetting, plan: SegmentPlan, without: Sequence[int] = (), *, channels: bool = True) -> SegmentPlan:
    """Return the plan with the same segments, cuts and crews, some devices left out, and shares by what they take now.

    Where only devices that are left out had a share, rank 0 has it. Without channels those are shared out as they are,
    so that all hold the weights that they have.
    """
    segments = []
    for segment, shares in zip(plan.segments, unrolled(s.net, plan), strict=True):
        crew = np.array([rank for rank in segment.active if rank not in without] or [0])
        kept = segment.cut is SegmentCut.TILES or not (channels or segment.cut is SegmentCut.ROWS)
        if kept or (crew.size > 1 and not segment.nodes.size):
            segments.append(segment)
            continue
        if crew.size == 1:
            segments.append(replace(segment, shares=alone_on(int(crew[0]), s.devices), edges_first=False))
            continue
        if segment.cut is SegmentCut.ROWS:
            parts = coarsest(s.net, shares.after)
            seconds = seconds_by_rows(s, segment.nodes, parts)
        else:
            parts = CHANNEL_PARTS
            seconds = s.whole_s(segment.nodes)[:, None] * np.arange(parts + 1)
        (shared,) = apportioned(seconds, [crew]) / parts
        segments.append(replace(segment, shares=tuple(shared.tolist())))
    priced = Priced(s, replace(plan, segments=tuple(segments)))
    balance(priced)
    return priced.plan


class Priced:
    """A plan whose price is known step by step, and computed anew only where the plan is changed.

    Parameters
    ----------
    points
        Nodes before which segments may be cut.
    most_bytes : [p]
        Of weights that ranks may hold; None where memory limits nothing.
    """

    def __init__(
        self, s: NetSetting, plan: SegmentPlan, points: Sequence[int] = (), most_bytes: Floats | None = None
    ) -> None:
        self.s, self._plan, self.points, self.most_bytes = s, plan, points, most_bytes
        self.work = 0  # of all prices
        self.until = math.inf  # prices took so much work no further move is tried
        self.segments = list(plan.segments)
        self._every, self._turns = list(unrolled(s.net, plan)), network_turns(s, plan)
        self.moments = list(self._moments(self._turns, Moment.at(np.zeros(s.devices))))
        self._critical: list[int] | None = None

    @property
    def plan(self) -> SegmentPlan:
        """As it is now."""
        return replace(self._plan, segments=tuple(self.segments))

    @property
    def seconds(self) -> float:
        """When the last rank has ended."""
        return float(self.moments[-1].ready.max())

    @property
    def places(self) -> int:
        """How many segments there are."""
        return len(self.segments)

    def takes(self, step: PolishMove, place: int) -> bool:
        """Make the first of a segment's moves that makes the plan faster, unless prices took enough work."""
        return self.work < self.until and any(self.replaced(*change) for change in step(self, place))

    def replaced(self, start: int, stop: int, others: Sequence[Segment]) -> bool:
        """Take other segments in place of some, if that fits and makes the plan faster; return whether it does."""
        s, held = self.s, self._every[start].before
        # Which rows come first of the segment before depends on what these need.
        since = start - 1 if start and self.segments[start - 1].edges_first else start
        found = self._every[since:start]
        for segment in others:
            found.append(segment_shares(s.net, segment, held))
            held = found[-1].after
        self.work += PRICE + sum(shares.segment.nodes.size for shares in found)
        behind = self._every[stop : stop + 1]
        found = with_edges_first(found, behind[0].needs if behind else handed_in(s.net, s.devices))
        behind = [replace(shares, before=found[-1].after) for shares in behind]
        every = [*self._every[:since], *found, *behind, *self._every[stop + 1 :]]
        if self.most_bytes is not None and (held_bytes(s.net, every) > self.most_bytes).any():
            return False
        turns = [turn_at(s, every, number, self._plan.wire) for number in range(since, since + len(found) + 1)]
        *moments, now = self._moments(turns, self.moments[since])
        turns += self._turns[stop + 1 :]
        later = self._moments(self._turns[stop + 1 :], now)
        for now, before in zip(later, self.moments[stop + 1 :], strict=True):
            # What ends later lets nothing begin earlier.
            if (now.ready >= before.ready).all() and (now.sent_at >= before.sent_at).all():
                return False
            moments.append(now)
        if now.ready.max() >= (1 - LEAST_GAIN) * self.seconds:
            return False
        self.segments[start:stop] = others
        self._critical = None
        self._every, self._turns[since:], self.moments[since:] = every, turns, moments
        return True

    def _moments(self, turns: Sequence[ClockTurn], now: Moment) -> Iterator[Moment]:
        """Yield the moment when the first of these turns begins, and when each has ended."""
        yield now
        yield from (after for *_, after in timed(self.s.machine, turns, now))

    def critical(self) -> list[int]:
        """Return whose compute of every segment the end waits for."""
        if self._critical is None:
            rank, found = int(self.moments[-1].ready.argmax()), list[int]()
            for turn, now in zip(reversed(self._turns), reversed(self.moments[:-1]), strict=True):
                found.append(rank)
                rank = waited_for(self.s.machine, now, turn.messages[0])[rank]
            self._critical = found[:0:-1]
        return self._critical


Replacement = tuple[int, int, Sequence[Segment]]  # what stands in place of the segments from one number to another
PolishMove = Callable[[Priced, int], Iterator[Replacement]]  # of a segment, by its number


def balance(priced: Priced) -> None:
    """Move a row from who ends a segment last to who ends it first, where that makes the plan faster.

    Ranks do not wait for all others: who has a row more in one segment may have one less in the next.
    """
    for number in range(len(priced.segments)):
        for change in islice(_last_moved(priced, number), 1):
            priced.replaced(*change)


def let_edges_first(priced: Priced) -> None:
    """Let edges come first in those segments where that makes the plan faster."""
    priced.replaced(0, len(priced.segments), [replace(segment, edges_first=True) for segment in priced.segments])
    for number in range(len(priced.segments)):
        priced.replaced(*next(_edges_turned(priced, number)))


def _cut_moved(priced: Priced, number: int) -> Iterator[Replacement]:
    """Yield the cut before a segment moved to the next point, and to the one before."""
    if not number:
        return
    before, behind = priced.segments[number - 1 : number + 1]
    if before.cut is behind.cut is SegmentCut.ROWS:
        later, earlier = _inner(priced, behind), _inner(priced, before)
        for at in (*later[:1], *earlier[-1:]):
            one, other = Span(before.nodes.start, at), Span(at, behind.nodes.stop)
            yield number - 1, number + 1, [replace(before, nodes=one), replace(behind, nodes=other)]


def _critical_moved(priced: Priced, number: int) -> Iterator[Replacement]:
    """Yield a row of whom the end waits for moved to who ends the segment first."""
    return islice(_row_of(priced, number, priced.critical()[number]), 1)


def _last_moved(priced: Priced, number: int) -> Iterator[Replacement]:
    """Yield a row of who ends the segment last moved to any other, to who ends it first at first."""
    ready = priced.moments[number + 1].ready
    return _row_of(priced, number, max(priced.segments[number].active, key=lambda rank: ready[rank]))


def _row_of(priced: Priced, number: int, source: int) -> Iterator[Replacement]:
    """Yield a row of a device moved to each of the others, to those that have rows there at first."""
    segment, ready = priced.segments[number], priced.moments[number + 1].ready
    if segment.cut is not SegmentCut.ROWS or (rows := _rows(priced.s, segment))[source] < 2:
        return
    for target in sorted(range(priced.s.devices), key=lambda rank: (not rows[rank], ready[rank])):
        if target != source:
            yield number, number + 1, [replace(segment, shares=_moved(rows, 1, source, target))]


def boundary_moved(priced: Priced, number: int) -> Iterator[Replacement]:
    """Yield rows of whom the end waits for moved in segments that follow each other, to each of those with rows there.

    A boundary that moves in one segment alone adds an exchange before that segment and one after it. Here it moves in
    all segments up to where rows become fewer, or to the end, by a row of the last.
    """
    rows = [_rows(priced.s, own) for own in takewhile(_by_rows, priced.segments[number:])]
    totals = [sum(own) for own in rows]
    stops = [at for at in range(2, len(rows) + 1) if at == len(rows) or totals[at] != totals[at - 1]]
    source = priced.critical()[number]
    for target in priced.segments[number].active:
        for stop in stops if target != source else ():
            counts = [round(total / min(totals[:stop])) for total in totals[:stop]]
            if all(own[source] > count and own[target] for own, count in zip(rows, counts, strict=False)):
                every = zip(priced.segments[number:], rows, counts, strict=False)
                moved = [replace(own, shares=_moved(has, count, source, target)) for own, has, count in every]
                yield number, number + stop, moved


def _by_rows(segment: Segment) -> bool:
    """Return whether several devices share out the rows of a segment."""
    return segment.cut is SegmentCut.ROWS and len(segment.active) > 1


def _divided(priced: Priced, number: int) -> Iterator[Replacement]:
    """Yield a segment divided at every point, with edges of the first part as they were, and first."""
    segment = priced.segments[number]
    if _by_rows(segment):
        for at in _inner(priced, segment):
            one, other = _parts(segment, at)
            for edges_first in sorted({segment.edges_first, True}):
                yield number, number + 1, [replace(one, edges_first=edges_first), other]


def _edges_turned(priced: Priced, number: int) -> Iterator[Replacement]:
    """Yield a segment with edges first, or no longer."""
    segment = priced.segments[number]
    yield number, number + 1, [replace(segment, edges_first=not segment.edges_first)]


# Those that gain most of what all do, few of each and in the order of what they gain for their price.
FEW_MOVES: Sequence[PolishMove] = (
    _cut_moved, _critical_moved, _edges_turned, _divided, _last_moved, boundary_moved,
)  # fmt: skip


def _inner(priced: Priced, segment: Segment) -> list[int]:
    """Return the points within a segment."""
    return [at for at in priced.points if segment.nodes.start < at < segment.nodes.stop]


def _parts(segment: Segment, at: int) -> tuple[Segment, Segment]:
    """Return a segment's nodes before another and from there on."""
    one, other = (Span(*ends) for ends in pairwise((segment.nodes.start, at, segment.nodes.stop)))
    return replace(segment, nodes=one), replace(segment, nodes=other)


def _rows(s: NetSetting, segment: Segment) -> Sequence[int]:
    """Return how many rows every device has of the coarsest value after a segment."""
    return Partition.of_shares(segment.shares, coarsest(s.net, s.net.live(segment.nodes.stop))).counts


def _moved(rows: Sequence[int], count: int, source: int, target: int) -> tuple[float, ...]:
    """Return shares with so many rows of one device moved to another."""
    other = list(rows)
    other[source] -= count
    other[target] += count
    return tuple(own / sum(rows) for own in other)


def coarsest(net: ConvNet, values: Iterable[str]) -> int:
    """Return how many rows the coarsest of these values has; those of one row do not count where others have more."""
    return min({net.extent(value).rows.stop for value in values} - {1}, default=1)
