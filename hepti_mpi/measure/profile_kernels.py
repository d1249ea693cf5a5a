"""Measure how this device computes: kernels, all curves of `solver.cluster.curves` but messages; how steady it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hepti_mpi.comm.group import Group
from hepti_mpi.comm.rows import RowExchange, whole
from hepti_mpi.kernels.products import AddResidual, Backend, Norm
from hepti_mpi.measure.timing import TimedCall, seconds_of
from solver.base import clock
from solver.base.arrays import Array
from solver.base.spans import Partition, Span
from solver.cluster.curves import Curve, Curves, Floats, Kernel
from solver.model.spec import ModelSpec, encoder_blocks
from solver.schedule.timing import UNREST_S

# No multiples of 4, but for the last: a kernel works on so many rows at once, and shares are seldom multiples. 40 rows
# take onnxruntime 3 % less than the line through 37 and 44 says.
ROWS = (1, 2, 18, 42, 256)
KEYS = (16, 64, 256, 512)
NORM_ROWS = (18, 66, 256)
ACTIVATE_ROWS = (64, 256)
ELEMENTS = (1 << 14, 1 << 17, 1 << 20)
HEADS = 8  # timed together, as a head runs among others
NUMBERS = 1 << 16  # random ones, repeated: ten million would take a 10 GFLOP/s device a second

# What steps are longer or shorter than their compute by.
STEP_ROWS, STEP_S = 16, UNREST_S  # of a step's product, and of all of them
TRIAL_S = 0.1  # in which they are counted
STEPS, WARM_STEPS = 48, 2
RESTS, REST_S = 8, 0.03


@dataclass(frozen=True, slots=True)
class KernelGrid:
    """Where a kernel is timed: `call` makes the call for one value of `first` and one of `second`.

    The arguments of its curve are `units` times these values.
    """

    first: Sequence[int]
    second: Sequence[int]
    call: Callable[[int, int], TimedCall]
    units: tuple[int, int] = (1, 1)

    def curve(self, seconds: Floats) -> Curve:
        """Return the curve of seconds [first, second], or [first, 1] where there is one argument."""
        first = tuple(float(self.units[0] * value) for value in self.first)
        second = tuple(float(self.units[1] * value) for value in self.second)
        if seconds.shape[1] == 1:
            second, seconds = (0.0, 1.0), np.repeat(seconds, 2, axis=1)
        return Curve(first, second, tuple(map(tuple, seconds.tolist())))


def measure_kernels(spec: ModelSpec, backend: Backend, group: Group) -> tuple[Curves, float]:
    """Measure while all ranks measure; return the curves, and the pace as `seconds_of`. Every rank calls this."""
    grids = kernel_grids(spec, backend, group)
    # Rows outside: between two calls on the same weights all other weights pass through the caches. Kernels inside, as
    # a layer calls them: one right after itself would find its numbers in a cache (attention: a third less time).
    points = [
        (kernel, row, column)
        for row in range(len(ROWS))
        for column in range(len(KEYS))
        for kernel, grid in grids.items()
        if row < len(grid.first) and column < len(grid.second)
    ]
    calls = [
        grids[kernel].call(grids[kernel].first[row], grids[kernel].second[column]) for kernel, row, column in points
    ]
    seconds = {kernel: np.zeros((len(grid.first), len(grid.second))) for kernel, grid in grids.items()}
    times, pace = seconds_of(calls, group)
    for (kernel, row, column), taken in zip(points, times, strict=True):
        seconds[kernel][row, column] = taken
    attention, _ = encoder_blocks(spec)
    seconds[Kernel.ATTEND] /= min(HEADS, attention.heads)
    # The activation may be part of the product before it: what it adds to a product that costs next to nothing.
    seconds[Kernel.ACTIVATE] = np.maximum(np.diff(seconds[Kernel.ACTIVATE], axis=1), 1e-9)
    return Curves(attention.head_dim, {kernel: grid.curve(seconds[kernel]) for kernel, grid in grids.items()}), pace


def random_numbers() -> Array:
    """Return what fills inputs and weights, repeated by `np.resize`, [NUMBERS]."""
    return np.random.default_rng(0).standard_normal(NUMBERS, np.float32)


def kernel_grids(spec: ModelSpec, backend: Backend, group: Group) -> Mapping[Kernel, KernelGrid]:
    """Return what is timed, kernel by kernel."""
    (attention, mlp), block = encoder_blocks(spec), spec.blocks[-1]
    H, F, d, make = spec.hidden, mlp.ffn, attention.head_dim, backend.product
    numbers = random_numbers()
    small = 0.02 * numbers

    x, vector = np.resize(numbers, (max(*ROWS, *KEYS), H)), np.resize(small, max(H, F))
    into = {width: make(np.resize(small, (width, H)), vector[:width]) for width in {3 * d, H, F}}
    out = {width: make(np.resize(small, (width, H)), None) for width in {2 * d, H - d, H, F} - {0}}
    act = [make(np.resize(numbers, (F, 1)), vector[:F], activation) for activation in ("identity", mlp.activation)]
    one, other = (np.resize(small, max(ELEMENTS)) for _ in range(2))

    def attend(rows: int, keys: int) -> TimedCall:
        width = d * min(HEADS, attention.heads)
        q, k = x[:rows, :width], x[:keys, :width]
        return lambda: backend.attend(q, k, k, [(slice(0, rows), slice(0, keys))], d)

    # A block of which only the products are missing.
    norm = Norm(vector[:H], vector[:H], block.stream.eps)
    closes = backend.graph([AddResidual(vector[:H]), *([norm] if block.stream.sum_norms else [])])
    begins = [backend.graph([norm])] * block.stream.pre_norms

    def pass_on(rows: int, _: int) -> TimedCall:
        own, out = x[:rows], np.empty((rows, H), np.float32)
        calls = [*(graph.bound(own, out) for graph in begins), closes.bound(own, out, own)]

        def pass_a_block() -> None:
            for call in calls:
                call()

        return pass_a_block

    def contract(rows: int, width: int) -> TimedCall:
        return partial(out[width], np.resize(numbers, (rows, width)))

    def activate(rows: int, which: int) -> TimedCall:
        return partial(act[which], np.resize(numbers, (rows, 1)))

    def accumulate(size: int, _: int) -> TimedCall:
        return partial(np.add, one[:size], other[:size], one[:size])

    return {
        Kernel.PROJECT: KernelGrid(ROWS, sorted(into), lambda rows, width: partial(into[width], x[:rows]), (1, H)),
        Kernel.ATTEND: KernelGrid(ROWS, KEYS, attend),
        Kernel.CONTRACT: KernelGrid(ROWS, sorted(out), contract, (1, H)),
        Kernel.NORM: KernelGrid(NORM_ROWS, (1,), pass_on, (H, 1)),
        Kernel.ACTIVATE: KernelGrid(ACTIVATE_ROWS, (0, 1), activate, (F, 1)),
        Kernel.ADD: KernelGrid(ELEMENTS, (1,), accumulate),
    }


def measure_unrest(width: int, backend: Backend, group: Group) -> tuple[float, float]:
    """Return this device's `jitter_s` and `rest_s` (`solver.cluster.cluster.Device`); every rank calls this.

    Steps are products as wide as the model.

    A board of its own has next to none of either. Under a CPU quota a process is stopped, and goes on, at ticks of the
    kernel: no two steps take the same time, and the slowest device counts every time. Who waits saves up what it may
    use, and is fast for a moment.
    """
    if group.size == 1:
        return 0.0, 0.0
    numbers = np.resize(random_numbers(), (width + STEP_ROWS, width))
    product, x = backend.product(numbers[STEP_ROWS:], None), numbers[:STEP_ROWS]
    product(x)
    group.barrier()
    began, tried = clock.now(), 0
    while not tried or clock.now() - began < TRIAL_S:
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


def _jitter_s(compute: Callable[[], float], group: Group) -> float:
    """Return by how much the later of two such ranks is later than both on average; less for ranks that vary less.

    n that are equally fast are later by log n / log 2 times as much (`solver.schedule.timing`).
    """
    blocks, everyone = Partition.of_counts([1] * group.size), [Span(0, group.size)] * group.size
    own, steps = [], []
    for _ in range(WARM_STEPS + STEPS):
        started = clock.now()
        exchange = RowExchange(group, blocks, everyone, (1,))
        own.append(compute())
        exchange.put(0)
        whole(exchange)
        steps.append(clock.now() - started)
    group.finish_sending()
    own, steps = own[WARM_STEPS:], steps[WARM_STEPS:]
    varies = statistics.stdev(own)
    late = max(statistics.mean(steps) - group.slowest(statistics.mean(own)), 0.0)
    return group.slowest(late) * math.log(2) / math.log(group.size) * varies / group.slowest(varies)


def _rest_s(compute: Callable[[], float]) -> float:
    """Return by how much compute after a rest is shorter than right after other compute."""
    gained = []
    for _ in range(RESTS):
        clock.sleep(REST_S)
        rested_s = compute()
        gained.append(compute() - rested_s)
    return max(statistics.median(gained), 0.0)
