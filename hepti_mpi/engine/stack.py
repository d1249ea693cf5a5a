"""The layers of one model, split over the ranks as a plan says: what a batch passes through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from hepti_mpi.base.memory import give_back
from hepti_mpi.comm.adaptive import Adaptive, SendRate, to_ranks
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.rows import Tiles, gather_rows, whole
from hepti_mpi.comm.trace import Trace
from hepti_mpi.comm.wires import EXACT, Coding, coding
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.encoder import Look, StageShare
from hepti_mpi.engine.layers import LayerKernels
from hepti_mpi.engine.replica import ReplicaPath
from hepti_mpi.kernels.products import Backend
from solver.base import clock
from solver.base.arrays import FLOAT_BYTES, Array
from solver.base.spans import Partition
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan, Wire

# Carries a batch on. Yields the hop before which, or within which, it stands and what says that others' rows that it
# needs there have come, None where it needs nobody's; returns the rows that this rank ends with.
Carrying = Generator[tuple[int, Callable[[], bool] | None], None, Array]

# In a message between stages: what is larger than MPI's eager limit, 8 MiB, does not travel before the next stage asks
# for it, and that computes. The inner columns of 512 rows of bert-large are: a stage waited 90 of 490 ms for them.
MOVED_FLOATS = (4 << 20) // FLOAT_BYTES


@dataclass(frozen=True, slots=True)
class PlanOrder:
    """Rank 0's word to the others: from now on batches run under this plan.

    Parameters
    ----------
    plan
        Among those that were loaded, or one of them with other shares of rows.
    number
        Which of those that were loaded has its weights.
    stays
        Whether the weights of the others are freed.
    """

    plan: Plan
    number: int = 0
    stays: bool = False


@dataclass(slots=True)
class Meter:
    """What a rank did in the batches that count."""

    compute_s: float = 0.0
    wait_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    kernel_s: float = 0.0  # of what it computed; the rest is the engine's own
    batches_by_bits: Counter[int] = field(default_factory=Counter)  # sent to other stages: bits of their numbers

    def add(self, other: Meter) -> None:
        """Add what another one counted."""
        self.compute_s += other.compute_s
        self.wait_s += other.wait_s
        self.sent_bytes += other.sent_bytes
        self.received_bytes += other.received_bytes
        self.kernel_s += other.kernel_s
        self.batches_by_bits += other.batches_by_bits

    def to_table(self) -> dict[str, float]:
        """Return all sums but those by bits, as reports have them."""
        names = ("compute_s", "kernel_s", "wait_s", "sent_bytes", "received_bytes")
        return {name: getattr(self, name) for name in names}


@contextmanager
def metered(
    group: Group, meters: Sequence[Meter], trace: Trace | None = None, *, begins: bool = True
) -> Iterator[Meter]:
    """Count what is done within, until the end or an error; gives what it was, when it has ended.

    Parameters
    ----------
    meters
        Count it, too.
    trace
        Records it; with what `begins`, it begins.
    """
    spent, started, traffic = Meter(), clock.now(), group.traffic
    traffic.reset()
    traffic.trace = trace
    if trace is not None and begins:
        trace.begin()
    try:
        yield spent
    finally:
        traffic.trace = None  # waits of others' business are in no trace
        if trace is not None:
            trace.end()
        wait_s, sent, received = traffic.wait_s, traffic.sent_bytes, traffic.received_bytes
        spent.add(Meter(clock.now() - started - wait_s, wait_s, sent, received, traffic.kernel_s))
        for meter in meters:
            meter.add(spent)


class Stack:
    """The rank's part of the layers, and the ranks that share them.

    Parameters
    ----------
    spec
        The model.
    plan
        Who computes what, checked against model and ranks.
    layers
        This rank's share of every layer of its stage.
    world
        All ranks; those without a share take no part in the layers.
    backend
        What made the layers' products, and attends.
    """

    def __init__(
        self,
        spec: ModelSpec,
        plan: Plan,
        layers: Sequence[LayerKernels],
        world: Group,
        backend: Backend,
    ) -> None:
        self.meter = Meter()
        self.last = Meter()  # of the batch that began last, whether it counts or not
        self.trace: Trace | None = None  # records the last batch that counts, where one is asked for
        self._spec = spec
        self._world = world
        self._backend = backend
        self._wire = plan.wire
        self._within_stages = coding(plan.wire.within, backend.cast)
        self._connections = to_ranks(world) if plan.wire is Wire.ADAPTIVE else {}
        self._bits: Counter[int] = Counter()  # as in `Meter`, since it was asked
        self._metered_since = 0.0
        self._groups: dict[tuple[int, ...], Group | None] = {}  # one for every set of ranks that ever shared a stage
        self.loaded: Mapping[int, Sequence[LayerKernels]] = {}  # by the number of the plan they are for
        self.number = 0  # of these plans
        self.adopt(plan, layers)

    def follow(self, order: PlanOrder) -> None:
        """Go on as rank 0 says; all ranks call this, between the same two batches."""
        self.number = order.number
        if order.stays:
            self.loaded = {order.number: self.loaded[order.number]}
            give_back()
        self.adopt(order.plan, self.loaded[order.number])

    def adopt(self, plan: Plan, layers: Sequence[LayerKernels]) -> None:
        """Go on with another plan and this rank's share under it; all ranks call this, between the same two batches."""
        self.plan = plan
        self.layers = tuple(layers)
        self.paths = tuple(ReplicaPath(plan, replica) for replica in plan.replicas)
        self._between_stages = {path: self._coding_between(path) for path in self.paths}
        rank = self._world.rank
        self._path = next((path for path in self.paths if rank in path.ranks), None)
        self._share: StageShare | None = None
        self._group: Group | None = None
        # Making a group takes every rank: all make all, and keep their own.
        for path in self.paths:
            for stage, ranks in zip(path.stages, path.active, strict=True):
                if ranks not in self._groups:
                    self._groups[ranks] = self._world.subgroup(ranks)
                if rank in ranks:
                    self._group = self._groups[ranks]
                    self._share = StageShare(self._spec, plan, stage, stage.active, self.layers)

    @property
    def active(self) -> bool:
        """Whether this rank has a share."""
        return self._path is not None

    @property
    def so_far(self) -> tuple[float, float]:
        """Seconds of compute and of waiting since the batch that runs began, of one that goes through in one go."""
        wait_s = self._world.traffic.wait_s
        return clock.now() - self._metered_since - wait_s, wait_s

    def run(
        self, batch: Batch, x: Array | None, *, count: bool, exact: bool = False, look: Look | None = None
    ) -> Array:
        """Carry a batch through this rank's replica, rank 0 through the first, from beginning to end.

        Every rank of the replica calls this, and rank 0; for others nothing happens.

        Parameters
        ----------
        batch
            The requests' row counts.
        x : [S, H]
            The embedded rows, on rank 0; None on the others.
        count
            Whether the meter counts this batch.
        exact
            Whether numbers travel as they are, whatever the coding.
        look
            Says whether the plan changes on the way: to one of one stage, under which nobody else has a share.

        Returns
        -------
        [S, H] on rank 0, [0, H] on the others
        """
        path = self.paths[0] if self._world.rank == 0 else self._path
        with self.metered(count):
            if path is None:
                return self._or_nothing(None)
            carrying = self.carry(path, batch, x, exact=exact, look=look)
            while True:
                try:
                    next(carrying)
                except StopIteration as end:
                    hidden: Array = end.value
                    break
            # Between stages nobody waits until a batch has left: the next stage may still be busy with those before.
            if len(path.stages) == 1:
                self._world.finish_sending()
        return hidden

    def carry(
        self, path: ReplicaPath, batch: Batch, x: Array | None, *, exact: bool = False, look: Look | None = None
    ) -> Carrying:
        """Carry a batch through a replica as far as this rank takes part in it.

        Whoever advances it may do so at once, and waits then, or only when what it yields says that something is here.
        No batch passes a hop before those that came before it. Where this rank is alone in its stage, it yields after
        every layer, too. Arguments as in `run`.
        """
        rank, rows = self._world.rank, batch.rows
        mine, between = path.stage_of(rank), EXACT if exact else self._between_stages[path]
        here = x_out = self._or_nothing(x)
        for hop in path.hops_of(rank):
            if hop and hop in (mine, path.hops - 1):
                source = path.source(hop, rows, rank)
                yield hop, None if source is None else partial(self._world.has_rows, source)
            self._world.coding = between
            here = self._hop(path, hop, rows, x_out)
            x_out = self._or_nothing(None)
            if hop == mine:
                assert self._group is not None
                assert self._share is not None
                coding = EXACT if exact else self._within_stages
                computing = self._share.run(here, batch, self._group, coding, self._backend, look)
                worked_s, ends = 0.0, False
                # The batch before goes on to the next stage, and the next one comes.
                with self._world.moving() if len(path.stages) > 1 else nullcontext():
                    while not ends:
                        started = clock.now()
                        try:
                            next(computing)
                        except StopIteration as end:
                            (x_out, plan), ends = end.value, True
                        worked_s += clock.now() - started
                        if not ends:
                            yield hop, None
                if isinstance(between, Adaptive):
                    between.worked(worked_s, rows)
                if plan is not self.plan:
                    path = ReplicaPath(plan, plan.stages)  # it says where the rows are in the end
        if isinstance(between, Adaptive):
            between.sent(rows)
        return here

    @contextmanager
    def metered(self, count: bool, *, begins: bool = True) -> Iterator[None]:
        """Count what is done within if it counts; with what begins a batch, its trace begins."""
        if begins:
            self.last = Meter()
        meters, trace = ([self.last, self.meter], self.trace) if count else ([self.last], None)
        with metered(self._world, meters, trace, begins=begins) as spent:
            self._metered_since = clock.now()
            try:
                yield
            finally:
                spent.batches_by_bits, self._bits = self._bits, Counter()

    def _hop(self, path: ReplicaPath, hop: int, rows: int, x: Array) -> Array:
        """Send what this rank has of the rows, and return those that it needs next."""
        have, world = path.have(hop, rows), self._world
        coding, traffic = world.coding, world.traffic
        bits, before = coding.bits, traffic.sent_bytes
        tensors = Partition.of_counts(path.widths(self._spec, hop))
        if coding is EXACT:  # as they lie: taking apart and joining 10 MiB would be 4 % of a stage
            tensors = Partition.of_counts([tensors.total])
        if not have[world.rank].size:
            x = np.empty((0, tensors.total), np.float32)  # where all have all, the first of them sends it
        # A tensor is coded, and has its bounds, by itself.
        want = path.want(hop, rows)
        moved = [
            whole(gather_rows(world, Tiles.here(x[:, columns.slice]), have, want, MOVED_FLOATS // columns.size or 1))
            for columns in tensors
        ]
        here = moved[0] if len(moved) == 1 else np.concatenate(moved, axis=1)
        if traffic.sent_bytes > before:
            self._bits[bits] += 1
        if isinstance(coding, Adaptive):
            traffic.received_bytes -= coding.spare_bytes
            coding.spare_bytes = 0
        return here

    def _coding_between(self, path: ReplicaPath) -> Coding:
        if self._wire is not Wire.ADAPTIVE:
            return coding(self._wire, self._backend.cast)
        peers = path.receivers(self._world.rank)
        return Adaptive(
            self._backend.cast, SendRate({ends for ends, peer in self._connections.items() if peer in peers})
        )

    def _or_nothing(self, x: Array | None) -> Array:
        return np.empty((0, self._spec.hidden), np.float32) if x is None else x
