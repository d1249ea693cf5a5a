"""Bring a rank from one plan to another while requests run under the first: get what it lacks, piece by piece.

All ranks prepare the layers in order, each at its own pace, in bounded pieces of work between and after requests. What
is prepared is adopted at a boundary that rank 0 names; a rank whose memory is short prepares no further layer before
that, and then frees the old one. Between, layers in front lie by the new plan and the others by the old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from hepti_mpi.base.arrays import Array
from hepti_mpi.base.memory import free_bytes, freed_at_once, give_back
from hepti_mpi.comm.group import Group
from hepti_mpi.engine.layers import BlockKernels, Layer, LayerKernels, block_kernels
from hepti_mpi.engine.load import STREAM_BYTES, load_block
from hepti_mpi.engine.stack import Stack
from hepti_mpi.kernels.products import Backend
from solver.model.spec import ModelSpec
from solver.plan.changes import BlockShare, Holdings, LayerShare, blend, layer_shares
from solver.plan.holdings import TensorSlice
from solver.plan.plan import Plan
from weights.file.store import WeightsFile

# Kernels pack a copy of the weights before these are freed, and some room has to stay: times a layer's bytes.
ROOM = 3
UNDERWAY = 2  # pieces that rank 0 lets be on their way


@dataclass(frozen=True, slots=True)
class Prepare:
    """Rank 0's word: get what this plan needs, layer by layer; requests may wait for it for `budget_s` seconds each.

    The ranks of `frees` keep nothing that they do not need. All get what `spare`, a plan of the other sort, needs, too.
    """

    plan: Plan
    budget_s: float
    frees: tuple[int, ...] = ()
    spare: Plan | None = None


@dataclass(frozen=True, slots=True)
class Adopt:
    """Rank 0's word: from now on these layers in front lie by the plan that was prepared."""

    layers: int


class Mover:
    """Changes a rank's share of the layers.

    Parameters
    ----------
    spec, stack, group
        The model, this rank's layers, and all ranks.
    file
        The rank's weights; None: rank 0 sends what it lacks.
    backend
        What makes the kernels.
    without_file
        Ranks that rank 0 sends weights to.
    """

    def __init__(
        self,
        spec: ModelSpec,
        stack: Stack,
        group: Group,
        file: WeightsFile | None,
        backend: Backend,
        without_file: Sequence[int] = (),
    ) -> None:
        self._spec, self._stack, self._group, self._file, self._backend = spec, stack, group, file, backend
        self.turns = not without_file  # whether a change may be given up: no piece of it is on its way
        self._without_file = without_file if group.rank == 0 else ()
        self._before = self._after = stack.plan
        self.holdings = Holdings(stack.plan, group.size)
        self._frees: tuple[int, ...] = ()
        self._spare: Plan | None = None
        self._prepared: dict[int, dict[BlockShare, BlockKernels]] = {}
        self._adopted = spec.layers
        self._work: list[Iterator[bool]] = []
        self.ready = spec.layers  # layers in front that are prepared or adopted
        self.short = False  # whether it waits for layers to be adopted, and their memory
        # What this rank holds of every layer: what runs, and what it could change to at once.
        self._held: list[dict[BlockShare, BlockKernels]] = [
            {attention: layer.attention, mlp: layer.mlp}
            for layer, (attention, mlp) in zip(stack.layers, layer_shares(spec, stack.plan, group.rank), strict=True)
            if isinstance(layer, LayerKernels)  # decoupled layers have no other plan
        ]

    def spare(self, plan: Plan, done: Callable[[int], object]) -> None:
        """Get what a plan of the other sort needs, too, before any request runs; all ranks call this.

        Calls `done` with the bytes that were read of every layer.
        """
        self.prepare(self._stack.plan, spare=plan)
        sizes, seen = [_bytes(lacking) for lacking in self._lacking(self._group.rank).values()], 0
        with freed_at_once():
            while self._work:
                if not self.step():
                    self._group.pause()
                done(sum(sizes[seen : self.ready]))
                seen = self.ready
        self.adopt(self._spec.layers)

    def prepare(self, plan: Plan, frees: tuple[int, ...] = (), spare: Plan | None = None) -> None:
        """Begin to get what a plan needs, and what another of the other sort needs; what runs meanwhile stays as it is.

        Another change under way is given up.
        """
        self._before, self._after, self._frees, self._spare = self._stack.plan, plan, frees, spare
        self._prepared.clear()
        self._adopted = self.ready = 0
        self._work = [self._get(), *(self._serve(peer) for peer in self._without_file)]

    @property
    def busy(self) -> bool:
        """Whether a change is under way."""
        return self._adopted < self._spec.layers

    @property
    def aim(self) -> Plan | None:
        """The plan that is being prepared."""
        return self._after if self.busy else None

    def step(self) -> bool:
        """Do a bounded piece of the work, for this rank and for each that it serves; return whether any was done."""
        self.short = False
        done = False
        for work in list(self._work):
            worked = next(work, None)
            if worked is None:
                self._work.remove(work)
            done = done or bool(worked)
        return done

    def adopt(self, layers: int) -> None:
        """Let the layers in front lie by the new plan, and free what is not kept; all of them: the change is done.

        Where they change in parts, since memory is short, nothing is kept that does not run.
        """
        self._catch_up(layers)
        for number in range(self._adopted, layers):
            self._held[number] |= self._prepared.pop(number, {})
        rank, plan, whole = self._group.rank, self._after, layers == self._spec.layers
        if whole and not self._adopted:
            self.holdings.adopt(plan, self._frees)
            if self._spare is not None:
                self.holdings.keep(self._spare)
        else:
            self.holdings.adopt_front(plan, self._frees, layers)
        self._adopted = layers
        kept = [layer_shares(self._spec, held, rank) for held in self.holdings.plans(rank)]
        held = [
            {share: block for share, block in layer.items() if any(share in known[number] for known in kept)}
            for number, layer in enumerate(self._held)
        ]
        frees, self._held = held != self._held, held
        runs = self._kernels(layer_shares(self._spec, self.holdings.runs(rank), rank))
        self._stack.adopt(plan if whole else blend(plan, self._before, layers), runs)
        if frees:
            give_back()

    def kernels(self, plan: Plan) -> list[Layer]:
        """Return this rank's layers under a plan of which it lacks nothing."""
        return self._kernels(self.holdings.shares(self._spec, plan, self._group.rank))

    def _kernels(self, shares: Sequence[LayerShare]) -> list[Layer]:
        return [
            LayerKernels(held[attention], held[mlp]) for held, (attention, mlp) in zip(self._held, shares, strict=True)
        ]

    def _catch_up(self, layers: int) -> None:
        """Pass over layers that stay as they are: where no rank lacks anything, rank 0 does not ask who is ready."""
        while self.ready < layers and self.step():
            pass
        assert self.ready >= layers, f"{self.ready} layers are prepared, {layers} are to be adopted"

    def _lacking(self, rank: int) -> dict[int, list[tuple[Plan, BlockShare]]]:
        """Return what a rank has to get of every layer, and for which plan."""
        found: dict[int, list[tuple[Plan, BlockShare]]] = {layer: [] for layer in range(self._spec.layers)}
        for plan in (self._after, *([] if self._spare is None else [self._spare])):
            for layer, shares in self.holdings.lacking(self._spec, plan, rank, self._frees).items():
                known = [share for _, share in found[layer]]
                found[layer] += [(plan, share) for share in shares if share not in known]
        return found

    def _get(self) -> Iterator[bool]:
        """Prepare this rank's layers, one after the other; yield whether there was something to do."""
        rank, make = self._group.rank, self._backend.graph
        for layer, lacking in self._lacking(rank).items():
            size = _bytes(lacking)
            for plan, share in lacking:
                while len(self._prepared) > (layer in self._prepared) and free_bytes() < ROOM * size:
                    self.short = True
                    yield False
                todo: list[tuple[TensorSlice, Array]] = []
                weights = load_block(self._spec, layer, share, partial(_note, todo))
                for piece, out in todo:
                    yield from self._read(piece, out)
                made = block_kernels(self._spec, plan, make, rank, layer, share.block, weights)
                self._prepared.setdefault(layer, {})[share] = made
                yield True
            self.ready = layer + 1

    def _read(self, piece: TensorSlice, out: Array) -> Iterator[bool]:
        """Fill an array with a slice, a bounded part of it at a time."""
        if self._file is None:
            yield from self._group.weights.fill(out)
            return
        flat = out.reshape(-1, copy=False)
        for block in self._file.read_pieces(piece, STREAM_BYTES):
            flat[: block.size] = block.reshape(-1)
            flat = flat[block.size :]
            yield True

    def _serve(self, peer: int) -> Iterator[bool]:
        """Send a rank without the file what it lacks, in the order in which it reads."""
        assert self._file is not None
        for layer, lacking in self._lacking(peer).items():
            for piece in (piece for _, share in lacking for piece in share.of_layer(layer)):
                for block in self._file.read_pieces(piece, STREAM_BYTES):
                    while self._group.weights.leaving() > UNDERWAY:
                        yield False
                    self._group.weights.send(block, [peer])
                    yield True


def _bytes(lacking: Sequence[tuple[Plan, BlockShare]]) -> int:
    return sum(share.held_bytes() for _, share in lacking)


def _note(todo: list[tuple[TensorSlice, Array]], piece: TensorSlice, out: Array) -> None:
    todo.append((piece, out))
