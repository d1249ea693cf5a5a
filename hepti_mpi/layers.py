"""The layer loop: attention and MLP under every cut, and the residual stream between them.

Who has which rows, heads and columns stands in the plan; a share is decided in `solver`, a byte is sent in `comm`, a
head is computed in `kernels.attend`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hepti_mpi import kernels
from hepti_mpi.arrays import Array
from hepti_mpi.batch import Batch
from hepti_mpi.comm import Group, Incoming
from hepti_mpi.load import LayerWeights
from hepti_mpi.products import Backend, Product
from solver.model import ModelSpec
from solver.plan import BlockPlan, Cut, LayerPlan, Plan
from solver.spans import Partition, Span


@dataclass(frozen=True, slots=True, eq=False)
class BlockKernels:
    """A rank's share of one block, ready to compute.

    `into` is, for attention by rows, (K and V, Q); for attention by heads, all three at once; for the MLP, up and its
    activation. `out` is the attention output or down, without bias. `width` is the columns between the two; the
    vectors are [H].
    """

    into: tuple[Product, ...]
    out: Product
    width: int
    out_bias: Array
    norm: Array
    norm_bias: Array


@dataclass(frozen=True, slots=True, eq=False)
class LayerKernels:
    """A rank's share of one layer, ready to compute."""

    attention: BlockKernels
    mlp: BlockKernels


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The residual stream between blocks: `rows` None means full, else `array` is this rank's rows."""

    array: Array
    rows: Partition | None


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One batch on its way through the layers."""

    spec: ModelSpec
    batch: Batch
    group: Group


Compute = Callable[[Incoming, Partition | None, BlockKernels, BlockPlan, Pass], Array]


def layer_kernels(spec: ModelSpec, plan: Plan, make: Backend, number: int, weights: LayerWeights) -> LayerKernels:
    """Make a layer's kernels of a rank's share of its weights."""
    cuts = plan.layer(number)
    a, m, H = weights.attention, weights.mlp, spec.hidden
    if cuts.attention.cut is Cut.ROWS and a.into.size:
        # K and V first: they travel while Q is computed.
        into = (make(a.into[H:], a.into_bias[H:]), make(a.into[:H], a.into_bias[:H]))
    else:
        into = (make(a.into, a.into_bias),) * 2
    return LayerKernels(
        BlockKernels(into, make(a.out, None), a.into.shape[0] // 3, a.out_bias, a.norm, a.norm_bias),
        BlockKernels(
            (make(m.into, m.into_bias, spec.activation),), make(m.out, None),
            m.into.shape[0], m.out_bias, m.norm, m.norm_bias,
        ),
    )  # fmt: skip


def run_layers(x: Stream, layers: Sequence[LayerKernels], cuts: Sequence[LayerPlan], run: Pass) -> Stream:
    """Carry the residual stream through all layers; what comes out lies as the last cut leaves it."""
    for layer, cut in zip(layers, cuts, strict=True):
        x = block(x, layer.attention, cut.attention, ATTENTION, run)
        x = block(x, layer.mlp, cut.mlp, MLP, run)
    return x


def block(x: Stream, w: BlockKernels, plan: BlockPlan, computes: Mapping[Cut, Compute], run: Pass) -> Stream:
    """Compute norm(x + f(x)) (post-norm) or x + f(norm(x)) (pre-norm), f being one block under the plan's cut."""
    rows = plan.row_partition(run.batch.rows)  # where the result will lie; None: full
    if rows is None:
        x = relayout(x, None, run)
    wanted = _wanted(plan, rows, run)
    if run.spec.norm == "pre":
        normed = Stream(norm(x.array, w, run), x.rows)
        y = computes[plan.cut](bring(normed, wanted, run), rows, w, plan, run)
        return Stream(add(y, w.out_bias, relayout(x, rows, run).array), rows)
    incoming = bring(x, wanted, run)
    y = computes[plan.cut](incoming, rows, w, plan, run)
    # What the block needed contains the rows that this rank keeps: the residual costs no exchange of its own.
    mine = run.group.rank
    residual = x.array if rows is None else incoming.wait()[rows[mine].within(wanted[mine]).slice]
    total = add(y, w.out_bias, residual)
    return Stream(norm(total, w, run, out=total), rows)


# Attention: [wanted rows, H] -> [rows where the result lies, H], without bias and residual.


def attention_rows(x: Incoming, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass) -> Array:
    """Compute all heads of this rank's rows; K and V of the rows they attend to are gathered."""
    assert rows is not None
    mine = run.group.rank
    project_kv, project_q = w.into
    x_rows = x.wait()
    kv = project_kv(x_rows)
    keys = [run.batch.keys_of(span) for span in rows]
    others = run.group.gather_rows(kv, rows, keys)
    q = project_q(x_rows)  # while K and V travel
    k, v = np.split(others.wait(), 2, axis=1)
    pieces = run.batch.pieces(rows[mine], keys[mine])
    return w.out(kernels.attend(q, k, v, pieces, run.spec.head_dim))


def attention_block(x: Incoming, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass) -> Array:
    """Compute this rank's heads of all rows and its summand of the output projection."""
    return _reduce(w.out(_heads(x, w, run)), rows, plan, run)


def attention_columns(x: Incoming, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass) -> Array:
    """Compute this rank's heads of all rows, gather the context, project it to this rank's output columns."""
    assert plan.inner is not None
    heads = Partition(tuple(span.scaled(run.spec.head_dim) for span in plan.inner))
    return _output_columns(_heads(x, w, run), heads, rows, w, plan, run)


# MLP, likewise.


def mlp_rows(x: Incoming, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass) -> Array:
    """Compute the whole MLP of this rank's rows."""
    return w.out(_up(x, x.array.shape[0], w))


def mlp_block(x: Incoming, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass) -> Array:
    """Compute this rank's F columns of all rows and its summand of the second product."""
    return _reduce(w.out(_up(x, run.batch.rows, w)), rows, plan, run)


def mlp_columns(x: Incoming, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass) -> Array:
    """Compute this rank's F columns of all rows, gather them, compute this rank's output columns."""
    assert plan.inner is not None
    return _output_columns(_up(x, run.batch.rows, w), plan.inner, rows, w, plan, run)


ATTENTION: Mapping[Cut, Compute] = {
    Cut.ROWS: attention_rows,
    Cut.BLOCK: attention_block,
    Cut.COLUMNS: attention_columns,
}
MLP: Mapping[Cut, Compute] = {Cut.ROWS: mlp_rows, Cut.BLOCK: mlp_block, Cut.COLUMNS: mlp_columns}


def bring(x: Stream, wanted: Sequence[Span], run: Pass) -> Incoming:
    """Bring every rank the rows that it wants."""
    if x.rows is None:
        return Incoming.here(x.array[wanted[run.group.rank].slice])
    return run.group.gather_rows(x.array, x.rows, wanted)


def relayout(x: Stream, rows: Partition | None, run: Pass) -> Stream:
    """Lay the stream by these rows, or in full (None); nothing moves where it lies so already or lies in full."""
    wanted = [Span(0, run.batch.rows)] * run.group.size if rows is None else rows.spans
    return Stream(bring(x, wanted, run).wait(), rows)


def norm(x: Array, w: BlockKernels, run: Pass, out: Array | None = None) -> Array:
    """Normalise the stream with the block's weights."""
    return kernels.layer_norm(x, w.norm, w.norm_bias, run.spec.norm_eps, out)


def add(y: Array, bias: Array, residual: Array) -> Array:
    """Return y + bias + residual in a new array, since y and the residual may still be on their way."""
    total = y + residual
    total += bias
    return total


def _wanted(plan: BlockPlan, rows: Partition | None, run: Pass) -> Sequence[Span]:
    """Return which rows every rank needs to compute its share and to keep its residual."""
    kept = rows.spans if rows is not None else [Span(0, 0)] * run.group.size
    if plan.inner is None:
        return kept
    return [Span(0, run.batch.rows) if part.size else keeps for part, keeps in zip(plan.inner, kept, strict=True)]


def _heads(x: Incoming, w: BlockKernels, run: Pass) -> Array:
    """Compute the context [S, A' d] of this rank's heads, projecting rows as they arrive."""
    everything = Span(0, run.batch.rows)
    qkv = np.empty((everything.size, 3 * w.width), np.float32)
    for span in x:
        w.into[0](x.array[span.slice], qkv[span.slice])
    q, k, v = np.split(qkv, 3, axis=1)
    return kernels.attend(q, k, v, run.batch.pieces(everything, everything), run.spec.head_dim)


def _up(x: Incoming, rows: int, w: BlockKernels) -> Array:
    """Compute act(x Wᵀ + b) [rows, F'], on rows as they arrive."""
    h = np.empty((rows, w.width), np.float32)
    for span in x:
        w.into[0](x.array[span.slice], h[span.slice])
    return h


def _reduce(y_part: Array, rows: Partition | None, plan: BlockPlan, run: Pass) -> Array:
    """Add the summands [S, H] where the result will lie: by rows, or on all ranks."""
    assert plan.inner is not None
    if rows is None:
        return run.group.all_reduce(y_part, run.batch.rows, plan.inner)
    return run.group.reduce_rows(y_part, rows.spans, plan.inner)


def _output_columns(
    h_cols: Array, have: Partition, rows: Partition | None, w: BlockKernels, plan: BlockPlan, run: Pass
) -> Array:
    """Gather the columns of h, compute this rank's output columns, gather those: [S, own] -> [S or own rows, H]."""
    assert plan.columns is not None
    group = run.group
    h_full = group.gather_columns(h_cols, have, [span.size > 0 for span in plan.columns])
    y_cols = w.out(h_full) if plan.columns[group.rank].size else h_full
    y_full = group.gather_columns(y_cols, plan.columns, [True] * group.size)
    return y_full if rows is None else y_full[rows[group.rank].slice]
