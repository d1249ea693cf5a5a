"""What of a layer's cost is linear, or bounded from below by lines: what a convex program can state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from solver.curves import Floats
from solver.exchange import Exchange, Mask
from solver.kinds import LayerTable
from solver.steps import Axis, Transfer

LINES = 6  # that stand for a curve


def own_exchange(table: LayerTable, transfer: Transfer, takes: Mapping[Axis, Mask]) -> Exchange:
    """Return what a device sends and receives for every share of its own, [units + 1, p]; [1, p] where none matters."""
    everyone = np.ones(table.setting.devices, bool)
    if transfer.axis is Axis.FIXED:
        once = transfer.exchange({axis: mask.astype(float) for axis, mask in takes.items()}, everyone)
        return Exchange(once.sent[None], once.received[None], once.messages[None], once.between)
    unit = transfer.unit_bytes * table.sizes[transfer.axis]
    total = table.units[transfer.axis]
    own = unit * np.arange(total + 1.0)[:, None]
    owners, peers = takes[transfer.axis], takes.get(transfer.peers, everyone)
    copies = peers.sum() - peers
    sent, received = own * copies, peers * (unit * total - own)
    messages = owners * copies + peers * (owners.sum() - owners)
    if transfer.scatters:
        sent, received = received, sent
    return Exchange(sent, received, np.broadcast_to(messages, sent.shape).astype(float), lambda j, i: own)


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
