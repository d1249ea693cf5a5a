"""What a rank computes in a step of an encoder, bound to the arrays in which its values lie.

A head is computed in `kernels.numpy_kernels.attend` and `kernels.ort.attend`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from hepti_mpi.comm.exchange import RankExchange
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.layers import BlockKernels, Roles
from hepti_mpi.kernels import numpy_kernels
from hepti_mpi.kernels.kinds.held import Known
from hepti_mpi.kernels.products import Attend, Backend
from hepti_mpi.program.compiled import CompiledCall
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span
from solver.model.kinds.attention import FULL_CONTEXTS, FULL_KEYS, Attention
from solver.model.kinds.join import Join
from solver.model.kinds.part import HEAD, HIDDEN, KV, NUMBER, ROW, Part, RankRegion, Value
from solver.plan.layout import Box
from solver.schedule.places import RankRun

STREAM_AXES = (ROW, HIDDEN, NUMBER)


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
        Returns an array for what is read within the step alone, by which it is of a step, and its size.
    known
        What graphs take of arrays.
    """

    batch: Batch
    backend: Backend
    lies: dict[str, BoxArray]
    scratch: Callable[[int, int], Array]
    known: Known
    number: int = 0  # of arrays that this step has taken
    read: dict[str, Value] = field(default_factory=dict)  # what keys would be made of that are avoided, by their name

    def units(self, run: Sequence[tuple[Part, RankRegion]], kernels_of: Callable[[str], BlockKernels]) -> list[Unit]:
        """Return what a rank computes, graph by graph; of sub-blocks one by one."""
        found: list[Unit] = []
        for start, roles, avoids in grouped(run, kernels_of):
            some, (part, region) = tuple(run[start : start + len(roles)]), run[start]
            if (least := sub_block_of(part, region)) is None:
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
        here = without(whole.spans[0], [box.spans[0] for box in coming])
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
        y, after = self._written(out)

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
        y, after = self._written(out)
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

    def _written(self, out: Array) -> tuple[Array, list[CompiledCall]]:
        """Return where a graph writes a result, in rows side by side, and what brings it to its place after that."""
        if out.flags.c_contiguous:
            return by_rows(out), []
        to = self._array(out.shape)
        return by_rows(to), [partial(np.copyto, out, to)]

    def _array(self, shape: tuple[int, ...]) -> Array:
        self.number += 1
        return self.scratch(self.number, math.prod(shape)).reshape(shape, copy=False)


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
    names, start = [block_of(part.name) for part, _ in run], 0
    while start < len(run):
        part, region = run[start]
        kernels = kernels_of(named(part.name, sub_block_of(part, region)))
        same = (own.role for (own, _), name in zip(run[start:], names[start:], strict=True) if name == names[start])
        roles = tuple(same)
        count = next((end for end in range(len(roles), 0, -1) if roles[:end] in kernels.graphs), 1)
        yield start, roles[:count], kernels.avoided is not None
        start += count


def block_of(name: str) -> str:
    """Return the name of a part's block, by its own: `layers/N/…`, or of a sub-block `layers/N/M/…`."""
    words = name.split("/")
    return "/".join(words[: 4 if words[2].isdigit() else 3])


def named(name: str, sub_block: int | None) -> str:
    """Return a part's name, or that of a sub-block's, of the name of the first one's."""
    layers, layer, _, *rest = name.split("/")
    return name if sub_block is None else "/".join((layers, layer, str(sub_block), *rest))


def sub_block_of(part: Part, region: RankRegion) -> int | None:
    """Return the first sub-block of which a rank computes a part; None: it is of none."""
    return region[HIDDEN].start // part.stream.hidden if part.name.split("/")[2].isdigit() else None


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
    name = named(value.name, sub_block)
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


def without(rows: Span, blocks: Iterable[Span]) -> list[Span]:
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
