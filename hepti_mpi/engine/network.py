"""A convolutional network on a rank: segment by segment, what it needs comes, it computes, and others need of that.

The steps are those that the solver prices (`solver.schedule.networks.steps`); a byte is sent in `comm.exchange`, a
convolution is computed in `kernels.slab`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np

from hepti_mpi.base.lacking import Lacking
from hepti_mpi.base.memory import free_bytes, give_back
from hepti_mpi.comm.exchange import InBox, Item, RankExchange
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.trace import Trace
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.load import Done, Preparation, WeightsSource
from hepti_mpi.engine.stack import Carrying, Meter
from hepti_mpi.engine.steps import Look
from hepti_mpi.engine.tiles import TileTasks
from hepti_mpi.kernels.slab import Bind, MakeBind, PieceGraph, Placed, Shared, Slab, boxed, placed, session, shape_of
from solver.base import clock
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span
from solver.model.convnet import NOTHING, ConvNet
from solver.plan.holdings import TensorSlice
from solver.plan.layout import Layout
from solver.plan.segments import THROUGHPUT, SegmentPlan
from solver.schedule.networks.pieces import Piece, map_box, pieces_of
from solver.schedule.networks.steps import exchanges_of, handed_in, image_on_root, unrolled
from solver.schedule.schedule import ExchangeStep

_NONE = np.empty(0, np.float32)
ROOM = 3  # times what a rank reads has to be free, or it keeps nothing of it: graphs have copies of their own


@dataclass(frozen=True, slots=True)
class ImageOrder:
    """Rank 0's word to the others: compute an image.

    Parameters
    ----------
    counts
        Whether the image counts in the report.
    tell
        Whether ranks tell how long they computed.
    number
        Under which of the plans that ranks hold.
    """

    counts: bool = True
    tell: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class PreparePlan:
    """Rank 0's word: get what this plan needs, now and after images, for `budget_s` seconds each time."""

    plan: SegmentPlan
    budget_s: float


@dataclass(frozen=True, slots=True)
class HoldPlan:
    """Rank 0's word: from here on hold this one alone of your plans; the last is the one that was prepared."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class RankStep:
    """What a rank does of a segment: an exchange, and the pieces that it computes behind it."""

    name: str
    exchange: RankExchange
    slabs: Sequence[Slab | TileTasks]


class NetworkShare:
    """A rank's share of a convolutional network under a plan.

    Parameters
    ----------
    net, plan
        The network, and who computes what of it.
    group
        All ranks.
    make
        Makes graphs ready to run, by the backend that computes here.
    before
        Shares that are there: graphs that are the same are taken over, and tensors that they have kept.

    Attributes
    ----------
    ready
        Graphs that are ready to run, by their keys; it runs when it has all of them (`lacking`), and they are bound.
    tensors
        Slices of tensors as they were read: of graphs that are still to be made, and those that are kept.
    """

    def __init__(
        self, net: ConvNet, plan: SegmentPlan, group: Group, make: MakeBind = session,
        before: Sequence[NetworkShare] = (),
    ) -> None:  # fmt: skip
        self.plan, self.meter, self._group, self._make = plan, Meter(), group, make
        self.trace: Trace | None = None  # records the last image that counts, where one is asked for
        rank = group.rank
        self.image: Numbers = np.empty(net.shapes[net.input] if rank == 0 else 0, np.uint8)
        have: list[Placed] = [{net.input: (net.extent(net.input), self.image)}] if rank == 0 else []
        held = image_on_root(net, group.size)
        self._steps: list[RankStep] = []
        for shares in unrolled(net, plan):
            adds = any(own.partial for own in shares.before.values())  # to zeros: not where a summand lies
            slabs: Sequence[Slab | TileTasks] = (
                [TileTasks(net, shares, group)]
                if shares.tiles
                else [Slab(net, piece, Shared({} if adds else _lies(have, piece))) for piece in pieces_of(shares, rank)]
            )
            steps = exchanges_of(shares.before, shares.needs)
            exchange = _exchange(net, group, steps, have, [slab.needs for slab in slabs])
            self._steps.append(RankStep(_name(net, shares.segment.nodes), exchange, slabs))
            have, held = [slab.leaves for slab in slabs], {**shares.after}
        needs = handed_in(net, group.size)
        boxes = {value: map_box(region, (0, rank)) for value, region in needs.items()}
        self.outputs: dict[str, Array] = {
            value: np.empty(shape_of(net, value, box), np.float32) for value, box in boxes.items() if box.size
        }
        places = [{value: (boxes[value], array) for value, array in self.outputs.items()}]
        self._steps.append(RankStep("", _exchange(net, group, exchanges_of(held, needs), have, places), ()))
        graphs = {graph.key: graph for step in self._steps for slab in step.slabs for graph in slab.graphs}
        self.ready: dict[bytes, Bind] = {
            key: own for share in before for key, own in share.ready.items() if key in graphs
        }
        slices = {piece for graph in graphs.values() for piece in graph.slices}
        self.tensors: dict[TensorSlice, Numbers] = {
            piece: own for share in before for piece, own in share.tensors.items() if piece in slices
        }
        self._lacking = [graph for key, graph in graphs.items() if key not in self.ready]

    def lacking(self, type_of: Callable[[str], np.dtype[np.generic]], *, keeps: bool = False) -> Iterator[Lacking]:
        """Yield what is lacking, graph by graph; then it can run.

        Parameters
        ----------
        type_of
            Says what a tensor is read as.
        keeps
            Whether tensors stay as they were read, for the share that follows this one; where memory is short they are
            read again, then.
        """
        left = Counter(piece for graph in self._lacking for piece in graph.slices)  # graphs that need a slice
        sizes = [type_of(piece.name).itemsize * math.prod(piece.shape) for piece in left if piece not in self.tensors]
        keeps = keeps and free_bytes() > ROOM * sum(sizes)
        for graph in self._lacking:
            new = {p: np.empty(p.shape, type_of(p.name)) for p in graph.slices if p not in self.tensors}
            self.tensors |= new
            yield Lacking([*new.items()], partial(self._made, graph, left, keeps=keeps))
        yield Lacking((), self._bind)

    def _bind(self) -> None:
        """Bind all graphs, which are ready."""
        slabs = [slab for step in self._steps for slab in step.slabs]
        for slab in slabs:
            slab.bind(self.ready)
        for slab in (slab for slab in slabs if isinstance(slab, Slab)):
            slab.warm()
        self._lacking = []

    def _made(self, graph: PieceGraph, left: Counter[TensorSlice], *, keeps: bool) -> None:
        """Make a graph of tensors that are there; free those that no other needs."""
        self.ready[graph.key] = graph.made(self._make, self.tensors.__getitem__)
        left.subtract(graph.slices)
        if not keeps:
            self.tensors = {piece: own for piece, own in self.tensors.items() if left[piece]}

    def run(self, *, counts: bool = True) -> float:
        """Compute `outputs` of `image`, both on rank 0; every rank calls this. Where it counts, `meter` counts it.

        Return the seconds that this rank computed.
        """
        with metered(self.meter if counts else Meter(), self._group, self.trace if counts else None) as spent:
            self.compute()
        return spent.compute_s

    def compute(self) -> None:
        """Compute as `run` does, without counting it."""
        group = self._group
        self.begin()
        for number, step in enumerate(self._steps):
            step.exchange.finish()
            if step is self._steps[-1]:
                break
            following = self._steps[number + 1].exchange
            following.post()
            trace = group.traffic.trace
            with nullcontext() if trace is None else trace.block(step.name):
                for piece, slab in enumerate(step.slabs):
                    slab.run()
                    following.send(piece)

    def begin(self) -> None:
        """Send what others need of `image`, and post the receives of what this rank needs."""
        exchange = self._steps[0].exchange
        exchange.post()
        for piece in range(exchange.pieces):
            exchange.send(piece)

    def has_outputs(self) -> bool:
        """Return whether the outputs are here of the image that was begun first; on a rank that computes nothing."""
        return self._steps[-1].exchange.here()

    def take_outputs(self) -> None:
        """Take them."""
        self._steps[-1].exchange.finish()


@contextmanager
def metered(meter: Meter, group: Group, trace: Trace | None = None) -> Iterator[Meter]:
    """Count what is done within, and record it where there is a trace; gives what it was, when it has ended."""
    spent, started = Meter(), clock.now()
    group.traffic.reset()
    group.traffic.trace = trace
    if trace is not None:
        trace.begin()
    try:
        yield spent
    finally:
        group.traffic.trace = None
        if trace is not None:
            trace.end()
        traffic = group.traffic
        wait_s, sent, received = traffic.wait_s, traffic.sent_bytes, traffic.received_bytes
        spent.add(Meter(clock.now() - started - wait_s, wait_s, sent, received))
        meter.add(spent)


class HeldPlans:
    """A rank's shares of all plans for which ranks hold weights; what they count is one sum.

    Parameters
    ----------
    new
        Makes a share of a plan, beside those that are there.
    source
        Where weights come from.
    trace
        Records the last image that counts; None: nothing does.
    changes
        Whether other plans may come.

    Attributes
    ----------
    preparation
        What is done for one between images.
    """

    def __init__(
        self, new: Callable[[SegmentPlan, Sequence[NetworkShare]], NetworkShare], source: WeightsSource,
        trace: Trace | None = None, *, changes: bool = False,
    ) -> None:  # fmt: skip
        self._new, self._source, self._trace, self._changes = new, source, trace, changes
        self._held: list[NetworkShare] = []
        self._meter, self.preparation = Meter(), Preparation(source)

    @property
    def all(self) -> Sequence[NetworkShare]:
        """All shares, by the plans' numbers: the first to run in front, one that is being prepared as the last."""
        return self._held

    def own(self, rank: int) -> NetworkShare:
        """Return the share of the replica that a rank is in; where there are none, of the plan that runs first."""
        replicas = (share for share in self._held if share.plan.system == THROUGHPUT and rank in share.plan.active)
        return next(replicas, self._held[0])

    def of(self, number: int) -> NetworkShare:
        """Return the share of a plan."""
        return self._held[number]

    def load(self, plan: SegmentPlan, bar: AbstractContextManager[Done] | None = None) -> None:
        """Hold a plan, too; a step of all ranks. `bar` as in `WeightsSource.complete`."""
        self._source.complete(self._begun(plan), bar)

    def change(self, order: PreparePlan | HoldPlan) -> None:
        """Do what rank 0 says about plans."""
        if isinstance(order, PreparePlan):
            self.preparation.begin(self._begun(order.plan), order.budget_s)
            self.preparation.work()
        else:
            self._held = [self._held[order.number]]
            give_back()

    def _begun(self, plan: SegmentPlan) -> Iterator[Lacking]:
        """Begin to hold a plan; return what is lacking."""
        share = self._new(plan, self._held)
        share.meter, share.trace = self._meter, self._trace
        self._held.append(share)
        return share.lacking(self._source.type_of, keeps=self._changes)


@dataclass(frozen=True, slots=True, eq=False)
class NetworkReplica:
    """The ranks that share every image that `engine.flow` deals out to them; hop 0 brings it, hop 1 its outputs."""

    share: NetworkShare
    ranks: tuple[int, ...]
    stages: tuple[None, ...] = (None,)  # one
    hops: int = 2

    def stage_of(self, rank: int) -> int | None:
        """Return the number of the stage in which a rank has a share; None where it has none."""
        return 0 if rank in self.ranks else None


class NetworkReplicas:
    """Rank 0's part of replicas: each has its own plan, of which no two have a rank in common.

    Parameters
    ----------
    held
        This rank's shares of all plans.
    group
        All ranks.
    """

    def __init__(self, held: HeldPlans, group: Group) -> None:
        self.paths = tuple(NetworkReplica(share, share.plan.active) for share in held.all)
        self._meter, self._group = held.of(0).meter, group

    def carry(
        self, path: NetworkReplica, batch: Batch, x: Numbers | None, *, exact: bool = False, look: Look | None = None
    ) -> Carrying:
        """Carry an image [C, H, W], uint8, through a replica; return all outputs, one behind the other."""
        assert x is not None
        share = path.share
        share.image[...] = x
        if self._group.rank in path.ranks:
            with self._group.moving():  # what others need of their images, and their outputs
                share.compute()
        else:
            share.begin()
            yield 1, share.has_outputs
            share.take_outputs()
        return np.concatenate([array.reshape(-1) for array in share.outputs.values()])

    @contextmanager
    def metered(self, count: bool, *, begins: bool = True) -> Iterator[None]:
        """Count what is done within, if it counts."""
        with metered(self._meter if count else Meter(), self._group):
            yield


def _name(net: ConvNet, nodes: Span) -> str:
    """Return a segment's name: of its first and last node."""
    own = net.nodes[nodes.slice]
    return " to ".join(dict.fromkeys([own[0].name, own[-1].name])) if own else "brings"


def _exchange(
    net: ConvNet, group: Group, steps: Sequence[ExchangeStep], have: Sequence[Placed], places: Sequence[Placed]
) -> RankExchange:
    """Return a rank's part in exchanges that are one: what goes from a piece to a rank is one message.

    Parameters
    ----------
    have, places
        This rank's arrays: of the pieces that it has, and for what it needs.
    """

    def in_box(value: str, of: Placed) -> InBox:
        return placed(net, value, *of.get(value, (NOTHING, _NONE)))

    items = []
    for step in steps:
        value = step.value.name
        pieces = [[boxed(net, value, map_box(own, (0, rank))) for own in step.have] for rank in range(group.size)]
        layout = Layout(tuple(tuple(own) for own in pieces), partial=step.partial)
        want = Layout.of(boxed(net, value, map_box(step.want, (0, rank))) for rank in range(group.size))
        items.append(
            Item(
                layout,
                want,
                [in_box(value, of) for of in have],
                [in_box(value, of) for of in places if value in of],
            )
        )
    return RankExchange.of(group, items, group.coding, by_rows=False)


def _lies(have: Sequence[Placed], piece: Piece) -> dict[str, Numbers]:
    """Return where values lie of which a rank has just the box that a piece needs: nothing is to be copied."""
    return {
        value: array.reshape(-1)
        for own in have
        for value, (box, array) in own.items()
        if piece.walk.needs.get(value) == box and array.flags.c_contiguous
    }
