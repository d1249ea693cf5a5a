"""The exchanges of a block of cut `grid`, as matrices: who sends whom how many bytes. `hepti_mpi/grid.py` makes them.

With S rows, of which rank r has R_r, tiles of E_i columns of H by F_j heads or F columns, of which rank (i, j) adds up
f_ij and n tensors are made, in numbers from rank r to another rank q, at the place (i, j) in the grid:

    enter     R_r E_i(q)           every rank's rows to every tile
    add up    n S f(q)             within a column of the grid
    spread    S f(r)               within a column of the grid
    leave     R_q E_i(r)           every tile's summand to every rank's rows

so that with equal parts on p = X Y ranks each sends

    S (2 H/X (p - 1)/p + (n + 1) F/Y (X - 1)/X),

the paper's 2 S (H/X + F/Y) for the MLP (Pope et al., arXiv 2211.05102), to the number. Empty tiles take no part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from solver.curves import Floats
from solver.exchange import Exchange, of_matrix, tile_counts

# Bytes on the wire of a row of so many numbers of so many tensors: `solver.layers.Setting.row_bytes`.
RowBytes = Callable[[int, int], int]


@dataclass(frozen=True, eq=False)
class GridExchanges:
    """A block's exchanges.

    Parameters
    ----------
    inner : [p]
        Columns between the two products that every rank adds up.
    columns : [X]
        Columns of H of every row of the grid.
    rows : [p]
        Rows of the stream.
    row_bytes
        What a row is on the wire.
    tile_rows
        As in the plan.
    """

    inner: Floats
    columns: Floats
    rows: Floats
    row_bytes: RowBytes
    tile_rows: int

    @cached_property
    def place(self) -> tuple[Floats, Floats]:
        """Every rank's row and column in the grid, [p] each."""
        column, row = np.divmod(np.arange(self.inner.size), self.columns.size)
        return row, column

    @cached_property
    def tile(self) -> tuple[Floats, Floats]:
        """Every rank's tile, [p] each: columns between the products, and of H; both 0 where it has no weights."""
        row, column = self.place
        inner = self.inner.reshape(-1, self.columns.size).sum(1)[column]
        has = (inner > 0) & (self.columns[row] > 0)
        return inner * has, self.columns[row] * has

    @property
    def weights(self) -> Floats:
        """Elements of every rank's tile of one of the weights, [p]."""
        inner, columns = self.tile
        return inner * columns

    def enter(self) -> Exchange:
        """Return who sends whom the rows that it has, in tiles of them."""
        tiles = tile_counts(self.rows, self.tile_rows)
        _, columns = self.tile
        moved = self._others(np.outer(self.rows, self._bytes(columns)))
        # For all tiles of a row of the grid once.
        encoded = self.rows * self._bytes(self.columns).sum()
        return replace(of_matrix(moved, tiles), messages=_messages(moved, tiles[:, None]), encoded=encoded)

    def add_up(self, tensors: int) -> Exchange:
        """Return who sends whom summands of the first product, which makes so many tensors."""
        _, columns = self.tile
        taken = self.rows.sum() * tensors * self._bytes(self.inner)
        return of_matrix(self._in_crew(np.outer(columns > 0, taken)))

    def spread(self) -> Exchange:
        """Return who sends whom what it has added up, and computed of that."""
        _, columns = self.tile
        given = self.rows.sum() * self._bytes(self.inner)
        moved = self._in_crew(np.outer(given, columns > 0))
        return replace(of_matrix(moved), encoded=moved.max(1))

    def leave(self) -> Exchange:
        """Return who sends whom summands of the second product, in tiles of the receiver's rows."""
        _, columns = self.tile
        moved = self._others(np.outer(self._bytes(columns), self.rows))
        return replace(of_matrix(moved), messages=_messages(moved, tile_counts(self.rows, self.tile_rows)))

    def _bytes(self, widths: Floats) -> Floats:
        """Return the bytes of a row of so many numbers of one tensor; of none, nothing."""
        return np.array([self.row_bytes(int(width), 1) if width else 0 for width in widths], float)

    def _others(self, moved: Floats) -> Floats:
        return np.asarray(np.where(np.eye(self.inner.size, dtype=bool), 0.0, moved))

    def _in_crew(self, moved: Floats) -> Floats:
        _, column = self.place
        return np.asarray(self._others(moved) * (column[:, None] == column))


def _messages(moved: Floats, tiles: Floats) -> Floats:
    """Return every rank's messages, [p], where each pair's bytes go in so many tiles."""
    messages = (moved > 0) * tiles
    return np.asarray(messages.sum(0) + messages.sum(1), float)
