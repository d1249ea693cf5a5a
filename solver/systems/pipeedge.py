"""PipeEdge: Hu et al., "PipeEdge: Pipeline Parallelism for Large-Scale Model Inference on Heterogeneous Edge Devices".

DSD 2022, arXiv 2110.14895. Contiguous stages, one device each, so that the slowest stage or link is as fast as can be:
throughput, not the latency of one request. A layer has four sub-layers (`solver.model.sublayers`), and a stage may end
after any. The dynamic program (`solver.programs.path`) runs over device types, as boards of one are interchangeable:

    h(i, C, u)  least bottleneck with the first i sub-layers done by C[t] devices of every type t, the next on type u
    h(0, 0, u) = 0
    h(j, C + u, v) = min over i < j of max(h(i, C, u), comp(u, i..j), comm(j, u -> v))   if i..j fit on u
    answer = min over i, C, u of max(h(i, C, u), comp(u, i..4 L))                        if i..4 L fit on u

comp is the time of the sub-layers on the type, comm the bytes of what travels after j over the narrower of two links:
context and residual (2 H a row) after the first sub-layer, H after the second and fourth, F + H after the third. A
stage fits where its weights and its buffers do, two of what comes in (but the first) and two of what goes out beside
those at work, as published. Embeddings are rank 0's, in its memory.

It is as published but for this: the type is an index of its own (the published code indexes hosts by it); of plans with
the same bottleneck one with the fewest stages is taken, and of its cuts those that send least: both answer a request
sooner. Where the types have more than FINE states, stages end with whole layers; where these have more than MOST, as
many boards of which each was measured have, those that are most alike count as one type, each as the slowest of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from solver.base.arrays import FLOAT_BYTES
from solver.base.errors import InfeasiblePlanError
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.spec import ModelSpec
from solver.model.sublayers import HALVES, widths
from solver.plan.plan import Plan, Wire
from solver.programs.path import Leg, best_path
from solver.schedule.encoders.memory import layers_do_not_fit, weights_room, whole_layer_bytes
from solver.schedule.encoders.stages import chain_of_sublayers, sublayer_seconds

BUFFERS = 2  # batches that wait at each end of a stage
FINE, MOST = 4096, 50_000  # states: on one x86 core 0.2 s and 1.5 s

ChosenStages = tuple[float, list[tuple[int, int]]]  # bottleneck, and (type, number of units) of every stage


@dataclass(frozen=True, slots=True, eq=False)
class Boards:
    """Devices of one type.

    Parameters
    ----------
    ranks
        The devices.
    seconds : [units]
        Of every unit.
    bandwidth
        Bytes a second.
    room
        Bytes for weights and buffers.
    """

    ranks: tuple[int, ...]
    seconds: Floats
    bandwidth: float
    room: float


@dataclass(frozen=True, slots=True, eq=False)
class StageUnits:
    """What stages are made of: sub-layers, or layers.

    Parameters
    ----------
    weights : [units]
        Bytes of every unit.
    lies, sent : [units + 1]
        Bytes of what lies before each unit and after the last: in memory, and on the wire.
    """

    weights: Floats
    lies: Floats
    sent: Floats


def plan_pipeedge(spec: ModelSpec, cluster: Cluster, rows: int, wire: Wire = Wire.FLOAT32) -> Plan:
    """Choose stages by the dynamic program over device types; what adapts counts with its fewest bits."""
    per_layer = HALVES * len(spec.blocks)
    size = 1 if all(block.inner for block in spec.blocks) else per_layer
    boards = device_types(spec, cluster, rows, size)
    if size < per_layer and _states(boards, per_layer * spec.layers) > FINE:
        size = per_layer
        boards = fewer_types(device_types(spec, cluster, rows, size), spec.layers)
    found = best_stages(boards, units_of(spec, rows, wire, size))
    if found is None:
        raise _no_stages(spec, cluster, rows, boards)
    free = {number: iter(board.ranks) for number, board in enumerate(boards)}
    parts = [(next(free[number]), size * count) for number, count in found[1]]
    return chain_of_sublayers(spec, cluster, parts, "pipeedge", rows)


def _no_stages(spec: ModelSpec, cluster: Cluster, rows: int, boards: list[Boards]) -> InfeasiblePlanError:
    """Return the error that says on which device more memory would help: enough for stages of whole layers."""
    room = weights_room(spec, cluster, rows)
    for board in boards:
        room[list(board.ranks)] = board.room
    # What comes in and goes out between two layers.
    room -= 2 * (BUFFERS + 1) * FLOAT_BYTES * rows * spec.hidden
    layers = np.clip(room // whole_layer_bytes(spec), 0, spec.layers).astype(int)
    return layers_do_not_fit("pipeedge", spec, cluster, room, layers)


def device_types(spec: ModelSpec, cluster: Cluster, rows: int, size: int) -> list[Boards]:
    """Return the devices that have room, those that are alike together; a unit has so many sub-layers."""
    room, seconds = weights_room(spec, cluster, rows), sublayer_seconds(spec, cluster, rows)
    alike: dict[tuple[bytes, float, float], list[int]] = {}
    for rank in np.flatnonzero(room > 0).tolist():
        alike.setdefault((seconds[:, rank].tobytes(), cluster.bandwidth(rank), room[rank]), []).append(rank)
    return [
        Boards(tuple(ranks), _units(np.tile(seconds[:, ranks[0]], spec.layers), size), bandwidth, float(bytes_))
        for (_, bandwidth, bytes_), ranks in alike.items()
    ]


def fewer_types(boards: list[Boards], units: int) -> list[Boards]:
    """Return types with no more than MOST states: again and again the two whose speeds differ least become one."""
    boards = sorted(boards, key=lambda board: float(board.seconds.sum()))
    while _states(boards, units) > MOST:
        ratios = [other.seconds.sum() / one.seconds.sum() for one, other in pairwise(boards)]
        place = int(np.argmin(ratios))
        one, other = boards[place : place + 2]
        boards[place : place + 2] = [
            Boards(
                one.ranks + other.ranks, np.maximum(one.seconds, other.seconds),
                min(one.bandwidth, other.bandwidth), min(one.room, other.room),
            )
        ]  # fmt: skip
    return boards


def units_of(spec: ModelSpec, rows: int, wire: Wire, size: int) -> StageUnits:
    """Return what stages are made of; a unit has so many sub-layers."""
    wire = Wire.INT2 if wire is Wire.ADAPTIVE else wire
    per_layer = HALVES * len(spec.blocks)
    handed = [widths(spec, *divmod(end, per_layer)) for end in range(0, per_layer * spec.layers + 1, size)]
    return StageUnits(
        _units(np.tile(_sublayer_bytes(spec), spec.layers), size),
        np.array([rows * FLOAT_BYTES * sum(own) for own in handed], float),
        np.array([rows * sum(map(wire.row_bytes, own)) for own in handed], float),
    )


def best_stages(boards: list[Boards], units: StageUnits) -> ChosenStages | None:
    """Run the dynamic program.

    Returns
    -------
    (seconds, [(type, number of units), ...]) or None
        The bottleneck and the stages; None where the model does not fit.
    """
    comp = [_stage_seconds(board, units) for board in boards]
    comm = np.array([[units.sent / min(one.bandwidth, other.bandwidth) for other in boards] for one in boards])
    kinds, nothing = np.eye(len(boards), dtype=int).tolist(), np.zeros(len(boards))
    legs = [Leg(tuple(kinds[kind]), own, port=kind) for kind, own in enumerate(comp)]
    free = tuple(len(board.ranks) for board in boards)
    found = best_path(legs, free, comm, start=nothing, back=nothing, slowest=True)
    if found is None:
        return None
    return found.seconds, _least_sent([kind for kind, _ in found.legs], found.seconds, comp, comm, units)


def _least_sent(
    order: list[int], bottleneck: float, comp: list[Floats], comm: Floats, units: StageUnits
) -> list[tuple[int, int]]:
    """Return the stages on these types that send least, none slower than the bottleneck."""
    last = units.weights.size
    sent, begins = np.where(np.arange(last + 1) == 0, 0.0, np.inf), []
    for u, v in zip(order, [*order[1:], order[-1]], strict=True):
        sums = np.where(comp[u] <= bottleneck, sent[:, None], np.inf)
        begins.append(sums.argmin(0))
        sent = sums.min(0) + np.where(comm[u, v] <= bottleneck, units.sent, np.inf)
    stages, j = [], last
    for u, begin in zip(reversed(order), reversed(begins), strict=True):
        stages.append((u, j - int(begin[j])))
        j = int(begin[j])
    return stages[::-1]


def _stage_seconds(board: Boards, units: StageUnits) -> Floats:
    """Return the seconds of the units i..j on a board, [i, j]; infinite where they are none or do not fit."""
    done = np.concatenate([[0.0], np.cumsum(board.seconds)])
    held = np.concatenate([[0.0], np.cumsum(units.weights)])
    place = np.arange(done.size)
    buffers = units.lies * np.where(place > 0, BUFFERS + 1, 1)
    holds = held[None, :] - held[:, None] + buffers[:, None] + (BUFFERS + 1) * units.lies[None, :] <= board.room
    return np.where((place[None, :] > place[:, None]) & holds, done[None, :] - done[:, None], np.inf)


def _sublayer_bytes(spec: ModelSpec) -> list[int]:
    """Return the bytes of every sub-layer's weights, beside norms and last biases, which `weights_room` has counted."""
    return [
        sum(tensor.held_bytes() for tensor in block.shared if tensor.half(block.stream) == number)
        for block in spec.blocks
        for number in range(HALVES)
    ]


def _units(sublayers: Floats, size: int) -> Floats:
    return np.asarray(sublayers.reshape(-1, size).sum(1), float)


def _states(boards: list[Boards], units: int) -> int:
    """Return how many states the dynamic program has at most: what is used of every type, and the next."""
    types, devices = len(boards), sum(len(board.ranks) for board in boards)
    return types * min(
        math.prod(len(board.ranks) + 1 for board in boards), math.comb(min(devices, units) + types, types)
    )
