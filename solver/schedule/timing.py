"""Steps: an exchange, the compute around it, and the seconds that follow.

A step ends when every device has ended it: where the next begins, each needs what all others have sent. With `before`,
`first`, `during`, `edge` and `after` the compute of device i, E_i its exchange and l_i its last tile's
(`solver.schedule.exchange`), device i ends at

    gather   max(before_i + during_i, A_i + edge_i),  A_i = max(max_j≠i (before_j + l_j), E_i begun at first_j)
    reduce   max(max_j (before_j + during_j), max_j (before_j + edge_j) + E_i) + after_i

and every device later by what the largest of times that vary is later than the largest of their means, of the devices
that compute and take part in the exchange (`lateness`). But who has waited computes faster for a moment, by up to its
rest: so all of them are as much earlier as each of these devices is, after its wait.

In a gather, `before` is computed tile by tile and every tile is sent at once, `first` is its first tile; i computes on
what it has while the rest arrives, and `edge` is what it still computes on the last to arrive. In a reduce, summands
leave as they are done, the own last of all; `edge` is the first of them, and i needs those of all others. So where
compute and exchange overlap, the larger counts; where they do not, both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from solver.cluster.cluster import Cluster
from solver.cluster.curves import Bank, Floats, Kernel
from solver.model.blocks import Axis
from solver.plan.plan import Wire
from solver.plan.routes import Route
from solver.schedule.exchange import Exchange, Mask, Network, largest_other

# What turning a number into the wire's format or back costs, in numbers added.
CODING = {Wire.FLOAT32: 0, Wire.FLOAT16: 1, Wire.INT8: 2, Wire.INT6: 6, Wire.INT4: 6, Wire.INT2: 6, Wire.ADAPTIVE: 0}
# Who passes a tile on does it when a tile of its own is done: half of one later, on average.
PASSING = 0.5
RESTED = 0.5  # of a second's wait: what a device gains by it, up to its rest
UNREST_S = 0.016  # of the steps in which a profile measures jitter and rest
NEVER_S, TINY_S = 1e9, 1e-12


Values = Mapping[Axis, Floats]  # who has how much of every axis, [..., p]
Load = Mapping[Axis, Floats]  # seconds, [..., p], by the axis whose share they depend on


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """A cluster as a cost sees it: the devices' curves, their links, their jitter and rest, [p] seconds."""

    bank: Bank
    network: Network
    jitter: Floats
    rest: Floats

    @classmethod
    def of(cls, cluster: Cluster) -> Machine:
        """Describe a cluster."""
        devices = cluster.devices
        jitter, rest = (np.array(seconds) for seconds in zip(*((d.jitter_s, d.rest_s) for d in devices), strict=True))
        return cls(Bank([device.kernels for device in devices]), Network.of(cluster), jitter, rest)

    @property
    def devices(self) -> int:
        """Number of devices, p."""
        return int(self.network.bandwidth.size)

    def late_scale(self, at_work: Mask) -> Floats:
        """Return the scale of Gumbel's distribution by which devices that work together vary, [..., 1] seconds.

        Of two that differ it is the root of the mean square: how much later the later of two is depends on how their
        difference varies.
        """
        squares, devices = at_work * (self.jitter / np.log(2)) ** 2, at_work.sum(-1, keepdims=True)
        return np.asarray(np.sqrt(squares.sum(-1, keepdims=True) / np.maximum(devices, 1)))

    def only(self, devices: NDArray[np.intp]) -> Machine:
        """Return some of the devices."""
        return Machine(self.bank.only(devices), self.network.only(devices), self.jitter[devices], self.rest[devices])


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """Which blocks an exchange moves.

    Parameters
    ----------
    exchange
        What it costs for given shares and active devices.
    scatters
        The reduce-scatter: `peers` send, owners of blocks receive. Else the all-gather: owners send, `peers` receive.
    axis, unit_bytes, scale_bytes
        A device's block is `unit_bytes` times its share of this axis, and `scale_bytes` if it has one; FIXED: another.
    peers
        The other side is who has a share of this axis; FIXED: all active devices; ROOT: rank 0.
    wire, tile_rows, route
        How it is sent.
    """

    exchange: Callable[[Values, Mask], Exchange]
    scatters: bool = False
    axis: Axis = Axis.FIXED
    unit_bytes: float = 0.0
    scale_bytes: float = 0.0
    peers: Axis = Axis.FIXED
    wire: Wire = Wire.FLOAT32
    tile_rows: int = 0
    route: Route = Route.DIRECT


BlockCount = Callable[[Values, Mask], Floats]  # in how many blocks of rows products run, [..., 1]


@dataclass(frozen=True, slots=True, eq=False)
class TimedStep:
    """One exchange and the compute around it; without a transfer, compute alone.

    Posting messages, adding summands that arrive, and the wire's format are compute too, and follow from the transfer.
    `blocks` says in how many blocks of rows the products behind `during` and `edge` run, where that matters; `block`
    names the kind of block that asks for the exchange.
    """

    name: str
    block: str = ""
    computes: tuple[str, ...] = ()  # what stands before, and what meanwhile, by name
    meanwhile: tuple[str, ...] = ()
    before: Load = field(default_factory=dict)
    first: Load = field(default_factory=dict)
    during: Load = field(default_factory=dict)
    edge: Load = field(default_factory=dict)
    transfer: Transfer | None = None
    reduces: bool = False
    blocks: BlockCount | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Seconds of a step on every device, [..., p].

    Its compute, its exchange E, when it ends, and how much of its compute is coding, handling and adding up messages.
    """

    compute: Floats
    exchange: Floats
    end: Floats
    handled: Floats


def gather_ends(before: Floats, during: Floats, edge: Floats, arrival: Floats, last: Floats) -> Floats:
    """Return when every device ends a step that gathers, by the formula above; all arguments in seconds, [..., p]."""
    arrived = np.maximum(largest_other(before + last), arrival)
    return np.asarray(np.maximum(before + during, np.where(arrival > 0, arrived + edge, 0.0)))


def reduce_ends(before: Floats, during: Floats, edge: Floats, after: Floats, exchange: Floats) -> Floats:
    """Return when every device ends a step that reduces."""
    done, begun = (seconds.max(-1, keepdims=True) for seconds in (before + during, before + edge))
    return np.asarray(np.maximum(done, begun + exchange) + after)


def times(
    loads: Sequence[Floats], transfer: Transfer | None, reduces: bool, values: Values, active: Mask, machine: Machine
) -> Times:
    """Price a step.

    Parameters
    ----------
    loads : four of [..., p] seconds
        `before`, `first`, `during` and `edge`.
    transfer, reduces
        As in `TimedStep`.
    values, active
        What the transfer moves.
    machine
        Curves and links.
    """
    exchange = None if transfer is None else transfer.exchange(values, active)
    compute, end = _timed(loads, transfer, exchange, reduces, machine)
    if transfer is None or exchange is None:
        return Times(compute, np.zeros(active.shape), end, np.zeros(active.shape))
    handled = sum(cpu_seconds(exchange, transfer.wire, machine.bank, adds=reduces))
    return Times(compute, exchange.seconds(machine.network), end, np.asarray(handled))


def ends(
    loads: Sequence[Floats], transfer: Transfer | None, reduces: bool, values: Values, active: Mask, machine: Machine
) -> Floats:
    """Return when every device ends a step, [..., p]; arguments as in `times`, of which it takes two thirds."""
    exchange = None if transfer is None else transfer.exchange(values, active)
    return _timed(loads, transfer, exchange, reduces, machine)[1]


def _timed(
    loads: Sequence[Floats], transfer: Transfer | None, exchange: Exchange | None, reduces: bool, machine: Machine
) -> tuple[Floats, Floats]:
    """Return the compute of every device, and when it ends."""
    before, first, during, edge = loads
    if transfer is None or exchange is None:
        return before + during, before + during
    at_work = (before + during > 0) & (exchange.messages > 0)
    encode, messages, decode, add = cpu_seconds(exchange, transfer.wire, machine.bank, adds=reduces)
    if reduces:
        during, after, seconds = during + encode + messages, decode + add, exchange.seconds(machine.network)
        compute, end = before + during + after, reduce_ends(before, during, edge, after, seconds)
        return compute, end + lateness(at_work, compute, end, machine)
    before, first, during = before + encode, first + encode / np.maximum(exchange.tiles, 1), during + messages + decode
    first = first * (1 + PASSING * (exchange.hops - 1) * (exchange.tiles > 1))
    arrival = exchange.arrival(machine.network, first)
    compute, end = before + during, gather_ends(before, during, edge, arrival, exchange.last_seconds(machine.network))
    return compute, end + lateness(at_work, compute, end, machine)


def lateness(at_work: Mask, compute: Floats, end: Floats, machine: Machine) -> Floats:
    """Return by how much a step ends later than the formulas for `end` say, [..., 1].

    The largest of several times that vary is later than the largest of their means: with Gumbel's distribution of scale
    b, by b log sum_i exp((t_i - max t) / b), that is b log n for n devices that take equally long, and nothing for one
    that takes much longer than all others (McFadden, "Conditional Logit Analysis of Qualitative Choice Behavior",
    1974, section III). It is convex in the times: to let one device be late alone saves nothing.
    """
    late = np.zeros((*compute.shape[:-1], 1))
    if machine.jitter.any():
        scale = machine.late_scale(at_work)
        behind = np.where(at_work, compute, -np.inf)
        behind = behind - behind.max(-1, keepdims=True, initial=-NEVER_S)
        late = scale * np.log(np.maximum(np.exp(behind / np.maximum(scale, TINY_S)).sum(-1, keepdims=True), 1.0))
    if not machine.rest.any():
        return late
    rested = np.minimum(machine.rest, RESTED * (end.max(-1, keepdims=True) - compute))
    early = np.min(np.where(at_work, rested, np.inf), axis=-1, keepdims=True)
    return np.asarray(late - np.where(np.isfinite(early), early, 0.0))


def step_times(step: TimedStep, values: Values, active: Mask, machine: Machine) -> Times:
    """Price a step whose loads are those of `values`."""

    def total(load: Load) -> Floats:
        seconds = np.zeros(active.shape)
        for axis, part in load.items():
            seconds = seconds + (part * active if axis is Axis.FIXED else part)
        return seconds

    loads = [total(load) for load in (step.before, step.first, step.during, step.edge)]
    return times(loads, step.transfer, step.reduces, values, active, machine)


def cpu_seconds(exchange: Exchange, wire: Wire, bank: Bank, *, adds: bool) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the CPU time of an exchange on every device: encoding, messages, decoding, and what it `adds`."""
    size = (exchange.sent + exchange.received) / np.maximum(exchange.messages, 1)
    messages = np.asarray(exchange.messages * bank.seconds(Kernel.MESSAGE, size))
    numbers, coding, nothing = 8 / wire.bits, CODING[wire], np.zeros_like(messages)  # numbers a byte
    add = bank.seconds(Kernel.ADD, exchange.received * numbers) if adds or coding else nothing
    if not coding:
        return nothing, messages, nothing, add
    encode = coding * bank.seconds(Kernel.ADD, exchange.encoded * numbers)
    return encode, messages, coding * add, add


def plus(one: Load, other: Load) -> Load:
    """Add two loads, axis by axis."""
    return {**one, **{axis: one[axis] + seconds if axis in one else seconds for axis, seconds in other.items()}}
