"""The layers of a model with decoupled ones: sub-blocks compute alone, and columns move only around original layers.

A sub-block of a decoupled layer is a layer of its own that sees only its columns. So a rank runs the layer loop by
itself for each of its sub-blocks, and also for an original layer that is cut `whole`. What lies where: a rank has the
columns of its sub-blocks between decoupled layers; a rank or all have everything around an original one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hepti_mpi.base.arrays import Array
from hepti_mpi.comm.exchange import Patch, Tiles, regrid, whole
from hepti_mpi.engine.layers import Layer, LayerKernels
from hepti_mpi.engine.steps import Pass, Stream, run_layers
from solver.model.spec import ModelSpec
from solver.model.sublayers import SUBLAYERS
from solver.plan.plan import BlockPlan, Cut, LayerPlan, Layout
from solver.plan.spans import Partition, Span

_ROWS = BlockPlan(Cut.ROWS, norm=Layout.ROWS, rows=(1.0,))
ALONE = LayerPlan(_ROWS, _ROWS)
EVERYTHING = Span(0, SUBLAYERS)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The residual stream between decoupled layers: all rows of this rank's columns; `parts` says who has which."""

    array: Array
    parts: Partition


def run_groups(x: Stream, layers: Iterable[tuple[Layer, LayerPlan, Span, Pass]]) -> Generator[None, None, Stream]:
    """Carry the residual stream through all layers, decoupled and original ones, asking for each when it is its turn.

    Of every layer: what computes it, its cuts, which of its sub-layers are computed, and how.

    As the decoupled layers of DeTransformer (DATE 2024): nothing is sent within a group of them. A rank that is alone
    yields behind every original layer, so that it can do something else; where others wait for it, it does not.
    """
    lies: Stream | Columns = x
    for number, (layer, cut, part, run) in enumerate(layers):
        if isinstance(layer, tuple):
            assert cut.attention.inner is not None
            lies = _sub_blocks(_as_columns(lies, cut.attention.inner, run), layer, number, run)
            continue
        x = _as_stream(lies, cut.attention, run)
        if cut.attention.cut is Cut.WHOLE:
            lies = Stream(Tiles.here(_alone(whole(x.blocks), layer, number, run.spec, run)), None)
        else:
            lies = run_layers(x, [layer], [cut], [part], run, number)
        if run.group.size == 1:
            lies = Stream(Tiles.here(whole(lies.blocks)), lies.rows)
            yield
    assert isinstance(lies, Stream)  # groups end with an original layer
    return lies


def _sub_blocks(x: Columns, layer: Sequence[LayerKernels], number: int, run: Pass) -> Columns:
    """Compute this rank's sub-blocks of a decoupled layer, one after the other."""
    part = run.spec.sub_block
    y = np.empty(x.array.shape, np.float32)
    for place, kernels in enumerate(layer):
        own = Span(place, place + 1).scaled(part.hidden).slice
        y[:, own] = _alone(np.ascontiguousarray(x.array[:, own]), kernels, number, part, run)
    return Columns(y, x.parts)


def _alone(x: Array, layer: LayerKernels, number: int, spec: ModelSpec, run: Pass) -> Array:
    """Compute a layer, or a sub-block of one, without any other rank."""
    alone = replace(run, spec=spec, group=run.group.alone, tile_rows=0)
    entering = Stream(Tiles.here(x), Partition.of_counts([x.shape[0]]))
    return whole(run_layers(entering, [layer], [ALONE], [EVERYTHING], alone, number).blocks)


def _as_columns(x: Stream | Columns, sub_blocks: Partition, run: Pass) -> Columns:
    """Bring every rank the columns of its sub-blocks; where all have everything, nothing moves."""
    everything, width = Span(0, run.batch.rows), run.spec.hidden // run.spec.sub_blocks
    parts = Partition(tuple(span.scaled(width) for span in sub_blocks))
    if isinstance(x, Columns):
        if x.parts == parts:
            return x
        array, have = x.array, [Patch(everything, columns) for columns in x.parts]
    else:
        array = whole(x.blocks)
        if x.rows is None:
            return Columns(array[:, parts[run.group.rank].slice], parts)
        have = [Patch(rows, Span(0, run.spec.hidden)) for rows in x.rows]
    return Columns(regrid(run.group, array, have, [Patch(everything, columns) for columns in parts]), parts)


def _as_stream(x: Stream | Columns, first: BlockPlan, run: Pass) -> Stream:
    """Bring every rank what it begins an original layer with: its rows, or everything."""
    if isinstance(x, Stream):
        return x
    everything, columns = Span(0, run.batch.rows), Span(0, run.spec.hidden)
    have = [Patch(everything, own) for own in x.parts]
    rows = first.row_partition(run.batch.rows)
    want = [Patch(span, columns) for span in (rows or [everything] * run.group.size)]
    return Stream(Tiles.here(regrid(run.group, x.array, have, want)), rows)
