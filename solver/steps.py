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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from solver.curves import Bank, Floats, Kernel
from solver.exchange import Exchange, Mask, Network

FLOAT_BYTES = 4


class Axis(StrEnum):
    """What is shared out; `FIXED` is what depends on no share, but on taking part at all."""

    FIXED = "fixed"
    ROWS = "rows"
    HEADS = "heads"
    CONTEXT = "attention output columns"
    FFN = "ffn columns"
    OUTPUT = "mlp output columns"


Values = Mapping[Axis, Floats]  # who has how much of every axis, [..., p]
Load = Mapping[Axis, Floats]  # seconds, [..., p], by the axis whose share they depend on


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """A cluster as a cost sees it: the devices' curves, and their links."""

    bank: Bank
    network: Network

    @property
    def devices(self) -> int:
        """Number of devices, p."""
        return int(self.network.bandwidth.size)

    def only(self, devices: NDArray[np.intp]) -> Machine:
        """Return some of the devices."""
        return Machine(self.bank.only(devices), self.network.only(devices))


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """Which blocks an exchange moves.

    Parameters
    ----------
    exchange
        What it costs for given shares and active devices.
    scatters
        The reduce-scatter: `peers` send, owners of blocks receive. Else the all-gather: owners send, `peers` receive.
    axis, unit_bytes
        A device's block is `unit_bytes` times its share of this axis; FIXED: it is another.
    peers
        The other side is who has a share of this axis; FIXED: all active devices.
    """

    exchange: Callable[[Values, Mask], Exchange]
    scatters: bool = False
    axis: Axis = Axis.FIXED
    unit_bytes: float = 0.0
    peers: Axis = Axis.FIXED


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One exchange and the compute around it; without a transfer, compute alone.

    Posting messages, and adding summands that arrive, are compute too, and follow from the transfer.
    """

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


def ends(before: Floats, during: Floats, edge: Floats, after: Floats, exchange: Floats, *, reduces: bool) -> Floats:
    """Return when every device ends a step, by the formulas above; all arguments in seconds, [..., p]."""

    def slowest(seconds: Floats) -> Floats:
        return np.asarray(seconds.max(-1, keepdims=True))

    if reduces:
        return np.maximum(slowest(before + during), slowest(before + edge) + exchange) + after
    arrived = np.where(exchange > 0, slowest(before) + exchange + edge, 0.0)
    return np.asarray(np.maximum(before + during, arrived) + after)


def times(
    loads: Sequence[Floats], transfer: Transfer | None, reduces: bool, values: Values, active: Mask, machine: Machine
) -> Times:
    """Price a step.

    Parameters
    ----------
    loads : four of [..., p] seconds
        `before`, `during`, `edge` and `after`.
    transfer, reduces
        As in `Step`.
    values, active
        What the transfer moves.
    machine
        Curves and links.
    """
    before, during, edge, after = loads
    if transfer is None:
        return Times(before + during + after, np.zeros(active.shape), before + during + after)
    exchange = transfer.exchange(values, active)
    seconds = exchange.seconds(machine.network)
    during = during + message_seconds(exchange, machine.bank)
    if reduces:
        after = after + machine.bank.seconds(Kernel.ADD, exchange.received / FLOAT_BYTES)
    return Times(before + during + after, seconds, ends(before, during, edge, after, seconds, reduces=reduces))


def step_times(step: Step, values: Values, active: Mask, machine: Machine) -> Times:
    """Price a step whose loads are those of `values`."""

    def total(load: Load) -> Floats:
        seconds = np.zeros(active.shape)
        for axis, part in load.items():
            seconds = seconds + (part * active if axis is Axis.FIXED else part)
        return seconds

    loads = [total(load) for load in (step.before, step.during, step.edge, step.after)]
    return times(loads, step.transfer, step.reduces, values, active, machine)


def message_seconds(exchange: Exchange, bank: Bank) -> Floats:
    """Return the CPU time that an exchange's messages cost every device."""
    size = (exchange.sent + exchange.received) / np.maximum(exchange.messages, 1)
    return np.asarray(exchange.messages * bank.seconds(Kernel.MESSAGE, size))


def plus(one: Load, other: Load) -> Load:
    """Add two loads, axis by axis."""
    return {**one, **{axis: one[axis] + seconds if axis in one else seconds for axis, seconds in other.items()}}
