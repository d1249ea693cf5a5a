"""The exchanges of a block of cut `grid`: who sends whom how many bytes. `placing.py` beside it makes them.

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
from typing import Any

import numpy as np

from solver.cluster.curves import Floats
from solver.schedule.exchange import Exchange, tile_counts

# Bytes on the wire of a row of so many numbers of so many tensors: `Setting.row_bytes`.
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
    def tile(self) -> tuple[Floats, Floats]:
        """Every rank's tile, [p] each: columns between the products, and of H; both 0 where it has no weights."""
        shape = self.inner.size // self.columns.size, self.columns.size
        inner = np.broadcast_to(self.inner.reshape(shape).sum(1, keepdims=True), shape).reshape(-1)
        columns = np.broadcast_to(self.columns, shape).reshape(-1)
        has = (inner > 0) & (columns > 0)
        return inner * has, columns * has

    @property
    def weights(self) -> Floats:
        """Elements of every rank's tile of one of the weights, [p]."""
        inner, columns = self.tile
        return inner * columns

    def enter(self) -> Exchange:
        """Return who sends whom the rows that it has, in tiles of them."""
        tiles, needed = tile_counts(self.rows, self.tile_rows), self._tile_bytes()
        exchange = _exchange(self.rows, needed, tiles, needed > 0, self.rows.size)
        # For all tiles of a row of the grid once.
        encoded = self.rows * self._bytes(self.columns).sum()
        last = exchange.sent / np.maximum(tiles, 1)
        return replace(exchange, encoded=encoded * (exchange.sent > 0), tiles=tiles, last=last)

    def add_up(self, tensors: int) -> Exchange:
        """Return who sends whom summands of the first product, which makes so many tensors."""
        has_tile, taken = self.weights > 0, self.rows.sum() * tensors * self._bytes(self.inner)
        return _exchange(has_tile, taken, has_tile, taken > 0, self.columns.size)

    def spread(self) -> Exchange:
        """Return who sends whom what it has added up, and computed of that."""
        has_tile, given = self.weights > 0, self.rows.sum() * self._bytes(self.inner)
        exchange = _exchange(given, has_tile, given > 0, has_tile, self.columns.size)
        return replace(exchange, encoded=given * (exchange.sent > 0))

    def leave(self) -> Exchange:
        """Return who sends whom summands of the second product, in tiles of the receiver's rows."""
        given = self._tile_bytes()
        return _exchange(given, self.rows, given > 0, tile_counts(self.rows, self.tile_rows), self.rows.size)

    def _tile_bytes(self) -> Floats:
        """Return the bytes of a row of every rank's tile, [p]."""
        _, columns = self.tile
        return self._bytes(columns)

    def _bytes(self, widths: Floats) -> Floats:
        """Return the bytes of a row of so many numbers of one tensor; of none, nothing."""
        return np.array([self.row_bytes(int(width), 1) if width else 0 for width in widths], float)


def _exchange(given: Any, taken: Any, messages_given: Any, messages_taken: Any, group: int) -> Exchange:
    """Return the exchange where r sends q `given[r] taken[q]` bytes, in messages likewise, within groups of ranks."""

    def totals(given: Any, taken: Any) -> tuple[Floats, Floats]:
        """Return what every rank sends, and receives."""

        def others(values: Any) -> Floats:
            return np.asarray(np.repeat(values.reshape(-1, group).sum(1), group) - values, float)

        return given * others(1 * taken), taken * others(1 * given)

    def between(j: int, i: int) -> Floats:
        return np.asarray(given[j] * taken[i] * (j != i and j // group == i // group), float)

    sent, received = totals(given, taken)
    out, arriving = totals(messages_given, messages_taken)
    return Exchange(sent, received, out + arriving, between, sent, (sent > 0).astype(float), sent)
