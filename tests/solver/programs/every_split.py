"""The fastest plan of a small network among all: every cut into segments, every way to share out each.

Rows are shared out as whole rows of the coarsest value after a segment, to any devices; channels equally among any.
What is kept of the many ways to one segment is not what is slower on every device: whatever follows is no faster then.
A way is left as soon as the rest, shared out perfectly among all devices from when each is ready, ends too late.
"""

from dataclasses import replace
from itertools import combinations

import numpy as np

from solver.base.spans import Span
from solver.plan.plan import Wire
from solver.plan.segments import Segment, SegmentCut, equal_shares
from solver.schedule.clocks import Moment
from solver.schedule.networks.segment_steps import compute_s, turn_at
from solver.schedule.networks.steps import image_on_root, segment_shares
from solver.schedule.turns import timed


def compositions(total, parts):
    """Yield every way to write a number as a sum of so many, none below 0."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        yield from ((first, *rest) for rest in compositions(total - first, parts - 1))


def ways_to_share(net, stop, devices):
    """Return every cut and shares of a segment that ends before a node."""
    heights = [net.extent(value).rows.stop for value in net.live(stop)]
    height = min((rows for rows in heights if rows > 1), default=1)
    rows = {tuple(count / height for count in counts) for counts in compositions(height, devices)}
    ways = [(SegmentCut.ROWS, shares) for shares in sorted(rows)]
    crews = [crew for size in range(2, devices + 1) for crew in combinations(range(devices), size)]
    return ways + [(SegmentCut.CHANNELS, equal_shares(crew, devices)) for crew in crews]


def least_seconds(s, below):
    """Return the seconds of the fastest plan whose edges do not come first; `below`, where none is faster than that."""
    net, devices, count = s.net, s.devices, len(s.net.nodes)
    left = [s.whole_s(Span(stop, count)) for stop in range(count + 1)]
    ways = [ways_to_share(net, stop, devices) for stop in range(count + 1)]
    image = image_on_root(net, devices)
    best = below

    def ready(turns):
        *_, (_, _, now) = timed(s.machine, turns, Moment.at(np.zeros(devices)))
        return np.stack([now.ready, now.sent_at])  # what follows begins no earlier where these are later

    def in_time(end, stop):
        """`end`: when every rank has ended what is before."""
        if not left[stop].all():
            return end.max() < best
        return max(end.max(), (1 + (end / left[stop]).sum()) / (1 / left[stop]).sum()) < best

    # By the segment that ends there: what follows from it, and the ways to it, each its turns and when ranks are ready.
    there = {stop: [] for stop in range(count + 1)}
    there[0] = [(None, [((), np.zeros((2, devices)))])]
    for stop in range(1, count + 1):
        for start in (start for start in range(stop) if there[start]):
            first = there[start][0][0].after if start else image
            for cut, shares in ways[stop]:
                found, own = [], segment_shares(net, Segment(Span(start, stop), cut, shares), first)
                least_s = compute_s(s, own)
                for before, all_kept in there[start]:
                    kept = [turns for turns, end in all_kept if in_time(end[0] + least_s, stop)]
                    if not kept:
                        continue
                    # What ranks need and compute is the same wherever it lies before.
                    own = own if before is None else replace(own, before=before.after)
                    every = [own] if before is None else [before, own]
                    turn = turn_at(s, every, len(every) - 1, Wire.FLOAT32)
                    for turns in kept:
                        end = ready([*turns, turn])
                        if in_time(end[0], stop) and not any((other <= end).all() for _, other in found):
                            found = [(way, other) for way, other in found if not (end <= other).all()]
                            found.append(((*turns, turn), end))
                if not found:
                    continue
                if stop < count:
                    there[stop].append((own, found))
                    continue
                last = turn_at(s, [own], 1, Wire.FLOAT32)
                best = min([best, *(float(ready([*turns, last])[0].max()) for turns, _ in found)])
    return best
