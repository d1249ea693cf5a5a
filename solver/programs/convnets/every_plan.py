"""The fastest of all plans of a small network: every cut into segments, every way to share out each.

Rows are shared out as whole rows of the coarsest value after a segment, to any devices; channels equally among any.
Let a way be the segments up to a node, and let r be the moments at which its ranks have ended them, and their links
have sent. What follows depends on r and on where values lie, and ends no earlier where these are later. So of the ways
after which values lie alike those are kept that no other is as fast as on every rank and link,

    K(stop) = those of { w + (start, stop) : start < stop, w in K(start) } of which no other has r' <= r,

which is a dynamic program over nodes, exact for any price that does not fall with r. With t_i the seconds in which
rank i computes alone what comes after a node, a way is left as soon as the rest, shared out perfectly from when each
rank is ready, ends later than a plan that is known: at (1 + sum_i r_i / t_i) / sum_i 1 / t_i.

Edges of these plans do not come first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import comb

import numpy as np

from solver.base.spans import Span
from solver.cluster.curves import Floats, Kernel
from solver.model.kinds.operator import MAP, SUMMED
from solver.model.kinds.part import Region, there
from solver.plan.plan import Wire
from solver.plan.segments import Segment, SegmentCut, equal_shares
from solver.programs.convnets.segment_polish import coarsest
from solver.schedule.exchange import Mask
from solver.schedule.networks.segment_steps import Ints, NetSetting, all_ended, copied, in_one_run, made_s
from solver.schedule.networks.steps import Regions, computation, handed_in, image_on_root, moved_bytes

# Half a second of CPU time at most: of ways to share out two segments, one after the other, and to share out one, 0.3
# ms each. Without the second limit plans for two boards took 4 to 19 s, and were as fast as without this search in 9 of
# 16 cells, within 2 % in 6, and 12 % faster in one.
PAIRS, WAYS = 60_000, 2000


def parts_of_rows(s: NetSetting) -> int:
    """Return in how many parts rows can be shared out, so that there are no more than `PAIRS`, and `WAYS`.

    Where not every device could have one, which is so of most networks, it is none.
    """
    net, devices = s.net, s.devices
    parts, most = 0, max(net.extent(value).rows.stop for value in net.made_by)
    for more in range(1, most + 1):
        ways = [comb(_rows(s, stop, more) + devices - 1, devices - 1) for stop in range(1, len(net.nodes) + 1)]
        pairs = (sum(ways) ** 2 - sum(own**2 for own in ways)) / 2
        if pairs > PAIRS or sum(stop * own for stop, own in enumerate(ways, 1)) > WAYS:
            break
        parts = more
    return parts if parts >= min(devices, most) else 0


def _rows(s: NetSetting, stop: int, most: int) -> int:
    return min(most, coarsest(s.net, s.net.live(stop)))


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """Ways to compute the nodes up to one.

    Parameters
    ----------
    ends : [ways, 2, p]
        When ranks have ended them, and when their links have sent.
    before : [ways, 2]
        At which node the last segment of each begins, and which of the ways there it follows.
    segments
        The last of each.
    have, lies : of every value [ways, p, 2] and [ways, p]
        What ranks have of it, and whether what comes next can take it as it lies there.
    """

    ends: Floats
    before: Ints
    segments: Sequence[Segment]
    have: Regions
    lies: Mapping[str, Mask]


class EveryPlan:
    """All plans of a network.

    Parameters
    ----------
    most
        In how many parts rows are shared out at most; in as many as there are, if there are no more.
    """

    def __init__(self, s: NetSetting, wire: Wire, most: int) -> None:
        self._s, self._net, self._wire, self._most = s, s.net, wire, most

    def fastest(self, below: float) -> list[Segment]:
        """Return the segments of the fastest plan; none where none is faster than `below`."""
        net, count, devices = self._net, len(self._net.nodes), self._s.devices
        have = {value: held.box for value, held in image_on_root(net, devices).items()}
        lies = {value: np.ones((1, devices), bool) for value in have}
        there = [Ways(np.zeros((1, 2, devices)), np.zeros((1, 2), np.intp), (), have, lies)]
        for stop in range(1, count + 1):
            there.append(self._behind(there, stop, below))
        if not len(there[count].ends):
            return []
        last = np.arange(len(there[count].ends))
        seconds = self._ended(there[count], last, handed_in(net, devices), 0 * last, None)[:, 0].max(-1)
        if not (seconds < below).any():
            return []
        at, way, found = count, int(seconds.argmin()), list[Segment]()
        while at:
            found.append(there[at].segments[way])
            at, way = there[at].before[way].tolist()
        return found[::-1]

    def _shares(self, stop: int) -> Mapping[SegmentCut, list[tuple[float, ...]]]:
        """Return all shares of segments that end before a node, by their cut."""
        devices, rows = self._s.devices, _rows(self._s, stop, self._most)
        every = (
            pairwise((-1, *bars, rows + devices - 1)) for bars in combinations(range(rows + devices - 1), devices - 1)
        )
        by_rows = [tuple((end - before - 1) / rows for before, end in ends) for ends in every]
        crews = (crew for size in range(2, devices + 1) for crew in combinations(range(devices), size))
        return {SegmentCut.ROWS: by_rows, SegmentCut.CHANNELS: [equal_shares(crew, devices) for crew in crews]}

    def _behind(self, there: Sequence[Ways], stop: int, below: float) -> Ways:
        """Return the ways to a node that are kept, from those to every node before it."""
        every, parts = list[_Segments](), []
        for start, ways in enumerate(there):
            if not len(ways.ends):
                continue
            for cut, shares in self._shares(stop).items():
                if shares:
                    found = _segments(self._s, Span(start, stop), cut, shares)
                    way, number = np.nonzero(self._in_time(ways.ends[:, :1] + found.seconds, stop, below))
                    ends = self._ended(ways, way, found.needs, number, found.seconds)
                    kept = self._in_time(ends[:, 0], stop, below)
                    before = np.stack([np.full(way.size, start), way], axis=1)
                    parts.append((ends[kept], before[kept], number[kept] + sum(len(own.segments) for own in every)))
                    every.append(found)
        ends, before, number = (np.concatenate(own) for own in zip(*parts, strict=True))
        have = {
            value: {axis: np.concatenate([own.have[value][axis] for own in every]) for axis in MAP}
            for value in self._net.live(stop)
        }
        lies = {value: np.concatenate([own.lies[value] for own in every]) for value in have}
        fastest = _fastest(ends, _places(have, lies)[number])
        last = number[fastest]
        segments = [segment for own in every for segment in own.segments]
        return Ways(
            ends[fastest], before[fastest], [segments[own] for own in last.tolist()],
            {value: _picked(region, last) for value, region in have.items()},
            {value: own[last] for value, own in lies.items()},
        )  # fmt: skip

    def _in_time(self, ready: Floats, stop: int, below: float) -> Mask:
        """Return of moments when ranks have ended what is before a node whether the end can be early enough."""
        left_s, end_s = self._s.whole_s(Span(stop, len(self._net.nodes))), ready.max(-1)
        if left_s.all():
            end_s = np.maximum(end_s, (1 + (ready / left_s).sum(-1)) / (1 / left_s).sum())
        return np.asarray(end_s < below)

    def _ended(self, ways: Ways, way: Ints, needs: Regions, number: Ints, seconds: Floats | None) -> Floats:
        """Return when what goes on from some ways ends, each with one of several needs and seconds, [n, 2, p].

        What comes to rank 0 in the end takes no seconds, and is not copied.
        """
        s = self._s
        have = {value: _picked(ways.have[value], way) for value in needs}
        own = {value: _picked(region, number) for value, region in needs.items()}
        moved = moved_bytes(self._net, have, own, self._wire)
        compute = np.zeros((way.size, s.devices))
        if seconds is not None:
            numbers = copied(self._net, have, own, {value: ways.lies[value][way] for value in needs})
            compute = seconds[number] + s.machine.bank.seconds(Kernel.ADD, numbers)
        return all_ended(s.machine, ways.ends[way], moved, compute)


def _fastest(ends: Floats, place: Ints) -> Ints:
    """Return the ways that no other to the same place is as fast as on every rank and link."""
    kept, rest = list[int](), np.argsort(ends.sum((-2, -1)), kind="stable")
    while rest.size:
        kept.append(int(rest[0]))
        rest = rest[(ends[rest] < ends[rest[0]]).any((-2, -1)) | (place[rest] != place[rest[0]])]
    return np.array(kept, np.intp)


@dataclass(frozen=True, slots=True, eq=False)
class _Segments:
    """Segments of the same nodes and cut: what ranks compute, need, and have after them, [segments, p]."""

    segments: Sequence[Segment]
    seconds: Floats
    needs: Regions
    have: Regions
    lies: Mapping[str, Mask]


def _segments(s: NetSetting, nodes: Span, cut: SegmentCut, shares: Sequence[tuple[float, ...]]) -> _Segments:
    compute = computation(s.net, nodes, cut, tuple(shares))
    have, added = dict[str, Region](), np.zeros((len(shares), 1), bool)
    for own in compute.placed:
        if own.part.writes.name in compute.leaves:
            some = there(own.box)
            have[own.part.writes.name] = {axis: spans * some[..., None] for axis, spans in own.box.items()}
            if own.axis == SUMMED:
                added = added | (some.sum(-1, keepdims=True) > 1)
    lies = {name: in_one_run(compute, name) & ~added for name in have}
    segments = [Segment(nodes, cut, own) for own in shares]
    return _Segments(segments, made_s(s, compute, np.arange(s.devices)), compute.walked[1], have, lies)


def _places(have: Regions, lies: Mapping[str, Mask]) -> Ints:
    """Return of all ways the number of where values lie after them, as what comes next sees it."""
    table = [spans.reshape(len(spans), -1) for region in have.values() for spans in region.values()]
    table += [own.astype(np.int64) for own in lies.values()]
    return np.unique(np.concatenate(table, 1), axis=0, return_inverse=True)[1].reshape(-1)


def _picked(region: Region, index: Ints) -> Region:
    return {axis: spans[index] for axis, spans in region.items()}
