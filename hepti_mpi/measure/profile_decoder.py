"""Measure a cluster for a language model: what blocks and logits take on shares of some sizes, and the links.

What is measured is described at `solver.cluster.decoder_curves`.

A token reads every weight once, so no call may find its weights in the processor's cache, unless all of the model is in
it. The graphs of all sizes are called in turn, for one row, then for two, and so on: between two calls of a graph those
of all others are read, and as many bytes more as the model has (`MOST_FLUSHED` at most).
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import numpy as np

from hepti_mpi.base.memory import give_back, large_pages
from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.exchange import Item, RankExchange
from hepti_mpi.comm.group import Group, host_name
from hepti_mpi.comm.wires import EXACT
from hepti_mpi.decoding.ranks import Ranks, merged
from hepti_mpi.kernels import backends
from hepti_mpi.kernels.backends import ONNXRUNTIME
from hepti_mpi.measure.profile import kinds, measured_under, names_of, profile_facts
from hepti_mpi.measure.profile_kernels import ELEMENTS, measure_unrest, random_numbers
from hepti_mpi.measure.profile_links import Links, measure_links, measure_messages
from hepti_mpi.measure.random_decoder import RandomDecoder
from hepti_mpi.measure.timing import TimedCall, seconds_of
from hepti_mpi.program.share import Share
from solver.base import clock
from solver.base.arrays import FLOAT_BYTES
from solver.base.environment import omp_threads
from solver.base.spans import Span
from solver.cluster.board import free_bytes
from solver.cluster.cluster import Cluster, Device
from solver.cluster.curves import Curve, Kernel, derived_curves
from solver.cluster.decoder_curves import (
    CACHED_ROWS,
    ROWS,
    CachedCurve,
    DecoderPart,
    DecoderSpeeds,
    derived_decoder_speeds,
)
from solver.model.decoder import Decoder, decoder_tensors
from solver.model.kinds.attention import CACHES, Attention
from solver.model.kinds.part import Residual
from solver.model.kinds.weight import PRECISIONS
from solver.plan.decoder_plan import whole_on
from solver.plan.layout import Box
from solver.schedule.decoders.cost import SMALL_BYTES
from solver.schedule.decoders.passes import DecoderPasses
from solver.schedule.regions import some_have
from solver.schedule.schedule import exchanges

DECODER_MEASURES = 2  # version of what such a profile says: others are measured anew
# A pass of so many rows waits for its weights, and needs more rounds than one that computes. Only such have logits.
FEW_ROWS = 8
# More than the last cache of a small computer has; it may be larger than a virtual machine is told. On one that is told
# 32 MiB attention took 0.17 ms without these bytes, and 0.40 in a pass: tokens took 1.2 times what was predicted.
MOST_FLUSHED = 160 << 20
BEHIND = (64, 2048)  # tokens in the cache: the difference is what they take
LINE_BYTES = 64  # of a cache
SPEED_ROWS, SPEED_WIDTH = 256, 1024  # of the product that says how fast a device is
UNREST_WIDTH = 512  # of the product by which it is found how steady it is
# Exchanges of summands, between computing as long as the slowest rank with a small share: for so long, without what
# they take longer, in some series.
EXCHANGES_S, SERIES, LEAST_EXCHANGES = 0.8, 8, 8

TimedPoint = tuple[object, ...]  # what a call measures


@dataclass(frozen=True, slots=True)
class DecoderMeasures:
    """What was measured on a rank.

    Parameters
    ----------
    speeds
        What a language model takes.
    flop_per_s
        Of a product in float32.
    add
        The curve of adding.
    pace
        As `timing.seconds_of`.
    """

    speeds: DecoderSpeeds
    flop_per_s: float
    add: Curve
    pace: float


def decoder_fingerprint(model: Decoder, precision: str, group: Group, backend: str = ONNXRUNTIME) -> str:
    """Return twelve hex digits of all that a profile is for: hosts, cores, versions, kernels, model and precision."""
    computes = () if backend == ONNXRUNTIME else (backend,)
    return measured_under(group, "OMP_NUM_THREADS", (model.fingerprint, precision), DECODER_MEASURES, *computes)


def profile_decoder(model: Decoder, precision: str, group: Group, backend: str = ONNXRUNTIME) -> Cluster:
    """Measure all ranks for a language model; every rank calls this and gets the same cluster.

    Parameters
    ----------
    precision
        What its weights are held in: float32, int8, int4 or int4m.
    backend
        What computes on this rank.
    """
    here = measure_decoder(model, precision, group, backend)
    give_back()
    links = measure_links(group)
    messages = measure_messages(group, links, here.pace)
    message_s, latency_s = measure_exchange(RandomDecoder(model, precision, backend), group, links, here)
    here = replace(here, speeds=replace(here.speeds, message_s=message_s))
    unrest = measure_unrest(UNREST_WIDTH, backends.backend(backend), group)
    give_back()
    measured = group.on_all(lambda: (host_name(), free_bytes(), here, messages, unrest))
    boards, memories, all_here, all_messages, all_unrest = zip(*measured, strict=True)
    ranks_on, names = Counter(boards), names_of(boards)
    points = [np.concatenate([np.ravel(curve.seconds) for curve in own.speeds.parts.values()]) for own in all_here]
    found: dict[int, tuple[float, DecoderSpeeds, float, float]] = {}
    for kind in kinds(points, [jitter_s for jitter_s, _ in all_unrest]):
        alike = [all_here[rank] for rank in kind]
        flop_per_s = float(np.mean([own.flop_per_s for own in alike]))
        jitter_s, rest_s = np.mean([all_unrest[rank] for rank in kind], axis=0).tolist()
        speeds = mean_decoder_speeds([own.speeds for own in alike])
        found |= dict.fromkeys(kind, (flop_per_s, speeds, jitter_s, rest_s))
    devices = []
    for rank, (name, host, memory) in enumerate(zip(names, boards, memories, strict=True)):
        flop_per_s, speeds, jitter_s, rest_s = found[rank]
        derived = derived_curves(flop_per_s)
        kernels = {**derived.kernels, Kernel.ADD: all_here[rank].add, Kernel.MESSAGE: all_messages[rank]}
        curves, own_link = replace(derived, kernels=kernels), links.own[rank]
        devices.append(
            Device(
                name, flop_per_s, memory // ranks_on[host], own_link, curves, jitter_s, rest_s, decoder=speeds
            )
        )  # fmt: skip
    computed_by = backends.of_all(group.on_all(lambda: backend))
    facts = profile_facts(model.name, computed_by, decoder_fingerprint(model, precision, group, backend))
    network = replace(links.network, latency_s=latency_s)
    return Cluster(tuple(devices), network, links.exceptions(names), facts)


def mean_decoder_speeds(several: Sequence[DecoderSpeeds]) -> DecoderSpeeds:
    """Return the mean of several devices' speeds, all on one grid."""
    first = several[0]
    parts, cached = {}, {}
    for part, curve in first.parts.items():
        seconds = np.mean([own.parts[part].seconds for own in several], axis=0)
        parts[part] = replace(curve, seconds=tuple(map(tuple, seconds.tolist())))
    for cache, of_rows in first.cached.items():
        seconds = np.mean([own.cached[cache].seconds for own in several], axis=0)
        cached[cache] = replace(of_rows, seconds=tuple(seconds.tolist()))
    pass_s, message_s = np.mean([(own.pass_s, own.message_s) for own in several], axis=0).tolist()
    return DecoderSpeeds(first.precision, parts, cached, pass_s, message_s)


def measure_decoder(model: Decoder, precision: str, group: Group, backend: str = ONNXRUNTIME) -> DecoderMeasures:
    """Measure graphs, and what rank 0 does between passes, while all ranks measure; messages are not measured yet."""
    graphs = RandomDecoder(model, precision, backend)
    sizes = {part: graphs.sizes(part) for part in DecoderPart}
    heads = sizes[DecoderPart.ATTENTION][-1]
    few: dict[TimedPoint, TimedCall] = {}
    many: dict[TimedPoint, TimedCall] = {}
    # Rows outside: between two calls of a graph all others pass through the caches.
    for rows in map(int, ROWS):
        for part in DecoderPart:
            if rows <= FEW_ROWS or part is not DecoderPart.HEAD:
                calls = few if rows <= FEW_ROWS else many
                calls |= {(part, rows, size): graphs.call(part, size, rows) for size in sizes[part]}
    for cache in CACHES:
        for rows in map(int, CACHED_ROWS):
            calls = few if rows <= FEW_ROWS else many
            for behind in BEHIND:
                calls[cache, rows, behind] = graphs.call(DecoderPart.ATTENTION, heads, rows, behind, cache)
    # The first call for so many rows, and those that follow another one of the same graph.
    flushed: list[TimedPoint] = [(DecoderPart.ATTENTION, int(rows), sizes[DecoderPart.ATTENTION][0]) for rows in ROWS]
    flushed += [(cache, 1, behind) for cache in CACHES for behind in BEHIND]
    few["pass",] = _between_passes(graphs, group)
    numbers = random_numbers()
    one, other = (np.resize(numbers, max(ELEMENTS)) for _ in "ab")
    few |= {("add", size): partial(np.add, one[:size], other[:size], one[:size]) for size in ELEMENTS}
    product = backends.backend(backend).product(np.resize(numbers, (SPEED_WIDTH, SPEED_WIDTH)), None)
    many["product",] = partial(product, np.resize(numbers, (SPEED_ROWS, SPEED_WIDTH)))
    large_pages()  # as weights of a long run
    flush = _flush(graphs)
    of_few, pace = seconds_of(
        list(few.values()), group, {number: flush for number, point in enumerate(few) if point in flushed}
    )
    of_many, _ = seconds_of(list(many.values()), group)
    taken = dict(zip((*few, *many), (*of_few, *of_many), strict=True))
    cached = {cache: _cached_curve(cache, taken, heads * _head_columns(graphs)) for cache in CACHES}
    parts = {part: _curve(part, graphs, sizes[part], taken, cached["float32"]) for part in DecoderPart}
    add = Curve(tuple(map(float, ELEMENTS)), (0.0, 1.0), tuple((taken["add", size],) * 2 for size in ELEMENTS))
    flop_per_s = 2 * SPEED_ROWS * SPEED_WIDTH**2 / taken["product",]
    return DecoderMeasures(DecoderSpeeds(precision, parts, cached, taken["pass",], 0.0), flop_per_s, add, pace)


def _flush(graphs: RandomDecoder) -> TimedCall:
    """Return what reads as many bytes as the model has, as far as memory and `MOST_FLUSHED` allow."""
    model, precision = graphs.model, PRECISIONS[graphs.precision]
    size = sum(precision.bytes_of(weight.shape, weight.summed) for weight in decoder_tensors(model).values())
    lines = np.ones(min(size, MOST_FLUSHED, free_bytes() // 4) // LINE_BYTES * LINE_BYTES, np.uint8)[::LINE_BYTES]
    return partial(np.maximum.reduce, lines)


def _cached_curve(cache: str, taken: Mapping[TimedPoint, float], columns: int) -> CachedCurve:
    """Return what a token in the cache takes, by the rows that see it and the columns of their query heads."""
    few, many = BEHIND
    seconds = [
        max(taken[cache, int(rows), many] - taken[cache, int(rows), few], 0.0) / (rows * (many - few) * columns)
        for rows in CACHED_ROWS
    ]
    return CachedCurve(CACHED_ROWS, tuple(seconds))


def _curve(
    part: DecoderPart,
    graphs: RandomDecoder,
    sizes: Sequence[int],
    taken: Mapping[TimedPoint, float],
    cached: CachedCurve,
) -> Curve:
    """Return the curve of a part; of attention without what its rows take to see each other."""
    rows = [value for value in ROWS if (part, int(value), sizes[0]) in taken]
    kind, table = graphs.kind(part), []
    for value in rows:
        among = [kind.recalled(kind.units(Span(0, size)), int(value), 0) * cached.at(value) for size in sizes]
        own = [(taken[part, int(value), size], among_s) for size, among_s in zip(sizes, among, strict=True)]
        table.append(tuple(max(seconds - among, 0.1 * seconds) for seconds, among in own))
    return Curve(tuple(rows), tuple(float(graphs.bytes_of(part, size)) for size in sizes), tuple(table))


def _head_columns(graphs: RandomDecoder) -> int:
    """Return the columns of a query head."""
    kind = graphs.kind(DecoderPart.ATTENTION)
    assert isinstance(kind, Attention)
    return kind.head_dim


def _between_passes(graphs: RandomDecoder, group: Group) -> TimedCall:
    """Return what rank 0 does between two passes: it chooses a token, embeds it, and says what to compute."""
    alone, model = group.alone, graphs.model
    # Nothing of the model is on this rank.
    share = Share(DecoderPasses(model, whole_on(model, ("here", "elsewhere"), 1)), 0, backend=graphs.backend)
    ranks, tokens = Ranks(share, alone, Direct(alone), EXACT, reads=graphs), count()
    candidates, sums = [np.zeros((1, 1, 2))] * group.size, [np.zeros(1)] * group.size

    def between() -> None:
        merged(candidates, 1, sums)
        ranks.compute(0, np.array([[next(tokens)]]), [0], chosen=0)  # one that is not in memory

    return between


def _sum_of_a_row(group: Group, direct: Direct, width: int) -> Callable[[], object]:
    """Return what makes the sum of all ranks' rows of so many numbers, on all of them."""
    value = Residual(width).value("sum", 1)
    everyone = some_have(value, range(group.size), group.size)
    (step,) = exchanges("sum", value, (everyone,), everyone, partial=True)
    box, numbers = Box.whole(*value.shape), random_numbers()
    own, total = (np.resize(numbers, value.shape) for _ in "st")
    item = Item(*step.layouts(), [(box, own)], [(box, total)])
    return RankExchange.of(group, [item], EXACT, equal=True).over(direct)


def measure_exchange(graphs: RandomDecoder, group: Group, links: Links, here: DecoderMeasures) -> tuple[float, float]:
    """Return what a message of few KiB takes of this device, and what the exchange of half a layer lasts beside.

    Ranks compute as long as each other, with exchanges between as in a pass, and without, in turn. What exchanges last
    beyond the slowest rank's computing and messages, and the wire's bandwidth, is the latency: the wire's, that until a
    rank is awake, and that of ranks whose computing takes another time every time, for the last of them. Under a CPU
    quota this is most of it.
    """
    if group.size == 1:
        return derived_decoder_speeds(here.flop_per_s, graphs.precision).message_s, links.network.latency_s
    work = graphs.call(DecoderPart.MLP, graphs.sizes(DecoderPart.MLP)[0], 1)
    direct = Direct(group)
    exchange = _sum_of_a_row(group, direct, SMALL_BYTES // FLOAT_BYTES)
    own_s = here.speeds.parts[DecoderPart.MLP].seconds[0][0]
    slowest_s = group.slowest(own_s)
    calls = max(1, round(slowest_s / own_s))
    rounds = max(LEAST_EXCHANGES, round(EXCHANGES_S / SERIES / slowest_s))
    messages = 2 * (group.size - 1)
    of_messages, lasted = [], []
    for _ in range(SERIES):
        group.barrier()
        began, begin = clock.now(), clock.cpu_now()
        for _ in range(rounds * calls):
            work()
        working_s = clock.now() - began
        pace = working_s / (clock.cpu_now() - begin) if omp_threads() == 1 else 1.0
        group.barrier()
        began, exchanging_s = clock.now(), 0.0
        for _ in range(rounds):
            for _ in range(calls):
                work()
            started = clock.cpu_now()
            exchange()
            exchanging_s += clock.cpu_now() - started
        wall_s = clock.now() - began
        of_messages.append(pace * exchanging_s / rounds / messages)
        lasted.append((group.slowest(wall_s) - group.slowest(working_s + pace * exchanging_s)) / rounds)
    direct.close()
    wire_s = (group.size - 1) * SMALL_BYTES / links.network.bandwidth_bytes_per_s
    return statistics.median(of_messages), max(statistics.median(lasted) - wire_s, 0.0)
