"""What a plan costs: seconds, bytes on the wire, bytes of memory. Every planner, table and test asks here.

The parts: `solver.curves` (seconds of a kernel), `solver.exchange` (seconds of an exchange), `solver.steps` (how the
two overlap), `solver.layers` (which steps a layer takes).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from solver.cluster import Cluster
from solver.curves import Bank, Floats, Kernel
from solver.errors import HeptiError
from solver.exchange import Network, of_matrix
from solver.layers import FLOAT_BYTES, LayerSteps, Rows, Setting, Shares
from solver.model import ImageInput, ModelSpec
from solver.plan import BlockPlan, Cut, LayerPlan, Plan, Prediction
from solver.shares import layer_slices, rank_slices
from solver.spans import Partition
from solver.steps import Axis, Step, Times, Transfer, message_seconds, step_times

# The interpreter, numpy, MPI and its socket buffers, beside weights and activations.
PROGRAM_BYTES = 150 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class PricedStep:
    """A step of the plan; `repeats` times in a row of layers, `layers` says which."""

    layers: str
    name: str
    repeats: int
    times: Times
    sent: Floats  # [p] bytes


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
    def prediction(self) -> Prediction:
        """What the plan file carries: the seconds of the slowest device's compute in every step, and the rest."""
        compute_s = math.fsum(step.repeats * float(step.times.compute.max()) for step in self.steps)
        on_wire = sum(step.repeats * int(step.sent.sum()) for step in self.steps)
        return Prediction(self.seconds, compute_s, self.seconds - compute_s, self.weights_bytes, on_wire)


def setting(spec: ModelSpec, cluster: Cluster, rows: int) -> Setting:
    """Prepare to price requests of `rows` rows."""
    return Setting(spec, Bank([device.kernels for device in cluster.devices]), Network.of(cluster), rows)


def predict(spec: ModelSpec, cluster: Cluster, plan: Plan, rows: int) -> Prediction:
    """Return what a request of `rows` rows costs under `plan`."""
    return price(setting(spec, cluster, rows), plan).prediction


def price(s: Setting, plan: Plan) -> Price:
    """Price a plan step by step.

    Raises
    ------
    HeptiError
        If the plan has several stages.
    """
    if len(plan.stages) > 1:
        raise HeptiError(f"the plan has {len(plan.stages)} stages: only plans of one stage can be priced so far")
    steps = [
        PricedStep(layers, step.name, repeats, step_times(step, {}, s.network), _sent(step))
        for layers, repeats, step in _plan_steps(s, plan)
    ]
    return Price(tuple(steps), tuple(weights_bytes(s.spec, plan, rank) for rank in range(len(plan.devices))))


def weights_bytes(spec: ModelSpec, plan: Plan, rank: int) -> int:
    """Return the float32 bytes that `rank` holds: `shares.weights_bytes`, but one layer of each run stands for all."""
    ends = (piece for piece in rank_slices(spec, plan, rank) if not piece.name.startswith("layers/"))
    runs = (
        span.size * sum(math.prod(piece.shape) for piece in layer_slices(spec, plan, span.start, rank))
        for stage in plan.stages
        for span, _ in stage.layers
    )
    return FLOAT_BYTES * (sum(math.prod(piece.shape) for piece in ends) + sum(runs))


def work_bytes(spec: ModelSpec, rows: int) -> int:
    """Return what a device needs besides weights, whatever its share: activations, exchange buffers, the program.

    At worst the stream as it was, gathered and summed, a summand and one being received ([S, H] each), and the larger
    of Q, K, V, context ([S, 4 H]) and the MLP's inner columns with a tile's temporaries ([S, F]).
    """
    return PROGRAM_BYTES + FLOAT_BYTES * rows * (5 * spec.hidden + max(4 * spec.hidden, spec.ffn))


def _plan_steps(s: Setting, plan: Plan) -> Iterator[tuple[str, int, Step]]:
    """Yield all steps of a request: where, how often in a row, which."""
    stage, devices = plan.stages[0], len(plan.devices)
    active = np.isin(np.arange(devices), stage.active)
    known: dict[Partition, Rows] = {}
    first = stage.layers[0][1].attention
    rows = _rows(first, s.rows, known) if first.cut is Cut.ROWS else None
    yield "start", 1, _enter(s, rows, active)
    for span, layer in stage.layers:
        label = f"layers {span.start}-{span.stop - 1}" if span.size > 1 else f"layer {span.start}"
        for repeats in (1, span.size - 1) if span.size > 1 else (1,):
            steps, rows = _layer_steps(s, layer, rows, active, known)
            yield from ((label, repeats, step) for step in steps)
    yield "end", 1, _leave(s, rows, active)


def _layer_steps(
    s: Setting, layer: LayerPlan, stream: Rows | None, active: np.ndarray, known: dict[Partition, Rows]
) -> tuple[list[Step], Rows | None]:
    building = LayerSteps(s, _shares(layer.attention, Axis.HEADS, Axis.CONTEXT, s.rows, active, known), stream)
    building.attention(layer.attention.cut, layer.attention.norm)
    building.shares = _shares(layer.mlp, Axis.FFN, Axis.OUTPUT, s.rows, active, known)
    building.mlp(layer.mlp.cut, layer.mlp.norm)
    return building.steps, building.stream


def _shares(
    block: BlockPlan, inner: Axis, output: Axis, S: int, active: np.ndarray, known: dict[Partition, Rows]
) -> Shares:
    values, takes = {}, {}
    partitions = ((Axis.ROWS, block.row_partition(S)), (inner, block.inner), (output, block.columns))
    for axis, partition in partitions:
        if partition is not None:
            counts = _counts(partition, known)
            values[axis], takes[axis] = counts.counts, counts.owners
    return Shares(values, takes, active)


def _rows(block: BlockPlan, S: int, known: dict[Partition, Rows]) -> Rows:
    partition = block.row_partition(S)
    assert partition is not None
    return _counts(partition, known)


def _counts(partition: Partition, known: dict[Partition, Rows]) -> Rows:
    """Return a partition's counts, the same array for the same partition: rows that lie so already need not move."""
    if partition not in known:
        counts = np.array(partition.counts, float)
        known[partition] = Rows(counts, counts > 0)
    return known[partition]


def _enter(s: Setting, rows: Rows | None, active: np.ndarray) -> Step:
    """Rank 0 embeds the request and sends every active device what its first block needs."""
    H, devices = s.spec.hidden, active.size
    source = s.spec.input
    if isinstance(source, ImageInput):
        weights = H * source.channels * source.patch**2
        embedding = s.bank.seconds(Kernel.PROJECT, np.full(devices, s.rows), weights)
    else:
        # Looked up, added and normalised: two passes over [S, H] more than the norm of a layer.
        embedding = 2 * s.bank.seconds(Kernel.NORM, np.full(devices, s.rows * H))
    root = np.arange(devices) == 0
    wanted = np.where(active, float(s.rows), 0.0) if rows is None else rows.counts
    moved = np.where(root[:, None] & ~root, FLOAT_BYTES * H * wanted, 0.0)
    return _move(s, "embed, hand out", moved, embedding * root)


def _leave(s: Setting, rows: Rows | None, active: np.ndarray) -> Step:
    """Rank 0 gathers the last hidden state; where all have it, from the first active device."""
    root = np.arange(active.size) == 0
    first = np.arange(active.size) == int(np.argmax(active))
    have = np.where(first, float(s.rows), 0.0) if rows is None else rows.counts
    moved = np.where(~root[:, None] & root, FLOAT_BYTES * s.spec.hidden * have[:, None], 0.0)
    return _move(s, "hand in", moved, np.zeros(active.size))


def _move(s: Setting, name: str, moved: Floats, before: Floats) -> Step:
    exchange = of_matrix(moved)
    nobody = np.zeros(moved.shape[0], bool)
    transfer = Transfer(False, Axis.FIXED, 0, nobody, nobody, lambda values: exchange)
    messages = {Axis.FIXED: message_seconds(exchange, s.bank)}
    return Step(name, {Axis.FIXED: before}, messages, {}, {}, transfer)


def _sent(step: Step) -> Floats:
    return np.zeros(1) if step.transfer is None else step.transfer.exchange({}).sent
