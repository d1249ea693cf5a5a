"""Steps: an exchange, the compute around it, and the seconds that follow.

A step ends when every device has ended it. With `before`, `during`, `edge` and `after` the compute of device i and E_i
its exchange (`solver.exchange`), device i ends at

    gather   max(before_i + during_i, max_j before_j + E_i + edge_i) + after_i
    reduce   max(max_j (before_j + during_j), max_j (before_j + edge_j) + E_i) + after_i

In a gather, i computes on what it has while the rest arrives; `edge` is what it still computes on the last to arrive.
In a reduce, summands leave as they are done; `edge` is the first of them, and i needs those of all others. So where
compute and exchange overlap, the larger counts; where they do not, both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from solver.curves import Bank, Floats, Kernel
from solver.exchange import Exchange, Mask, Network


class Axis(StrEnum):
    """What is shared out; `FIXED` is what depends on no share."""

    FIXED = "fixed"
    ROWS = "rows"
    HEADS = "heads"
    CONTEXT = "attention output columns"
    FFN = "ffn columns"
    OUTPUT = "mlp output columns"


Values = Mapping[Axis, Floats]  # who has how much of every axis, [..., p]
Load = Mapping[Axis, Floats]  # seconds, [..., p], by the axis whose share they depend on


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """Which blocks an exchange moves; apart from its seconds, so that a program can state it for shares not yet known.

    Parameters
    ----------
    scatters
        The reduce-scatter: `peers` send, owners of blocks receive. Else the all-gather: owners send, `peers` receive.
    axis
        A device's block is `unit_bytes` times its share of this axis.
    peers, owners : [..., p]
        The two sides.
    exchange
        What it costs for given shares.
    """

    scatters: bool
    axis: Axis
    unit_bytes: float
    peers: Mask
    owners: Mask
    exchange: Callable[[Values], Exchange]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One exchange and the compute around it; without a transfer, compute alone."""

    name: str
    before: Load = field(default_factory=dict)
    during: Load = field(default_factory=dict)
    edge: Load = field(default_factory=dict)
    after: Load = field(default_factory=dict)
    transfer: Transfer | None = None
    reduces: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Seconds of a step on every device, [..., p]: its compute, its exchange E, and when it ends."""

    compute: Floats
    exchange: Floats
    end: Floats


def times(before: Floats, during: Floats, edge: Floats, after: Floats, exchange: Floats, *, reduces: bool) -> Times:
    """Return when every device ends a step, by the formulas above."""

    def slowest(seconds: Floats) -> Floats:
        return np.asarray(seconds.max(-1, keepdims=True))

    if reduces:
        end = np.maximum(slowest(before + during), slowest(before + edge) + exchange) + after
    else:
        arrived = np.where(exchange > 0, slowest(before) + exchange + edge, 0.0)
        end = np.maximum(before + during, arrived) + after
    return Times(before + during + after, exchange, end)


def step_times(step: Step, values: Values, network: Network) -> Times:
    """Return when every device ends a step whose loads are those of `values`."""
    nothing = np.zeros(network.bandwidth.size)
    loads = (step.before, step.during, step.edge, step.after)
    before, during, edge, after = (np.asarray(sum(load.values(), nothing)) for load in loads)
    exchange = nothing if step.transfer is None else step.transfer.exchange(values).seconds(network)
    return times(before, during, edge, after, exchange, reduces=step.reduces)


def message_seconds(exchange: Exchange, bank: Bank) -> Floats:
    """Return the CPU time that an exchange's messages cost every device."""
    size = (exchange.sent + exchange.received) / np.maximum(exchange.messages, 1)
    return np.asarray(exchange.messages * bank.seconds(Kernel.MESSAGE, size))


def plus(one: Load, other: Load) -> Load:
    """Add two loads, axis by axis."""
    return {**one, **{axis: one[axis] + seconds if axis in one else seconds for axis, seconds in other.items()}}
