"""The fastest of all plans of a small network: every cut into segments, every way to share out each.

Rows are shared out as whole rows of the coarsest value behind a segment, to any devices; channels equally among any.
Let a way be the segments up to a node, and let r be the moments at which its ranks have ended them. What follows
depends on r and on where values lie, and ends no earlier where ranks are ready later. So of the ways behind which
values lie alike those are kept that no other is as fast as on every rank,

    K(stop) = those of { w + (start, stop) : start < stop, w in K(start) } of which no other has r' <= r,

which is a dynamic program over nodes, exact for any price that does not fall with r. With t_i the seconds in which
rank i computes alone what stands behind a node, a way is left as soon as the rest, shared out perfectly from when each
rank is ready, ends later than a plan that is known: at (1 + sum_i r_i / t_i) / sum_i 1 / t_i.

Edges of these plans do not come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import comb

import numpy as np

from solver.base.spans import Span
from solver.cluster.curves import Floats, Kernel
from solver.model.convnet import ConvNet
from solver.plan.plan import Wire
from solver.plan.segments import (
    Held,
    Segment,
    SegmentCut,
    SegmentShares,
    all_on_root,
    equal_shares,
    handed_in,
    image_on_root,
    segment_shares,
)
from solver.programs.convnets.segment_polish import coarsest
from solver.schedule.exchange import Mask
from solver.schedule.networks.segment_steps import (
    Areas,
    Ints,
    NetSetting,
    all_ended,
    areas_of,
    brought,
    compute_s,
    copied,
)

# Half a second of CPU time at most: of ways to share out two segments, one behind the other, and to share out one, 0.3
# ms each. Without the second limit plans for two boards took 4 to 19 s, and were as fast as without this search in 9 of
# 16 cells, within 2 % in 6, and 12 % faster in one.
PAIRS, WAYS = 60_000, 2000


def parts_of_rows(net: ConvNet, devices: int) -> int:
    """Return in how many parts rows can be shared out, so that there are no more than `PAIRS`, and `WAYS`.

    Where not every device could have one, which is so of most networks, it is none.
    """
    parts, most = 0, max(net.extent(value).rows.stop for value in net.made_by)
    for more in range(1, most + 1):
        ways = [comb(_rows(net, stop, more) + devices - 1, devices - 1) for stop in range(1, len(net.nodes) + 1)]
        pairs = (sum(ways) ** 2 - sum(own**2 for own in ways)) / 2
        if pairs > PAIRS or sum(stop * own for stop, own in enumerate(ways, 1)) > WAYS:
            break
        parts = more
    return parts if parts >= min(devices, most) else 0


def _rows(net: ConvNet, stop: int, most: int) -> int:
    return min(most, coarsest(net, net.live(stop)))


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """Ways to compute the nodes up to one.

    Parameters
    ----------
    ready : [ways, p]
        When ranks have ended them.
    before : [ways, 2]
        At which node the last segment of each begins, and which of the ways there it follows.
    segments
        The last of each.
    have, lies : of every value [4, ways, p] and [ways, p]
        What ranks have of it, and whether what comes next can take it as it lies there.
    """

    ready: Floats
    before: Ints
    segments: Sequence[Segment]
    have: Mapping[str, Areas]
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
        have = {value: areas_of([held.boxes]) for value, held in image_on_root(net, devices).items()}
        lies = {value: np.ones((1, devices), bool) for value in have}
        there = [Ways(np.zeros((1, devices)), np.zeros((1, 2), np.intp), (), have, lies)]
        for stop in range(1, count + 1):
            there.append(self._behind(there, stop, below))
        if not len(there[count].ready):
            return []
        needs = {value: areas_of([boxes]) for value, boxes in handed_in(net, self._anywhere(count)).items()}
        last = np.arange(len(there[count].ready))
        seconds = self._ready(there[count], last, needs, 0 * last, None).max(-1)
        if not (seconds < below).any():
            return []
        at, way, found = count, int(seconds.argmin()), list[Segment]()
        while at:
            found.append(there[at].segments[way])
            at, way = there[at].before[way].tolist()
        return found[::-1]

    def _segments(self, start: int, stop: int) -> Iterator[Segment]:
        """Yield every segment of some nodes."""
        nodes, devices, rows = Span(start, stop), self._s.devices, _rows(self._net, stop, self._most)
        for bars in combinations(range(rows + devices - 1), devices - 1):
            ends = pairwise((-1, *bars, rows + devices - 1))
            yield Segment(nodes, SegmentCut.ROWS, tuple((end - before - 1) / rows for before, end in ends))
        for size in range(2, devices + 1):
            for crew in combinations(range(devices), size):
                yield Segment(nodes, SegmentCut.CHANNELS, equal_shares(crew, devices))

    def _behind(self, there: Sequence[Ways], stop: int, below: float) -> Ways:
        """Return the ways to a node that are kept, from those to every node before it."""
        every, parts = list[SegmentShares](), []
        for start, ways in enumerate(there):
            if not len(ways.ready):
                continue
            found = [segment_shares(self._net, own, self._anywhere(start)) for own in self._segments(start, stop)]
            needs = {value: areas_of([shares.needs[value] for shares in found]) for value in self._net.live(start)}
            seconds = np.array([compute_s(self._s, shares) for shares in found])
            way, number = np.nonzero(self._in_time(ways.ready[:, None] + seconds, stop, below))
            ready = self._ready(ways, way, needs, number, seconds)
            kept = self._in_time(ready, stop, below)
            before = np.stack([np.full(way.size, start), way], axis=1)
            parts.append((ready[kept], before[kept], number[kept] + len(every)))
            every += found
        ready, before, number = (np.concatenate(own) for own in zip(*parts, strict=True))
        places: dict[object, int] = {}
        place = np.array([places.setdefault(_place(shares), len(places)) for shares in every])
        fastest = _fastest(ready, place[number])
        last = [every[own] for own in number[fastest].tolist()]
        have = {value: areas_of([shares.after[value].boxes for shares in last]) for value in self._net.live(stop)}
        lies = {value: np.array([_lies(shares, value) for shares in last]) for value in have}
        return Ways(ready[fastest], before[fastest], [shares.segment for shares in last], have, lies)

    def _anywhere(self, at: int) -> dict[str, Held]:
        """Return values before a node somewhere: what a segment needs and computes does not depend on where."""
        return all_on_root(self._net, self._net.live(at), self._s.devices)

    def _in_time(self, ready: Floats, stop: int, below: float) -> Mask:
        """Return of moments when ranks have ended what is before a node whether the end can be early enough."""
        left_s, end_s = self._s.whole_s(Span(stop, len(self._net.nodes))), ready.max(-1)
        if left_s.all():
            end_s = np.maximum(end_s, (1 + (ready / left_s).sum(-1)) / (1 / left_s).sum())
        return np.asarray(end_s < below)

    def _ready(self, ways: Ways, way: Ints, needs: Mapping[str, Areas], number: Ints, seconds: Floats | None) -> Floats:
        """Return when ranks have ended what goes on from some ways, each with one of several needs and seconds, [n, p].

        What comes to rank 0 in the end takes no seconds, and is not copied.
        """
        s = self._s
        have = {value: ways.have[value][:, way] for value in needs}
        own = {value: areas[:, number] for value, areas in needs.items()}
        moved = brought(self._net, have, own, self._wire)
        compute = np.zeros((way.size, s.devices))
        if seconds is not None:
            numbers = copied(self._net, have, own, {value: ways.lies[value][way] for value in needs})
            compute = seconds[number] + s.machine.bank.seconds(Kernel.ADD, numbers)
        return all_ended(s.machine, ways.ready[way], moved, compute)


def _fastest(ready: Floats, place: Ints) -> Ints:
    """Return the ways that no other to the same place is as fast as on every rank."""
    kept, rest = list[int](), np.argsort(ready.sum(-1), kind="stable")
    while rest.size:
        kept.append(int(rest[0]))
        rest = rest[(ready[rest] < ready[rest[0]]).any(-1) | (place[rest] != place[rest[0]])]
    return np.array(kept, np.intp)


def _place(shares: SegmentShares) -> object:
    """Return where values lie behind a segment, as what comes next sees it."""
    return tuple((held.boxes, tuple(_lies(shares, value))) for value, held in shares.after.items())


def _lies(shares: SegmentShares, value: str) -> list[bool]:
    """Return of every rank whether a value lies after a segment as `networks.segment_steps` wants it."""
    if any(held.summands for held in shares.after.values()):
        return [False] * len(shares.walks)
    boxes = shares.after[value].boxes
    around = [walk.needs.get(value, box) for walk, box in zip(shares.walks, boxes, strict=True)]
    return [(own.rows, own.columns) == (box.rows, box.columns) for own, box in zip(around, boxes, strict=True)]
