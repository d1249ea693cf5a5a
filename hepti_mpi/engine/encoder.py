"""A rank's part in an encoder's layers, compiled: what computes its parts is bound to where their values lie.

Who has which rows, heads and columns stands in the plan; a share is decided in `solver.programs`, what follows from it
in a pass in `solver.schedule`; a byte is sent in `comm.exchange`, a head is computed in `kernels.numpy_kernels.attend`
and `kernels.ort.attend`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from hepti_mpi.comm.exchange import RankExchange
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.wires import Coding
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.layers import BlockKernels, LayerKernels, Roles
from hepti_mpi.kernels import numpy_kernels
from hepti_mpi.kernels.kinds.held import Known
from hepti_mpi.kernels.products import Attend, Backend
from hepti_mpi.program.compiled import Compiled, CompiledCall
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span
from solver.model.kinds.attention import FULL_CONTEXTS, FULL_KEYS, Attention
from solver.model.kinds.join import Join
from solver.model.kinds.part import HEAD, HIDDEN, KV, NUMBER, ROW, Part, RankRegion, Spans, Value
from solver.model.spec import ModelSpec
from solver.plan.layout import Box
from solver.plan.plan import BlockPlan, Plan, Stage
from solver.schedule.encoders.placing import StageParts, batch_rows, stage_parts
from solver.schedule.places import OwnCompute, OwnExchange, OwnStep, Places, RankRun, Used, own_steps, places_of
from solver.schedule.regions import box_of as box_of_rank
from solver.schedule.schedule import Called
from solver.schedule.stretches import StretchedRows, Stretches


@dataclass(frozen=True, slots=True, eq=False)
class BoxArray:
    """A box of a value, and the array in which it lies."""

    box: Box
    array: Numbers

    def some(self, box: Box) -> Array:
        """Return some of it."""
        found: Array = self.array[box.within(self.box)]
        return found


def by_rows(array: Array) -> Array:
    """Return an array as rows, which lie where it lies."""
    return array.reshape(array.shape[0], math.prod(array.shape[1:]), copy=False)


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """Rows of a place that lie side by side.

    Parameters
    ----------
    place
        Which of those that a step uses; negative: an array of the step's own.
    rows, whole
        In stretches: which rows, and all of the place.
    width
        Columns of a row.
    """

    place: int
    rows: Span
    whole: Span
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """Parts of which there is one graph, or contexts, all of whose arrays are rows side by side.

    Parameters
    ----------
    part, region, roles
        The first of them, this rank's region of it in stretches, and the roles of all.
    refs
        What comes out; what goes in; of contexts then keys and values, of a join what it adds to.
    """

    part: Part
    region: RankRegion
    roles: Roles
    refs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True, eq=False)
class OwnStage:
    """A rank's part in layers of batches whose rows are cut alike, which are counted in stretches; found once for all.

    Parameters
    ----------
    every
        Its part in every step, and what values are called there.
    given, left
        The boxes of values with which it begins, and ends.
    places
        Where values lie.
    known, alikes, kinds, named
        As of `recipes`, `alike` and `blocks`, of steps that have been asked for.
    """

    every: Sequence[tuple[OwnStep, Called]]
    given: Used
    left: Used
    places: Places
    known: dict[tuple[OwnCompute, tuple[object, ...]], Sequence[Recipe] | None] = field(default_factory=dict)
    alikes: dict[OwnCompute, int] = field(default_factory=dict)
    kinds: dict[tuple[object, ...], int] = field(default_factory=dict)
    named: dict[tuple[OwnCompute, Called], Sequence[str]] = field(default_factory=dict)

    def alike(self, step: OwnCompute) -> int:
        """Return what tells what is computed in a step from others, but for names: a number."""
        if step not in self.alikes:
            run = tuple((part.role, part.kind, part.stream, *region.items()) for part, region in step.run)
            names = [name for name, _ in step.used]
            comes = names.index(step.as_comes) if step.as_comes in names else None
            kind = run, comes, tuple(box for _, box in step.used)
            self.alikes[step] = self.kinds.setdefault(kind, len(self.kinds))
        return self.alikes[step]

    def blocks(self, step: OwnCompute, called: Called) -> Sequence[str]:
        """Return the names of the blocks whose parts are computed in a step; of sub-blocks of the first one."""
        if (step, called) not in self.named:
            first = ((_sub_block(part, region), part) for part, region in step.run)
            names = dict.fromkeys(_block(_named(called(part.name), number)) for number, part in first)
            self.named[step, called] = tuple(names)
        return self.named[step, called]

    def recipes(
        self, step: OwnCompute, called: Called, graphs: tuple[object, ...], kernels: Mapping[str, BlockKernels]
    ) -> Sequence[Recipe] | None:
        """Return which arrays a step's graphs take, where all lie in rows side by side; None: some do not."""
        if (step, graphs) not in self.known:
            self.known[step, graphs] = self._recipes(step, called, kernels)
        return self.known[step, graphs]

    def _recipes(
        self, step: OwnCompute, called: Called, kernels: Mapping[str, BlockKernels]
    ) -> Sequence[Recipe] | None:
        if any(_sub_block(part, region) is not None for part, region in step.run):
            return None
        lies = {name: number for number, name in enumerate(step.reads)}
        lies |= {name: len(step.reads) + number for number, (_, name, _) in enumerate(step.written)}
        hulls = [self.places.boxes[called(name)] for name, _ in step.used]
        own: dict[str, tuple[int, Box]] = {}  # of values that are read within the step alone

        def ref(value: Value, region: RankRegion) -> Ref | None:
            box = box_of(value, region)
            if value.name in lies:
                place, hull = lies[value.name], hulls[lies[value.name]]
            else:
                place, hull = own.setdefault(value.name, (-1 - len(own), box))
            if box.spans[1:] != hull.spans[1:]:
                return None
            return Ref(place, box.spans[0], hull.spans[0], math.prod(box.shape[1:]))

        found: list[Recipe] = []
        for start, roles, avoids in grouped(step.run, lambda name: kernels[_block(called(name))]):
            (first, begins), (last, ends) = step.run[start], step.run[start + len(roles) - 1]
            refs = [ref(last.writes, ends), ref(first.reads[0 if first.role == FULL_CONTEXTS else -1], begins)]
            if first.role == FULL_CONTEXTS:
                keys = first.reads[1]
                (seen,) = first.needs({axis: _spans_of(span) for axis, span in begins.items()})[keys.name][ROW].tolist()
                assert isinstance(first.kind, Attention)
                refs.append(ref(keys, {ROW: Span(*seen), KV: first.kind.kv_span(begins[HEAD])}))
            elif last.role == Join.name:
                refs.append(ref(last.reads[0], ends))
            if avoids or None in refs:
                return None
            found.append(Recipe(first, begins, roles, tuple(own for own in refs if own is not None)))
        return found

    @classmethod
    def of(cls, parts: StageParts, rank: int) -> OwnStage:
        """Find it."""
        given, left = (
            [
                (name, box_of_rank(region, tuple(region), rank))
                for name, region in sorted(every.items(), key=lambda own: HIDDEN in own[1])  # the stream the last
            ]
            for every in ({name: region for name, (_, region) in parts.given.items()}, parts.left)
        )
        steps = own_steps(parts.steps(), rank, [name for name, _ in left], equal=False)
        return cls(steps, given, left, places_of(steps, given, left=left))


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
        """Compute it layer by layer: yield behind each."""
        blocks = iter(self._blocks)
        last = ""
        for name, calls in blocks:
            layer = name.rpartition(" ")[0]
            if last and layer and layer != last:
                yield
            last = layer or last
            for call in calls:
                call()
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
            block = _block(called(recipe.part.name))
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
            block = _block(_named(called(step.run[number][0].name), sub_block))
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
            bound = Binding(self._batch, self._backend, lies, self._scratch, self._values)
            run = [(part, {**region, ROW: self._stretches.rows(region[ROW])}) for part, region in step.run]
            units = bound.units(run, lambda name: self._kernels[_block(called(name))])
            self._known[key] = bound.makes(units) if comes is None else bound.as_comes(units, step.as_comes, comes)
        return self._known[key]

    def _box_array(self, name: str, box: Box) -> BoxArray:
        return BoxArray(self._places.box(box), self._memory.view(name, box))


# Called before every layer; returns the plan that holds from there on, if it is another, and this rank's layers by it.
Look = Callable[[int], tuple[Plan, Sequence[LayerKernels]] | None]
Ran = Generator[None, None, tuple[Array, Plan]]
STREAM_AXES = (ROW, HIDDEN, NUMBER)
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

        A rank that is alone yields behind every layer, so that it can do something else; where others wait for it, it
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


# Makes calls of a block's kernels, which is one of several that are cut alike.
Make = Callable[[BlockKernels], Iterable[CompiledCall]]
Made = tuple[int, int | None, Make]  # of which part of a step's run, and of which sub-block


@dataclass(slots=True, eq=False)
class Binding:
    """Finds the arrays of what a rank computes in a step, and so what makes calls of a block's kernels.

    Parameters
    ----------
    batch, backend
        As of `EncoderProgram`.
    lies
        Where values lie that the step reads and leaves; others are added as they are computed.
    scratch
        Arrays for what is read within the step alone, by which it is of a step, and their size.
    known
        What graphs take of arrays.
    """

    batch: Batch
    backend: Backend
    lies: dict[str, BoxArray]
    scratch: dict[tuple[int, int], Array]
    known: Known
    number: int = 0  # of arrays that this step has taken
    read: dict[str, Value] = field(default_factory=dict)  # what keys would be made of that are avoided, by their name

    def units(self, run: Sequence[tuple[Part, RankRegion]], kernels_of: Callable[[str], BlockKernels]) -> list[Unit]:
        """Return what a rank computes, graph by graph; of sub-blocks one by one."""
        found: list[Unit] = []
        for start, roles, avoids in grouped(run, kernels_of):
            some, (part, region) = tuple(run[start : start + len(roles)]), run[start]
            if (least := _sub_block(part, region)) is None:
                found.append(Unit(start, None, roles, some, avoids))
                continue
            for sub_block in range(least, region[HIDDEN].stop // part.stream.hidden):
                found.append(Unit(start, sub_block, roles, self._of_sub_block(some, sub_block), avoids))
        return found

    def _of_sub_block(self, run: RankRun, number: int) -> RankRun:
        """Return parts of all sub-blocks as those of one."""
        found, (last, ends) = [], run[-1]
        if last.writes.axes == STREAM_AXES:  # all write theirs in one array
            self._out(last.writes, ends)
        for part, region in run:
            columns = Span(number, number + 1).scaled(part.stream.hidden)
            *reads, writes = (_of_one(value, number) for value in (*part.reads, part.writes))
            found.append((replace(part, reads=tuple(reads), writes=writes), {**region, HIDDEN: columns}))
        return tuple(found)

    def makes(self, units: Sequence[Unit]) -> list[Made]:
        """Return what makes the calls of units."""
        return [(unit.number, unit.sub_block, self._make(unit)) for unit in units]

    def _make(self, unit: Unit) -> Make:
        if unit.roles == (FULL_CONTEXTS,):
            return self._attending(*unit.run[0])
        if unit.avoids and unit.roles == (FULL_KEYS,):
            part, _ = unit.run[0]
            self.read[part.writes.name] = part.reads[0]
            return _nothing
        return self._computed(unit)

    def as_comes(self, every: Sequence[Unit], value: str, exchange: RankExchange) -> list[Made]:
        """Return what computes with a value's rows that are here first, and with others as they come.

        What reads none of it is computed before.
        """
        whole, coming = self.lies[value].box if value in self.lies else None, exchange.coming
        read = [unit.run[0][0].reads[-1].name == value for unit in every]
        if whole is None or not any(read) or any(box.spans[1:] != whole.spans[1:] for box in coming):
            return [(every[0].number, every[0].sub_block, lambda _: [exchange.finish]), *self.makes(every)]
        start = read.index(True)
        stop = next((number for number in range(start, len(read)) if not read[number]), len(read))
        before, some = self.makes(every[:start]), every[start:stop]
        here = _without(whole.spans[0], [box.spans[0] for box in coming])
        if some[0].roles == (FULL_CONTEXTS,):
            make = self._partial(*some[0].run[0], here, exchange)
        else:
            for unit in some:
                if not (unit.avoids and unit.roles == (FULL_KEYS,)):
                    self._out(unit.run[-1][0].writes, unit.run[-1][1])
            first = [self._make(unit.only(rows)) for rows in here for unit in some]
            arriving = {box: [self._make(unit.only(box.spans[0])) for unit in some] for box in coming}
            make = partial(_arriving, first, exchange, arriving)
        return [*before, (some[0].number, None, make), *self.makes(every[stop:])]

    def _computed(self, unit: Unit) -> Make:
        """Return what computes parts of which there is one graph."""
        (first, begins), (last, ends) = unit.run[0], unit.run[-1]
        out = self._out(last.writes, ends)
        if not out.size:
            return _nothing
        residual, before = None, list[CompiledCall]()
        if last.role == Join.name:
            residual = self._rows(last.reads[0], ends, before)
        x = self._rows(first.reads[-1], begins, before)
        to = out if out.flags.c_contiguous else self._array(out.shape)
        y, after = by_rows(to), [] if to is out else [partial(np.copyto, out, to)]

        def make(kernels: BlockKernels) -> Iterable[CompiledCall]:
            return *before, kernels.graphs[unit.roles].bound(x, y, residual, self.known), *after

        return make

    def _attending(self, part: Part, region: RankRegion) -> Make:
        """Return what computes the contexts of some rows and heads."""
        attention, rows, heads = part.kind, region[ROW], region[HEAD]
        assert isinstance(attention, Attention)
        queries, keys = part.reads
        out, d = self._out(part.writes, region), attention.head_dim
        if not out.size:
            return _nothing
        q = by_rows(self._some(queries, region))
        to = out if out.flags.c_contiguous else self._array(out.shape)
        y, after = by_rows(to), [] if to is out else [partial(np.copyto, out, to)]
        seen = self.batch.keys_of(rows)
        pieces = self.batch.pieces(rows, seen)
        if keys.name in self.read:
            x = by_rows(self._some(self.read[keys.name], {ROW: seen}))

            def avoiding(kernels: BlockKernels) -> Iterable[CompiledCall]:
                added = added_to(kernels, self.batch, rows, heads)
                assert kernels.avoided is not None
                attend = partial(numpy_kernels.attend_without_keys, q, x, kernels.avoided, pieces, d, added, y)
                return attend, *after

            return avoiding
        k, v = self._keys_and_values(part, seen, heads)

        def make(kernels: BlockKernels) -> Iterable[CompiledCall]:
            attend = attending(self.backend, added_to(kernels, self.batch, rows, heads))
            return partial(attend, q, k, v, pieces, d, out=y), *after

        return make

    def _partial(self, part: Part, region: RankRegion, here: Sequence[Span], exchange: RankExchange) -> Make:
        """Return what computes contexts with the keys that are here, and with others as they come."""
        attention, rows, heads = part.kind, region[ROW], region[HEAD]
        assert isinstance(attention, Attention)
        seen, d = self.batch.keys_of(rows), attention.head_dim
        (k, v), pieces = self._keys_and_values(part, seen, heads), self.batch.pieces(rows, seen)
        q, y = by_rows(self._some(part.reads[0], region)), by_rows(self._out(part.writes, region))

        def make(kernels: BlockKernels) -> Iterable[CompiledCall]:
            contexts = PartialContexts(
                q, k, v, y, seen, pieces, d, added_to(kernels, self.batch, rows, heads), self.backend
            )
            first = [partial(contexts.take, some) for some in here]
            arriving = {box: [partial(contexts.take, box.spans[0])] for box in exchange.coming}
            return [partial(_run_arriving, first, exchange, arriving, [contexts.merge])]

        return make

    def _keys_and_values(self, part: Part, seen: Span, heads: Span) -> tuple[Array, Array]:
        """Return the keys, and the values, that heads see of some rows; [keys, columns] each."""
        assert isinstance(part.kind, Attention)
        both = self._some(part.reads[1], {ROW: seen, KV: part.kind.kv_span(heads)})
        return by_rows(both[:, 0]), by_rows(both[:, 1])

    def _some(self, value: Value, region: RankRegion) -> Array:
        """Return what a region reads of a value."""
        return self.lies[value.name].some(box_of(value, region))

    def _out(self, value: Value, region: RankRegion) -> Array:
        """Return where a result lies; in an array of its own if nobody reads it after the step."""
        box = box_of(value, region)
        if value.name not in self.lies:
            self.lies[value.name] = BoxArray(box, self._array(box.shape))
        return self.lies[value.name].some(box)

    def _rows(self, value: Value, region: RankRegion, before: list[CompiledCall]) -> Array:
        """Return what a region reads as a graph takes it, in rows side by side; if need be it is copied `before`."""
        found = self._some(value, region)
        if found.flags.c_contiguous:
            return by_rows(found)
        copy = self._array(found.shape)
        before.append(partial(np.copyto, copy, found))
        return by_rows(copy)

    def _array(self, shape: tuple[int, ...]) -> Array:
        self.number += 1
        key = self.number, math.prod(shape)
        if key not in self.scratch:
            self.scratch[key] = np.empty(key[1], np.float32)
        return self.scratch[key].reshape(shape, copy=False)


def _make_room(kept: dict[tuple[object, ...], Any], most: int) -> None:
    """Drop what was put in first, where there is no room for one more."""
    while len(kept) >= most:
        del kept[next(iter(kept))]


def attending(backend: Backend, added: Sequence[Array]) -> Attend:
    """Return what attends to all keys at once; where something is added to scores, as numpy does it."""
    return partial(numpy_kernels.attend, added=added) if added else backend.attend


def added_to(kernels: BlockKernels, batch: Batch, rows: Span, heads: Span) -> Sequence[Array]:
    """Return what distances add to the scores, request by request [heads, rows, keys]; mostly nothing."""
    if kernels.relative is None:
        return ()
    requests = [request for request in batch.requests if request.intersect(rows).size]
    return [
        kernels.relative.between(heads, own, Span(0, request.size))
        for own, request in zip(batch.places(rows), requests, strict=True)
    ]


def grouped(
    run: Sequence[tuple[Part, RankRegion]], kernels_of: Callable[[str], BlockKernels]
) -> Iterator[tuple[int, Roles, bool]]:
    """Yield which parts of a run have one graph: the first, their roles; and whether keys and values are avoided."""
    names, start = [_block(part.name) for part, _ in run], 0
    while start < len(run):
        part, region = run[start]
        kernels = kernels_of(_named(part.name, _sub_block(part, region)))
        same = (own.role for (own, _), name in zip(run[start:], names[start:], strict=True) if name == names[start])
        roles = tuple(same)
        count = next((end for end in range(len(roles), 0, -1) if roles[:end] in kernels.graphs), 1)
        yield start, roles[:count], kernels.avoided is not None
        start += count


def _block(name: str) -> str:
    """Return the name of a part's block, by its own: `layers/N/…`, or of a sub-block `layers/N/M/…`."""
    words = name.split("/")
    return "/".join(words[: 4 if words[2].isdigit() else 3])


def _named(name: str, sub_block: int | None) -> str:
    """Return a part's name, or that of a sub-block's, of the name of the first one's."""
    layers, layer, _, *rest = name.split("/")
    return name if sub_block is None else "/".join((layers, layer, str(sub_block), *rest))


def _sub_block(part: Part, region: RankRegion) -> int | None:
    """Return the first sub-block of which a rank computes a part; None: it is of none."""
    return region[HIDDEN].start // part.stream.hidden if part.name.split("/")[2].isdigit() else None


def _spans_of(span: Span) -> Spans:
    return np.array([[span.start, span.stop]])


def _nothing(kernels: BlockKernels) -> Iterable[CompiledCall]:
    """Make no calls."""
    return ()


def _arriving(
    first: Sequence[Make], exchange: RankExchange, arriving: Mapping[Box, Sequence[Make]], kernels: BlockKernels
) -> Iterable[CompiledCall]:
    """Make the call that computes with what is here, and with others' rows as they come."""

    def made(makes: Sequence[Make]) -> list[CompiledCall]:
        return [call for make in makes for call in make(kernels)]

    every = {box: made(makes) for box, makes in arriving.items()}
    return [partial(_run_arriving, made(first), exchange, every, ())]


def _of_one(value: Value, sub_block: int) -> Value:
    """Return a value of all sub-blocks as that of one: its columns of the stream, or what lies between."""
    if value.axes == STREAM_AXES:
        return value
    layers, layer, _, *rest = value.name.split("/")
    name = "/".join((layers, layer, str(sub_block), *rest))
    return replace(value, name=name, axes=(ROW, *value.axes[2:]), shape=(value.shape[0], *value.shape[2:]))


@dataclass(slots=True, eq=False)
class PartialContexts:
    """Contexts of some rows, computed key by key as these come, and joined in the end.

    Parameters
    ----------
    q, k, v, out
        Queries [rows, columns], keys and values [keys, columns], and where contexts go.
    seen, pieces
        The keys' rows, and for every request its rows and its keys.
    head_dim, added, backend
        As of `numpy_kernels.attend`, and what computes.
    """

    q: Array
    k: Array
    v: Array
    out: Array
    seen: Span
    pieces: Sequence[tuple[slice, slice]]
    head_dim: int
    added: Sequence[Array]
    backend: Backend
    parts: dict[int, list[tuple[Array, Array]]] = field(default_factory=lambda: defaultdict(list))

    def take(self, rows: Span) -> None:
        """Attend to keys of some rows, which are there."""
        k, v, block = self.k, self.v, rows.within(self.seen)
        for number, (own, keys) in enumerate(self.pieces):
            every = Span(keys.start, keys.stop)
            some, scores = block.intersect(every), self.added[number : number + 1]
            if not some.size:
                continue
            q, seen = self.q[own], some.slice
            if some == every:  # all of them at once: nothing to merge
                here = [(slice(None),) * 2]
                facts = {"added": scores} if scores else {}
                attend = numpy_kernels.attend if scores else self.backend.attend
                attend(q, k[keys], v[keys], here, self.head_dim, out=self.out[own], **facts)
            elif scores:
                cut = scores[0][:, :, some.within(every).slice]
                self.parts[number].append(numpy_kernels.attend_part(q, k[seen], v[seen], self.head_dim, added=cut))
            else:
                self.parts[number].append(self.backend.attend_part(q, k[seen], v[seen], self.head_dim))

    def merge(self) -> None:
        """Join what was computed of the keys of each request."""
        for number, parts in self.parts.items():
            self.out[self.pieces[number][0]] = numpy_kernels.merge(parts)
        self.parts.clear()


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Parts of a block of which there is one graph, or contexts.

    Parameters
    ----------
    number, sub_block
        Of the first part in the step's run, and of the sub-block, if it is of one.
    roles, run
        The parts' roles, and they themselves with this rank's region of each.
    avoids
        Whether keys and values are not projected.
    """

    number: int
    sub_block: int | None
    roles: Roles
    run: RankRun
    avoids: bool

    def only(self, rows: Span) -> Unit:
        """Return it with some of its rows."""
        return replace(self, run=tuple((part, {**own, ROW: own[ROW].intersect(rows)}) for part, own in self.run))


def _without(rows: Span, blocks: Iterable[Span]) -> list[Span]:
    """Return rows but for those of some blocks."""
    left = [(rows.start, rows.stop)]
    for block in blocks:
        left = [
            own
            for start, stop in left
            for own in ((start, min(stop, block.start)), (max(start, block.stop), stop))
            if own[0] < own[1]
        ]
    return [Span(*own) for own in left]


def _run_arriving(
    first: Sequence[CompiledCall], exchange: RankExchange, arriving: Mapping[Box, Sequence[CompiledCall]],
    last: Sequence[CompiledCall],
) -> None:  # fmt: skip
    """Compute with what is here, with what arrives as it comes, and then what needs all of it."""
    for call in first:
        call()
    for boxes in exchange.arriving():
        for box in boxes:
            for call in arriving[box]:
                call()
    for call in last:
        call()


def box_of(value: Value, region: RankRegion) -> Box:
    """Return what of a value a rank's region is."""
    return Box(tuple(region.get(axis, Span(0, length)) for axis, length in zip(value.axes, value.shape, strict=True)))
