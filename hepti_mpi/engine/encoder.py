"""A rank's part in an encoder's layers, compiled: what computes its parts is bound to where their values lie.

Who has which rows, heads and columns stands in the plan; a share is decided in `solver.programs`, what follows from it
in a pass in `solver.schedule`; a byte is sent in `comm.exchange`, a head is computed in `kernels.numpy_kernels.attend`
and `kernels.ort.attend`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from hepti_mpi.comm.group import Group
from hepti_mpi.comm.wires import Coding
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.layers import BlockKernels
from hepti_mpi.kernels import numpy_kernels
from hepti_mpi.kernels.products import Backend, Graph
from hepti_mpi.program.compiled import Compiled, CompiledCall
from solver.base.arrays import Array, Numbers
from solver.base.spans import Span
from solver.model.kinds.attention import FULL_CONTEXTS, FULL_KEYS, Attention
from solver.model.kinds.join import Join
from solver.model.kinds.part import HEAD, KV, ROW, Part, RankRegion, Value
from solver.plan.layout import Box
from solver.schedule.places import OwnCompute, OwnExchange, OwnStep, RankRun, Used, own_steps, places_of
from solver.schedule.schedule import AnyStep, Called


@dataclass(frozen=True, slots=True, eq=False)
class Lying:
    """A box of a value, and the array in which it lies."""

    box: Box
    array: Numbers

    def rows(self, box: Box) -> Array:
        """Return some of it, as rows."""
        found = self.array[box.within(self.box)]
        rows: Array = found.reshape(found.shape[0], math.prod(found.shape[1:]), copy=None)
        return rows


class EncoderProgram(Compiled):
    """A rank's part of some layers in batches of one shape; it may run any number of times.

    Parameters
    ----------
    steps
        What all do.
    given, left
        The boxes of values with which this rank begins, and ends.
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
        self, steps: Sequence[AnyStep], given: Used, left: Used, kernels: Mapping[str, BlockKernels], batch: Batch,
        group: Group, coding: Coding, backend: Backend,
    ) -> None:  # fmt: skip
        self._kernels, self._batch, self._within, self._backend = kernels, batch, coding, backend
        self._scratch: dict[tuple[int, int], Array] = {}
        every = own_steps(steps, group.rank, [name for name, _ in left])
        super().__init__(every, places_of(every, given, left=left), group)
        self.given, self.left = (
            [Lying(box, self._memory.view(name, box)).rows(box) for name, box in own] for own in (given, left)
        )

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

    def _computing(self, step: OwnStep, called: Called) -> Iterator[tuple[str, CompiledCall]]:
        assert isinstance(step, OwnCompute)
        lies = {called(name): Lying(box, self._memory.view(called(name), box)) for name, box in step.reads.items()}
        for place, name, box in step.written:
            lies[called(name)] = Lying(box, self._memory.view(called(place), box))
        bound = Binding(self._kernels, self._batch, self._backend, lies, called, self._scratch)
        return bound.calls(step.run)


@dataclass(slots=True, eq=False)
class Binding:
    """Binds what a rank computes in a step to where values lie.

    Parameters
    ----------
    kernels, batch, backend
        As of `EncoderProgram`; kernels by the block's name.
    lies
        Where values lie that the step reads and leaves; others are added as they are computed.
    called
        What values and parts are called.
    scratch
        Arrays for what is read within the step alone, by which it is of a step, and their size.
    """

    kernels: Mapping[str, BlockKernels]
    batch: Batch
    backend: Backend
    lies: dict[str, Lying]
    called: Called
    scratch: dict[tuple[int, int], Array]
    number: int = 0  # of arrays that this step has taken
    read: dict[str, Value] = field(default_factory=dict)  # what keys would be made of that are avoided, by their name

    def calls(self, run: RankRun) -> Iterator[tuple[str, CompiledCall]]:
        """Yield what computes the parts, each with the block's name in traces."""
        names, start = [self._block(part) for part, _ in run], 0
        while start < len(run):
            name, role = names[start], run[start][0].role
            kernels = self.kernels[name]
            roles = tuple(part.role for (part, _), own in zip(run[start:], names[start:], strict=True) if own == name)
            count = next((end for end in range(len(roles), 0, -1) if roles[:end] in kernels.graphs), 1)
            unit, start = run[start : start + count], start + count
            if role == FULL_CONTEXTS:
                calls = self._attending(*unit[0], kernels)
            elif kernels.avoided is not None and role == FULL_KEYS:
                (part, _), *_ = unit
                self.read[part.writes.name] = part.reads[0]
                continue
            else:
                calls = self._computed(unit, kernels.graphs[roles[:count]])
            _, layer, *_, kind = name.split("/")
            yield from ((f"layer {layer} {kind}", call) for call in calls)

    def _computed(self, unit: RankRun, graph: Graph) -> Iterator[CompiledCall]:
        """Yield what computes parts of which there is one graph."""
        (first, begins), (last, ends) = unit[0], unit[-1]
        out = self._out(last.writes, ends)
        if not out.size:
            return
        residual = None
        if last.role == Join.name:
            residual = yield from self._contiguous(self._rows(last.reads[0], ends))
        x = yield from self._contiguous(self._rows(first.reads[-1], begins))
        to = out if out.flags.c_contiguous else self._array(out.shape)
        yield graph.bound(x, to, residual)
        if to is not out:
            yield partial(np.copyto, out, to)

    def _attending(self, part: Part, region: RankRegion, kernels: BlockKernels) -> Iterator[CompiledCall]:
        """Yield what computes the contexts of some rows and heads."""
        attention, rows, heads = part.kind, region[ROW], region[HEAD]
        assert isinstance(attention, Attention)
        queries, keys = part.reads
        out, q = self._out(part.writes, region), self._rows(queries, region)
        if not out.size:
            return
        seen = self.batch.keys_of(rows)
        pieces, added = self.batch.pieces(rows, seen), self._added(kernels, rows, heads)
        facts = {"out": out, **({"added": added} if added else {})}
        if kernels.avoided is not None:
            x = self._rows(self.read[keys.name], {ROW: seen})
            yield partial(numpy_kernels.attend_without_keys, q, x, kernels.avoided, pieces, attention.head_dim, **facts)
            return
        kv = self._rows(keys, {ROW: seen, KV: attention.kv_span(heads)}).reshape(seen.size, 2, -1, copy=False)
        attend = numpy_kernels.attend if added else self.backend.attend
        yield partial(attend, q, kv[:, 0], kv[:, 1], pieces, attention.head_dim, **facts)

    def _added(self, kernels: BlockKernels, rows: Span, heads: Span) -> Sequence[Array]:
        """Return what distances add to the scores, request by request [heads, rows, keys]; mostly nothing."""
        if kernels.relative is None:
            return ()
        requests = [request for request in self.batch.requests if request.intersect(rows).size]
        return [
            kernels.relative.between(heads, own, Span(0, request.size))
            for own, request in zip(self.batch.places(rows), requests, strict=True)
        ]

    def _block(self, part: Part) -> str:
        """Return the name of a part's block: `layers/N/…`, or of a sub-block `layers/N/M/…`."""
        words = self.called(part.name).split("/")
        return "/".join(words[: 4 if words[2].isdigit() else 3])

    def _rows(self, value: Value, region: RankRegion) -> Array:
        """Return what a region reads, or writes, of a value, as rows."""
        return self.lies[self.called(value.name)].rows(box_of(value, region))

    def _out(self, value: Value, region: RankRegion) -> Array:
        """Return where a result lies; in an array of its own if nobody reads it after the step."""
        name, box = self.called(value.name), box_of(value, region)
        if name not in self.lies:
            self.lies[name] = Lying(box, self._array(box.shape))
        return self.lies[name].rows(box)

    def _contiguous(self, x: Array) -> Generator[CompiledCall, None, Array]:
        """Return rows as a graph takes them; yield what copies them, if they do not lie so."""
        if x.flags.c_contiguous:
            return x
        copy = self._array(x.shape)
        yield partial(np.copyto, copy, x)
        return copy

    def _array(self, shape: tuple[int, ...]) -> Array:
        self.number += 1
        key = self.number, math.prod(shape)
        if key not in self.scratch:
            self.scratch[key] = np.empty(key[1], np.float32)
        return self.scratch[key].reshape(shape, copy=False)


def box_of(value: Value, region: RankRegion) -> Box:
    """Return what of a value a rank's region is."""
    return Box(
        tuple(region.get(axis, Span(0, length)) for axis, length in zip(value.axes, value.shape, strict=True))
    )
