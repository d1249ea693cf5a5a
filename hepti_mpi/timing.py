"""Seconds of kernels as they run among others: in turn, round after round, on the clock that fits this host."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence

from hepti_mpi.comm import Group

Call = Callable[[], object]

# The slowest host gets so many rounds, within these limits; all others measure for as long as it does, because hosts
# that have stopped would leave it more of what they share: cores in a lab, memory where two ranks are on a board.
ROUNDS = 10
LEAST_S, MOST_S = 1.0, 7.0
LEAST_ROUNDS = 3


def seconds_of(calls: Sequence[Call], group: Group) -> list[float]:
    """Return the seconds on the wall that each call takes while all ranks are at work; every rank calls this.

    Between two calls of a kernel all others run: it finds its weights where a layer finds them, in memory and not in
    a cache. Under a CPU quota the wall time of a few milliseconds says nothing, since a call runs at full speed or
    stands still until the next period. Its CPU time is steady; how much CPU time a second on the wall brings is known
    from all rounds together.
    """
    clock = _clock()
    began = time.perf_counter()
    for call in calls:  # warms up: pages, threads
        call()
    enough_s = min(max(ROUNDS * group.slowest(time.perf_counter() - began), LEAST_S), MOST_S)
    samples: list[list[float]] = [[] for _ in calls]
    rounds, begin, began = 0, clock(), time.perf_counter()
    while rounds < LEAST_ROUNDS or time.perf_counter() - began < enough_s:
        for call, own in zip(calls, samples, strict=True):
            before = clock()
            call()
            own.append(clock() - before)
        rounds += 1
    share = (clock() - begin) / (time.perf_counter() - began)
    # What disturbs a host only ever makes a call longer: medians of single calls differ by a third from one profile to
    # the next, least times by a twentieth. But requests are disturbed, too: by how much, all calls say together (3 to
    # 12 % in the lab).
    least, usual = [min(own) for own in samples], sum(map(statistics.median, samples))
    return [seconds * usual / sum(least) / share for seconds in least]


def _clock() -> Callable[[], float]:
    """Return CPU time for one thread, wall time for several."""
    return time.process_time if os.environ.get("OMP_NUM_THREADS") == "1" else time.perf_counter
