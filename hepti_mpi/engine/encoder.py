"""A rank's part in an encoder's layers, compiled for batches of one shape, and what it keeps of its stage.

Who has which rows, heads and columns stands in the plan; a share is decided in `solver.programs`, what follows from it
in a pass in `solver.schedule`; a byte is sent in `comm.exchange`; what is computed is bound in `engine.binding`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from hepti_mpi.comm.exchange import RankExchange
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.wires import Coding
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.binding import (
    Binding,
    BoxArray,
    Made,
    added_to,
    attending,
    block_of,
    by_rows,
    named,
)
from hepti_mpi.engine.layers import BlockKernels, LayerKernels
from hepti_mpi.engine.own_stage import OwnStage, Recipe, Ref
from hepti_mpi.kernels.kinds.held import Known
from hepti_mpi.kernels.products import Backend
from hepti_mpi.program.compiled import Compiled, CompiledCall
from solver.base.arrays import Array
from solver.base.spans import Span
from solver.model.kinds.attention import FULL_CONTEXTS, Attention
from solver.model.kinds.part import HEAD, ROW
from solver.model.spec import ModelSpec
from solver.plan.layout import Box
from solver.plan.plan import BlockPlan, Plan, Stage
from solver.schedule.encoders.placing import batch_rows, stage_parts
from solver.schedule.places import OwnCompute, OwnExchange, OwnStep
from solver.schedule.schedule import Called
from solver.schedule.stretches import StretchedRows, Stretches


class EncoderProgram(Compiled):
    """A rank's part of some layers in batches of one shape; it may run any number of times.

    Parameters
    ----------
    own, stretches
        What it does, and where stretches of rows begin.
    kernels
        What it holds, by the block's name.
    batch
        The requests' row counts.
    group
        Those who have a share.
    coding
        How numbers travel.
    backend
        What computes.

    Attributes
    ----------
    given, left
        What it begins with, to be written before `run`, and what it ends with; of every value its rows.
    """

    def __init__(
        self, own: OwnStage, stretches: Stretches, kernels: Mapping[str, BlockKernels], batch: Batch, group: Group,
        coding: Coding, backend: Backend,
    ) -> None:  # fmt: skip
        self._kernels, self._batch, self._within, self._backend = kernels, batch, coding, backend
        self._own, self._stretches = own, stretches
        self._scratch: dict[tuple[int, int], Array] = {}
        self._views: dict[tuple[int, int, int, int], Array] = {}  # by where they lie
        self._values: Known = {}
        self._known: dict[tuple[object, ...], Sequence[Made]] = {}
        super().__init__(own.every, own.places.stretched(stretches), group)
        self.given, self.left = (
            [by_rows(self._memory.view(name, box)) for name, box in some] for some in (own.given, own.left)
        )

    def take(self, x: Array) -> None:
        """Begin with rows, of all values side by side."""
        start = 0
        for own in self.given:
            if own.size:
                own[...] = x[:, start : start + own.shape[1]]
            start += own.shape[1]

    def result(self) -> Array:
        """Return the rows that it has left, of all values side by side."""
        return np.concatenate(self.left, axis=1)

    @property
    def taken_bytes(self) -> int:
        """What its values take, what arrives of them, and what is read within a step alone."""
        return super().taken_bytes + sum(array.nbytes for array in self._scratch.values())

    def run(self) -> None:
        """Compute `left` of `given`."""
        self._run()

    def layers(self) -> Iterator[None]:
        """Compute it layer by layer: yield after each."""
        blocks = iter(self._blocks)
        last = ""
        for name, calls in blocks:
            layer = name.rpartition(" ")[0]
            if last and layer and layer != last:
                yield
            last = layer or last
            self._run_block(name, calls)
        yield

    def _coding(self, step: OwnExchange) -> Coding:
        return self._within

    def _makes(self, step: OwnStep, called: Called, exchange: OwnExchange, its: Called) -> bool:
        assert isinstance(step, OwnCompute)
        sources = {its(name) for item in exchange.items for name, _ in item.pieces}
        return not sources.isdisjoint(called(place) for place, _, _ in step.written)

    def _computing(
        self, step: OwnStep, called: Called, comes: RankExchange | None
    ) -> Iterator[tuple[str, CompiledCall]]:
        assert isinstance(step, OwnCompute)
        if not step.run:
            return iter([("", comes.finish)] if comes is not None else [])
        graphs = tuple(self._kernels[name].kind for name in self._own.blocks(step, called))
        recipes = None if comes is not None else self._own.recipes(step, called, graphs, self._kernels)
        if recipes is not None:
            return self._by_recipe(recipes, step, called)
        return self._found(step, called, graphs, comes)

    def _by_recipe(
        self, recipes: Sequence[Recipe], step: OwnCompute, called: Called
    ) -> Iterator[tuple[str, CompiledCall]]:
        """Yield the calls of a step whose arrays are rows side by side."""
        memory = [self._places.memory[called(name)] for name, _ in step.used]
        for recipe in recipes:
            block = block_of(called(recipe.part.name))
            arrays = [self._view(ref, memory) for ref in recipe.refs]
            if arrays[0].size:
                _, layer, *_, kind = block.split("/")
                yield f"layer {layer} {kind}", self._call(recipe, self._kernels[block], arrays)

    def _call(self, recipe: Recipe, kernels: BlockKernels, arrays: Sequence[Array]) -> CompiledCall:
        out, x, *others = arrays
        if recipe.roles != (FULL_CONTEXTS,):
            return kernels.graphs[recipe.roles].bound(x, out, others[0] if others else None, self._values)
        attention, (kv,) = recipe.part.kind, others
        assert isinstance(attention, Attention)
        rows, both = self._stretches.rows(recipe.region[ROW]), kv.reshape(len(kv), 2, -1, copy=False)
        pieces = self._batch.pieces(rows, self._batch.keys_of(rows))
        attend = attending(self._backend, added_to(kernels, self._batch, rows, recipe.region[HEAD]))
        return partial(attend, x, both[:, 0], both[:, 1], pieces, attention.head_dim, out=out)

    def _view(self, ref: Ref, memory: Sequence[int]) -> Array:
        """Return some rows of a place, or of an array of the step's own."""
        edges = self._stretches.edges
        start, stop = edges[ref.whole.start], edges[ref.whole.stop]
        first, last = edges[ref.rows.start] - start, edges[ref.rows.stop] - start
        which = memory[ref.place] if ref.place >= 0 else ref.place
        key = which, first, last, ref.width
        if key not in self._views:
            array = self._memory.arrays[which] if which >= 0 else self.scratch(-which, (stop - start) * ref.width)
            self._views[key] = array[first * ref.width : last * ref.width].reshape(last - first, ref.width, copy=False)
        return self._views[key]

    def scratch(self, number: int, size: int) -> Array:
        """Return one of the arrays for what is read within a step alone."""
        if (number, size) not in self._scratch:
            self._scratch[number, size] = np.empty(size, np.float32)
        return self._scratch[number, size]

    def _found(
        self, step: OwnCompute, called: Called, graphs: tuple[object, ...], comes: RankExchange | None
    ) -> Iterator[tuple[str, CompiledCall]]:
        """Yield the calls of any step."""
        for number, sub_block, make in self._made(step, called, graphs, comes):
            block = block_of(named(called(step.run[number][0].name), sub_block))
            _, layer, *_, kind = block.split("/")
            yield from ((f"layer {layer} {kind}", call) for call in make(self._kernels[block]))

    def _made(
        self, step: OwnCompute, called: Called, graphs: tuple[object, ...], comes: RankExchange | None
    ) -> Sequence[Made]:
        """Return what makes the calls of a step; it is the same for alike ones, where values lie in the same places."""
        key = self._own.alike(step), graphs, comes, *(self._places.lies(called(name)) for name, _ in step.used)
        if key not in self._known:
            lies = {name: self._box_array(called(name), box) for name, box in step.reads.items()}
            lies |= {name: self._box_array(called(place), box) for place, name, box in step.written}
            bound = Binding(self._batch, self._backend, lies, self.scratch, self._values)
            run = [(part, {**region, ROW: self._stretches.rows(region[ROW])}) for part, region in step.run]
            units = bound.units(run, lambda name: self._kernels[block_of(called(name))])
            self._known[key] = bound.makes(units) if comes is None else bound.as_comes(units, step.as_comes, comes)
        return self._known[key]

    def _box_array(self, name: str, box: Box) -> BoxArray:
        return BoxArray(self._places.box(box), self._memory.view(name, box))


# Called before every layer; returns the plan that holds from there on, if it is another, and this rank's layers by it.
Look = Callable[[int], tuple[Plan, Sequence[LayerKernels]] | None]
Ran = Generator[None, None, tuple[Array, Plan]]
# That are kept: batches of texts have new lengths all the time. Before another is made, no more bytes than these are.
PROGRAMS, PROGRAM_BYTES = 4, 16 << 20
KNOWN = 16  # of other cuts of rows than in so many, what ranks do is found anew


@dataclass(slots=True, eq=False)
class StageShare:
    """A rank's share of a stage.

    Parameters
    ----------
    spec, plan, stage
        The model, and whose stage it is.
    crew
        The stage's devices that run it.
    layers
        What this rank holds of its layers, from the first of the stage.
    programs, known
        Of the last batches, and what this rank does in batches whose rows are cut like theirs.
    """

    spec: ModelSpec
    plan: Plan
    stage: Stage
    crew: Sequence[int]
    layers: Sequence[LayerKernels]
    programs: dict[tuple[object, ...], EncoderProgram] = field(default_factory=dict)
    known: dict[tuple[object, ...], OwnStage] = field(default_factory=dict)

    def run(self, x: Array, batch: Batch, group: Group, coding: Coding, backend: Backend, look: Look | None) -> Ran:
        """Carry rows through the stage's layers; return them, and the plan by which they lie.

        A rank that is alone yields after every layer, so that it can do something else; where others wait for it, it
        does not.

        Parameters
        ----------
        x
            This rank's rows; where the first layer begins within a block, what another stage has handed over.
        look
            Whether, and when, the plan changes on the way: then layer by layer.
        """
        share, left, before = self, self.stage.span, None
        while left.size:
            some = left
            if look is not None:
                if (change := look(left.start)) is not None:
                    (plan, layers), look = change, None
                    layer = share.stage.layer(left.start - 1)
                    before = share.stage.first if layer is None else layer[-1]
                    share = StageShare(self.spec, plan, plan.stages[0], self.crew, layers)
                some = left if look is None else Span(left.start, left.start + 1)
            program = share.program(batch, some, before, group, coding, backend)
            program.take(x)
            if group.size == 1:
                yield from program.layers()
            else:
                program.run()
            x, left = program.result(), Span(some.stop, left.stop)
        return x, share.plan

    def program(
        self, batch: Batch, some: Span, before: BlockPlan | None, group: Group, coding: Coding, backend: Backend
    ) -> EncoderProgram:
        """Return the program for some layers of a batch; `before` as of `stage_parts`."""
        key = batch, coding, some, before
        if key not in self.programs:
            _make_room(self.programs, PROGRAMS * (1 if some == self.stage.span else self.stage.span.size))
            while sum(program.taken_bytes for program in self.programs.values()) > PROGRAM_BYTES:
                del self.programs[next(iter(self.programs))]
            lengths = [request.size for request in batch.requests]
            rows, stretches = batch_rows(self.stage, self.crew, lengths, self.plan.tile_rows, before).in_stretches()
            own = self._own(rows, some, before, group.rank)
            kernels = self._kernels(group.rank)
            self.programs[key] = EncoderProgram(own, stretches, kernels, batch, group, coding, backend)
        return self.programs[key]

    def _own(self, rows: StretchedRows, some: Span, before: BlockPlan | None, rank: int) -> OwnStage:
        """Return this rank's part in batches whose rows, in stretches, are cut so."""
        key = rows.key, some, before
        if key not in self.known:
            _make_room(self.known, KNOWN * self.stage.span.size)
            parts = stage_parts(
                self.spec, self.stage, self.crew, rows, some=some, before=before, folded=some == self.stage.span
            )
            self.known[key] = OwnStage.of(parts, rank)
        return self.known[key]

    def _kernels(self, rank: int) -> dict[str, BlockKernels]:
        """Return what this rank holds, by the block's name."""
        found: dict[str, BlockKernels] = {}
        for number, layer in zip(range(self.stage.span.start, self.stage.span.stop), self.layers, strict=True):
            run, cuts = self.spec.run(number), self.stage.layer(number)
            assert cuts is not None
            for block, cut, kernels in zip(run.blocks, cuts, layer, strict=True):
                if run.parts == 1:
                    found |= {f"layers/{number}/{block.name}": own for own in kernels}
                else:
                    assert cut.inner is not None
                    sub_blocks = cut.inner[self.crew[rank]]
                    found |= {
                        f"layers/{number}/{sub_block}/{block.name}": own
                        for sub_block, own in zip(range(sub_blocks.start, sub_blocks.stop), kernels, strict=True)
                    }
        return found


def _make_room(kept: dict[tuple[object, ...], Any], most: int) -> None:
    """Drop what was put in first, where there is no room for one more."""
    while len(kept) >= most:
        del kept[next(iter(kept))]
