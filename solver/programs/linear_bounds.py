"""What of a layer's cost is linear, or bounded from below by lines: what a convex program can state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from solver.cluster.curves import Floats
from solver.model.blocks import Axis
from solver.plan.routes import Route
from solver.schedule.encoders.layer_table import LayerTable, taking
from solver.schedule.exchange import Exchange, Mask, tile_counts
from solver.schedule.timing import Transfer

LINES = 6  # that stand for a curve


def own_exchange(table: LayerTable, transfer: Transfer, takes: Mapping[Axis, Mask]) -> Exchange:
    """Return what a device sends and receives for every share of its own, [units + 1, p]; [1, p] where none matters.

    Where that depends on the others' shares, it is the least that it can be: in how many tiles they send, and what
    they have passed on.
    """
    active = taking(takes)
    if transfer.axis is Axis.FIXED:
        once = transfer.exchange({axis: mask.astype(float) for axis, mask in takes.items()}, active)
        arrays = (once.sent, once.received, once.messages, once.encoded, once.tiles, once.last)
        sent, received, messages, encoded, tiles, last = (values[None] for values in arrays)
        return Exchange(sent, received, messages, once.between, encoded, tiles, last)
    total, size = table.units[transfer.axis], table.sizes[transfer.axis]
    count, unit = np.arange(total + 1.0)[:, None], transfer.unit_bytes * size
    root = np.arange(active.size) == 0
    owners, peers = takes[transfer.axis], root if transfer.peers is Axis.ROOT else takes.get(transfer.peers, active)
    others, copies = owners.sum() - owners, peers.sum() - peers
    own = owners * (unit * count + transfer.scale_bytes * (count > 0))
    tiles = owners * tile_counts(count * size, transfer.tile_rows)
    rest = (total - count) * size / transfer.tile_rows - others / 2 if transfer.tile_rows else 0.0
    receives = peers * (others > 0)  # the only owner has all, whatever else its table says
    arriving = receives * np.maximum(others, rest)
    received = receives * (unit * (total - count) + transfer.scale_bytes * others)
    last = own / np.maximum(tiles, 1) * copies
    if transfer.scatters:
        back, none = own * copies, np.zeros_like(received)
        return Exchange(received, back, tiles * copies + arriving, _unknown, received, tiles, none)
    once = own * (copies > 0)
    if transfer.route is Route.DIRECT:
        return Exchange(own * copies, received, tiles * copies + arriving, _unknown, once, tiles, last)
    hops = float((copies * owners).max()) if transfer.route is Route.RING else 1.0
    return Exchange(once, received, tiles + arriving, _unknown, once, tiles, last, hops)


def _unknown(j: int, i: int) -> Floats:
    raise NotImplementedError("what one device sends to another depends on all shares")


def lower_lines(seconds: Floats, takes: Mask, least: int) -> tuple[Floats, Floats]:
    """Return lines nowhere above `seconds` [units + 1, p] from `least` units on: slopes and intercepts [LINES, p].

    The slopes are those between some points of the curve; each line is raised until it touches. Where a device takes
    nothing, the line is its seconds for nothing.
    """
    most = len(seconds) - 1
    if most == 0:
        return np.zeros((LINES, takes.size)), np.broadcast_to(seconds, (LINES, takes.size))
    least = min(least, most)
    knots = np.array([least, least + 1, most // 16, most // 4, most // 2, 3 * most // 4, most]).clip(least, most)
    run = np.diff(np.sort(knots))[:, None]
    rise = np.diff(seconds[np.sort(knots)], axis=0)
    slope = np.where(run > 0, rise / np.maximum(run, 1), 0.0)
    units = np.arange(least, most + 1)[None, :, None]
    fixed = (seconds[None, least:] - slope[:, None] * units).min(1)
    return slope * takes, np.where(takes, fixed, seconds[0])
