"""The residual stream of a batch, how it lies on the ranks, and how it comes to lie otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hepti_mpi.comm.exchange import exchanged
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.rows import RowBlocks, Tiles, gather_rows, whole
from hepti_mpi.engine.batch import Batch
from hepti_mpi.kernels.products import Backend, Graph
from solver.base.spans import Partition, Span
from solver.model.spec import ModelSpec
from solver.plan.layout import Box
from solver.plan.routes import Route


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The residual stream between blocks, computed as one iterates over its blocks.

    The blocks are this rank's `rows`, or all rows of its `columns`; neither: everything.
    """

    blocks: RowBlocks
    rows: Partition | None = None
    columns: Partition | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One batch on its way through the layers; `tile_rows` as in the plan."""

    spec: ModelSpec
    batch: Batch
    group: Group
    tile_rows: int
    backend: Backend


def bring(x: Stream, wanted: Sequence[Span], route: Route, run: Pass) -> RowBlocks:
    """Bring every rank the rows that it wants."""
    if x.rows is None:
        return Tiles.here(whole(x.blocks)[wanted[run.group.rank].slice])
    return gather_rows(run.group, x.blocks, x.rows, wanted, run.tile_rows, route)


def relayout(x: Stream, rows: Partition | None, run: Pass) -> Stream:
    """Lay the stream by these rows, or in full (None); nothing moves where it lies so already or lies in full."""
    wanted = [Span(0, run.batch.rows)] * run.group.size if rows is None else rows.spans
    return Stream(bring(x, wanted, Route.DIRECT, run), rows)


def to_columns(x: Stream, sub_blocks: Partition, run: Pass) -> Stream:
    """Bring every rank the columns of its sub-blocks; where all have everything, nothing moves."""
    everything, width = Span(0, run.batch.rows), run.spec.hidden // sub_blocks.total
    columns = Partition(tuple(span.scaled(width) for span in sub_blocks))
    array = whole(x.blocks)
    if x.columns == columns:
        return x
    if x.columns is not None:
        have = [Box((everything, own)) for own in x.columns]
    elif x.rows is None:
        return Stream(Tiles.here(array[:, columns[run.group.rank].slice]), columns=columns)
    else:
        have = [Box((rows, Span(0, run.spec.hidden))) for rows in x.rows]
    array = exchanged(run.group, array, have, [Box((everything, own)) for own in columns])
    return Stream(Tiles.here(array), columns=columns)


def from_columns(x: Stream, rows: Partition | None, run: Pass) -> Stream:
    """Bring every rank its rows, or everything, of a stream that lies by columns."""
    assert x.columns is not None
    everything, columns = Span(0, run.batch.rows), Span(0, run.spec.hidden)
    have = [Box((everything, own)) for own in x.columns]
    want = [Box((span, columns)) for span in (rows or [everything] * run.group.size)]
    return Stream(Tiles.here(exchanged(run.group, whole(x.blocks), have, want)), rows)


def computed(x: RowBlocks, graph: Graph) -> RowBlocks:
    """Return what a graph makes of blocks, each as it is asked for."""
    done = np.empty(x.array.shape, np.float32)

    def spans() -> Iterator[Span]:
        for span in x:
            graph(x.array[span.slice], done[span.slice])
            yield span

    return Tiles(done, spans())
