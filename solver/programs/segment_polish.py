"""What is done to a network's plan once it is cut: rows moved, edges first, shares for devices as they are now.

Each on the price of the whole plan, in which ranks do not wait for all others
(`solver.schedule.segment_steps.advanced`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations

import numpy as np
from numpy.typing import NDArray

from solver.base.spans import Partition, Span
from solver.cluster.curves import Floats
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, alone_on, equal_shares, segment_shares, unrolled
from solver.schedule.segment_steps import (
    NetSetting,
    SegmentStep,
    moments_of,
    network_steps,
    plan_seconds,
    step_at,
)

Ints = NDArray[np.intp]
CHANNEL_PARTS = 32  # of which shares of channels are made: multiples of 8 and 16, which kernels compute at a time


def apportioned(rows: int, row_s: Floats, crew: Ints) -> Ints:
    """Return whole rows of every device, [p], by which the slowest of the crew is as fast as can be."""
    counts = np.zeros(row_s.size, np.intp)
    speed = 1 / row_s[crew]
    counts[crew] = np.floor(rows * speed / speed.sum() + 1e-9).astype(np.intp)
    while counts.sum() < rows:
        counts[crew[np.argmin((counts[crew] + 1) * row_s[crew])]] += 1
    return counts


def shared_out(s: NetSetting, plan: SegmentPlan, without: Sequence[int] = ()) -> SegmentPlan:
    """Return the plan with the same segments, cuts and crews, some devices left out, and shares by what they take now.

    Where only devices that are left out had a share, rank 0 has it.
    """
    segments = []
    for segment, shares in zip(plan.segments, unrolled(s.net, plan), strict=True):
        crew = np.array([rank for rank in segment.active if rank not in without] or [0])
        parts = _coarsest(s, shares.after) if segment.cut is SegmentCut.ROWS else CHANNEL_PARTS
        if crew.size == 1 or not segment.nodes.size or segment.cut is SegmentCut.TILES:
            alone = replace(segment, shares=alone_on(int(crew[0]), s.devices), edges_first=False)
            segments.append(alone if crew.size == 1 and segment.cut is not SegmentCut.TILES else segment)
            continue
        shared = apportioned(parts, s.whole_s(segment.nodes) / parts, crew) / parts
        segments.append(replace(segment, shares=tuple(shared.tolist())))
    return balanced(s, replace(plan, segments=tuple(segments)))


def balanced(s: NetSetting, plan: SegmentPlan) -> SegmentPlan:
    """Return the plan with rows moved from who ends a segment last to who ends it first, where that makes it faster.

    Ranks do not wait for all others: who has a row more in one segment may have one less in the next.
    """
    segments, every = list(plan.segments), list(unrolled(s.net, plan))
    steps = network_steps(s, plan)
    moments = list(moments_of(s.machine, steps))
    for number, segment in enumerate(plan.segments):
        height = max(s.net.extent(value).rows.stop for value in every[number].after)
        active = np.array(segment.active)
        if segment.cut is not SegmentCut.ROWS or active.size < 2:
            continue
        rows = np.array(Partition.of_shares(segment.shares, height).counts)
        moved = height // _coarsest(s, every[number].after)  # a row of the coarsest value
        ended = moments[number + 1].ready[active]
        last, first = active[ended.argmax()], active[ended.argmin()]
        if rows[last] <= moved:
            continue
        rows[last] -= moved
        rows[first] += moved
        other = replace(segment, shares=tuple((rows / height).tolist()))
        own = segment_shares(s.net, other, every[number].before)
        changed = [*every[:number], own, *every[number + 1 :]]
        if number + 1 < len(every):
            changed[number + 1] = replace(every[number + 1], before=own.after)
        here = [step_at(s, changed, at, plan.wire) for at in (number, number + 1)]
        tried = [*here, *steps[number + 2 :]]
        then = list(moments_of(s.machine, tried, moments[number]))
        if then[-1].ready.max() < moments[-1].ready.max():
            segments[number], every = other, changed
            steps[number:], moments[number:] = tried, then
    return replace(plan, segments=tuple(segments))


def descended(s: NetSetting, plan: SegmentPlan) -> SegmentPlan:
    """Return the plan changed step by step, as long as a step makes it faster.

    A step moves rows of a segment from one device to another, or cuts it by channels; it joins two segments, or divides
    one and moves rows of a part.
    """
    best_s, tried = plan_seconds(s, plan), {plan.segments}
    improved = True
    while improved:
        improved = False
        for segments in _neighbours(s, plan.segments):
            if segments in tried:
                continue
            tried.add(segments)
            other = replace(plan, segments=segments)
            if (other_s := plan_seconds(s, other)) < best_s:
                plan, best_s, improved = other, other_s, True
                break
    return plan


def _neighbours(s: NetSetting, segments: Sequence[Segment]) -> Iterator[tuple[Segment, ...]]:
    """Yield what is one step away: first other shares, then other cuts."""
    for number, segment in enumerate(segments):
        around = segments[:number], segments[number + 1 :]
        for shares in _shifted(s, segment) if segment.cut is SegmentCut.ROWS else ():
            yield (*around[0], replace(segment, shares=shares), *around[1])
        for size in range(2, s.devices + 1):
            for crew in combinations(range(s.devices), size):
                channels = replace(segment, cut=SegmentCut.CHANNELS, shares=equal_shares(crew, s.devices))
                yield (*around[0], channels, *around[1])
    for number, segment in enumerate(segments):
        if number:
            before = segments[number - 1]
            for kept in (before, segment) if before.cut is segment.cut is SegmentCut.ROWS else ():
                joined = replace(kept, nodes=Span(before.nodes.start, segment.nodes.stop))
                yield (*segments[: number - 1], joined, *segments[number + 1 :])
        if segment.cut is SegmentCut.ROWS:
            for at in range(segment.nodes.start + 1, segment.nodes.stop):
                one, other = (
                    replace(segment, nodes=Span(*ends))
                    for ends in pairwise((segment.nodes.start, at, segment.nodes.stop))
                )
                several = [(one, other), *((replace(one, shares=shares), other) for shares in _shifted(s, one))]
                several += [(one, replace(other, shares=shares)) for shares in _shifted(s, other)]
                yield from ((*segments[:number], *parts, *segments[number + 1 :]) for parts in several)


def _shifted(s: NetSetting, segment: Segment) -> Iterator[tuple[float, ...]]:
    """Yield shares with a row, or all rows, of one device moved to another: of the coarsest value behind a segment."""
    height = _coarsest(s, s.net.live(segment.nodes.stop))
    rows = Partition.of_shares(segment.shares, height).counts
    for source, target in permutations(range(s.devices), 2):
        for moved in sorted({1, rows[source]}) if rows[source] else ():
            other = list(rows)
            other[source] -= moved
            other[target] += moved
            yield tuple(count / height for count in other)


def _coarsest(s: NetSetting, values: Iterable[str]) -> int:
    """Return how many rows the coarsest of these values has; those of one row do not count where others have more."""
    return min({s.net.extent(value).rows.stop for value in values} - {1}, default=1)


def edges_first(s: NetSetting, plan: SegmentPlan) -> SegmentPlan:
    """Return the plan with edges first in those segments where that makes it faster."""
    segments = [tuple(replace(segment, edges_first=flag) for segment in plan.segments) for flag in (False, True)]
    every = [unrolled(s.net, replace(plan, segments=own)) for own in segments]
    count, known = len(plan.segments), dict[tuple[int, bool, bool], SegmentStep]()

    def step(number: int, flags: Sequence[bool]) -> SegmentStep:
        """Return a step, which depends on whether edges come first in its segment, and in the one before."""
        around = flags[number - 1] if number else False, flags[number] if number < count else False
        if (number, *around) not in known:
            own = [every[flag][at] for at, flag in enumerate(flags)]
            known[number, *around] = step_at(s, own, number, plan.wire)
        return known[number, *around]

    best = [False] * count
    moments = list(moments_of(s.machine, (step(number, best) for number in range(count + 1))))
    for turned in (range(count), *([number] for number in range(count))):
        other = [flag is not (number in turned) for number, flag in enumerate(best)]
        since = min(turned, default=0)
        steps = (step(number, other) for number in range(since, count + 1))
        then = list(moments_of(s.machine, steps, moments[since]))
        if then[-1].ready.max() < moments[-1].ready.max():
            best, moments[since:] = other, then
    return replace(plan, segments=tuple(segments[flag][number] for number, flag in enumerate(best)))
