"""What an encoder's plan does with requests: parts of layers as its cuts place them, and the schedule that follows.

Rows come to the stage's ranks as its first block keeps them, or all to all; as its last block leaves them they lie in
the end. Of a batch all rows stand one after the other, and each sees those of its request. After a cut by rows or by
columns of the stream nothing is said of how rows come there: the schedule finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from solver.base.spans import Partition, Span
from solver.model.blocks import Block, Cut
from solver.model.kinds.norm import NORM
from solver.model.kinds.part import HIDDEN, PAIR, ROW, WHOLE, Part, Region, Spans, Value, whole
from solver.model.layers import in_sub_blocks, over_tiles, parts_of_blocks
from solver.model.spec import ModelSpec, Run, layer_prefixes
from solver.model.sublayers import HALVES
from solver.plan.holdings import alike
from solver.plan.plan import BlockPlan, Keys, Plan, Stage, StreamLayout
from solver.plan.routes import Route
from solver.schedule.exchange import Mask
from solver.schedule.regions import some_have, taking
from solver.schedule.schedule import WITH_READER, AnyStep, ComputeStep, ExchangeStep, PlacedPart, schedule
from solver.schedule.stretches import BatchRows, shared_alike

STREAM = "stream"  # the name of what a stage begins with
# What exchanges are called: with rank 0; of summands, and where all get the sums in two steps the second.
HAND_OUT, HAND_IN = "hand out", "hand in"
REDUCE, SPREAD_SUMS = "reduce", "gather sums"
WORDS = {PAIR: "K, V"}
MANY = 64  # ranks: of more none makes a summand for each of the others, but all at once


@dataclass(frozen=True, slots=True, eq=False)
class StreamLies:
    """How the stream lies: along which axis ranks have some of it, or `WHOLE`, and their spans [1, p, 2]."""

    axis: str
    spans: Spans

    def box(self, x: Value) -> Region:
        """Return what every rank has of it."""
        some = (self.spans[..., 1:] > self.spans[..., :1]).astype(np.int64)
        lengths = zip(x.axes, x.shape, strict=True)
        return {axis: self.spans if axis == self.axis else some * whole(length) for axis, length in lengths}


@dataclass(frozen=True, slots=True, eq=False)
class StageParts:
    """The parts of a stage's layers, as its ranks cut them.

    Parameters
    ----------
    given, left
        The values with which it begins and ends: the stream, and, where that is within a block, what lies there.
    layers
        Layers and their parts, as of `schedule`.
    names
        What exchanges are called, by their value's name.
    rows
        Those of the batch.
    """

    given: Mapping[str, tuple[Value, Region]]
    left: Mapping[str, Region]
    layers: Sequence[tuple[Span, Sequence[PlacedPart]]]
    names: Mapping[str, str]
    rows: BatchRows

    def steps(self) -> tuple[AnyStep, ...]:
        """Return what ranks do."""
        return schedule(self.layers, self.given, self.rows.summed, self.names, self.left)


@dataclass(frozen=True, slots=True, eq=False)
class CutBlock:
    """How ranks cut a block, under one plan or several that are alike but for their shares.

    Parameters
    ----------
    plan
        The first one's, of the ranks only.
    rows, inner, columns : [n, p, 2]
        As of `BlockPlan`, in units of the axis.
    avoids : [n, p]
        Who computes contexts without keys and values, where the input is gathered.
    """

    plan: BlockPlan
    rows: Spans | None = None
    inner: Spans | None = None
    columns: Spans | None = None
    avoids: Mask | None = None

    @classmethod
    def of(cls, plan: BlockPlan, rows: BatchRows) -> CutBlock:
        """Return it as one plan says."""
        own = None if plan.rows is None else rows.shares[plan.rows]
        shares, inner, columns = (None if some is None else _spans(some) for some in (own, plan.inner, plan.columns))
        avoids = None if plan.keys is None else np.array([[way is Keys.AVOIDED for way in plan.keys]])
        return cls(plan, shares, inner, columns, avoids)

    @property
    def shares(self) -> list[Spans]:
        """What ranks have of every axis, [n, p, 2] each; of a grid not the stream's columns, which are of its lines."""
        columns = None if self.plan.cut is Cut.GRID else self.columns
        return [own for own in (self.rows, self.inner, columns) if own is not None]


LayerCuts = tuple[CutBlock, ...]  # of every block of a layer


def batch_rows(
    stage: Stage, crew: Sequence[int], requests: Sequence[int], tile_rows: int = 0, before: BlockPlan | None = None
) -> BatchRows:
    """Return the rows of a batch, and where a stage's plan cuts them.

    Parameters
    ----------
    crew
        As of `stage_parts`.
    requests
        How many rows each request of the batch has.
    tile_rows
        As in the plan.
    before
        As of `stage_parts`.
    """
    plans = [*([] if before is None else [before]), *(plan for _, layer in stage.layers for plan in layer)]
    blocks = [plan.only(crew) for plan in dict.fromkeys(plans)]
    own = Partition.of_counts(requests)
    every = Span(0, own.total)
    shares = {plan.rows: tuple(Partition.of_shares(plan.rows, own.total)) for plan in blocks if plan.rows is not None}
    # One swap between two moves as much as two steps; and of rows whose numbers share a scale none is cut.
    wanting, sums = len(set(stage.active) & set(crew)), dict[int, tuple[Span, ...]]()
    if wanting > 2 and any(plan.norm is StreamLayout.FULL for plan in blocks):
        sums[wanting] = shared_alike(every, wanting)
    return BatchRows(tuple(own), shares, sums, tile_rows)


def stage_parts(
    spec: ModelSpec, stage: Stage, crew: Sequence[int], rows: BatchRows, *, some: Span | None = None,
    before: BlockPlan | None = None, folded: bool = False, unfolds: bool = True,
    cuts: Sequence[LayerCuts] | None = None,
) -> StageParts:  # fmt: skip
    """Return the parts of a stage's layers over a batch, as its crew cuts them.

    Parameters
    ----------
    crew
        Its devices that run it, by their number in the stage: all that have a share; ranks are numbers in it.
    rows
        As of `batch_rows`, or counted in stretches.
    some
        Its layers, or only some of them.
    before
        The block that leaves the stream before these; None: the one before them, or, of a stage's first ones, it lies
        as the first block wants it, and all of it on the first who takes part where that wants columns.
    folded
        Whether layers that are alike stand in it once, with how many they are.
    unfolds
        Whether these are unfolded, then (`solver.schedule.schedule.unfolded`): it takes more of them.
    cuts
        Of every run of layers of the stage, what several plans make of it; None: the stage's own.
    """
    own = _Placing(stage, crew, rows, cuts_of(stage, crew, rows) if cuts is None else cuts)
    x = replace(spec.run(stage.span.start).blocks[0].stream, hidden=spec.hidden).value(STREAM, rows.count)
    lies = own.before(some, x) if before is None else own.behind(CutBlock.of(before.only(crew), rows), x)
    given, left, layers = {x.name: (x, lies.box(x))}, dict[str, Region](), list[tuple[Span, list[PlacedPart]]]()
    names = dict[str, str]()
    runs = _each((some or stage.span).intersect(stage.span))
    if folded:
        runs = _runs(spec, stage) if unfolds else own.runs(spec, x, lies)
    for span in runs:
        run, halves, every = spec.run(span.start), stage.part(span.start), list[PlacedPart]()
        for place, (block, cut) in enumerate(zip(run.blocks, own.of(span.start), strict=True)):
            both = Span(place, place + 1).scaled(HALVES)
            part = halves.intersect(both)
            if not part.size:
                continue
            parts, after = _parts(run, span.start, block, rows.lengths, x)
            placed, behind = own.placed(parts, cut, lies), own.behind(cut, after)
            names |= _names(placed, cut.plan, x, lies)
            second = next(number for number, one in enumerate(placed) if one.part.cut)
            if part.start != both.start:  # it begins with what another stage has made within it
                (inner,), placed = placed[second].part.reads, placed[second:]
                given[inner.name] = inner, behind.box(inner)
            if part.stop != both.stop:
                *placed, last = placed[:second]
                placed.append(replace(last, axis=ROW, spans=behind.spans))
                left[last.part.writes.name] = behind.box(last.part.writes)
                after = x  # what is added lies as what it is added to
            every += placed
            x, lies = after, behind
        layers.append((span, every))
    return StageParts(given, left | {x.name: lies.box(x)}, layers, names, rows)


def request_schedule(spec: ModelSpec, plan: Plan, rows: int, *, folded: bool = True) -> tuple[list[int], list[AnyStep]]:
    """Return what ranks do with a request under a plan of one stage, and which ranks: rank 0 and those with a share.

    Rank 0 embeds it and hands it out, and gets what the layers leave.
    """
    (stage,), crew = plan.stages, request_crew(plan)
    own = batch_rows(stage, crew, [rows], plan.tile_rows)
    return crew, cut_schedule(spec, plan, crew, own, cuts_of(stage, crew, own), folded=folded)


def request_crew(plan: Plan) -> list[int]:
    """Return the ranks that have part in a request: rank 0 and those with a share."""
    return sorted({0, *plan.stages[0].active})


def cut_schedule(
    spec: ModelSpec, plan: Plan, crew: Sequence[int], rows: BatchRows, cuts: Sequence[LayerCuts], *, folded: bool = True
) -> list[AnyStep]:
    """Return what a crew, `request_crew`, does under plans like one but for shares, whose runs are cut so."""
    (stage,) = plan.stages
    parts = stage_parts(spec, stage, crew, rows, folded=folded, unfolds=False, cuts=cuts)
    ((x, lies),) = parts.given.values()
    (last,) = parts.left
    root = {axis: np.repeat(spans, len(lies[axis]), 0) for axis, spans in some_have(x, [0], len(crew)).items()}
    steps = replace(parts, left={last: root}, names={**parts.names, last: HAND_IN}).steps()
    is_there = not isinstance(steps[-1], ExchangeStep) or steps[-1].name != HAND_IN
    handed = [ExchangeStep(HAND_IN, x, (root,), root)] if is_there else []
    return [ComputeStep(()), ExchangeStep(HAND_OUT, x, (root,), lies), *steps, *handed]


def cuts_of(stage: Stage, crew: Sequence[int], rows: BatchRows) -> list[LayerCuts]:
    """Return how a crew cuts every run of a stage's layers, as one plan says."""
    return [tuple(CutBlock.of(plan.only(crew), rows) for plan in layer) for _, layer in stage.layers]


@dataclass(frozen=True, eq=False)
class _Placing:
    """Places parts as the plans of blocks say; arguments as of `stage_parts`."""

    stage: Stage
    crew: Sequence[int]
    rows: BatchRows
    cuts: Sequence[LayerCuts]

    @cached_property
    def active(self) -> Spans:
        """1 for ranks that take part, else 0, [n, p, 1]: those of the stage; of several plans who has any share."""
        shares = {id(own): own for layer in self.cuts for cut in layer for own in cut.shares}
        if all(len(own) == 1 for own in shares.values()):
            own = [rank for rank, device in enumerate(self.crew) if device in self.stage.active]
            return taking(own, len(self.crew))
        some: Mask = np.logical_or.reduce([own[..., 1:] > own[..., :1] for own in shares.values()])
        return some.astype(np.int64)

    def of(self, layer: int) -> LayerCuts:
        """Return how a layer is cut."""
        own = zip(self.stage.layers, self.cuts, strict=True)
        return next(cuts for (span, _), cuts in own if span.start <= layer < span.stop)

    def before(self, some: Span | None, x: Value) -> StreamLies:
        """Return how the stream lies before layers of the stage, where nobody says so."""
        if some is not None and some.start > self.stage.span.start:
            return self.behind(self.of(some.start - 1)[-1], x)
        found = self.behind(self.cuts[0][self.stage.begins // HALVES], x)
        if found.axis != HIDDEN:
            return found
        dealer = int(self.active[0, :, 0].argmax())
        return StreamLies(WHOLE, taking([dealer], len(self.crew)) * whole(1))

    def behind(self, cut: CutBlock, x: Value) -> StreamLies:
        """Return how the stream lies after a block."""
        if cut.rows is not None:
            return StreamLies(ROW, cut.rows)
        if cut.plan.cut is Cut.SUB_BLOCKS:
            assert cut.plan.inner is not None
            assert cut.inner is not None
            return StreamLies(HIDDEN, cut.inner * (x.shape[1] // cut.plan.inner.total))
        return StreamLies(WHOLE, self.active * whole(1))

    def runs(self, spec: ModelSpec, x: Value, lies: StreamLies) -> Iterator[Span]:
        """Yield layers that are alike: the first; the second, if that finds the stream otherwise; the others."""
        for start, count, _ in alike(spec, self.stage):
            before, lies = lies, self.behind(self.of(start)[-1], x)
            alone = 1 if before.axis == lies.axis and np.array_equal(before.spans, lies.spans) else 2
            edges = sorted({*range(start, start + min(alone, count) + 1), start + count})
            yield from (Span(one, other) for one, other in pairwise(edges))

    def placed(self, parts: Sequence[Part], cut: CutBlock, before: StreamLies) -> list[PlacedPart]:
        """Return the parts of a block as its plan cuts them, where the stream lies so before it."""
        own, after = cut.plan, self.behind(cut, parts[-1].writes)
        *body, join = parts
        by_rows, begins = after.axis == ROW and before.axis == ROW, after.axis == ROW and before.axis == WHOLE
        found = list[PlacedPart]()
        if body[0].role == NORM:
            norm, *body = body
            own_rows = own.cut is Cut.ROWS and own.keys is None
            if own_rows or by_rows:
                found.append(self._cut(norm, ROW, after.spans if own_rows else before.spans, begins=begins))
            else:
                found.append(PlacedPart(norm, WITH_READER))
        if own.cut is Cut.ROWS:
            found += self._by_rows(body, cut, after.spans)
        elif own.cut in (Cut.WHOLE, Cut.SUB_BLOCKS):
            found += [PlacedPart(part, WITH_READER) for part in body]
        else:
            found += self._shared(body, cut, comes=by_rows)
        begins = begins or any(part.as_comes and part.axis == ROW for part in found)  # who attends makes no tiles
        return [*found, self._cut(join, after.axis, after.spans, ahead=True, begins=begins)]

    def _cut(self, part: Part, axis: str, spans: Spans, **how: Any) -> PlacedPart:
        tiled = None if axis == WHOLE else self.rows.tiled
        return PlacedPart(part, axis, spans, widens=axis != WHOLE, **{"tiles": tiled, **how})

    def _by_rows(self, body: Sequence[Part], cut: CutBlock, rows: Spans) -> Iterator[PlacedPart]:
        """Yield the parts of a block that is cut by rows, but for its join.

        What is read of other rows is made by who has these, and what reads it is computed as it comes; where the input
        is gathered, everyone makes it of all rows.
        """
        plan, avoids = cut.plan, cut.avoids
        reach = {name for part in body for name, axis in part.reach if axis == ROW}
        for part in body:
            if part.writes.name in reach:
                yield self._cut(part, ROW, rows) if avoids is None else PlacedPart(part, WITH_READER, avoids=avoids)
            elif any(value.name in reach for value in part.reads):
                how: dict[str, Any] = {"tiles": None, "as_comes": True, "route": plan.route, "avoids": avoids}
                yield self._cut(part, ROW, rows, **how)
            else:
                yield PlacedPart(part, WITH_READER)

    def _shared(self, body: Sequence[Part], cut: CutBlock, *, comes: bool) -> Iterator[PlacedPart]:
        """Yield the parts of a block whose heads or columns are shared out, but for its join.

        In a grid the first product is cut along the stream's columns, too: ranks add up its summands first.

        Parameters
        ----------
        comes
            Whether the stream lies by rows: what reads it is computed as it comes.
        """
        assert cut.inner is not None
        (x,), plan, inner = body[0].reads, cut.plan, cut.inner
        columns, tile, grid = cut.columns, inner, dict[str, Spans]()
        if plan.cut is Cut.GRID:
            tile, columns = _tiles(cut)
            grid = {HIDDEN: columns}
            summed, added = zip(*(over_tiles(part) for part in body if x in part.reads), strict=True)
            body = [*summed, *added, *(part for part in body if x not in part.reads)]
        for part in body:
            if x in part.reads:
                axis, spans = _cut_axis(body, part, tile)
                route = plan.route if comes else Route.DIRECT
                yield self._cut(part, axis, spans, tiles=None, also=grid, as_comes=comes, route=route)
            elif part.cut and plan.cut is Cut.COLUMNS:
                assert columns is not None
                yield self._cut(part, HIDDEN, columns, tiles=None)
            elif part.cut and plan.cut is not Cut.TO_ROWS:
                # It is made in pieces: what it reads is there before.
                few: dict[str, Any] = {} if len(self.crew) <= MANY else {"tiles": None}
                yield self._cut(part, part.kind.axis, tile, begins=len(self.crew) > 1, also=grid, **few)
            elif part.cut or any(part.writes in reader.reads and not reader.cut for reader in body):
                yield PlacedPart(part, WITH_READER)
            else:
                begins = comes or plan.groups > 1
                yield self._cut(part, part.kind.axis, inner, tiles=None, begins=begins, groups=plan.groups)


def _parts(run: Run, number: int, block: Block, requests: tuple[int, ...], x: Value) -> tuple[list[Part], Value]:
    """Return the parts of a block of a layer, over rows of the stream."""
    names = [f"{prefix}/{block.name}" for prefix in layer_prefixes(run, number)]
    if run.parts > 1:
        return in_sub_blocks(names, block.kind.asked(requests), block.stream, x)
    return parts_of_blocks([(names[0], block.kind.asked(requests))], block.stream, x, normed_apart=True)


def _names(placed: Sequence[PlacedPart], plan: BlockPlan, x: Value, before: StreamLies) -> dict[str, str]:
    """Return what exchanges of a block are called: those of the stream, and of what is made of it."""
    shares = plan.cut in (Cut.BLOCK, Cut.TO_ROWS, Cut.COLUMNS)
    gathers = shares or plan.cut is Cut.WHOLE or plan.keys is not None
    rows = "columns to tiles" if plan.cut is Cut.GRID else "gather rows" if gathers else "move rows"
    if HIDDEN in (before.axis, placed[-1].axis):
        rows = "gather columns" if placed[-1].axis != HIDDEN else "deal columns out"
    normed = {own.part.writes.name for own in placed if own.part.role == NORM and own.axis == ROW}
    found = {x.name: "move residual" if normed else rows, **dict.fromkeys(normed, rows)}
    between = {Cut.TO_ROWS: "to rows", Cut.COLUMNS: "gather inner columns", Cut.GRID: "spread"}.get(plan.cut, "")
    for own in placed:
        name = own.part.writes.name
        word = name.rpartition("/")[2]
        if own.also and not own.part.cut:
            found[name] = "add up"
        elif own.part.cut:
            found[name] = "gather columns" if plan.cut is Cut.COLUMNS else REDUCE
        elif plan.cut is Cut.ROWS and own.axis == ROW and name not in normed:
            found[name] = f"gather {WORDS.get(word, word)}"
        elif between and name not in found:
            word = "contexts" if word == "contexts" else "columns"
            found[name] = f"{word} {between}" if plan.cut is Cut.TO_ROWS else between
    return {**found, placed[-1].part.writes.name: HAND_IN}


def _cut_axis(body: Sequence[Part], part: Part, inner: Spans) -> tuple[str, Spans]:
    """Return along which axis a part is cut, and its spans: of its kind's axis, or what these reach of another."""
    kind_axis = part.kind.axis
    if kind_axis in part.axes:
        return kind_axis, inner
    reaches = ((axis, reach) for reader in body for (_, axis), reach in reader.reach.items() if axis in part.axes)
    axis, reach = next((axis, reach) for axis, reach in reaches if axis != ROW)
    return axis, reach({kind_axis: inner})


def _tiles(cut: CutBlock) -> tuple[Spans, Spans]:
    """Return of every rank's tile of a grid the heads or columns of its kind, and the columns of the stream."""
    assert cut.inner is not None
    assert cut.columns is not None
    height, ranks = cut.columns.shape[-2], np.arange(cut.inner.shape[-2])
    first = ranks - ranks % height
    crew = np.stack([cut.inner[:, first, 0], cut.inner[:, first + height - 1, 1]], -1)
    return crew, cut.columns[:, ranks % height]


def _spans(partition: Iterable[Span]) -> Spans:
    return np.array([[(span.start, span.stop) for span in partition]], np.int64)


def _each(some: Span) -> Iterator[Span]:
    return (Span(number, number + 1) for number in range(some.start, some.stop))


def _runs(spec: ModelSpec, stage: Stage) -> Iterator[Span]:
    """Yield layers that are alike: the first and the second, then the others together, of which the last is alone."""
    for start, count, _ in alike(spec, stage):
        stop = start + count
        alone = {start, start + 1, start + 2, stop - (stop == stage.span.stop), stop}
        for one, other in pairwise(sorted(edge for edge in alone if start <= edge <= stop)):
            yield Span(one, other)
