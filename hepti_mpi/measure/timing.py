"""Seconds of kernels as they run among others: in turn, round after round, on the clock that fits this host."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hepti_mpi.comm.group import Group
from solver.base import clock
from solver.base.environment import omp_threads

TimedCall = Callable[[], object]

# The slowest host gets so many rounds, within these limits; all others measure for as long as it does, because hosts
# that have stopped would leave it more of what they share: cores in a lab, memory where two ranks are on a board.
ROUNDS = 10
LEAST_S, MOST_S = 1.0, 5.0
LEAST_ROUNDS = 3
GOOD = 0.25  # of a call's times are better than what counts
TICK_S = 1e-9  # of a call for which no clock has ever moved


def seconds_of(
    calls: Sequence[TimedCall], group: Group, before: Mapping[int, TimedCall] | None = None
) -> tuple[list[float], float]:
    """Return what each call takes on the wall while all ranks are at work, and a second's part by `fitting_clock`.

    Every rank calls this. `before` is called, and not timed, before calls of these numbers.

    Between two calls of a kernel all others run: it finds its weights where a layer finds them, in memory and not in
    a cache, unless that holds those of all; `before` is for such. Under a CPU quota the wall time of a few milliseconds
    says nothing, since a call runs at full speed or stands still until the next period. Its CPU time is steady; how
    much CPU time a second on the wall brings is known from all rounds together.
    """
    time_now = fitting_clock()
    began = clock.now()
    for call in calls:  # warms up: pages, threads
        call()
    enough_s = min(max(ROUNDS * group.slowest(clock.now() - began), LEAST_S), MOST_S)
    samples: list[list[float]] = [[] for _ in calls]
    rounds, begin, began = 0, time_now(), clock.now()
    while rounds < LEAST_ROUNDS or clock.now() - began < enough_s:
        for number, (call, own) in enumerate(zip(calls, samples, strict=True)):
            if before and number in before:
                before[number]()
            started = time_now()
            call()
            if (taken_s := time_now() - started) > 0:  # a virtual machine's CPU clock may stand still for a moment
                own.append(taken_s)
        rounds += 1
    pace = (clock.now() - began) / (time_now() - begin)
    # What disturbs a host only ever makes a call longer: medians of single calls differ by a third from one profile to
    # the next, least times by a twentieth. But the least of what reads much memory comes once in ten times, a tenth
    # below what is usual. And requests are disturbed, too: by how much, all calls say together (3 to 12 % in the lab).
    samples = [own or [TICK_S] for own in samples]
    good, usual = [float(np.quantile(own, GOOD)) for own in samples], sum(map(statistics.median, samples))
    return [seconds * usual / sum(good) * pace for seconds in good], pace


def fitting_clock() -> Callable[[], float]:
    """Return CPU time for one thread, wall time for several."""
    return clock.cpu_now if omp_threads() == 1 else clock.now
