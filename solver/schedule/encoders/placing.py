"""What an encoder's plan does with requests: parts of layers as its cuts place them, and the schedule that follows.

Rows come to the stage's ranks as its first block keeps them, or all to all; as its last block leaves them they lie in
the end. Of a batch all rows stand one after the other, and each sees those of its request. Behind a cut by rows or by
columns of the stream nothing is said of how rows come there: the schedule finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from solver.base.spans import Partition, Span, tiles
from solver.model.blocks import Block, Cut
from solver.model.kinds.norm import NORM
from solver.model.kinds.part import HIDDEN, ROW, WHOLE, Part, Region, Spans, Value, whole
from solver.model.layers import in_sub_blocks, over_tiles, parts_of_blocks
from solver.model.spec import ModelSpec, Run, layer_prefixes
from solver.model.sublayers import HALVES
from solver.plan.holdings import alike
from solver.plan.plan import BlockPlan, Keys, LayerPlan, Plan, Stage, StreamLayout
from solver.plan.routes import Route
from solver.schedule.regions import some_have, taking, within
from solver.schedule.schedule import WITH_READER, AnyStep, ComputeStep, ExchangeStep, PlacedPart, schedule
from solver.schedule.stretches import BatchRows, shared_alike

STREAM = "stream"  # the name of what a stage begins with
HAND_OUT, HAND_IN = "hand out", "hand in"  # exchanges with rank 0


@dataclass(frozen=True, slots=True, eq=False)
class Lies:
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
    spans = {span for some in (*shares.values(), *sums.values()) for span in some if span.size}
    return BatchRows(tuple(own), shares, {span: tuple(tiles(span, tile_rows)) for span in spans}, sums)


def stage_parts(
    spec: ModelSpec, stage: Stage, crew: Sequence[int], rows: BatchRows, *, some: Span | None = None,
    before: BlockPlan | None = None, folded: bool = False,
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
        Whether layers that are alike stand in it once, with how many they are (`solver.schedule.schedule.unfolded`).
    """
    own = _Placing(stage, crew, rows)
    x = replace(spec.run(stage.span.start).blocks[0].stream, hidden=spec.hidden).value(STREAM, rows.count)
    lies = own.before(stage, some, x) if before is None else own.behind(before, x)
    given, left, layers = {x.name: (x, lies.box(x))}, dict[str, Region](), list[tuple[Span, list[PlacedPart]]]()
    for span, layer in _runs(spec, stage) if folded else _each(stage, some or stage.span):
        run, halves, every = spec.run(span.start), stage.part(span.start), list[PlacedPart]()
        for place, (block, plan) in enumerate(zip(run.blocks, layer, strict=True)):
            both = Span(place, place + 1).scaled(HALVES)
            part = halves.intersect(both)
            if not part.size:
                continue
            parts, after = _parts(run, span.start, block, rows.lengths, x)
            placed, behind = own.placed(parts, plan, lies), own.behind(plan, after)
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
    return StageParts(given, left | {x.name: lies.box(x)}, layers, {}, rows)


def request_steps(spec: ModelSpec, plan: Plan, rows: int, *, folded: bool = True) -> tuple[list[int], list[AnyStep]]:
    """Return what ranks do with a request under a plan of one stage, and which ranks: rank 0 and those with a share.

    Rank 0 embeds it and hands it out, and gets what the layers leave.
    """
    (stage,) = plan.stages
    crew = sorted({0, *stage.active})
    parts = stage_parts(spec, stage, crew, batch_rows(stage, crew, [rows], plan.tile_rows), folded=folded)
    ((x, lies),) = parts.given.values()
    embedded = some_have(x, [0], len(crew))
    handed = [] if within(lies, embedded).all() else [ExchangeStep(HAND_OUT, x, (embedded,), lies)]
    (last,) = parts.left
    in_hand = replace(parts, left={last: embedded}, names={**parts.names, last: HAND_IN})
    return crew, [ComputeStep(()), *handed, *in_hand.steps()]


@dataclass(frozen=True, slots=True, eq=False)
class _Placing:
    """Places parts as the plans of blocks say; arguments as of `stage_parts`."""

    stage: Stage
    crew: Sequence[int]
    rows: BatchRows

    @property
    def active(self) -> Spans:
        """1 for ranks that take part, else 0, [1, p, 1]."""
        has = self.stage.active
        return taking([rank for rank, device in enumerate(self.crew) if device in has], len(self.crew))

    def before(self, stage: Stage, some: Span | None, x: Value) -> Lies:
        """Return how the stream lies before layers of a stage, where nobody says so."""
        if some is not None and some.start > stage.span.start:
            return self.behind((stage.layer(some.start - 1) or ())[-1], x)
        found = self.behind(stage.first, x)
        if found.axis != HIDDEN:
            return found
        dealer = int(self.active[0, :, 0].argmax())
        return Lies(WHOLE, taking([dealer], len(self.crew)) * whole(1))

    def behind(self, plan: BlockPlan, x: Value) -> Lies:
        """Return how the stream lies after a block."""
        own = plan.only(self.crew)
        if own.rows is not None:
            return Lies(ROW, _spans(self.rows.shares[own.rows]))
        if own.cut is Cut.SUB_BLOCKS:
            assert own.inner is not None
            return Lies(HIDDEN, _spans(own.inner) * (x.shape[1] // own.inner.total))
        return Lies(WHOLE, self.active * whole(1))

    def placed(self, parts: Sequence[Part], plan: BlockPlan, before: Lies) -> list[PlacedPart]:
        """Return the parts of a block as its plan cuts them, where the stream lies so before it."""
        own, after = plan.only(self.crew), self.behind(plan, parts[-1].writes)
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
            found += self._by_rows(body, own, after.spans)
        elif own.cut in (Cut.WHOLE, Cut.SUB_BLOCKS):
            found += [PlacedPart(part, WITH_READER) for part in body]
        else:
            found += self._shared(body, own, comes=by_rows)
        begins = begins or any(part.as_comes and part.axis == ROW for part in found)  # who attends makes no tiles
        return [*found, self._cut(join, after.axis, after.spans, ahead=True, begins=begins)]

    def _cut(self, part: Part, axis: str, spans: Spans, **how: Any) -> PlacedPart:
        tiled = None if axis == WHOLE else self.rows.tiled
        return PlacedPart(part, axis, spans, widens=axis != WHOLE, **{"tiles": tiled, **how})

    def _by_rows(self, body: Sequence[Part], plan: BlockPlan, rows: Spans) -> Iterator[PlacedPart]:
        """Yield the parts of a block that is cut by rows, but for its join.

        What is read of other rows is made by who has these, and what reads it is computed as it comes; where the input
        is gathered, everyone makes it of all rows.
        """
        reach = {name for part in body for name, axis in part.reach if axis == ROW}
        avoids = () if plan.keys is None else tuple(way is Keys.AVOIDED for way in plan.keys)
        for part in body:
            if part.writes.name in reach:
                yield self._cut(part, ROW, rows) if not avoids else PlacedPart(part, WITH_READER, avoids=avoids)
            elif any(value.name in reach for value in part.reads):
                how: dict[str, Any] = {"tiles": None, "as_comes": True, "route": plan.route, "avoids": avoids}
                yield self._cut(part, ROW, rows, **how)
            else:
                yield PlacedPart(part, WITH_READER)

    def _shared(self, body: Sequence[Part], plan: BlockPlan, *, comes: bool) -> Iterator[PlacedPart]:
        """Yield the parts of a block whose heads or columns are shared out, but for its join.

        In a grid the first product is cut along the stream's columns, too: ranks add up its summands first.

        Parameters
        ----------
        comes
            Whether the stream lies by rows: what reads it is computed as it comes.
        """
        assert plan.inner is not None
        (x,), inner = body[0].reads, _spans(plan.inner)
        columns, tile, grid = None if plan.columns is None else _spans(plan.columns), inner, dict[str, Spans]()
        if plan.cut is Cut.GRID:
            tile, columns = _tiles(plan)
            grid = {HIDDEN: columns}
            summed, added = zip(*(over_tiles(part) for part in body if x in part.reads), strict=True)
            body = [*summed, *added, *(part for part in body if x not in part.reads)]
        lone = int((inner[..., 1] > inner[..., 0]).sum()) == 1
        for part in body:
            if x in part.reads:
                axis, spans = _cut_axis(body, part, tile)
                route = plan.route if comes else Route.DIRECT
                yield self._cut(part, axis, spans, tiles=None, also=grid, as_comes=comes, route=route)
            elif part.cut and plan.cut is Cut.COLUMNS:
                assert columns is not None
                yield self._cut(part, HIDDEN, columns, tiles=None)
            elif part.cut and plan.cut is not Cut.TO_ROWS:
                yield self._cut(part, part.kind.axis, tile, begins=not lone, also=grid)
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


def _cut_axis(body: Sequence[Part], part: Part, inner: Spans) -> tuple[str, Spans]:
    """Return along which axis a part is cut, and its spans: of its kind's axis, or what these reach of another."""
    kind_axis = part.kind.axis
    if kind_axis in part.axes:
        return kind_axis, inner
    reaches = ((axis, reach) for reader in body for (_, axis), reach in reader.reach.items() if axis in part.axes)
    axis, reach = next((axis, reach) for axis, reach in reaches if axis != ROW)
    return axis, reach({kind_axis: inner})


def _tiles(plan: BlockPlan) -> tuple[Spans, Spans]:
    """Return of every rank's tile of a grid the heads or columns of its kind, and the columns of the stream."""
    assert plan.inner is not None
    tiles = [plan.tile(rank) for rank in range(len(plan.inner))]
    ends = np.array([[[(span.start, span.stop) for span in tile] for tile in tiles]], np.int64)
    return ends[:, :, 0], ends[:, :, 1]


def _spans(partition: Iterable[Span]) -> Spans:
    return np.array([[(span.start, span.stop) for span in partition]], np.int64)


def _each(stage: Stage, some: Span) -> Iterator[tuple[Span, LayerPlan]]:
    for span, layer in stage.layers:
        own = span.intersect(some)
        yield from ((Span(number, number + 1), layer) for number in range(own.start, own.stop))


def _runs(spec: ModelSpec, stage: Stage) -> Iterator[tuple[Span, LayerPlan]]:
    """Yield layers that are alike: the first and the second, then the others together, of which the last is alone."""
    for start, count, layer in alike(spec, stage):
        stop = start + count
        alone = {start, start + 1, start + 2, stop - (stop == stage.span.stop), stop}
        for one, other in pairwise(sorted(edge for edge in alone if start <= edge <= stop)):
            yield Span(one, other), layer
