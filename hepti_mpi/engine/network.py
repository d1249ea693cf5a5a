"""A convolutional network on a rank: its part in an image, compiled as every schedule is; and the plans that it holds.

Where its values lie says `solver.schedule.networks.memory`; a byte is sent in `comm.exchange`, a convolution is
computed in `kernels.slab`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from hepti_mpi.base.lacking import Lacking
from hepti_mpi.base.memory import give_back
from hepti_mpi.comm.exchange import RankExchange
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.trace import Trace
from hepti_mpi.comm.wires import Coding
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.encoder import Look
from hepti_mpi.engine.load import Done, Preparation, WeightsSource
from hepti_mpi.engine.stack import Carrying, Meter, metered
from hepti_mpi.engine.tiles import TileTasks
from hepti_mpi.kernels.slab import Bind, MakeBind, PieceGraph, Shared, Slab, session
from hepti_mpi.program.compiled import BoundExchange, Compiled, CompiledCall
from hepti_mpi.program.graphs import Graphs
from solver.base.arrays import Array, Numbers
from solver.cluster.board import free_bytes
from solver.model.convnet import ConvNet
from solver.plan.holdings import TensorSlice
from solver.plan.segments import THROUGHPUT, SegmentPlan
from solver.schedule.networks.memory import IMAGE, Lies, OwnPiece, OwnTiles, of_tiles, own_image
from solver.schedule.networks.pieces import Piece, pieces_of, tile_pieces
from solver.schedule.places import OwnExchange, OwnStep
from solver.schedule.schedule import Called

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


class NetworkProgram(Compiled):
    """A rank's part in an image under a plan; it may run any number of times, when what computes is bound.

    Attributes
    ----------
    image, outputs
        On rank 0: what goes in, and what comes out.
    slabs
        What computes, in pieces and tiles.
    """

    def __init__(self, net: ConvNet, plan: SegmentPlan, group: Group) -> None:
        self._net, self.slabs, self._pieces = net, list[Slab](), list[Slab]()
        self._pieces_of = lru_cache(maxsize=1)(pieces_of)  # a segment's are bound one after the other
        own = own_image(net, plan, group.rank)
        super().__init__([(step, str) for step in own.steps], own.places, group)
        self.image: Numbers = self._memory.whole(IMAGE) if group.rank == 0 else np.empty(0, np.uint8)
        self.outputs: dict[str, Array] = {
            name: self._memory.view(*lies).reshape(net.shapes[name], copy=False) for name, lies in own.outputs.items()
        }

    def bind(self, graphs: Mapping[bytes, Bind]) -> None:
        """Take graphs that are ready to run, by their keys; those of pieces run once."""
        for slab in self.slabs:
            slab.bind(graphs)
        for slab in self._pieces:
            slab.warm()

    def run(self) -> None:
        """Compute `outputs` of `image`, both on rank 0; every rank calls this."""
        self._run()

    def begin(self) -> None:
        """Send what others need of `image`, on a rank 0 that computes nothing."""
        self._ends[0].exchange.run()

    def has_outputs(self) -> bool:
        """Return whether the outputs are here of the image that was begun first."""
        return self._ends[1].exchange.here()

    def take_outputs(self) -> None:
        """Take them."""
        self._ends[1].exchange.finish()

    @property
    def _ends(self) -> tuple[BoundExchange, BoundExchange]:
        """The first exchange and the last."""
        first, *_, last = self._exchanges.values()
        return first, last

    def _coding(self, step: OwnExchange) -> Coding:
        return self._group.coding

    def _name(self, step: OwnPiece | OwnTiles) -> str:
        """Return a segment's name: of its first and last node."""
        own = self._net.nodes[step.shares.segment.nodes.slice]
        return " to ".join(dict.fromkeys([own[0].name, own[-1].name])) if own else "brings"

    def _computing(self, step: OwnStep, called: Called, comes: RankExchange | None) -> list[tuple[str, CompiledCall]]:
        assert isinstance(step, OwnPiece | OwnTiles)
        name, rank = self._name(step), self._group.rank
        if isinstance(step, OwnPiece):
            piece = self._pieces_of(step.shares, rank)[step.number]
            slab = self._slab(piece, self._shared({**step.leaving, **step.between, **step.coming}))
            self._pieces.append(slab)
            return [(name, slab.run)]
        pieces, shared = tile_pieces(step.shares), self._shared(step.room, in_place=True)
        slabs = {number: self._slab(pieces[number], shared) for number in step.shares.able(rank)}
        parts = [(self._arrays(needed), self._arrays(left)) for needed, left in of_tiles(self._net, step, rank)]
        return [(name, TileTasks(step.shares, self._group, slabs, parts).run)]

    def _arrays(self, lies: Lies) -> dict[str, Numbers]:
        return {name: self._memory.view(*own) for name, own in lies.items()}

    def _shared(self, lies: Lies, *, in_place: bool = False) -> Shared:
        return Shared({name: array.reshape(-1, copy=False) for name, array in self._arrays(lies).items()}, in_place)

    def _slab(self, piece: Piece, shared: Shared) -> Slab:
        self.slabs.append(Slab(self._net, piece, shared))
        return self.slabs[-1]


class NetworkShare(Graphs[bytes, PieceGraph, Bind]):
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
    program
        It runs when all graphs are there (`lacking`), and are bound.
    tensors
        Slices of tensors as they were read: of graphs that are still to be made, and those that are kept.
    """

    def __init__(
        self, net: ConvNet, plan: SegmentPlan, group: Group, make: MakeBind = session,
        before: Sequence[NetworkShare] = (),
    ) -> None:  # fmt: skip
        self.plan, self.meter, self._group, self._make = plan, Meter(), group, make
        self.trace: Trace | None = None  # records the last image that counts, where one is asked for
        self.program = NetworkProgram(net, plan, group)
        self.image, self.outputs = self.program.image, self.program.outputs
        graphs = [graph for slab in self.program.slabs for graph in slab.graphs]
        super().__init__(((graph.key, graph) for graph in graphs), before)
        slices = {piece for graph in graphs for piece in graph.slices}
        self.tensors: dict[TensorSlice, Numbers] = {
            piece: own for share in before for piece, own in share.tensors.items() if piece in slices
        }

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
        graphs = [*self._lacking.values()]
        left = Counter(piece for graph in graphs for piece in graph.slices)  # graphs that need a slice
        sizes = [type_of(piece.name).itemsize * math.prod(piece.shape) for piece in left if piece not in self.tensors]
        keeps = keeps and free_bytes() > ROOM * sum(sizes)
        for graph in graphs:
            new = {p: np.empty(p.shape, type_of(p.name)) for p in graph.slices if p not in self.tensors}
            self.tensors |= new
            yield Lacking([*new.items()], partial(self._made, graph, left, keeps=keeps))
        yield Lacking((), self._bind)

    def _bind(self) -> None:
        """Bind all graphs, which are ready."""
        self.program.bind(self.graphs)
        self._lacking.clear()

    def _made(self, graph: PieceGraph, left: Counter[TensorSlice], *, keeps: bool) -> None:
        """Make a graph of tensors that are there; free those that no other needs."""
        self.graphs[graph.key] = graph.made(self._make, self.tensors.__getitem__)
        left.subtract(graph.slices)
        if not keeps:
            self.tensors = {piece: own for piece, own in self.tensors.items() if left[piece]}

    def run(self, *, counts: bool = True) -> float:
        """Compute `outputs` of `image`, both on rank 0; every rank calls this. Where it counts, `meter` counts it.

        Return the seconds that this rank computed.
        """
        with metered(self._group, [self.meter] if counts else (), self.trace if counts else None) as spent:
            self.program.run()
        return spent.compute_s


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
        """Carry an image [C, H, W], uint8, through a replica; return all outputs, one after the other."""
        assert x is not None
        program = path.share.program
        program.image[...] = x
        if self._group.rank in path.ranks:
            with self._group.moving():  # what others need of their images, and their outputs
                program.run()
        else:
            program.begin()
            yield 1, program.has_outputs
            program.take_outputs()
        return np.concatenate([array.reshape(-1) for array in program.outputs.values()])

    @contextmanager
    def metered(self, count: bool, *, begins: bool = True) -> Iterator[None]:
        """Count what is done within, if it counts."""
        with metered(self._group, [self._meter] if count else ()):
            yield
