"""The layer loop: attention and MLP under every cut, and the residual stream between them.

Who has which rows, heads and columns stands in the plan; a share is decided in `solver`, a byte is sent in `exchange`,
a head is computed in `numpy_kernels.attend`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np

from hepti_mpi.base.arrays import Array
from hepti_mpi.comm.exchange import (
    Blocks,
    Gather,
    Tiles,
    all_reduce,
    gather_columns,
    gather_rows,
    in_order,
    reduce_rows,
    whole,
)
from hepti_mpi.comm.group import Group
from hepti_mpi.engine import grid
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.load import BlockWeights, LayerWeights
from hepti_mpi.kernels import numpy_kernels
from hepti_mpi.kernels.products import AddResidual, Backend, Graph, Linear, MakeGraph, Norm, Operation
from solver.model.spec import ModelSpec
from solver.model.sublayers import BLOCK
from solver.plan.plan import BlockPlan, Cut, Keys, LayerPlan, Plan
from solver.plan.routes import Route
from solver.plan.spans import Partition, Span, tiles


@dataclass(frozen=True, slots=True, eq=False)
class BlockKernels:
    """A rank's share of one block, ready to compute.

    `into` is, for attention by rows, (K and V, Q), where K and V are avoided Q alone; for attention by heads, all three
    at once; for the MLP, up and its activation; for cut grid, without bias and activation, which go on the sum.
    `into_bias` is that bias, of the columns that the rank adds up. `out` is the attention output or down, a summand or
    some columns, without bias. `last` makes the stream of what is computed, and of the residual: by rows it is all from
    the context on, or the whole MLP; else what stands behind the exchange. `norm` is the norm in front, if it is there.
    `width` is the columns between the two products. `avoided` are K's and V's weights where these are not projected.
    """

    into: tuple[Graph, ...]
    into_bias: Array
    out: Graph
    last: Graph
    norm: Graph | None
    width: int
    avoided: numpy_kernels.KeyWeights | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LayerKernels:
    """A rank's share of one layer, ready to compute."""

    attention: BlockKernels
    mlp: BlockKernels


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The residual stream between blocks, computed as one iterates over its blocks.

    `rows` None means full, else the blocks are this rank's rows.
    """

    blocks: Blocks
    rows: Partition | None


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One batch on its way through the layers; `tile_rows` as in the plan."""

    spec: ModelSpec
    batch: Batch
    group: Group
    tile_rows: int
    backend: Backend


# Cuts under which a rank computes a block of its rows alone: all of its weights are in one place.
ALONE = (Cut.ROWS, Cut.WHOLE, Cut.SUB_BLOCKS)

# A layer's kernels; of a decoupled layer, those of every sub-block that the rank has.
Layer = LayerKernels | tuple[LayerKernels, ...]

# What a block computes of the rows that it needs: where its result lies, tile by tile, for `BlockKernels.last`.
Result = Iterator[tuple[Span, Array]]
Compute = Callable[[Blocks, Partition | None, BlockKernels, BlockPlan, Pass], Result]


def layer_kernels(
    spec: ModelSpec,
    plan: Plan,
    make: MakeGraph,
    rank: int,
    number: int,
    weights: LayerWeights | tuple[LayerWeights, ...],
) -> Layer:
    """Make a layer's kernels of a rank's share of its weights."""
    cuts, place = plan.layer(number), plan.place(rank)
    if isinstance(weights, tuple):
        return tuple(_kernels(spec.sub_block, cuts, make, None, part) for part in weights)
    keys = cuts.attention.keys[place[1]] if cuts.attention.keys and place else None
    return _kernels(spec, cuts, make, keys, weights)


def _kernels(
    spec: ModelSpec, cuts: LayerPlan, make: MakeGraph, keys: Keys | None, weights: LayerWeights
) -> LayerKernels:
    return LayerKernels(
        _attention(spec, cuts.attention, make, keys, weights.attention), _mlp(spec, cuts.mlp, make, weights.mlp)
    )


def block_kernels(
    spec: ModelSpec, plan: Plan, make: MakeGraph, rank: int, number: int, block: str, w: BlockWeights
) -> BlockKernels:
    """Make the kernels of a rank's share of a block, "attention" or "mlp", of a layer of a plan of one stage."""
    cuts = plan.layer(number)
    if block == "mlp":
        return _mlp(spec, cuts.mlp, make, w)
    keys = cuts.attention.keys
    return _attention(spec, cuts.attention, make, keys[rank] if keys else None, w)


def _attention(spec: ModelSpec, plan: BlockPlan, make: MakeGraph, keys: Keys | None, w: BlockWeights) -> BlockKernels:
    H, avoided = spec.hidden, None
    if plan.cut is Cut.GRID:
        into = [make([Linear(np.ascontiguousarray(w.into.T), None)])]
    elif w.into.size and keys is Keys.AVOIDED:
        into = [make([Linear(w.into[:H], w.into_bias[:H])])]
        # K's bias adds the same to every score of a query, which a softmax does not see.
        avoided = numpy_kernels.KeyWeights(w.into[H : 2 * H], w.into[2 * H :], w.into_bias[2 * H :])
    elif plan.cut in ALONE and w.into.size:
        # K and V first: they travel while Q is computed.
        into = [make([Linear(w.into[rows], w.into_bias[rows])]) for rows in (slice(H, None), slice(H))]
    else:
        into = [make([Linear(w.into, w.into_bias)])] * 2
    return _block(spec, plan, make, into, [Linear(w.out, None)], w, w.into.shape[0] // 3, avoided)


def _mlp(spec: ModelSpec, plan: BlockPlan, make: MakeGraph, w: BlockWeights) -> BlockKernels:
    up, down = Linear(w.into, w.into_bias, spec.activation), Linear(w.out, None)
    if plan.cut is Cut.GRID:
        up = Linear(np.ascontiguousarray(w.into.T), None)
    # By rows in one graph, but where another stage has the other half.
    apart = plan.cut not in ALONE or not (w.into.size and w.out.size)
    into, rest = ([make([up])], [down]) if apart else ([], [up, down])
    return _block(spec, plan, make, into, rest, w, w.into.shape[0])


def _block(
    spec: ModelSpec, plan: BlockPlan, make: MakeGraph, into: Sequence[Graph], rest: Sequence[Linear], w: BlockWeights,
    width: int, avoided: numpy_kernels.KeyWeights | None = None,
) -> BlockKernels:  # fmt: skip
    """Make a block's kernels, of which `rest` are the products behind `into`."""
    norm = Norm(w.norm, w.norm_bias, spec.norm_eps)
    behind: list[Operation] = [AddResidual(w.out_bias), *([norm] if spec.norm == "post" else [])]
    last = make([*rest, *behind] if plan.cut in ALONE else behind)
    out = last if plan.cut in ALONE else make(rest)
    return BlockKernels(
        tuple(into), w.into_bias, out, last, make([norm]) if spec.norm == "pre" else None, width, avoided
    )


def run_layers(
    x: Stream,
    layers: Sequence[LayerKernels],
    cuts: Sequence[LayerPlan],
    parts: Sequence[Span],
    run: Pass,
    first_layer: int = 0,
) -> Stream:
    """Carry the residual stream through layers, or parts of them; what comes out lies as the last cut leaves it.

    A block that is cut by rows is computed when the next one asks for it, a tile at a time. So a tile passes through
    the MLP of one layer and the keys and values of the next, and is on the wire while the next tile is computed.

    Parameters
    ----------
    x
        The stream; where the first part begins within a block, what `first_half` returns.
    layers, cuts, parts
        Of every layer what computes it, its cuts, and which of its sub-layers are computed (`solver.model.sublayers`).
    """
    for number, (layer, cut, part) in enumerate(zip(layers, cuts, parts, strict=True), start=first_layer):
        for name, first, w, plan, computes, opens in (
            ("attention", 0, layer.attention, cut.attention, ATTENTION, attention_rows),
            ("mlp", BLOCK, layer.mlp, cut.mlp, MLP, inner_rows),
        ):
            halves = part.intersect(Span(first, first + BLOCK))
            if halves.size == BLOCK:
                compute = partial(block, x, w, plan, computes, run)
            elif halves.size and halves.start == first:
                compute = partial(first_half, x, w, plan, opens, run)
            elif halves.size:
                compute = partial(second_half, x, w, run)
            else:
                continue
            x = _traced(f"layer {number} {name}", compute, run)
    return x


def block(x: Stream, w: BlockKernels, plan: BlockPlan, computes: Mapping[Cut, Compute], run: Pass) -> Stream:
    """Compute norm(x + f(x)) (post-norm) or x + f(norm(x)) (pre-norm), f being one block under the plan's cut."""
    incoming, residual, rows = _entered(x, w, plan, run)
    return Stream(_added(computes[plan.cut](incoming, rows, w, plan, run), residual, w), rows)


def first_half(x: Stream, w: BlockKernels, plan: BlockPlan, opens: Compute, run: Pass) -> Stream:
    """Compute a block up to its second product: [own rows, inner columns and residual], which another stage takes."""
    incoming, residual, rows = _entered(x, w, plan, run)
    both = np.empty((residual.shape[0], w.width + run.spec.hidden), np.float32)
    for tile, inner in opens(incoming, rows, w, plan, run):
        both[tile.slice, : w.width] = inner
    both[:, w.width :] = residual
    return Stream(Tiles.here(both), rows)


def second_half(x: Stream, w: BlockKernels, run: Pass) -> Stream:
    """Compute the rest of a block from what `first_half` returned."""
    inner, residual = map(np.ascontiguousarray, np.split(x.blocks.array, [-run.spec.hidden], axis=1))
    y = ((tile, inner[tile.slice]) for tile in x.blocks)
    return Stream(_added(y, residual, w), x.rows)


def _entered(x: Stream, w: BlockKernels, plan: BlockPlan, run: Pass) -> tuple[Blocks, Array, Partition | None]:
    """Bring a block what it needs; return that, the residual, and how the block's rows will lie."""
    rows = plan.row_partition(run.batch.rows)  # where the result will lie; None: full
    if rows is None:
        x = relayout(x, None, run)
    wanted = _wanted(plan, rows, run)
    if w.norm is not None:
        residual = x.blocks.array
        if x.rows != rows:  # the residual moves, too: an exchange of its own
            stream = whole(x.blocks)
            residual = whole(relayout(Stream(Tiles.here(stream), x.rows), rows, run).blocks)
            x = Stream(Tiles.here(stream), x.rows)
        normed = Stream(_normed(x.blocks, w.norm), x.rows)
        return bring(normed, wanted, plan.route, run), residual, rows
    incoming = bring(x, wanted, plan.route, run)
    # What the block needs contains the rows that this rank keeps: the residual costs no exchange of its own.
    mine = run.group.rank
    residual = x.blocks.array if rows is None else incoming.array[rows[mine].within(wanted[mine]).slice]
    return incoming, residual, rows


# Attention: [wanted rows, H] -> [rows where the result lies, H].


def attention_rows(x: Blocks, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass) -> Result:
    """Compute the context of this rank's rows; K and V of the rows they attend to are gathered, or their input is."""
    assert rows is not None
    if plan.keys is not None:
        return _context_of_input(x, rows, w, run)
    mine, H = rows[run.group.rank], run.spec.hidden
    project_kv, project_q = w.into
    keys = [run.batch.keys_of(span) for span in rows]
    kv = Gather(run.group, rows, keys, 2 * H, run.tile_rows, plan.route, tensors=2)
    for tile in in_order(x, kv.tiles):
        project_kv(x.array[tile.slice], kv.own[tile.slice])
        kv.put(tile)
    q = project_q(x.array)  # while K and V travel
    kv.pass_on()
    pieces = run.batch.pieces(mine, keys[run.group.rank])
    context = _attend(q, kv.array, chain([kv.kept], kv), pieces, run)
    return ((tile, context[tile.slice]) for tile in kv.tiles)


def _context_of_input(x: Blocks, rows: Partition, w: BlockKernels, run: Pass) -> Result:
    """Compute the context of this rank's rows from the input of all that they attend to (Voltage)."""
    mine, H, d = rows[run.group.rank], run.spec.hidden, run.spec.head_dim
    keys = run.batch.keys_of(mine)
    own, pieces = mine.within(keys).slice, run.batch.pieces(mine, keys)
    if w.avoided is not None:
        x_keys = whole(x)
        context = numpy_kernels.attend_without_keys(w.into[0](x_keys[own]), x_keys, w.avoided, pieces, d)
    else:
        kv = np.empty((keys.size, 2 * H), np.float32)
        for span in x:
            w.into[0](x.array[span.slice], kv[span.slice])
        k, v = np.split(kv, 2, axis=1)
        context = run.backend.attend(w.into[1](x.array[own]), k, v, pieces, d)
    return ((tile, context[tile.slice]) for tile in tiles(Span(0, mine.size), run.tile_rows))


def attention_block(x: Blocks, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass) -> Result:
    """Compute this rank's heads of all rows and its summand of the output projection."""
    return _reduced(_heads(x, w, run), rows, w, plan, run)


def attention_columns(x: Blocks, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass) -> Result:
    """Compute this rank's heads of all rows, gather the context, project it to this rank's output columns."""
    assert plan.inner is not None
    heads = Partition(tuple(span.scaled(run.spec.head_dim) for span in plan.inner))
    return _output_columns(_heads(x, w, run), heads, rows, w, plan, run)


def attention_grid(x: Blocks, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass) -> Result:
    """Compute this rank's tiles of the two products, and between them the heads that it adds up."""
    assert rows is not None
    d, everything = run.spec.head_dim, Span(0, run.batch.rows)
    tiles = grid.Grid(run.group, plan, rows, run.tile_rows, unit=d, tensors=3)
    q, k, v = np.split(tiles.enter(x, w.into[0], w.into_bias), 3, axis=1)
    context = run.backend.attend(q, k, v, run.batch.pieces(everything, everything), d)
    return _in_tiles(tiles.leave(context, w.out), rows, run)


# MLP, likewise.


def mlp_rows(x: Blocks, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass) -> Result:
    """Hand on this rank's rows: the whole MLP is one graph."""
    return ((tile, x.array[tile.slice]) for tile in x)


def inner_rows(x: Blocks, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass) -> Result:
    """Compute all inner columns of this rank's rows."""
    return ((tile, w.into[0](x.array[tile.slice])) for tile in x)


def mlp_block(x: Blocks, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass) -> Result:
    """Compute this rank's F columns of all rows and its summand of the second product."""
    return _reduced(_project(x, w.width, w, run), rows, w, plan, run)


def mlp_columns(x: Blocks, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass) -> Result:
    """Compute this rank's F columns of all rows, gather them, compute this rank's output columns."""
    assert plan.inner is not None
    return _output_columns(_project(x, w.width, w, run), plan.inner, rows, w, plan, run)


def mlp_grid(x: Blocks, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass) -> Result:
    """Compute this rank's tiles of the two products, and between them the activation of the columns that it adds up."""
    assert rows is not None
    tiles = grid.Grid(run.group, plan, rows, run.tile_rows)
    h = numpy_kernels.ACTIVATIONS[run.spec.activation](tiles.enter(x, w.into[0], w.into_bias))
    return _in_tiles(tiles.leave(h, w.out), rows, run)


ATTENTION: Mapping[Cut, Compute] = {
    Cut.ROWS: attention_rows,
    Cut.BLOCK: attention_block,
    Cut.COLUMNS: attention_columns,
    Cut.GRID: attention_grid,
}
MLP: Mapping[Cut, Compute] = {
    Cut.ROWS: mlp_rows,
    Cut.BLOCK: mlp_block,
    Cut.COLUMNS: mlp_columns,
    Cut.GRID: mlp_grid,
}


def bring(x: Stream, wanted: Sequence[Span], route: Route, run: Pass) -> Blocks:
    """Bring every rank the rows that it wants."""
    if x.rows is None:
        return Tiles.here(whole(x.blocks)[wanted[run.group.rank].slice])
    return gather_rows(run.group, x.blocks, x.rows, wanted, run.tile_rows, route)


def relayout(x: Stream, rows: Partition | None, run: Pass) -> Stream:
    """Lay the stream by these rows, or in full (None); nothing moves where it lies so already or lies in full."""
    wanted = [Span(0, run.batch.rows)] * run.group.size if rows is None else rows.spans
    return Stream(bring(x, wanted, Route.DIRECT, run), rows)


def _added(y: Result, residual: Array, w: BlockKernels) -> Blocks:
    """Finish a block as its result is computed, in a new array: y and the residual may still be on their way."""
    total = np.empty(residual.shape, np.float32)

    def spans() -> Iterator[Span]:
        for span, tile in y:
            w.last(tile, total[span.slice], residual[span.slice])
            yield span

    return Tiles(total, spans())


def _normed(x: Blocks, norm: Graph) -> Blocks:
    normed = np.empty(x.array.shape, np.float32)

    def spans() -> Iterator[Span]:
        for span in x:
            norm(x.array[span.slice], normed[span.slice])
            yield span

    return Tiles(normed, spans())


def _traced(name: str, compute: Callable[[], Stream], run: Pass) -> Stream:
    """Compute a block; where a trace is recorded, under its name, also when its tiles are asked for."""
    trace = run.group.traffic.trace
    if trace is None:
        return compute()
    with trace.block(name):
        stream = compute()
    return Stream(Tiles(stream.blocks.array, trace.over(name, stream.blocks)), stream.rows)


def _wanted(plan: BlockPlan, rows: Partition | None, run: Pass) -> Sequence[Span]:
    """Return which rows every rank needs to compute its share and to keep its residual."""
    kept = rows.spans if rows is not None else [Span(0, 0)] * run.group.size
    if plan.keys is not None:
        return [run.batch.keys_of(span) for span in kept]
    if plan.inner is None or plan.cut is Cut.GRID:
        return kept
    return [Span(0, run.batch.rows) if part.size else keeps for part, keeps in zip(plan.inner, kept, strict=True)]


def _attend(q: Array, kv: Array, arriving: Iterable[Span], pieces: Sequence[tuple[slice, slice]], run: Pass) -> Array:
    """Return the context [rows, H] of queries [rows, H] over keys and values [keys, 2 H], block by block as they come.

    ``pieces`` are, for every request, its rows and its keys.
    """
    k, v = np.split(kv, 2, axis=1)
    context = np.empty(q.shape, np.float32)
    parts: list[list[tuple[Array, Array]]] = [[] for _ in pieces]
    for block in arriving:
        for part, (rows, keys) in zip(parts, pieces, strict=True):
            seen = block.intersect(Span(keys.start, keys.stop)).slice
            if seen == keys:  # all of them at once: nothing to merge
                context[rows] = run.backend.attend(q[rows], k[keys], v[keys], [(slice(None),) * 2], run.spec.head_dim)
            elif seen.start < seen.stop:
                part.append(run.backend.attend_part(q[rows], k[seen], v[seen], run.spec.head_dim))
    for part, (rows, _) in zip(parts, pieces, strict=True):
        if part:
            context[rows] = numpy_kernels.merge(part)
    return context


def _heads(x: Blocks, w: BlockKernels, run: Pass) -> Array:
    """Compute the context [S, A' d] of this rank's heads, projecting rows as they arrive."""
    everything = Span(0, run.batch.rows)
    q, k, v = np.split(_project(x, 3 * w.width, w, run), 3, axis=1)
    return run.backend.attend(q, k, v, run.batch.pieces(everything, everything), run.spec.head_dim)


def _project(x: Blocks, width: int, w: BlockKernels, run: Pass) -> Array:
    """Compute the first product of all rows [S, width], on rows as they arrive."""
    h = np.empty((run.batch.rows, width), np.float32)
    for span in x:
        w.into[0](x.array[span.slice], h[span.slice])
    return h


def _reduced(h: Array, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass) -> Result:
    """Add the summands of h times the second weight where the result will lie: by rows, or on all ranks."""
    assert plan.inner is not None

    def part(span: Span) -> Array:
        return w.out(h[span.slice])

    group, H = run.group, run.spec.hidden
    parts = [Span(0, H if share.size else 0) for share in plan.inner]
    if rows is None:
        y = all_reduce(group, part, run.batch.rows, parts, H, run.tile_rows)
    else:
        y = reduce_rows(group, part, rows.spans, parts, H, run.tile_rows)
    return _in_tiles(y, rows, run)


def _output_columns(
    h_cols: Array, have: Partition, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass
) -> Result:
    """Gather the columns of h, compute this rank's output columns, gather those."""
    assert plan.columns is not None
    group = run.group
    h_full = gather_columns(group, h_cols, have.spans, [span.size > 0 for span in plan.columns])
    y_cols = w.out(h_full) if plan.columns[group.rank].size else h_full
    y_full = gather_columns(group, y_cols, plan.columns.spans, [True] * group.size)
    y = y_full if rows is None else y_full[rows[group.rank].slice]
    return _in_tiles(y, rows, run)


def _in_tiles(y: Array, rows: Partition | None, run: Pass) -> Result:
    """Hand out a result that is all there in the tiles in which a rank sends its rows; in full, at once."""
    return ((tile, y[tile.slice]) for tile in tiles(Span(0, y.shape[0]), run.tile_rows if rows else 0))
