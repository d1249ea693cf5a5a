"""What a plan costs: seconds, bytes on the wire, bytes of memory. Every planner, table and test asks here.

The parts: `solver.curves` (seconds of a kernel), `solver.exchange` (seconds of an exchange), `solver.steps` (how the
two overlap), `solver.layers` (which steps a layer takes).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from solver.cluster import Cluster
from solver.curves import Bank, Floats, Kernel
from solver.decoupled import GroupSteps
from solver.errors import HeptiError, InfeasiblePlanError
from solver.exchange import Exchange, Mask, Network, of_matrix, tile_counts
from solver.layers import LayerSteps, Setting
from solver.model import ImageInput, ModelSpec, layer_tensor_shapes, tensor_shapes
from solver.plan import BlockPlan, Keys, LayerPlan, Plan, Prediction, Stage, Wire
from solver.shares import COMMON_TENSORS, WEIGHT_BYTES, held_bytes, layer_slices
from solver.spans import Partition, Span
from solver.steps import FLOAT_BYTES, Axis, Machine, Step, Times, Transfer, Values, step_times
from solver.sublayers import BLOCK, SUBLAYERS

MIB = 2**20
# The interpreter, numpy, MPI and its socket buffers, beside weights and activations.
PROGRAM_BYTES = 150 * MIB
SLIP_BYTES = 1  # that an integer program may be off
INT8_BYTES = 1.05  # that a weight takes in int8


@dataclass(frozen=True, slots=True, eq=False)
class PricedStep:
    """A step of the plan; `repeats` times in a row of layers, `layers` says which."""

    layers: str
    name: str
    repeats: int
    times: Times
    sent: Floats  # [p] bytes
    received: Floats  # [p] bytes


@dataclass(frozen=True, slots=True, eq=False)
class Price:
    """What a request costs, step by step."""

    steps: tuple[PricedStep, ...]
    weights_bytes: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Seconds of the whole request."""
        return math.fsum(step.repeats * float(step.times.end.max()) for step in self.steps)

    @property
    def compute_s(self) -> Floats:
        """Seconds that every device computes, [p]."""
        return np.asarray(sum(step.repeats * step.times.compute for step in self.steps))

    @property
    def exchange_s(self) -> Floats:
        """Seconds that every device waits for an exchange that its compute does not hide, [p]."""
        waits = (
            step.repeats * np.minimum(step.times.end - step.times.compute, step.times.exchange) for step in self.steps
        )
        return np.asarray(sum(waits))

    @property
    def idle_s(self) -> Floats:
        """Seconds that every device waits for slower ones, [p]."""
        return np.asarray(self.seconds - self.compute_s - self.exchange_s)

    @property
    def moved_bytes(self) -> Floats:
        """Bytes that every device sends, or receives where that is more, [p]."""
        sent = sum(step.repeats * step.sent for step in self.steps)
        return np.maximum(sent, sum(step.repeats * step.received for step in self.steps))

    @property
    def prediction(self) -> Prediction:
        """What the plan file carries: the seconds of the slowest device's compute in every step, and the rest."""
        compute_s = math.fsum(step.repeats * float(step.times.compute.max()) for step in self.steps)
        on_wire = sum(step.repeats * round(float(step.sent.sum())) for step in self.steps)
        return Prediction(self.seconds, compute_s, self.seconds - compute_s, self.weights_bytes, on_wire)


def setting(spec: ModelSpec, cluster: Cluster, rows: int, wire: Wire = Wire.FLOAT32, tile_rows: int = 0) -> Setting:
    """Prepare to price requests of `rows` rows."""
    devices = cluster.devices
    jitter, rest = (np.array(seconds) for seconds in zip(*((d.jitter_s, d.rest_s) for d in devices), strict=True))
    machine = Machine(Bank([device.kernels for device in devices]), Network.of(cluster), jitter, rest)
    return Setting(spec, machine, rows, wire, tile_rows, cluster.precision)


def predict(spec: ModelSpec, cluster: Cluster, plan: Plan, rows: int) -> Prediction:
    """Return what a request of `rows` rows costs under `plan`."""
    return price(setting(spec, cluster, rows), plan).prediction


def price(s: Setting, plan: Plan) -> Price:
    """Price a plan step by step, with its own tiles and wire.

    Raises
    ------
    HeptiError
        If the plan has several stages, or its stage not all devices: `solver.pipeline` prices these.
    """
    steps, active = _priced_steps(s, plan), plan.stages[0].active
    # Of 1024 devices 974 may have no share, and hold the same: counting it for each took an eighth of the planning.
    idle = next((rank for rank in range(1, s.devices) if rank not in active), 0)
    held = {rank: weights_bytes(s.spec, plan, rank, s.precision) for rank in (0, idle, *active)}
    return Price(steps, tuple(held.get(rank, held[idle]) for rank in range(s.devices)))


def plan_seconds(s: Setting, plan: Plan) -> float:
    """Return the seconds of a request; errors as in `price`, which of 1024 devices takes longer over weights."""
    return Price(_priced_steps(s, plan), ()).seconds


def _priced_steps(s: Setting, plan: Plan) -> tuple[PricedStep, ...]:
    if not plan.in_one:
        raise HeptiError(f"the plan has {len(plan.stages)} stages, or not all devices in one: price it as a pipeline")
    s = replace(s, wire=plan.wire, tile_rows=plan.tile_rows)
    active = np.isin(np.arange(s.devices), plan.stages[0].active)
    return tuple(
        PricedStep(layers, step.name, repeats, step_times(step, {}, active, s.machine), *_moved(step, active))
        for layers, repeats, step in _plan_steps(s, plan, active)
    )


def weights_bytes(spec: ModelSpec, plan: Plan, rank: int, precision: str = "float32") -> int:
    """Return the bytes that `rank` holds: `shares.weights_bytes`, but one layer of each run stands for all."""
    place = plan.place(rank)
    runs = (
        count * sum(held_bytes(piece, precision) for piece in layer_slices(spec, plan, number, rank))
        for number, count, _ in (_alike(place[0]) if place else ())
    )
    return sum(runs) + (ends_bytes(spec) if rank == 0 else 0)


def _alike(stage: Stage) -> Iterator[tuple[int, int, LayerPlan]]:
    """Yield runs of layers that cost the same: the first of them, how many, and their cuts."""
    ends = () if stage.is_whole else (stage.span.start + 1, stage.span.stop - 1)
    for span, layer in stage.layers:
        stops = sorted({span.start, span.stop, *(end for end in ends if span.start < end < span.stop)})
        yield from ((start, stop - start, layer) for start, stop in pairwise(stops))


def ends_bytes(spec: ModelSpec) -> int:
    """Return the float32 bytes of embeddings and heads, which rank 0 holds."""
    shapes = tensor_shapes(spec)
    return FLOAT_BYTES * sum(math.prod(shape) for name, shape in shapes.items() if not name.startswith("layers/"))


def work_bytes(spec: ModelSpec, rows: int) -> int:
    """Return what a device needs besides weights, whatever its share: activations, exchange buffers, the program.

    At worst the stream as it was, gathered and summed, a summand and one being received ([S, H] each), and the larger
    of Q, K, V, context ([S, 4 H]) and the MLP's inner columns with a tile's temporaries ([S, F]).
    """
    ffn = spec.sub_block.ffn if spec.groups else spec.ffn
    return PROGRAM_BYTES + FLOAT_BYTES * rows * (5 * spec.hidden + max(4 * spec.hidden, ffn))


def loading(spec: ModelSpec, precision: str) -> float:
    """Return how many bytes of memory a layer's weight takes of every byte that is held of it, at most.

    In int8 scales and sessions come on top, 1.04 bytes a weight of bert-large, and while a rank loads, one layer more
    lies there in float32 than where it computes in that: of twelve layers 491 MiB at most and 400 then, where those of
    float32 took 889 and 828.
    """
    return 1.0 if precision == "float32" else INT8_BYTES + 3 / spec.layers


def needed_bytes(spec: ModelSpec, cluster: Cluster, rows: int, weights_bytes: Sequence[int]) -> Floats:
    """Return the memory that devices need to hold and use these weights, [p]."""
    held, ends = np.array(weights_bytes, float), np.zeros(len(weights_bytes))
    ends[0] = min(ends_bytes(spec), held[0])
    return (held - ends) * loading(spec, cluster.precision) + ends + work_bytes(spec, rows)


def short_bytes(spec: ModelSpec, cluster: Cluster, plan: Plan, weights_bytes: Sequence[int]) -> Floats:
    """Return the bytes of memory that devices lack for a plan, [p]; 0 where they suffice, and for who takes no part."""
    memory = np.array([float(device.memory_bytes) for device in cluster.devices])
    short = needed_bytes(spec, cluster, plan.rows, weights_bytes) - memory
    taking = [rank for stage in plan.stages for rank in np.array(plan.ranks(stage))[list(stage.active)]]
    # Rank 0 has embeddings and heads, whatever else.
    return np.where(np.isin(np.arange(memory.size), [0, *taking]), np.maximum(short, 0.0), 0.0)


def lacks(spec: ModelSpec, cluster: Cluster, plan: Plan, weights_bytes: Sequence[int]) -> str:
    """Return what memory a plan lacks, in words; "" where it fits."""
    short = short_bytes(spec, cluster, plan, weights_bytes)
    for name, missing in zip(cluster.names, short, strict=True):
        if missing > SLIP_BYTES:
            return f"{name}: {math.ceil(missing / MIB)} MiB short"
    return ""


def does_not_fit(what: str, cluster: Cluster, short_bytes: Floats) -> InfeasiblePlanError:
    """Return the error that says how much memory `what` lacks, `short_bytes` [p], and where more would help."""
    missing = [
        f"{math.ceil(short / MIB)} MiB more on {device.name} (has {device.memory_bytes // MIB})"
        for device, short in zip(cluster.devices, short_bytes, strict=True)
        if short > SLIP_BYTES
    ]
    total = math.ceil(short_bytes.sum() / MIB)
    return InfeasiblePlanError(f"{what} does not fit: {total} MiB short; it would with {' and '.join(missing)}")


def packing(spec: ModelSpec, cluster: Cluster) -> float:
    """Return how many bytes of a layer's weights in float32, as planners count them, fit into one byte of memory."""
    return FLOAT_BYTES / (WEIGHT_BYTES[cluster.precision] * loading(spec, cluster.precision))


def weights_room(spec: ModelSpec, cluster: Cluster, rows: int) -> Floats:
    """Return the bytes that every device has for shares of layers, [p]; below zero where it lacks what comes before.

    They are bytes of float32 weights, whatever these are held in. Before them come activations, buffers and the
    program, the norms of all original layers, and on rank 0 embeddings and heads.
    """
    shapes = layer_tensor_shapes(spec.hidden, spec.ffn)
    common = sum(math.prod(shape) for name, shape in shapes.items() if name.endswith(COMMON_TENSORS))
    room = np.array([float(device.memory_bytes) for device in cluster.devices])
    room -= work_bytes(spec, rows) + FLOAT_BYTES * (spec.groups or spec.layers) * common
    room[0] -= ends_bytes(spec)
    return room * packing(spec, cluster)


def _plan_steps(s: Setting, plan: Plan, active: Mask) -> Iterator[tuple[str, int, Step]]:
    """Yield all steps of a request: where, how often in a row, which."""
    stage = plan.stages[0]
    known: dict[Partition, Floats] = {}
    first = _values(stage.first, Axis.HEADS, Axis.CONTEXT, s.rows, known)
    building = LayerSteps(s, first, first.get(Axis.ROWS), active)
    groups = GroupSteps(s, building, active) if s.spec.groups else None
    yield "start", 1, _enter(s, building.stream, active)
    for number, count, layer in _alike(stage):
        label = f"layers {number}-{number + count - 1}" if count > 1 else f"layer {number}"
        attention = _values(layer.attention, Axis.HEADS, Axis.CONTEXT, s.rows, known)
        mlp = _values(layer.mlp, Axis.FFN, Axis.OUTPUT, s.rows, known)
        part = stage.part(number)
        if groups is not None and groups.has_layers(count, layer.attention, attention.get(Axis.ROWS)):
            yield from ((label, 1, step) for step in building.taken())
            continue
        # The first layer of a run finds the stream as others left it, all others of the run as it does itself.
        for repeats in (1, count - 1)[:count]:
            if (halves := part.intersect(Span(0, BLOCK))).size:
                building.values, building.route = attention, layer.attention.route
                building.attention(layer.attention.cut, layer.attention.norm, halves, _avoids(layer.attention))
            if (halves := part.intersect(Span(BLOCK, SUBLAYERS))).size:
                building.values, building.route = mlp, layer.mlp.route
                building.mlp(layer.mlp.cut, layer.mlp.norm, halves.within(Span(BLOCK, SUBLAYERS)))
            yield from ((label, repeats, step) for step in building.taken())
    building.send("hand in", _hand_in(s, building.stream, active))
    yield from (("end", 1, step) for step in building.taken())


def _avoids(block: BlockPlan) -> Mask | None:
    """Return who avoids K and V, [p]; None where these are gathered."""
    return None if block.keys is None else np.array([way is Keys.AVOIDED for way in block.keys])


def _values(block: BlockPlan, inner: Axis, output: Axis, S: int, known: dict[Partition, Floats]) -> Values:
    """Return a block's shares; the same array for the same partition, since rows that lie so already need not move."""
    partitions = {Axis.ROWS: block.row_partition(S), inner: block.inner, output: block.columns}
    return {
        axis: known.setdefault(partition, np.array(partition.counts, float))
        for axis, partition in partitions.items()
        if partition is not None
    }


def _enter(s: Setting, stream: Floats | None, active: Mask) -> Step:
    """Rank 0 embeds the request and sends every active device its rows of the first block, or all rows."""
    H, source, every = s.spec.hidden, s.spec.input, np.ones(s.devices)
    if isinstance(source, ImageInput):
        embedding = s.machine.bank.seconds(Kernel.PROJECT, s.rows * every, H * source.channels * source.patch**2)
    else:
        # Looked up, added and normalised: about as long as two norms of a layer.
        embedding = 2 * s.machine.bank.seconds(Kernel.NORM, s.rows * H * every)
    root = np.arange(s.devices) == 0
    wanted = s.rows * active if stream is None else stream
    moved = of_matrix(s.row_bytes(H) * wanted * (root[:, None] & ~root))
    # Rank 0 embeds also where it takes no part in the layers.
    embed = {Axis.ROWS: embedding * root}
    return Step("embed, hand out", embed, embed, transfer=Transfer(lambda values, active: moved, wire=s.wire))


def _hand_in(s: Setting, stream: Floats | None, active: Mask) -> Exchange:
    """Rank 0 gathers the last hidden state; where all have it, from the first active device."""
    root = np.arange(s.devices) == 0
    have = s.rows * (np.arange(s.devices) == np.argmax(active)) if stream is None else stream
    moved = s.row_bytes(s.spec.hidden) * have[:, None] * (~root[:, None] & root)
    return of_matrix(moved, tile_counts(have.astype(float), s.tile_rows if stream is not None else 0))


def _moved(step: Step, active: Mask) -> tuple[Floats, Floats]:
    if step.transfer is None:
        return np.zeros(active.size), np.zeros(active.size)
    exchange = step.transfer.exchange({}, active)
    return exchange.sent, exchange.received
