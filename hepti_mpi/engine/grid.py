"""Cut `grid`: both weights of a block in 2-D tiles, the ranks a grid of X rows by Y columns.

The 2-D weight-stationary layout of Pope et al., "Efficiently Scaling Transformer Inference" (arXiv 2211.05102): rank
(i, j) has the tiles of the i-th columns of H and the j-th heads or F columns of both weights.

    columns of H of all rows to each tile        all-gather over the grid's columns
    x_i W_in[i, j], added over the grid's rows   reduce-scatter, each rank of a column some heads or F columns
    heads, or the activation
    all heads or F columns of the tile           all-gather over the grid's rows
    h_j W_out[j, i], added over its columns      reduce-scatter

The paper keeps the stream in tiles, too; here it lies by rows, so that norms and other cuts find whole rows. The first
and the last exchange therefore pass between rows and tiles at once: a rank sends each row of the grid its columns of
the rows that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from hepti_mpi.comm.exchange import exchanged
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.rows import RowBlocks, RowExchange, in_order, sum_rows
from hepti_mpi.kernels.products import Graph
from solver.base.arrays import Array
from solver.base.spans import Partition, Span
from solver.plan.layout import Box
from solver.plan.plan import BlockPlan


class Grid:
    """A block's exchanges on the grid, for one batch.

    Parameters
    ----------
    group
        The ranks; all call all methods, in order.
    plan
        The block's, of cut `grid`.
    rows
        Who has which rows of the stream, before and after the block.
    tile_rows
        As in the plan.
    unit
        Columns between the two products for each of the plan's inner units: d for heads.
    tensors
        How many tensors the first product makes: 3 for Q, K and V.
    """

    def __init__(
        self, group: Group, plan: BlockPlan, rows: Partition, tile_rows: int, unit: int = 1, tensors: int = 1
    ) -> None:
        assert plan.columns is not None
        assert plan.inner is not None
        self._group, self._rows, self._tile_rows, self._tensors = group, rows, tile_rows, tensors
        self._columns = plan.columns
        self._has_tile = [plan.has_tile(rank) for rank in range(group.size)]
        self._of_tile = [plan.tile(rank)[1] if has else Span(0, 0) for rank, has in enumerate(self._has_tile)]
        inner, _ = plan.tile(group.rank)
        crew = plan.crew(group.rank)
        # Of this rank's column of the grid: who adds up, and hands on, which columns of the tile.
        self._inner = [
            plan.inner[rank].within(inner).scaled(unit) if rank in crew else Span(0, 0) for rank in range(group.size)
        ]
        self._in_crew = [has and rank in crew for rank, has in enumerate(self._has_tile)]
        self._width = inner.size * unit

    def enter(self, x: RowBlocks, product: Graph) -> Array:
        """Bring columns of all rows to the tiles, and compute this rank's summand of the first product.

        Parameters
        ----------
        x : [own rows, H]
            The stream.
        product
            By this rank's tile, [rows, its columns of H] -> [rows, tensors, columns of the tile].

        Returns
        -------
        [S tensors, columns of the tile]
        """
        S, size, every = self._rows.total, self._tensors, len(self._columns)
        want = [Span(0, S if has else 0) for has in self._has_tile]
        columns = [self._columns[rank % every] for rank in range(self._group.size)]
        row, own = (self._columns.total,), x.array
        exchange = RowExchange(self._group, self._rows, want, row, own, columns=columns, tile_rows=self._tile_rows)
        for number, _ in in_order(x, exchange.tiles):
            exchange.put(number)
        h = np.empty((S * size, self._width), np.float32)
        by_row = h.reshape(S, -1)
        for span in chain([exchange.kept] if exchange.kept.size else [], exchange):
            product(exchange.array[span.slice], by_row[span.slice])
        return h

    def add_up(self, h: Array, bias: Array) -> Array:
        """Add the summands of the first product and its bias [tensors own columns] -> [S, tensors own columns]."""
        tile = self._boxes([Span(0, self._width if summing else 0) for summing in self._in_crew], len(h))
        total = exchanged(self._group, h, tile, self._boxes(self._inner, len(h)), summands=True)
        total = total.reshape(self._rows.total, -1)
        total += bias
        return total

    def spread(self, h: Array) -> Array:
        """Bring what lies between the two products to the tiles: [S, own columns] -> [S, columns of the tile]."""
        tile = self._boxes([Span(0, self._width if wanting else 0) for wanting in self._in_crew], len(h))
        return exchanged(self._group, h, self._boxes(self._inner, len(h)), tile)

    @staticmethod
    def _boxes(columns: Sequence[Span], rows: int) -> list[Box]:
        return [Box((Span(0, rows), own)) for own in columns]

    def leave(self, tile: Array, product: Graph) -> Array:
        """Compute the second product, without bias.

        Parameters
        ----------
        tile : [S, columns of the tile]
            What lies between the two products.
        product
            By this rank's tile, [rows, columns of the tile] -> [rows, its columns of H].

        Returns
        -------
        [own rows, H]
        """

        def part(span: Span, summand: Array) -> None:
            product(tile[span.slice], summand)

        H = self._columns.total
        return sum_rows(self._group, part, self._rows.spans, self._of_tile, H, self._tile_rows)
