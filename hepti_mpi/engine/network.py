"""A convolutional network on a rank: segment by segment, what it needs comes, it computes, and others need of that.

The steps are those that the solver prices (`solver.schedule.networks.steps`); a byte is sent in `comm.transfer`, a
convolution is computed in `kernels.slab`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np

from hepti_mpi.base.memory import give_back
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.trace import Trace
from hepti_mpi.comm.transfer import InBox, Item, RankExchange
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.stack import Carrying, Meter
from hepti_mpi.engine.steps import Look
from hepti_mpi.engine.tiles import TileTasks
from hepti_mpi.kernels.slab import MakeBind, Placed, ReadTensor, Shared, Slab, boxed, placed, session, shape_of
from solver.base import clock
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span
from solver.model.convnet import NOTHING, ConvNet
from solver.plan.layout import Layout
from solver.plan.segments import THROUGHPUT, SegmentPlan
from solver.schedule.networks.pieces import Piece, map_box, pieces_of
from solver.schedule.networks.steps import exchanges_of, handed_in, image_on_root, unrolled
from solver.schedule.schedule import ExchangeStep

_NONE = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class ImageOrder:
    """Rank 0's word to the others: compute an image, or hold another plan from here on.

    Parameters
    ----------
    counts
        Whether the image counts in the report.
    tell
        Whether ranks tell how long they computed.
    number
        Of the plans that ranks hold, the one that this is about.
    stays
        Nothing is computed: from here on ranks hold that plan alone, or where there is another, that one.
    plan
        The other one.
    """

    counts: bool = True
    tell: bool = False
    number: int = 0
    stays: bool = False
    plan: SegmentPlan | None = None


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
    read
        Reads tensors; called once, for what the rank's share needs.
    make
        Makes graphs ready to run, by the backend that computes here.
    """

    def __init__(
        self, net: ConvNet, plan: SegmentPlan, group: Group, read: ReadTensor, make: MakeBind = session
    ) -> None:
        self.plan, self.meter, self._group = plan, Meter(), group
        self.trace: Trace | None = None  # records the last image that counts, where one is asked for
        rank = group.rank
        self.image: Numbers = np.empty(net.shapes[net.input] if rank == 0 else 0, np.uint8)
        have: list[Placed] = [{net.input: (net.extent(net.input), self.image)}] if rank == 0 else []
        held = image_on_root(net, group.size)
        self._steps: list[RankStep] = []
        for shares in unrolled(net, plan):
            adds = any(own.partial for own in shares.before.values())  # to zeros: not where a summand lies
            slabs: Sequence[Slab | TileTasks] = (
                [TileTasks(net, shares, group, read, make)]
                if shares.tiles
                else [
                    Slab(net, piece, read, Shared({} if adds else _lies(have, piece), make))
                    for piece in pieces_of(shares, rank)
                ]
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
        for slab in (slab for step in self._steps for slab in step.slabs if isinstance(slab, Slab)):
            slab.warm()

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
    plans
        By number: the first to run in front.
    load
        Makes a share; a step of all ranks.
    trace
        Records the last image that counts; None: nothing does.
    """

    def __init__(
        self, plans: Sequence[SegmentPlan], load: Callable[[SegmentPlan], NetworkShare], trace: Trace | None = None
    ) -> None:
        self._load, self._held = load, [load(plan) for plan in plans]
        self._meter, self._trace = Meter(), trace
        for share in self._held:
            share.meter, share.trace = self._meter, trace

    @property
    def all(self) -> Sequence[NetworkShare]:
        """All shares."""
        return self._held

    def own(self, rank: int) -> NetworkShare:
        """Return the share of the replica that a rank is in; where there are none, of the plan that runs first."""
        replicas = (share for share in self._held if share.plan.system == THROUGHPUT and rank in share.plan.active)
        return next(replicas, self._held[0])

    def of(self, number: int) -> NetworkShare:
        """Return the share of a plan."""
        return self._held[number]

    def change(self, number: int, plan: SegmentPlan | None) -> None:
        """Hold one plan alone: of these, or another; that one is a step of all ranks."""
        kept = self._held[number] if plan is None else self._load(plan)
        kept.meter, kept.trace = self._meter, self._trace
        self._held = [kept]
        give_back()


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
    return RankExchange(group, items, group.coding, by_rows=False)


def _lies(have: Sequence[Placed], piece: Piece) -> dict[str, Numbers]:
    """Return where values lie of which a rank has just the box that a piece needs: nothing is to be copied."""
    return {
        value: array.reshape(-1)
        for own in have
        for value, (box, array) in own.items()
        if piece.walk.needs.get(value) == box and array.flags.c_contiguous
    }
