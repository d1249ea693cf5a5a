"""The loop over steps: a batch passes through blocks, step by step, as `solver.schedule.encoders.steps` says.

Who has which rows, heads and columns stands in the plan; a share is decided in `solver.programs`, a byte is sent in
`comm.exchange`, a head is computed in `kernels.numpy_kernels.attend` and `kernels.ort.attend`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from hepti_mpi.comm.exchange import ItemArrays, RankExchange, exchanged
from hepti_mpi.comm.rows import (
    RowBlocks,
    RowExchange,
    Tiles,
    crossing,
    in_order,
    sum_everywhere,
    sum_rows,
    whole,
)
from hepti_mpi.engine.grid import Grid
from hepti_mpi.engine.layers import BlockKernels, LayerKernels
from hepti_mpi.engine.stream import Pass, Stream, bring, computed, from_columns, relayout, to_columns
from hepti_mpi.kernels import numpy_kernels
from hepti_mpi.kernels.products import Backend
from solver.base.arrays import Array
from solver.base.spans import Partition, Span, pieces_of, tiles
from solver.cluster.curves import Kernel
from solver.model.blocks import Axis, Block, Cut
from solver.model.kinds.mlp import Mlp
from solver.model.spec import ModelSpec
from solver.model.sublayers import HALVES
from solver.plan.changes import ALONE
from solver.plan.layout import Box
from solver.plan.plan import BlockPlan, LayerPlan, Plan, Stage, block_by_rows
from solver.schedule.encoders import steps
from solver.schedule.encoders.steps import BOTH_HALVES, block_steps


@dataclass(frozen=True, slots=True, eq=False)
class StageShare:
    """What a rank computes of the layers of its stage, and how they are cut as those see them who have a share.

    Parameters
    ----------
    plan
        It is of.
    crew
        The stage's devices that run it.
    layers
        From the first of the stage.
    blocks, cuts, parts
        Of every layer: what it consists of, its cuts, and which of its sub-layers are computed
        (`solver.model.sublayers`).
    """

    plan: Plan
    crew: Sequence[int]
    layers: Sequence[LayerKernels]
    blocks: Sequence[Sequence[Block]]
    cuts: Sequence[LayerPlan]
    parts: Sequence[Span]

    @classmethod
    def of(
        cls, spec: ModelSpec, plan: Plan, stage: Stage, crew: Sequence[int], layers: Sequence[LayerKernels]
    ) -> StageShare:
        """Return a rank's share of a stage of a plan."""
        numbers = range(stage.span.start, stage.span.stop)
        cuts = [tuple(block.only(crew) for block in cut) for span, cut in stage.layers for _ in range(span.size)]
        blocks = [spec.run(number).blocks for number in numbers]
        return cls(plan, crew, layers, blocks, cuts, [stage.part(number) for number in numbers])


# Called before every layer; returns the plan that holds from there on, if it is another, and this rank's layers by it.
Look = Callable[[int], tuple[Plan, Sequence[LayerKernels]] | None]


def run_layers(
    x: Stream, share: StageShare, run: Pass, look: Look | None
) -> Generator[None, None, tuple[Stream, Plan]]:
    """Carry the residual stream through a stage's layers, block by block; return it, and the plan by which it lies.

    A rank that is alone yields behind every layer, so that it can do something else; where others wait for it, it does
    not.

    Parameters
    ----------
    x
        The stream; where the first layer begins within a block, what another stage has handed over.
    """
    for number, part in enumerate(share.parts):
        if look is not None and (change := look(number)) is not None:
            (plan, layers), look = change, None
            share = StageShare.of(run.spec, plan, plan.stages[0], share.crew, layers)
            run = replace(run, tile_rows=plan.tile_rows)
        blocks = zip(share.blocks[number], share.layers[number], share.cuts[number], strict=True)
        for place, (block, kernels, cut) in enumerate(blocks):
            both = Span(place, place + 1).scaled(HALVES)
            halves = part.intersect(both)
            if halves.size:
                compute = partial(run_block, x, block, kernels, cut, run, halves.within(both))
                x = _traced(f"layer {number} {block.name}", compute, run)
        if run.group.size == 1:
            x = replace(x, blocks=Tiles.here(whole(x.blocks)))
            yield
    return x, share.plan


def run_block(
    x: Stream, block: Block, parts: Sequence[BlockKernels], plan: BlockPlan, run: Pass, halves: Span = BOTH_HALVES
) -> Stream:
    """Run the steps of a block, or of a half of one, and return the stream that it leaves.

    What is computed by tiles is computed when the next exchange asks for it. So a tile passes through the MLP of one
    layer and the keys and values of the next, and is on the wire while the next tile is computed.

    Parameters
    ----------
    parts
        The rank's share of the block; of a decoupled layer, of each of its sub-blocks, of which it may have none.
    """
    here = BlockState(x, block, parts, plan, run, plan.row_partition(run.batch.rows))
    if x.columns is not None and plan.cut is not Cut.SUB_BLOCKS:
        here.x = from_columns(x, here.rows, run)
    if halves.start:
        here.take_over()
    for step in block_steps(block, plan, halves):
        STEPS[type(step)](here, step)
    if halves.stop < HALVES:
        here.hand_over()
    return here.x


NOTHING: Array = np.empty((0, 0), np.float32)


@dataclass(slots=True, eq=False)
class BlockState:
    """Where a batch is within a block, on this rank.

    Parameters
    ----------
    x
        The stream: what enters the block, and in the end what leaves it.
    block, parts, plan, run
        The block, the rank's share of it, or of each of its sub-blocks of it, how the block is cut, and the batch.
    rows
        How the stream will lie behind the block; None: full.
    incoming : [wanted rows, H]
        What this rank computes of, on its way.
    residual : [rows, H]
        What is added in the end.
    inner : [S, columns]
        What is computed of all rows, between two steps.
    result
        Tile by tile of the rows where they will lie, what the block's last graph computes of.
    grid
        The exchanges of a block whose weights are 2-D tiles.
    """

    x: Stream
    block: Block
    parts: Sequence[BlockKernels]
    plan: BlockPlan
    run: Pass
    rows: Partition | None
    incoming: RowBlocks = field(default_factory=lambda: Tiles.here(NOTHING))
    residual: Array = field(default_factory=lambda: NOTHING)
    inner: Array = field(default_factory=lambda: NOTHING)
    result: Iterator[tuple[Span, Array]] | None = None
    grid: Grid | None = None

    @property
    def w(self) -> BlockKernels:
        """The rank's share of a block that is not decoupled."""
        (own,) = self.parts
        return own

    @property
    def kept(self) -> Sequence[Span]:
        """The rows that every rank keeps behind the block; none where all have all."""
        return self.rows.spans if self.rows is not None else [Span(0, 0)] * self.run.group.size

    def enter(self, wanted: Sequence[Span]) -> None:
        """Bring every rank the rows that it wants, normed where the norm is in front; keep the residual."""
        x, rows, run = self.x, self.rows, self.run
        if rows is None:
            x = relayout(x, None, run)
        if self.w.norm is not None:
            self.residual = x.blocks.array
            if x.rows != rows:  # the residual moves, too: an exchange of its own
                stream = whole(x.blocks)
                self.residual = whole(relayout(Stream(Tiles.here(stream), x.rows), rows, run).blocks)
                x = Stream(Tiles.here(stream), x.rows)
            normed = Stream(computed(x.blocks, self.w.norm), x.rows)
            self.incoming = bring(normed, wanted, self.plan.route, run)
            return
        self.incoming = bring(x, wanted, self.plan.route, run)
        # What the block needs contains the rows that this rank keeps: the residual costs no exchange of its own.
        mine = run.group.rank
        kept = None if rows is None else rows[mine].within(wanted[mine]).slice
        self.residual = x.blocks.array if kept is None else self.incoming.array[kept]

    def hand_over(self) -> None:
        """Make [own rows, inner columns and residual] of a block's first half, which another stage takes."""
        assert self.result is not None
        both = np.empty((self.residual.shape[0], self.w.width + self.block.hidden), np.float32)
        for tile, inner in self.result:
            both[tile.slice, : self.w.width] = inner
        both[:, self.w.width :] = self.residual
        self.x = Stream(Tiles.here(both), self.rows)

    def take_over(self) -> None:
        """Begin with what another stage handed over."""
        both = self.x.blocks
        inner, self.residual = map(np.ascontiguousarray, np.split(both.array, [-self.block.hidden], axis=1))
        self.result = ((tile, inner[tile.slice]) for tile in both)


def _lay(here: BlockState, step: steps.Lay) -> None:
    here.enter(here.kept)


def _by_tiles(here: BlockState, step: steps.ByTiles) -> None:
    """Set `result` to the tiles of the first product.

    Where the block's last graph contains the products, as it does of blocks by rows, tiles pass unchanged: `_close`
    computes all of them, tile by tile, when the next block's exchange asks for it.
    """
    if here.result is None:
        x = here.incoming
        up = here.w.into[0] if here.w.into else None
        here.result = ((tile, x.array[tile.slice] if up is None else up(x.array[tile.slice])) for tile in x)


def _gather_keys(here: BlockState, step: steps.GatherKeys) -> None:
    """Compute the context of this rank's rows; K and V of the rows they attend to are gathered."""
    run, rows, x = here.run, here.rows, here.incoming
    assert rows is not None
    project_kv, project_q = here.w.into
    keys = [run.batch.keys_of(span) for span in rows]
    H = here.block.hidden
    kv = RowExchange(run.group, rows, keys, (2, H), tile_rows=run.tile_rows, route=here.plan.route)
    own = kv.own.reshape(-1, 2 * H, copy=False)
    for number, tile in in_order(x, kv.tiles):
        project_kv(x.array[tile.slice], own[tile.slice])
        kv.put(number)
    q = project_q(x.array)  # while K and V travel
    kv.pass_on()
    pieces = run.batch.pieces(rows[run.group.rank], keys[run.group.rank])
    arriving, added = chain([kv.kept], kv), _added(here, rows[run.group.rank])
    context = _attend(
        q, kv.array.reshape(-1, 2 * H, copy=False), arriving, pieces, step.attend.head_dim, run.backend, added
    )
    here.result = ((tile, context[tile.slice]) for tile in kv.tiles)


def _gather_input(here: BlockState, step: steps.GatherInput) -> None:
    """Compute the context of this rank's rows from the input of all that they attend to (Voltage)."""
    run, rows, w = here.run, here.rows, here.w
    assert rows is not None
    here.enter([run.batch.keys_of(span) for span in rows])
    x, mine, d = here.incoming, rows[run.group.rank], step.attend.head_dim
    keys = run.batch.keys_of(mine)
    own, pieces, added = mine.within(keys).slice, run.batch.pieces(mine, keys), _added(here, mine)
    if w.avoided is not None:
        x_keys = whole(x)
        context = numpy_kernels.attend_without_keys(w.into[0](x_keys[own]), x_keys, w.avoided, pieces, d, added)
    else:
        kv = np.empty((keys.size, 2 * here.block.hidden), np.float32)
        for span in x:
            w.into[0](x.array[span.slice], kv[span.slice])
        k, v = np.split(kv, 2, axis=1)
        context = _attend_at_once(w.into[1](x.array[own]), k, v, pieces, d, run.backend, added)
    here.result = ((tile, context[tile.slice]) for tile in tiles(Span(0, mine.size), run.tile_rows))


def _gather_rows(here: BlockState, step: steps.GatherRows) -> None:
    """Compute the first product of all rows [S, columns], on rows as they arrive.

    It is as wide as the step's first call says; further calls, as an activation, are in the same graph.
    """
    run, shares = here.run, here.plan.inner
    assert shares is not None
    everything = Span(0, run.batch.rows)
    here.enter([everything if share.size else keeps for share, keeps in zip(shares, here.kept, strict=True)])
    x, into = here.incoming, here.w.into[0]
    width = step.calls[0].size // here.block.hidden * shares[run.group.rank].size
    here.inner = np.empty((run.batch.rows, width), np.float32)
    for span in x:
        into(x.array[span.slice], here.inner[span.slice])


def _at_once(here: BlockState, step: steps.AtOnce) -> None:
    """Attend, activate, or compute the output columns, of all rows."""
    run, (call,) = here.run, step.calls
    if call.kernel is Kernel.ATTEND:
        everything = Span(0, run.batch.rows)
        q, k, v = np.split(here.inner, 3, axis=1)
        pieces = run.batch.pieces(everything, everything)
        added = _added(here, everything)
        here.inner = _attend_at_once(q, k, v, pieces, call.head_dim, run.backend, added)
    elif call.kernel is Kernel.ACTIVATE:
        assert isinstance(here.block.kind, Mlp)
        here.inner = numpy_kernels.ACTIVATIONS[here.block.kind.activation](here.inner)
    else:
        assert here.plan.columns is not None
        here.inner = here.w.out(here.inner) if here.plan.columns[run.group.rank].size else here.inner


def _send_inner(here: BlockState, step: steps.SendInner) -> None:
    """Send the owners of rows what own heads or columns make of these, group by group."""
    run, rows, shares, group = here.run, here.rows, here.plan.inner, here.run.group
    assert rows is not None
    assert shares is not None
    own = shares[group.rank]
    everything, width = Span(0, run.batch.rows), shares.total * step.columns
    groups = [pieces_of(span, here.plan.groups) for span in shares]
    made: list[Array] = [NOTHING] * len(groups[group.rank])
    result = np.empty((rows[group.rank].size, width), np.float32)
    parts = tuple(tuple(span.scaled(step.columns) for span in some) for some in groups)
    messages = crossing(group.rank, rows, parts, width)
    exchange = RankExchange(group, messages, [ItemArrays(made, [result])], group.coding)
    exchange.post()
    pieces = run.batch.pieces(everything, everything)
    for number, heads in enumerate(groups[group.rank]):
        some = heads.within(own).scaled(step.columns).slice
        made[number] = here.inner[:, some]
        for call in step.calls:
            q, k, v = (tensor[:, some] for tensor in np.split(here.inner, 3, axis=1))
            added = _added(here, everything, heads)
            made[number] = _attend_at_once(q, k, v, pieces, call.head_dim, run.backend, added)
        exchange.send(number)
    exchange.finish()
    here.result = _in_tiles(result, rows, run)


def _gather_columns(here: BlockState, step: steps.GatherColumns) -> None:
    group, plan, rows = here.run.group, here.plan, here.rows
    assert plan.inner is not None
    assert plan.columns is not None
    everything = Span(0, here.run.batch.rows)
    if step.to is not Axis.FIXED:
        width = plan.inner.total * step.columns
        have = [Box((everything, span.scaled(step.columns))) for span in plan.inner]
        want = [Box((everything, Span(0, width if span.size else 0))) for span in plan.columns]
        here.inner = exchanged(group, here.inner, have, want)
        return
    have = [Box((everything, span)) for span in plan.columns]
    y = exchanged(group, here.inner, have, [Box((everything, Span(0, plan.columns.total)))] * group.size)
    here.result = _in_tiles(y if rows is None else y[rows[group.rank].slice], rows, here.run)


def _reduce(here: BlockState, step: steps.Reduce) -> None:
    """Add the summands of the second product where the result will lie: by rows, or on all ranks."""
    run, rows, inner, out = here.run, here.rows, here.inner, here.w.out
    assert here.plan.inner is not None

    def part(span: Span, summand: Array) -> None:
        out(inner[span.slice], summand)

    H = here.block.hidden
    parts = [Span(0, H if share.size else 0) for share in here.plan.inner]
    if rows is None:
        y = sum_everywhere(run.group, part, run.batch.rows, parts, H, run.tile_rows)
    else:
        y = sum_rows(run.group, part, rows.spans, parts, H, run.tile_rows)
    here.result = _in_tiles(y, rows, run)


def _enter_grid(here: BlockState, step: steps.Enter) -> None:
    assert here.rows is not None
    here.enter(here.kept)
    here.grid = Grid(here.run.group, here.plan, here.rows, here.run.tile_rows, step.columns, step.tensors)
    here.inner = here.grid.enter(here.incoming, here.w.into[0])


def _add_up(here: BlockState, step: steps.AddUp) -> None:
    assert here.grid is not None
    here.inner = here.grid.add_up(here.inner, here.w.into_bias)


def _spread(here: BlockState, step: steps.Spread) -> None:
    assert here.grid is not None
    here.inner = here.grid.spread(here.inner)


def _leave(here: BlockState, step: steps.Leave) -> None:
    assert here.grid is not None
    here.result = _in_tiles(here.grid.leave(here.inner, here.w.out), here.rows, here.run)


def _deal_columns(here: BlockState, step: steps.DealColumns) -> None:
    assert here.plan.inner is not None
    here.x = to_columns(here.x, here.plan.inner, here.run)


def _gather_all(here: BlockState, step: steps.GatherAll) -> None:
    here.x = relayout(here.x, None, here.run)


def _alone(here: BlockState, step: steps.Alone) -> None:
    """Compute the block of own columns as if there was no other rank, each sub-block by itself."""
    run = replace(here.run, group=here.run.group.alone, tile_rows=0)
    x, by_rows = whole(here.x.blocks), block_by_rows(step.block, [1.0])
    rows, y = Partition.of_counts([x.shape[0]]), np.empty(x.shape, np.float32)
    for number, kernels in enumerate(here.parts):
        own = Span(number, number + 1).scaled(step.block.hidden).slice
        entering = Stream(Tiles.here(np.ascontiguousarray(x[:, own])), rows)
        y[:, own] = whole(run_block(entering, step.block, [kernels], by_rows, run).blocks)
    here.x = replace(here.x, blocks=Tiles.here(y))


def _close(here: BlockState, step: steps.Close) -> None:
    """Finish the block as its result is computed, in a new array: the old ones may still be on their way."""
    result, residual, last = here.result, here.residual, here.w.last
    assert result is not None
    total = np.empty(residual.shape, np.float32)

    def spans() -> Iterator[Span]:
        for span, tile in result:
            last(tile, total[span.slice], residual[span.slice])
            yield span

    here.x = Stream(Tiles(total, spans()), here.rows)


STEPS: Mapping[type, Callable[[BlockState, Any], None]] = {
    steps.Lay: _lay,
    steps.ByTiles: _by_tiles,
    steps.AtOnce: _at_once,
    steps.GatherKeys: _gather_keys,
    steps.GatherInput: _gather_input,
    steps.GatherRows: _gather_rows,
    steps.SendInner: _send_inner,
    steps.GatherColumns: _gather_columns,
    steps.Reduce: _reduce,
    steps.Enter: _enter_grid,
    steps.AddUp: _add_up,
    steps.Spread: _spread,
    steps.Leave: _leave,
    steps.DealColumns: _deal_columns,
    steps.GatherAll: _gather_all,
    steps.Alone: _alone,
    steps.Close: _close,
}


def _traced(name: str, compute: Callable[[], Stream], run: Pass) -> Stream:
    """Compute a block; where a trace is recorded, under its name, also when its tiles are asked for."""
    trace = run.group.traffic.trace
    if trace is None:
        return compute()
    with trace.block(name):
        stream = compute()
    return replace(stream, blocks=Tiles(stream.blocks.array, trace.over(name, stream.blocks)))


def _added(here: BlockState, rows: Span, heads: Span | None = None) -> Sequence[Array]:
    """Return what distances add to the scores of some rows, request by request [heads, rows, keys]; mostly nothing.

    Of these heads; None: of all that this rank computes.
    """
    relative, shares, batch = here.w.relative, here.plan.inner, here.run.batch
    if relative is None:
        return ()
    if heads is None and shares is not None and here.plan.cut not in ALONE:
        heads = shares[here.run.group.rank]
    heads = heads or Span(0, len(relative.table))
    requests = [request for request in batch.requests if request.intersect(rows).size]
    return [
        relative.between(heads, own, Span(0, request.size))
        for own, request in zip(batch.places(rows), requests, strict=True)
    ]


def _attend_at_once(
    q: Array, k: Array, v: Array, pieces: Sequence[tuple[slice, slice]], d: int, backend: Backend,
    added: Sequence[Array],
) -> Array:  # fmt: skip
    """Attend to all keys; where something is added to scores, as numpy does it."""
    return numpy_kernels.attend(q, k, v, pieces, d, added) if added else backend.attend(q, k, v, pieces, d)


def _attend(
    q: Array, kv: Array, arriving: Iterable[Span], pieces: Sequence[tuple[slice, slice]], d: int, backend: Backend,
    added: Sequence[Array],
) -> Array:  # fmt: skip
    """Return the context [rows, H] of queries [rows, H] over keys and values [keys, 2 H], block by block as they come.

    ``pieces`` are, for every request, its rows and its keys.
    """
    k, v = np.split(kv, 2, axis=1)
    context = np.empty(q.shape, np.float32)
    parts: list[list[tuple[Array, Array]]] = [[] for _ in pieces]
    for block in arriving:
        for number, (part, (rows, keys)) in enumerate(zip(parts, pieces, strict=True)):
            whole_of, scores = Span(keys.start, keys.stop), added[number : number + 1]
            seen = block.intersect(whole_of).slice
            if seen == keys:  # all of them at once: nothing to merge
                here = [(slice(None),) * 2]
                context[rows] = _attend_at_once(q[rows], k[keys], v[keys], here, d, backend, scores)
            elif seen.start < seen.stop and scores:
                some = scores[0][:, :, Span(seen.start, seen.stop).within(whole_of).slice]
                part.append(numpy_kernels.attend_part(q[rows], k[seen], v[seen], d, added=some))
            elif seen.start < seen.stop:
                part.append(backend.attend_part(q[rows], k[seen], v[seen], d))
    for part, (rows, _) in zip(parts, pieces, strict=True):
        if part:
            context[rows] = numpy_kernels.merge(part)
    return context


def _in_tiles(y: Array, rows: Partition | None, run: Pass) -> Iterator[tuple[Span, Array]]:
    """Hand out a result that is all there in the tiles in which a rank sends its rows; in full, at once."""
    return ((tile, y[tile.slice]) for tile in tiles(Span(0, y.shape[0]), run.tile_rows if rows else 0))
