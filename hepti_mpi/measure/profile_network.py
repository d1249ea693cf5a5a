"""Measure a cluster for a convolutional network: what its nodes take on slabs of some rows, and the links.

Nodes between two points where rows of others are needed run in one graph, whatever the plan: these graphs are timed, on
some rows in the middle of the image, and a graph's time is divided among its nodes as their FLOP and kinds say. Then
the graph of all of these nodes is timed by itself: what it takes less is the price of what enters a graph.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from hepti_mpi.base.memory import freed_at_once, give_back
from hepti_mpi.comm.group import Group, host_name
from hepti_mpi.kernels import backends
from hepti_mpi.kernels.backends import ONNXRUNTIME
from hepti_mpi.kernels.slab import MakeBind, Slab
from hepti_mpi.measure.profile import kinds, mean_curves, measured_under, names_of, profile_facts
from hepti_mpi.measure.profile_kernels import ELEMENTS, measure_unrest, random_numbers
from hepti_mpi.measure.profile_links import measure_links, measure_messages
from hepti_mpi.measure.timing import seconds_of
from solver.base.arrays import FLOAT_BYTES, Numbers
from solver.base.errors import HeptiError
from solver.base.spans import Span
from solver.cluster.board import free_bytes
from solver.cluster.cluster import MIB, Cluster, Device
from solver.cluster.curves import Curve, Curves, Floats, Kernel, derived_curves
from solver.cluster.nodes import MOST_ENTERING_S, RELATIVE, NodeCurve, NodeSpeeds, mean_speeds
from solver.model.convnet import ConvNet
from solver.model.kinds.operator import IMAGE_ROW, SUMMED
from solver.model.operators import WorkKind, cut_points, flop, kind_of, signature
from solver.plan.segments import Segment, SegmentCut
from solver.schedule.networks.pieces import pieces_of
from solver.schedule.networks.segment_steps import computed_parts, part_of
from solver.schedule.networks.steps import SegmentShares, live_on, segment_shares
from solver.schedule.regions import lengths

NETWORK_MEASURES = 2  # version of what such a profile says: others are measured anew
PARTS = (1 / 8, 1 / 4, 1 / 2, 1.0)  # of the rows, on which nodes are timed
CONNECTED = 1 << 22  # weights of a product of one row that is timed
MIDDLE = 1  # of three ranks the one that has the timed part
WIDTH = 512  # of the product by which it is found how steady a device is


@dataclass(frozen=True, slots=True, eq=False)
class TimedSlab:
    """A part of the rows of the graph between two points: what runs, and what it makes of the rows of every node."""

    nodes: Span
    part: float
    slab: Slab
    shares: SegmentShares

    @property
    def entering(self) -> int:
        """How many numbers enter the graph."""
        return sum(array.size for _, array in self.slab.needs.values())


def network_fingerprint(net: ConvNet, group: Group, backend: str = ONNXRUNTIME) -> str:
    """Return twelve hex digits of all that a profile is for: hosts, cores, versions, kernels, and the network."""
    computes = () if backend == ONNXRUNTIME else (backend,)
    return measured_under(group, "OMP_NUM_THREADS", (net.fingerprint,), NETWORK_MEASURES, *computes)


def profile_network(net: ConvNet, group: Group, backend: str = ONNXRUNTIME) -> Cluster:
    """Measure all ranks for a network; every rank calls this and gets the same cluster.

    Parameters
    ----------
    backend
        What computes on this rank: numpy or onnxruntime.

    Raises
    ------
    HeptiError
        If a host lacks memory for it, or its backend an operator.
    """
    ranks_on = Counter(group.on_all(host_name))
    group.on_all(lambda: check_room(net, free_bytes() // ranks_on[host_name()]))
    speeds, add, pace = measure_nodes(net, group, backend)
    links = measure_links(group)
    messages = measure_messages(group, links, pace)
    unrest = measure_unrest(WIDTH, backends.backend(backend), group)
    give_back()
    measured = group.on_all(lambda: (host_name(), free_bytes(), speeds, add, messages, unrest))
    hosts, memories, all_speeds, adds, all_messages, all_unrest = zip(*measured, strict=True)
    names = names_of(hosts)
    # Of a network without rows only calls are timed.
    points = [
        np.array([t for curve in own.curves.values() for t in curve.seconds] or [own.session_s]) for own in all_speeds
    ]
    all_curves = []
    for nodes, own_add, own_messages in zip(all_speeds, adds, all_messages, strict=True):
        derived = derived_curves(nodes.flop_per_s[WorkKind.CONVOLUTION])
        measured_kernels = {Kernel.ADD: own_add, Kernel.MESSAGE: own_messages}
        all_curves.append(replace(derived, kernels={**derived.kernels, **measured_kernels}))
    found: dict[int, tuple[NodeSpeeds, Curves, float, float]] = {}
    for kind in kinds(points, [jitter_s for jitter_s, _ in all_unrest]):
        jitter_s, rest_s = np.mean([all_unrest[rank] for rank in kind], axis=0).tolist()
        nodes, curves = (
            mean_speeds([all_speeds[rank] for rank in kind]),
            mean_curves([all_curves[rank] for rank in kind]),
        )
        found |= dict.fromkeys(kind, (nodes, curves, jitter_s, rest_s))
    devices = []
    for rank, (name, host, memory) in enumerate(zip(names, hosts, memories, strict=True)):
        nodes, curves, jitter_s, rest_s = found[rank]
        flop_per_s = nodes.flop_per_s[WorkKind.CONVOLUTION]
        device = Device(name, flop_per_s, memory // ranks_on[host], links.own[rank], curves, jitter_s, rest_s, nodes)
        devices.append(device)
    computed_by = backends.of_all(group.on_all(lambda: backend))
    facts = profile_facts(net.name, computed_by, network_fingerprint(net, group, backend))
    return Cluster(tuple(devices), links.network, links.exceptions(names), facts)


def check_room(net: ConvNet, free: int) -> None:
    """Refuse a network for which this rank has too few free bytes: all of its graphs are there at a time.

    Raises
    ------
    HeptiError
        With what goes in and out of the graphs alone, and what is free.
    """
    values = [value for nodes in _graphs(net) for point in (nodes.start, nodes.stop) for value in net.live(point)]
    size = sum(net.extent(value).size * (1 if value == net.input else FLOAT_BYTES) for value in values)
    if (needed := sum(PARTS) * size) > free:
        raise HeptiError(
            f"{net.name} needs at least {needed / MIB:.0f} MiB on each rank of {host_name()} to be measured, which has "
            f"{free / MIB:.0f} MiB free for each: add memory, or take smaller images"
        )


def measure_nodes(net: ConvNet, group: Group, backend: str) -> tuple[NodeSpeeds, Curve, float]:
    """Measure while all ranks measure; return what nodes take, what adding takes, and the pace as `seconds_of`."""
    numbers = 0.02 * random_numbers()
    make, product = backends.graph_maker(backend, net.nodes, group), backends.backend(backend).product
    with freed_at_once():
        slabs = (_timed_slab(net, nodes, part, numbers, make) for part in PARTS for nodes in _graphs(net))
        timed = [own for own in slabs if own is not None]
    connected = product(np.resize(numbers, (CONNECTED >> 12, 1 << 12)), None)
    vector, one, other = np.resize(numbers, (1, CONNECTED >> 12)), *(np.resize(numbers, max(ELEMENTS)) for _ in "ab")
    nothing = product(np.resize(numbers, (1, 1)), None)
    calls: list[Callable[[], object]] = [own.slab.run for own in timed]
    calls += [partial(connected, vector), partial(nothing, np.resize(numbers, (1, 1)))]
    calls += [partial(np.add, one[:size], other[:size], one[:size]) for size in ELEMENTS]
    seconds, pace = seconds_of(calls, group)
    of_slabs, connected_s, session_s, adds = (
        seconds[: len(timed)],
        seconds[len(timed)],
        seconds[len(timed) + 1],
        seconds[len(timed) + 2 :],
    )
    entering_s = _entering_s(net, timed, of_slabs, session_s, numbers, group, make)
    points: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    work: dict[WorkKind, Floats] = {kind: np.zeros(2) for kind in WorkKind}
    for own, slab_s in zip(timed, of_slabs, strict=True):
        parts = _divided(net, own, max(slab_s - session_s - entering_s * own.entering, 0.1 * slab_s))
        for number, (rows, node_s, node_flop) in parts.items():
            points[signature(net, net.nodes[number])][rows].append(node_s)
            work[kind_of(net, net.nodes[number])] += (node_flop, node_s)
    work[WorkKind.CONNECTED] += (2 * CONNECTED, max(connected_s - session_s, 0.1 * connected_s))
    curves = {
        key: NodeCurve(
            tuple(map(float, sorted(by_rows))), tuple(float(np.mean(by_rows[rows])) for rows in sorted(by_rows))
        )
        for key, by_rows in points.items()
    }
    add = Curve(tuple(map(float, ELEMENTS)), (0.0, 1.0), tuple((value, value) for value in adds))
    return NodeSpeeds(_speeds(work), session_s, curves, entering_s), add, pace


def _entering_s(
    net: ConvNet,
    timed: Sequence[TimedSlab],
    seconds: Sequence[float],
    session_s: float,
    numbers: Numbers,
    group: Group,
    make: MakeBind,
) -> float:
    """Return what a number that enters a graph takes: what the parts of the network take more than all in one graph.

    Where few numbers enter, and another process has taken the core meanwhile, that would be more than of any board.
    """
    parts = [(own, own_s) for own, own_s in zip(timed, seconds, strict=True) if own.part == 1]
    if len(parts) < 2:
        return 0.0
    whole = _timed_slab(net, Span(parts[0][0].nodes.start, parts[-1][0].nodes.stop), 1.0, numbers, make)
    if whole is None:
        return 0.0
    (whole_s,), _ = seconds_of([whole.slab.run], group)
    more_s = sum(own_s - session_s for _, own_s in parts) - (whole_s - session_s)
    more = sum(own.entering for own, _ in parts) - whole.entering
    return min(max(more_s, 0.0) / more, MOST_ENTERING_S) if more > 0 else 0.0


def _speeds(work: Mapping[WorkKind, Floats]) -> dict[WorkKind, float]:
    """Return the FLOP a second of every kind of work; of one that the network has not, by that of the others."""
    known = {kind: float(flops / seconds) for kind, (flops, seconds) in work.items() if seconds > 0 and flops > 0}
    usual = float(np.median([speed / RELATIVE[kind] for kind, speed in known.items()]))
    return {kind: known.get(kind, usual * RELATIVE[kind]) for kind in WorkKind}


def _graphs(net: ConvNet) -> Iterator[Span]:
    """Yield the runs of nodes between points where rows of others are needed."""
    return (Span(start, stop) for start, stop in pairwise(cut_points(net)) if start < stop)


def _timed_slab(net: ConvNet, nodes: Span, part: float, numbers: Numbers, make: MakeBind) -> TimedSlab | None:
    """Make the graph of a run of nodes for a part of the rows, in the middle; None where maps are too small for it."""
    beside = (1 - part) / 2
    segment = Segment(nodes, SegmentCut.ROWS, (beside, part, beside))
    shares = segment_shares(net, segment, live_on(net, nodes.start, MIDDLE, len(segment.shares)))
    pieces = pieces_of(shares, MIDDLE)
    if not pieces or not pieces[0].walk.made:
        return None

    slab = Slab(net, pieces[0])
    slab.bind({graph.key: graph.made(make, lambda piece: np.resize(numbers, piece.shape)) for graph in slab.graphs})
    for _, array in slab.needs.values():
        array[...] = 1
    return TimedSlab(nodes, part, slab, shares)


def _divided(net: ConvNet, timed: TimedSlab, seconds: float) -> dict[int, tuple[int, float, float]]:
    """Return rows, seconds and FLOP of every node of a graph; seconds are of its whole width and all channels."""
    rows, flops, summed = dict[int, int](), dict[int, float](), dict[int, float]()
    for placed, region in computed_parts(timed.shares.compute):
        number, made = net.made_by[placed.part.writes.name], placed.part.made(region)
        part = float(part_of(placed, made)[0, MIDDLE])
        if part > 0:
            node = net.nodes[number]
            rows[number] = int(lengths(made[IMAGE_ROW])[0, MIDDLE])
            flops[number] = flop(net, node) * part
            summed[number] = float(part_of(placed, made, ())[0, MIDDLE]) if placed.axis == SUMMED else 1.0
    weighed = {number: flops[number] / RELATIVE[kind_of(net, net.nodes[number])] for number in flops}
    total = sum(weighed.values())
    # A pool's seconds are of all of its input.
    return {
        number: (rows[number], seconds * weighed[number] / total / summed[number], flops[number]) for number in flops
    }
