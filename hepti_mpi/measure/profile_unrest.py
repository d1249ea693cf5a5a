"""Measure what makes steps longer or shorter than their compute: jitter where others wait, and rest.

A board of its own has next to none of either. Under a CPU quota a process is stopped, and goes on, at ticks of the
kernel: no two steps take the same time, and the slowest device counts every time. Who waits saves up what it may use,
and is fast for a moment.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np

from hepti_mpi.comm.exchange import Gather, whole
from hepti_mpi.comm.group import Group
from hepti_mpi.kernels.products import Backend
from hepti_mpi.measure.profile_kernels import random_numbers
from solver.base import clock
from solver.model.spec import ModelSpec
from solver.plan.spans import Partition, Span

Step = Callable[[], float]  # computes as long as a step does, and returns the seconds

ROWS = 16
TRIAL_S = 0.1  # in which the calls of a step are counted
STEP_S = 0.016  # a step's compute
STEPS, WARM_STEPS = 48, 2
RESTS, REST_S = 8, 0.03


def measure_unrest(spec: ModelSpec, backend: Backend, group: Group) -> tuple[float, float]:
    """Return this device's `jitter_s` and `rest_s` (`solver.cluster.cluster.Device`); every rank calls this."""
    if group.size == 1:
        return 0.0, 0.0
    numbers = np.resize(random_numbers(), (spec.hidden + ROWS, spec.hidden))
    product, x = backend.product(numbers[ROWS:], None), numbers[:ROWS]
    product(x)
    group.barrier()
    began, tried = clock.now(), 0
    while clock.now() - began < TRIAL_S:
        product(x)
        tried += 1
    call_s = (clock.now() - began) / tried
    calls = max(1, round(max(STEP_S, group.slowest(call_s)) / call_s))

    def compute() -> float:
        """Return the seconds of a step's compute."""
        started = clock.now()
        for _ in range(calls):
            product(x)
        return clock.now() - started

    return _jitter_s(compute, group), _rest_s(compute)


def _jitter_s(compute: Step, group: Group) -> float:
    """Return by how much steps are longer than the slowest rank's mean compute; less for ranks that vary less."""
    blocks, everyone = Partition.of_counts([1] * group.size), [Span(0, group.size)] * group.size
    own, steps = [], []
    for _ in range(WARM_STEPS + STEPS):
        started = clock.now()
        gather = Gather(group, blocks, everyone, 1)
        own.append(compute())
        gather.put(Span(0, 1))
        whole(gather)
        steps.append(clock.now() - started)
    group.finish_sending()
    own, steps = own[WARM_STEPS:], steps[WARM_STEPS:]
    varies = statistics.stdev(own)
    late = max(statistics.mean(steps) - group.slowest(statistics.mean(own)), 0.0)
    return group.slowest(late) * varies / group.slowest(varies)


def _rest_s(compute: Step) -> float:
    """Return by how much compute after a rest is shorter than right after other compute."""
    gained = []
    for _ in range(RESTS):
        clock.sleep(REST_S)
        rested_s = compute()
        gained.append(compute() - rested_s)
    return max(statistics.median(gained), 0.0)
