"""Where rows and columns of the stream lie around decoupled layers, and what moves when that changes.

Bytes move from a device that has some rows and columns to one that wants others:

    into a group      rows -> columns   every other device gets the columns of its sub-blocks; full -> columns is free
    out of a group    columns -> full   all get all (gathered and redundant, tensor-parallel)
                      columns -> rows   one gets all (an original layer on one device)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.cluster.curves import Floats
from solver.schedule.encoders.setting import Setting
from solver.schedule.exchange import Exchange, Mask, of_matrix


@dataclass(frozen=True, slots=True, eq=False)
class RowRegion:
    """Which rows and columns of an activation every device has, [p, 2] each: from, and up to."""

    rows: Floats
    columns: Floats


def by_rows(s: Setting, counts: Floats) -> RowRegion:
    """Return where so many rows of every device lie, with all columns."""
    return RowRegion(_spans(counts), _all(s.devices, s.spec.hidden))


def by_columns(s: Setting, sub_blocks: Floats) -> RowRegion:
    """Return where the columns of so many sub-blocks of every device lie, in all rows."""
    width = s.spec.hidden // s.spec.sub_blocks
    return RowRegion(_all(s.devices, s.rows), _spans(width * sub_blocks))


def in_full(s: Setting, active: Mask) -> RowRegion:
    """Return everything, on the devices that take part."""
    return RowRegion(_all(s.devices, s.rows) * active[:, None], _all(s.devices, s.spec.hidden))


def regrid(s: Setting, have: RowRegion, want: RowRegion) -> Exchange:
    """Bring every device the rows and columns that it wants, of which no two others have the same."""
    rows, columns = _common(have.rows, want.rows), _common(have.columns, want.columns)
    moved = rows * (columns * (s.wire.bits / 8) + (columns > 0) * s.wire.scale_bytes)
    np.fill_diagonal(moved, 0.0)
    return of_matrix(moved)


def _spans(counts: Floats) -> Floats:
    stop = np.cumsum(counts)
    return np.stack([stop - counts, stop], axis=1)


def _all(devices: int, length: int) -> Floats:
    return np.tile([0.0, float(length)], (devices, 1))


def _common(have: Floats, want: Floats) -> Floats:
    """Return how much each device has of what each wants, [owner, receiver]."""
    start = np.maximum.outer(have[:, 0], want[:, 0])
    return np.asarray(np.maximum(np.minimum.outer(have[:, 1], want[:, 1]) - start, 0.0))
