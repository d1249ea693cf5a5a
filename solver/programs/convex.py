"""The convex program: the fractional shares that make a layer of one kind fastest, and what each limit is worth.

Sets: devices i that take part, steps s of the layer, axes a (rows, heads, tiles). Variables: shares x_a,i in units;
seconds b, h, d, e, f of `before`, `first`, `during`, `edge` and `after`; exchanges E_s,i, those of last tiles l_s,i;
the seconds T_s of a step, which comes o_s times in a request, for every layer of it.

    minimise    sum_s o_s T_s + sum_i price_i w_i(x)
    subject to  (C1)  sum_i x_a,i = U_a,   least <= x_a,i <= U_a     for who takes part in axis a, else x_a,i = 0
                (C2)  w_i(x) <= cap_i                                bytes of weights, linear in x
                (C3)  every part >= slope x_a,i + intercept          the lower hull of its curve from `least` on
                (C4)  E_s,i >= h_j + latency + received_s,i / B_i    for every other sender j; bytes are linear in x
                (C5)  E_s,i >= h_j + latency + sent_s,j / B_j        for every other sender j (or a narrower pair)
      gather    (C6)  T_s >= b_i + d_i,    T_s >= E_s,i + e_i,    T_s >= b_j + l_j + e_i  (j ≠ i)
      reduce    (C7)  T_s >= D_s + f_i,    T_s >= K_s + E_s,i + f_i,    D_s >= b_j + d_j,    K_s >= b_j + e_j

      jitter    (C8)  T_s >= sum_i (b_i + d_i + f_i) / n + g_s log n   of the n devices at work: how much later a step
                      is, g_s log sum_i exp(· / g_s), is convex (`solver.schedule.timing`)

The most that all can gain by rest is taken off the optimum.

A curve's lower hull never exceeds the curve, so the optimum is a lower bound for all whole shares of these devices.
Everything measured is a parameter: a program is built once for a kind and a number of devices, and re-solved in
milliseconds (disciplined parametrised programming). Its duals say what a limit is worth: `Relaxed`.

The only module that imports cvxpy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import cvxpy as cp
import numpy as np

from solver.base.errors import InfeasiblePlanError
from solver.cluster.cluster import MIB
from solver.cluster.curves import Floats
from solver.model.blocks import Axis
from solver.plan.routes import Route
from solver.programs.linear_bounds import LINES, lower_lines, own_exchange
from solver.programs.search import Terms
from solver.schedule.encoders.layer_table import PARTS, LayerTable, TableStep, taking
from solver.schedule.encoders.pricing import most_blocks
from solver.schedule.exchange import Exchange, Mask
from solver.schedule.timing import Transfer, cpu_seconds

MS = 1e3  # the program counts milliseconds and MiB: solvers dislike numbers far from one
NEVER = 1e6  # milliseconds


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """The optimum of the convex program, [p] over the devices of the table.

    Parameters
    ----------
    seconds
        Of one layer, without what memory costs; a lower bound for whole shares.
    units
        Fractional shares.
    per_byte
        Seconds that a byte more under the cap saves (C2).
    by_speed, by_link
        Seconds saved per relative gain: of device i being 1 % faster, 1 % of `by_speed`; of its link carrying 1 %
        more, 1 % of `by_link`.
    """

    seconds: float
    units: Mapping[Axis, Floats]
    per_byte: Floats
    by_speed: Floats
    by_link: Floats


def relax(table: LayerTable, takes: Mapping[Axis, Mask], terms: Terms, least_rows: int = 1) -> Relaxed:
    """Solve the program.

    Parameters
    ----------
    table
        The kind of layer, on rank 0 and the devices that take part in some axis.
    takes : [p]
        Who takes part in each axis.
    terms
        What memory costs and allows.
    least_rows
        How many rows who takes part in them has at least. One row is a product without packed weights, much cheaper
        than two: from two on the hull is close to the curve.

    Raises
    ------
    InfeasiblePlanError
        If the caps leave no solution.
    """
    pairs = tuple((one, other) for one, other, _, _ in table.setting.machine.network.narrow)
    program = _program(tuple(table.units), table.setting.devices, pairs, tuple(_shape(step) for step in table.steps))
    program.set(table, takes, terms, least_rows)
    return program.solve(table)


@dataclass(frozen=True, slots=True, eq=False)
class BestShares:
    """Shares of one, [n]; the sum of stages; and by how much the cost falls for each second more that this may be."""

    shares: Floats
    seconds: float
    per_second: float


def best_shares(
    stages: Sequence[tuple[Floats, Floats]], most: Floats, cost: Floats | None = None, limit_s: float | None = None
) -> BestShares | None:
    """Share out one so that stages, each as long as its slowest line, take least: a linear program.

    Minimise sum_k T_k, or cost x where that sum is limit_s at most, subject to T_k >= slopes_k x + fixed_k, sum x = 1
    and 0 <= x <= most. None where nothing fulfils it.

    Parameters
    ----------
    stages
        Slopes [lines, n] and what is fixed [lines], in seconds.
    most, cost : [n]
    """
    x, ends = cp.Variable(most.size), cp.Variable(len(stages))
    slopes, fixed = (np.concatenate(parts) for parts in zip(*stages, strict=True))
    stage = np.repeat(np.arange(len(stages)), [len(lines) for lines, _ in stages])
    constraints = [cp.sum(x) == 1, x >= 0, x <= most, MS * (slopes @ x + fixed) <= ends[stage]]
    if limit_s is not None:
        constraints.append(cp.sum(ends) <= MS * limit_s)
    problem = cp.Problem(cp.Minimize(cp.sum(ends) if cost is None else MS * (cost @ x)), constraints)
    problem.solve(solver=cp.HIGHS)
    if problem.status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
        return None
    shares = np.maximum(x.value, 0.0) / np.maximum(x.value, 0.0).sum()
    seconds = sum(float((lines @ shares + constant).max()) for lines, constant in stages)
    per_second = 0.0 if limit_s is None else float(constraints[-1].dual_value)
    return BestShares(shares, seconds, per_second)


Shape = tuple[tuple[tuple[str, Axis], ...], Axis | None, bool, bool, float]


def _shape(step: TableStep) -> Shape:
    """Return what of a step decides its program: its parts, how it exchanges, and how often it comes."""
    parts = {
        (part, axis)
        for axis, load in step.loads.items()
        for number, part in enumerate(PARTS)
        if load[..., number].any() and not (step.reduces and part == "first")
    }
    if step.transfer is None:
        return tuple(sorted(parts)), None, False, False, step.per_layer
    # Posting messages, adding summands, the wire's format.
    added = ("during", "after") if step.reduces else ("before", "first", "during", "last")
    parts |= {(part, step.transfer.axis) for part in added}
    return tuple(sorted(parts)), step.transfer.axis, step.transfer.scatters, step.reduces, step.per_layer


@cache
def _program(
    axes: tuple[Axis, ...], devices: int, pairs: tuple[tuple[int, int], ...], shapes: tuple[Shape, ...]
) -> _Program:
    return _Program(axes, devices, pairs, shapes)


class _Program:
    """The program for a kind and a number of devices: owns the cvxpy problem that is solved again and again."""

    def __init__(self, axes: Sequence[Axis], n: int, pairs: Sequence[tuple[int, int]], shapes: Sequence[Shape]) -> None:
        self.x = {axis: cp.Variable(n) for axis in axes}
        self.total = {axis: cp.Parameter() for axis in axes}
        self.least = {axis: cp.Parameter(n) for axis in axes}
        self.most = {axis: cp.Parameter(n) for axis in axes}
        self.weight = {axis: cp.Parameter() for axis in axes}
        self.cap = cp.Parameter(n)
        self.charge = {axis: cp.Parameter(n) for axis in axes}
        constraints = [
            constraint
            for axis, x in self.x.items()
            for constraint in (cp.sum(x) == self.total[axis], x >= self.least[axis], x <= self.most[axis])
        ]  # (C1)
        self.memory = sum(self.weight[axis] * x for axis, x in self.x.items()) <= self.cap  # (C2)
        self.steps = [_Step(self.x, n, pairs, *shape[:-1]) for shape in shapes]
        constraints += [self.memory, *(constraint for step in self.steps for constraint in step.constraints)]
        self.time = sum(shape[-1] * step.seconds for shape, step in zip(shapes, self.steps, strict=True))
        charged = sum(self.charge[axis] @ x for axis, x in self.x.items())
        self.problem = cp.Problem(cp.Minimize(self.time + charged), constraints)

    def set(self, table: LayerTable, takes: Mapping[Axis, Mask], terms: Terms, least_rows: int) -> None:
        """Give the parameters their values."""
        weights = table.weights
        whole = weights.whole * takes[Axis.ROWS] if Axis.ROWS in takes else 0.0
        # An infinite cap is one that nothing reaches.
        largest = weights.whole + sum(size * table.units[axis] for axis, size in weights.per_unit.items())
        self.cap.value = (np.minimum(terms.caps, largest) - whole) / MIB
        for axis in self.x:
            self.total[axis].value = float(table.units[axis])
            self.least[axis].value = takes[axis] * float(least_rows if axis is Axis.ROWS else 1)
            self.most[axis].value = takes[axis] * float(table.units[axis])
            self.weight[axis].value = weights.per_unit.get(axis, 0) / MIB
            self.charge[axis].value = terms.prices * weights.per_unit.get(axis, 0) * MS
        for step, priced in zip(self.steps, table.steps, strict=True):
            step.set(table, priced, takes, least_rows)

    def solve(self, table: LayerTable) -> Relaxed:
        """Solve, and read the duals."""
        self.problem.solve(solver=cp.HIGHS)
        if self.problem.status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
            raise InfeasiblePlanError(
                f"the convex program for {table.kind} is {self.problem.status}: the caps are too low"
            )
        return Relaxed(
            seconds=float(self.time.value) / MS
            + sum(-step.rest_s * priced.per_layer for step, priced in zip(self.steps, table.steps, strict=True)),
            units={axis: np.asarray(x.value) for axis, x in self.x.items()},
            per_byte=np.asarray(self.memory.dual_value) / MIB / MS,
            by_speed=np.asarray(sum(step.by_speed() for step in self.steps)) / MS,
            by_link=np.zeros(table.setting.devices) + sum(step.by_link() for step in self.steps) / MS,
        )


class _Step:
    """Variables, parameters and constraints of one step, in milliseconds."""

    def __init__(
        self, x: Mapping[Axis, cp.Variable], n: int, pairs: Sequence[tuple[int, int]],
        parts: Sequence[tuple[str, Axis]], axis: Axis | None, scatters: bool, reduces: bool,
    ) -> None:  # fmt: skip
        self.parts = parts
        self.rest_s = 0.0
        self.seconds = cp.Variable()
        self.constraints: list[cp.Constraint] = []
        self.at_work, self.later = cp.Parameter(n), cp.Parameter()
        self.slope = {key: cp.Parameter((LINES, n)) for key in parts}
        self.fixed = {key: cp.Parameter((LINES, n)) for key in parts}
        self.lines: dict[tuple[str, Axis], cp.Constraint] = {}
        self.spent: dict[tuple[str, Axis], cp.Variable] = {}
        spent: dict[str, cp.Expression] = {part: cp.Constant(np.zeros(n)) for part in (*PARTS, "after", "last")}
        rows = np.ones((LINES, 1))
        for key in parts:
            part, on = key
            self.spent[key] = cp.Variable((1, n))
            line = self.fixed[key]
            if on in x:
                line = line + cp.multiply(self.slope[key], rows @ cp.reshape(x[on], (1, n), order="C"))
            self.lines[key] = rows @ self.spent[key] >= line  # (C3)
            spent[part] = spent[part] + self.spent[key][0]
        self.constraints += self.lines.values()
        before, during, edge, after = (spent[part] for part in ("before", "during", "edge", "after"))
        self.constraints.append(self.at_work @ (before + during + after) + self.later <= self.seconds)  # (C8)
        begun = None if reduces else spent["first"]
        self.exchange = None if axis is None else _Exchange(x, n, pairs, axis, scatters, begun)
        if self.exchange is None:
            self.constraints.append(before + during <= self.seconds)
            return
        arrived, posted, done = self.exchange.arrived, cp.Variable(), cp.Variable()  # E, K, D
        self.constraints += self.exchange.constraints
        if reduces:  # (C7)
            self.constraints += [before + during <= done, before + edge <= posted]
            self.constraints += [done + after <= self.seconds, posted + arrived + after <= self.seconds]
            return
        # (C6); who receives nothing waits for nothing
        late = edge - NEVER * (1 - self.exchange.receives)
        others, constraints = _largest_others(before + spent["last"], n)
        self.constraints += [before + during <= self.seconds, arrived + late <= self.seconds, *constraints]
        self.constraints += [other + late <= self.seconds for other in others]

    def set(self, table: LayerTable, step: TableStep, takes: Mapping[Axis, Mask], least_rows: int) -> None:
        """Give the parameters their values."""
        active = taking(takes)
        at_work = np.zeros(active.size, bool)
        extra: dict[tuple[str, Axis], Floats] = {}
        if step.transfer is not None and self.exchange is not None:
            own, machine = own_exchange(table, step.transfer, takes), table.setting.machine
            self.exchange.set(table, step.transfer, own)
            at_work = _meets(step.loads, step.transfer.axis, takes, own)
            self.rest_s = float(machine.rest[at_work].min()) if at_work.any() else 0.0
            self.latency_s = float(np.max(own.hops)) * machine.network.latency_s
            encode, messages, decode, add = cpu_seconds(own, step.transfer.wire, machine.bank, adds=step.reduces)
            if step.reduces:
                costs = {"during": encode + messages, "after": decode + add}
            else:
                costs = {"before": encode, "first": encode / np.maximum(own.tiles, 1), "during": messages + decode}
                costs["last"] = own.last_seconds(machine.network)
            extra = {(part, step.transfer.axis): seconds for part, seconds in costs.items()}
        devices = max(int(at_work.sum()), 1)
        self.at_work.value = at_work / devices
        # Others may be at work besides, and vary less.
        least_scale = float(table.setting.machine.late_scale(at_work)[0]) * math.sqrt(devices / active.size)
        self.later.value = least_scale * math.log(devices) * MS
        for part, axis in self.parts:
            load = step.loads.get(axis)
            seconds = np.zeros((1, active.size))
            if load is not None and part in PARTS:
                blocks = _blocks(table, step, takes) if len(load) > 1 else slice(None)
                own_load = load[blocks][..., PARTS.index(part)].min(0)
                seconds = seconds + (own_load * active if axis is Axis.FIXED else own_load)
            seconds = seconds + extra.get((part, axis), 0.0)
            least = least_rows if axis is Axis.ROWS else 1
            slope, fixed = lower_lines(seconds * MS, takes.get(axis, active), least)
            self.slope[part, axis].value, self.fixed[part, axis].value = slope, fixed

    def by_link(self) -> Floats | float:
        """Return the milliseconds that every device's link is worth."""
        return 0.0 if self.exchange is None else self.exchange.by_link() + self._worth(links=True)

    def by_speed(self) -> Floats:
        """Return the milliseconds that every device's compute is worth: duals of (C3) times the seconds they bound."""
        return self._worth(links=False)

    def _worth(self, *, links: bool) -> Floats:
        """Return duals of (C3) times the seconds they bound, but for latencies."""
        fixed = self.latency_s * MS if links else 0.0
        worth = (
            (line.dual_value * np.maximum(self.spent[key].value - fixed, 0.0)).sum(0)
            for key, line in self.lines.items()
            if (key[0] == "last") is links
        )
        return np.asarray(sum(worth))


def _meets(loads: Mapping[Axis, Floats], axis: Axis, takes: Mapping[Axis, Mask], own: Exchange) -> Mask:
    """Return who computes in a step and takes part in its exchange over `axis`, whatever the shares, [p]."""
    active = taking(takes)

    def with_a_share(values: Floats, axis: Axis) -> Floats:
        shares = takes.get(axis, active).astype(np.intp)
        return np.asarray(values[np.minimum(shares, len(values) - 1), np.arange(active.size)])

    computes = np.zeros(active.size, bool)
    for on, load in loads.items():
        seconds = load[..., [PARTS.index("before"), PARTS.index("during")]].sum(-1).min(0)
        computes |= (with_a_share(seconds, on) > 0) & (active if on is Axis.FIXED else True)
    return np.asarray(computes & (with_a_share(own.messages, axis) > 0))


def _blocks(table: LayerTable, step: TableStep, takes: Mapping[Axis, Mask]) -> slice:
    """Return how many blocks of rows there may be, whatever the shares."""
    s, owners = table.setting, int(takes[Axis.ROWS].sum()) if Axis.ROWS in takes else 0
    if not step.reduces:
        return slice(owners, owners + 1)
    if step.transfer is not None and step.transfer.axis is Axis.FIXED and step.blocks is not None:
        # On full, rows are shared out equally among all.
        blocks = int(step.blocks({}, taking(takes))[0])
        return slice(blocks, blocks + 1)
    least = max(owners, int(np.ceil(s.rows / s.tile_rows - owners / 2))) if s.tile_rows else owners
    return slice(least, most_blocks(s) + 1 if s.tile_rows else owners + 1)


class _Exchange:
    """E of one step: (C4) and (C5), in milliseconds."""

    def __init__(
        self, x: Mapping[Axis, cp.Variable], n: int, pairs: Sequence[tuple[int, int]],
        axis: Axis, scatters: bool, begun: cp.Expression | None,
    ) -> None:  # fmt: skip
        self.arrived = cp.Variable(n)
        shares = x[axis] if axis in x else cp.Constant(np.zeros(n))
        self.receives, self.sends, self.latency = cp.Parameter(n), cp.Parameter(n), cp.Parameter(n)
        self.slope_in, self.fixed_in = cp.Parameter(n), cp.Parameter(n)
        self.slope_out, self.fixed_out = cp.Parameter(n), cp.Parameter(n)
        started = [cp.Constant(np.zeros(n))]
        self.constraints: list[cp.Constraint] = []
        if begun is not None:
            begun = cp.multiply(self.sends, begun)
            started, self.constraints = _largest_others(begun, n)
        arriving = self.latency + cp.multiply(self.slope_in, shares) + self.fixed_in
        self.incoming = [self.arrived >= arriving + cp.multiply(self.receives, other) for other in started]  # (C4)
        self.arriving = arriving
        self.constraints += self.incoming
        self.leaving = cp.multiply(self.slope_out, shares) + self.fixed_out
        gone = self.leaving if begun is None else begun + self.leaving
        others, self.outgoing = _largest_others(gone, n)  # (C5)
        self.constraints += [self.arrived >= self.latency + cp.multiply(self.receives, other) for other in others]
        self.constraints += self.outgoing
        # Narrow pairs, both ways: (sender, receiver).
        self.ways = [way for one, other in pairs for way in ((one, other), (other, one))]
        if self.ways:
            senders, receivers = np.array(self.ways).T
            self.slope_pair = cp.Parameter(len(self.ways))
            moved = shares[receivers if scatters else senders]
            self.constraints.append(
                self.arrived[receivers] >= self.latency[receivers] + cp.multiply(self.slope_pair, moved)
            )

    def set(self, table: LayerTable, transfer: Transfer, own: Exchange) -> None:
        """Give the parameters their values; `own` is what every device sends and receives for any share of its own."""
        network = table.setting.machine.network
        receives, sends = own.received.max(0) > 0, own.sent.max(0) > 0
        self.receives.value, self.sends.value = receives.astype(float), sends.astype(float)
        self.latency.value = receives * float(np.max(own.hops)) * network.latency_s * MS
        for bytes_moved, slope, fixed in (
            (own.received, self.slope_in, self.fixed_in),
            (own.sent, self.slope_out, self.fixed_out),
        ):
            time = bytes_moved / network.bandwidth * MS
            # Bytes are linear in a device's own share.
            slope.value = time[-1] - time[-2] if len(time) > 1 else np.zeros_like(time[0])
            fixed.value = time[0] if len(time) == 1 else time[-1] - slope.value * (len(time) - 1)
        if self.ways:
            width = {frozenset(pair[:2]): pair[2] for pair in network.narrow}
            # What is passed on may go another way.
            direct = transfer.route is Route.DIRECT
            size = direct * transfer.unit_bytes * table.sizes.get(transfer.axis, 0) * MS
            meet = {(j, i): size * sends[j] * receives[i] for j, i in self.ways}
            self.slope_pair.value = np.array([most / width[frozenset(way)] for way, most in meet.items()])

    def by_link(self) -> Floats:
        """Return the milliseconds that every device's link is worth: duals of (C4) and (C5) times what they bound."""
        duals = sum(bound.dual_value for bound in self.incoming)
        arriving = duals * (self.arriving.value - self.latency.value)
        leaving = [bound.dual_value * self.leaving.value for bound in self.outgoing]
        return np.asarray(arriving + sum(leaving))


def _largest_others(values: cp.Expression, n: int) -> tuple[list[cp.Expression], list[cp.Constraint]]:
    """Return expressions [n], the largest of which is at least the largest of all other devices' values.

    Ranks that differ, differ in some bit. So the larger of the other halves, bit by bit, is the largest of all others,
    with n log n constraints instead of n².
    """
    others, constraints = [], []
    for bit in range(max(n - 1, 1).bit_length()):
        half = (np.arange(n) >> bit) & 1
        largest = cp.Variable(2, nonneg=True)
        constraints.append(np.eye(2)[half] @ largest >= values)
        others.append(np.eye(2)[1 - half] @ largest)
    return others, constraints
