"""Bring a rank from one plan to another while requests run under the first: get what it lacks, piece by piece.

All ranks prepare the layers in order, each at its own pace, in bounded pieces of work between and after requests. What
is prepared is adopted at a boundary that rank 0 names; a rank whose memory is short prepares no further layer before
that, and then frees the old one. Between, layers in front lie by the new plan and the others by the old.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hepti_mpi.base.memory import give_back
from hepti_mpi.engine.layers import BlockKernels, LayerKernels, Makes, blocks, rank_layers
from hepti_mpi.engine.load import Preparation, WeightsSource
from hepti_mpi.engine.stack import Stack
from solver.cluster.board import free_bytes
from solver.model.spec import ModelSpec
from solver.plan.changes import BlockShare, Holdings, Shares, blend, layer_shares, merged
from solver.plan.plan import Plan

# Kernels pack a copy of the weights before these are freed, and some room has to stay: times a layer's bytes.
ROOM = 3


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
    spec, stack
        The model, and this rank's layers.
    source
        Where it gets what it lacks.
    make
        Makes a block's kernels of its weights.
    held
        The kernels that it has of every layer: of what runs, and of what it could change to at once, `spare`.
    spare
        A plan of the other sort; None: it has nothing besides.
    """

    def __init__(
        self,
        spec: ModelSpec,
        stack: Stack,
        source: WeightsSource,
        make: Makes[BlockKernels],
        held: Mapping[int, dict[BlockShare, BlockKernels]],
        spare: Plan | None = None,
    ) -> None:
        self._spec, self._stack, self._make = spec, stack, make
        self._rank = source.group.rank
        self.turns = not source.without_file  # whether a change may be given up: no piece of it is on its way
        self._before = self._after = stack.plan
        self.holdings = Holdings(stack.plan, source.group.size, spare)
        self._frees: tuple[int, ...] = ()
        self._spare: Plan | None = None
        self._prepared: dict[int, dict[BlockShare, BlockKernels]] = {}  # of the layers after those that are adopted
        self._adopted = spec.layers
        self._preparation = Preparation(source)
        self.short = False  # whether it waits for layers to be adopted, and their memory
        self._held = dict(held)

    def prepare(
        self, plan: Plan, frees: tuple[int, ...] = (), spare: Plan | None = None, budget_s: float = 0.0
    ) -> None:
        """Begin to get what a plan needs, and what another of the other sort needs; what runs meanwhile stays as it is.

        Another change under way is given up.
        """
        self._before, self._after, self._frees, self._spare = self._stack.plan, plan, frees, spare
        self._prepared, self._adopted = {}, 0
        self._preparation.begin(blocks(self._lacking(), self._make, self._prepared, self._has_room), budget_s)

    @property
    def busy(self) -> bool:
        """Whether a change is under way."""
        return self._adopted < self._spec.layers

    @property
    def ready(self) -> int:
        """How many layers in front are prepared or adopted."""
        return self._adopted + len(self._prepared)

    @property
    def aim(self) -> Plan | None:
        """The plan that is being prepared."""
        return self._after if self.busy else None

    def step(self) -> bool:
        """Do a bounded piece of the work, for this rank and for each that it serves; return whether any was done."""
        self.short = False
        return self._preparation.step()

    def work(self) -> None:
        """Do a piece, and others for as long as a request may wait."""
        self.short = False
        self._preparation.work()

    def adopt(self, layers: int) -> None:
        """Let the layers in front lie by the new plan, and free what is not kept; all of them: the change is done.

        Where they change in parts, since memory is short, nothing is kept that does not run.
        """
        self._catch_up(layers)
        for number in range(self._adopted, layers):
            self._held[number] = self._held[number] | self._prepared.pop(number)
        plan, whole = self._after, layers == self._spec.layers
        if whole and not self._adopted:
            self.holdings.adopt(plan, self._frees)
            if self._spare is not None:
                self.holdings.keep(self._spare)
        else:
            self.holdings.adopt_front(plan, self._frees, layers)
        self._adopted = layers
        kept = [layer_shares(self._spec, held, self._rank) for held in self.holdings.plans(self._rank)]
        held = {
            number: {share: block for share, block in layer.items() if any(share in known[number] for known in kept)}
            for number, layer in self._held.items()
        }
        frees, self._held = held != self._held, held
        runs = rank_layers(self._spec, self.holdings.runs(self._rank), self._rank, held)
        self._stack.adopt(plan if whole else blend(plan, self._before, layers), runs)
        if frees:
            give_back()

    def kernels(self, plan: Plan) -> list[LayerKernels]:
        """Return this rank's layers under a plan of which it lacks nothing."""
        return rank_layers(self._spec, self.holdings.source(plan, self._rank), self._rank, self._held)

    def _catch_up(self, layers: int) -> None:
        """Pass over layers that stay as they are: where no rank lacks anything, rank 0 does not ask who is ready."""
        while self.ready < layers and self.step():
            pass
        assert self.ready >= layers, f"{self.ready} layers are prepared, {layers} are to be adopted"

    def _lacking(self) -> Shares:
        """Return what this rank has to get of every layer, of some nothing."""
        plans = [self._after, *([] if self._spare is None else [self._spare])]
        nothing: Shares = dict.fromkeys(range(self._spec.layers), ())
        return merged([nothing, *(self.holdings.lacking(self._spec, plan, self._rank, self._frees) for plan in plans)])

    def _has_room(self, size: int) -> bool:
        """Return whether a layer of so many bytes can be prepared before those that are prepared have been adopted."""
        self.short = any(self._prepared.values()) and free_bytes() < ROOM * size
        return not self.short
