"""The program of shares: how much of every axis devices have, so that a request is answered as soon as can be.

A schedule's turns say what every rank computes and sends (`solver.schedule.turns`), as arrays over plans. From those of
a plan, and of plans in which some units have moved from one device to another, follows what each quantity gains by a
unit. So the program takes its coefficients from the schedule, of whatever family, and knows nothing of kinds.

Variables: y_k, how many units move along direction k: one device gains, another gives, of one axis; r_i, when rank i
goes on after an exchange; l_i, when its link is free; t, the whole. Quantities are q(y) = q + sum_k y_k dq/dy_k: what
ranks compute, messages of m bytes. Links have B bytes/s and latency L (`solver.schedule.clocks`).

    minimise    t + sum_i price_i w_i(y)
    subject to  (C1)  0 <= x_ai(y)                             every device's units of every axis, near those it has
                (C2)  w_i(y) <= cap_i                          bytes of weights, where memory limits them
                (C3)  r'_j >= r_j + what j computes and handles                                  before it goes on
                (C4)  r'_j >= r_i + what i computes up to a piece + m_i from this piece on / B_i + L + w_ij
                (C5)  r'_j >= l_i + m_i / B_i + L + w_ij       the link has sent what was before
                (C6)  r'_j >= r_i + first piece + m_ij / B_ij + L_ij + w_ij              over a narrow pair
                (C7)  r'_j >= r_f + first piece + m_j / B_j + L + w_ej     all that comes to j
                (C8)  l'_i >= r_i + up to a piece + m_i from it on / B_i,   l'_i >= l_i + m_i / B_i
                (C9)  t >= r_i in the end

for m_i that i sends, m_j that comes to j, from f first and from e last, and w_ij that j computes with what comes from
i. Layers that are alike stand in it once in turn, and once in a circle: (C10) r'_i <= r_i + p and l'_i <= l_i + p for a
period p, which t has once for each of the other layers. By how much the latest of moments that vary is later than the
latest mean is taken as it is in the plan begun with.

It is linear, and holds near that plan; where units of an axis stay whole it is an integer program. What comes out is
rounded, priced by the clocks, and begun with anew. HiGHS solves it in some milliseconds, without cvxpy, which takes a
second to import.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from solver.cluster.curves import Floats
from solver.schedule.clocks import Messages, Moment, TurnPart, computed, exchanged, moments_of, unrest_of
from solver.schedule.timing import Machine
from solver.schedule.turns import ClockTurn

PROBE = 0.1  # of a device's units: by how many plans differ from which the program takes what a unit costs
MS = 1e3  # solvers dislike numbers far from one
GAP = 2e-3  # of an integer program
LACK = 1e6  # milliseconds that it costs to lack as many bytes as a unit has that moves: no plan is worth that
SLIP_BYTES = 64.0  # of what solvers find: less is not lacking
# Of an integer program, too: of some 400 for random clusters the most had 54. A limit of time would make other plans
# on a busy machine.
MOST_NODES = 100
FEASIBLE = 2  # of HiGHS's solution status


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """By what plans differ from the first one, in which devices have `units`, [axes, p].

    Parameters
    ----------
    axis, giver, taker, size : [K]
        Plan 1 + k is the first one, but `taker` has `size` units of an axis more, and `giver` as many less.
    """

    units: NDArray[np.int64]
    axis: NDArray[np.int64]
    giver: NDArray[np.int64]
    taker: NDArray[np.int64]
    size: NDArray[np.int64]

    @classmethod
    def of(cls, units: NDArray[np.int64]) -> Moves:
        """Return moves to every device that has some of an axis from the one with the most, of a part of either's."""
        found = []
        for axis, own in enumerate(units.tolist()):
            giver = int(np.argmax(own))
            for taker, has in enumerate(own):
                if has and taker != giver:
                    size = min(max(1, round(PROBE * min(has, own[giver]))), own[giver] - 1)
                    found += [(axis, giver, taker, size)] if size else []
        every = np.array(found, np.int64).reshape(-1, 4).T
        return cls(units, *every)

    @property
    def count(self) -> int:
        """K."""
        return self.size.size

    @property
    def plans(self) -> NDArray[np.int64]:
        """The units of the first plan and of all others, [1 + K, axes, p]."""
        found, number = np.repeat(self.units[None], 1 + self.count, 0), np.arange(self.count)
        found[1 + number, self.axis, self.taker] += self.size
        found[1 + number, self.axis, self.giver] -= self.size
        return found

    def moved(self, y: Floats) -> Floats:
        """Return the units after so many units have moved along each direction, [axes, p]."""
        found = self.units.astype(float)
        np.add.at(found, (self.axis, self.taker), y)
        np.add.at(found, (self.axis, self.giver), -y)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class FoundShares:
    """What the program found.

    Parameters
    ----------
    units : [axes, p]
        Fractions.
    seconds, cost
        t; and with what bytes that move are charged with.
    by_speed, by_link : [p]
        Seconds saved per relative gain: of device i being 1 % faster, 1 % of `by_speed`; of its link carrying 1 % more,
        1 % of `by_link`. Of small gains, and about: which of several comes last may change.
    per_byte : [p]
        Seconds that a byte more under its cap saves.
    short : [p]
        Bytes above the caps: as few as can be.
    """

    units: Floats
    seconds: float
    cost: float
    by_speed: Floats
    by_link: Floats
    per_byte: Floats
    short: Floats

    @property
    def fits(self) -> bool:
        """Whether memory has room for them."""
        return bool((self.short <= SLIP_BYTES).all())


@dataclass(frozen=True, slots=True, eq=False)
class HeldBytes:
    """Bytes that devices hold of what shares are of.

    Parameters
    ----------
    per_unit : [axes]
        Of every unit.
    whole : [p]
        Whatever the units, of who has some.
    caps, prices : [p]
        The most that a device may hold, and the seconds that a byte costs.
    """

    per_unit: Floats
    whole: Floats
    caps: Floats
    prices: Floats


class ClockProgram:
    """The program for the turns of a plan and of those to which moves lead, [1 + K, ...] each; of seconds.

    Parameters
    ----------
    machine, passes
        Whose clocks run, and what they count: turns of passes that begin anew, and how often each is done.
    moves
        What leads to the other plans.
    reach
        How far the units of a device may go from those it has: a part of these, and one.
    held
        What memory allows, if it limits anything.
    unrest_s
        As of `clocks.advanced`.
    among : [p, devices]
        1 where a device of the program is one of all devices, of which its results are; None: they are the same.
    """

    def __init__(
        self, machine: Machine, passes: Iterable[tuple[float, Iterable[ClockTurn]]], moves: Moves, reach: float,
        held: HeldBytes | None = None, unrest_s: float = 0.0, among: Floats | None = None,
    ) -> None:  # fmt: skip
        self.machine, self.moves, self.p, self.unrest_s = machine, moves, machine.devices, unrest_s
        self.among = np.eye(self.p) if among is None else among
        self.y = np.arange(moves.count)
        # By which part all that a device computes, and all that its link carries, is faster: 0, but what is it worth?
        self.faster = moves.count + np.arange(2 * self.p)
        self.gaining = moves.count + 2 * self.p
        self.rows = _Rows(self.gaining)
        self.rows.bound(self.faster, 0.0, 0.0)
        self.scale, self.charged = 1.0, 0.0  # of bytes; seconds for those that are held now
        self._units(reach)
        self.short = self.memory = np.zeros(0, np.int64)
        if held is not None:
            self._memory(held)
        self.last = np.array([self._whole_pass(often, turns) for often, turns in passes])

    def solve(self, whole: Collection[int] = ()) -> FoundShares | None:
        """Solve it; None where nothing fulfils it.

        Parameters
        ----------
        whole
            The axes whose units stay whole: an integer program, which has no duals.
        """
        if (found := self.rows.solve(self.y[np.isin(self.moves.axis, [*whole])])) is None:
            return None
        values, costs, duals = found
        worth, per_byte, short = -costs[self.faster] / MS, np.zeros(self.p), np.zeros(self.p)
        if self.memory.size:
            per_byte, short = -duals[self.memory] / MS / self.scale, values[self.short] * self.scale
        charges = np.array(self.rows.cost)
        charges[self.short] = 0.0
        seconds = float(values[self.last] @ charges[self.last]) / MS
        cost, units = self.charged + float(values @ charges) / MS, self.moves.moved(values[self.y])
        of_devices = (own @ self.among for own in (worth[: self.p], worth[self.p :], per_byte, short))
        return FoundShares(units @ self.among, seconds, cost, *of_devices)

    def _units(self, reach: float) -> None:
        """(C1)."""
        moves = self.moves
        for axis, own in enumerate(moves.units):
            mine = np.flatnonzero(moves.axis == axis)
            if mine.size:
                has, most = own[moves.taker[mine]], own[moves.giver[mine[0]]]
                self.rows.bound(self.y[mine], -np.minimum(has, reach * has + 1), reach * has + 1)
                self.rows.add({int(k): 1.0 for k in mine}, -reach * most - 1, min(most, reach * most + 1))

    def _memory(self, held: HeldBytes) -> None:
        """(C2); and bytes are charged with their prices, those above the caps with more than any plan is worth."""
        moves, every = self.moves, self.y
        change = np.zeros((self.p, moves.count))  # bytes a unit that moves
        np.add.at(change, (moves.taker, every), held.per_unit[moves.axis])
        np.add.at(change, (moves.giver, every), -held.per_unit[moves.axis])
        self.rows.charge(every, MS * (held.prices @ change))
        self.scale = max(float(np.abs(change).max(initial=1.0)), 1.0)
        now = held.per_unit @ moves.units + held.whole
        self.charged = float(held.prices @ now)
        room = (held.caps - now) / self.scale
        self.short = self.rows.variables(self.p, cost=LACK)
        own = [
            {**dict(enumerate(bytes_of.tolist())), int(short): -1.0}
            for bytes_of, short in zip(change / self.scale, self.short, strict=True)
        ]
        self.memory = np.array([self.rows.add(one, -np.inf, float(most)) for one, most in zip(own, room, strict=True)])

    # The clocks

    def _whole_pass(self, often: float, turns: Iterable[ClockTurn]) -> int:
        """Let a pass begin, and end; return the variable of its seconds, which are charged as often as it is done."""
        nobody = _Moments(np.full(self.p, -1), self._nothing(self.p))
        now, ready, free = Moment.at(np.zeros((1 + self.moves.count, self.p))), nobody, nobody
        periods = dict[int, float]()
        for repeats, some in groupby(turns, key=lambda turn: turn.repeats):
            parts, before = [turn.parts for turn in some], now
            now, ready, free = self._pass(parts, now, ready, free)
            if repeats > 1:
                periods[self._circle(parts, before)] = float(1 - repeats)
        (last,) = self.rows.variables(1, cost=often)
        self._after(np.repeat(last, self.p), ready, np.arange(self.p), self._nothing(self.p), periods)  # (C9)
        return int(last)

    def _circle(self, turns: Sequence[Sequence[TurnPart]], now: Moment) -> int:
        """Let layers that are alike pass in a circle (C10); return the variable of their period."""
        (period,) = self.rows.variables(1)
        begun = [_Moments(self.rows.variables(self.p, least=-np.inf), self._nothing(self.p)) for _ in range(2)]
        self.rows.bound(begun[0].columns[:1], 0.0, 0.0)  # only differences matter
        _, *ended = self._pass(turns, now, *begun)
        for before, after in zip(begun, ended, strict=True):
            every = np.arange(self.p)
            self._after(before.columns, after, every, self._nothing(self.p), {int(period): 1.0})
        return int(period)

    def _pass(
        self, turns: Sequence[Sequence[TurnPart]], now: Moment, ready: _Moments, free: _Moments
    ) -> tuple[Moment, _Moments, _Moments]:
        """Let ranks do the parts of some turns."""
        later = self._nothing(1, self.p)  # what they compute after each piece
        for parts in turns:
            unrest: Floats | float = 1.0
            for part in parts:
                if isinstance(part, Messages):
                    now, ready, free = self._exchange(part, now, ready, free, later, unrest)
                    later = self._nothing(1, self.p)
                    continue
                unrest = unrest_of(part, self.unrest_s)
                pieces, before = self._plans(part, 3), now
                own = self._of_speed(pieces)
                now = computed(self.machine, now, pieces, unrest)
                rested = self._nothing(self.p)
                rested[0] = (now.ready - before.ready)[0] - own[0].sum(0)
                ready, later = ready.later(own.sum(1) + rested), np.flip(np.cumsum(np.flip(own, 1), 1), 1) - own
        return now, ready, free

    def _exchange(
        self, messages: Messages, now: Moment, ready: _Moments, free: _Moments, later: Floats, unrest: Floats | float
    ) -> tuple[Moment, _Moments, _Moments]:
        """Let ranks have what comes."""
        moved, own_taking = self._plans(messages.moved, 4), self._plans(messages.taking, 2)
        moments = self._plans(moments_of(self.machine, now, messages)[0], 3)[0]
        then = exchanged(self.machine, now, messages, unrest)
        late = self._nothing(self.p)
        late[0] = self._plans(then.ready, 2)[0] - own_taking[0] - moments.max(-2)
        # What a message costs a device is said apart from its speed.
        done, working = ready.later(self._gaining(self._plans(messages.sending, 2))), self._nothing(self.p, self.p)
        if messages.working is not None:
            working = self._of_speed(self._plans(messages.working, 3))
            done = done.later(working.sum(-2))
        begin = self.rows.variables(self.p, least=-np.inf)
        self._after(begin, done, np.arange(self.p), late)  # (C3)
        after = _Moments(begin, self._of_speed(own_taking))
        sends = moved[0] > 0  # [pieces, p, p]
        if not sends.any():
            return then, after, free
        working, network, latency_s = working + late[:, None], self.machine.network, self._nothing(1)
        latency_s[0] = network.latency_s
        leaving = self._over_links(moved.sum(-1))
        sent = np.concatenate([0 * leaving[:, :1], np.cumsum(leaving, 1)], 1)  # before each piece
        last = min(len(sends), later.shape[1]) - 1
        sender, receiver = np.nonzero(sends.any(0))
        until = len(sends) - np.argmax(sends[::-1, sender, receiver], 0)  # after its last piece
        first = np.argmax(sends.any(2), 0)  # piece of every sender
        from_whom, wire = working[:, sender, receiver] + latency_s, sent[:, until, sender]
        for piece in (first[sender], until - 1):  # (C4); pieces between are hardly ever what counts
            passes = wire - sent[:, piece, sender] - later[:, np.minimum(piece, last), sender] + from_whom
            self._after(begin[receiver], ready, sender, passes)
        busy = free.columns[sender] >= 0
        self._after(begin[receiver[busy]], free, sender[busy], (wire + from_whom)[:, busy])  # (C5)
        for one, other, bandwidth, narrow_s in network.narrow:  # (C6)
            for some, whom in ((one, other), (other, one)):
                if sends[:, some, whom].any():
                    passes = self._gaining(moved[..., some, whom].sum(-1, keepdims=True) / bandwidth)
                    passes = passes - later[:, :1, some] + working[:, some, [whom]]
                    passes[0] += narrow_s
                    self._after(begin[[whom]], ready, np.array([some]), passes)
        getting = np.flatnonzero(sends.any((0, 1)))
        theirs = sends.any(0)[:, getting]
        begins = np.where(theirs, self._plans(now.computed_at, 3)[0, 0, :, None], np.inf).argmin(0)
        ends = np.where(theirs & (np.arange(self.p)[:, None] != getting), moments[:, getting], -np.inf).argmax(0)
        passes = self._over_links(moved.sum((1, 2)))[:, getting] - later[:, 0, begins] + working[:, ends, getting]
        self._after(begin[getting], ready, begins, passes + latency_s)  # (C7)
        sending = np.flatnonzero(sends.any((0, 2)))
        link = self.rows.variables(sending.size, least=-np.inf)
        final = len(sends) - 1 - np.argmax(sends.any(2)[::-1], 0)
        for piece in (first[sending], final[sending]):  # (C8)
            passes = sent[:, -1, sending] - sent[:, piece, sending] - later[:, np.minimum(piece, last), sending]
            self._after(link, ready, sending, passes)
        busy = free.columns[sending] >= 0
        self._after(link[busy], free, sending[busy], sent[:, -1, sending[busy]])
        columns, offset = free.columns.copy(), free.offset.copy()
        columns[sending], offset[:, sending] = link, 0.0
        return then, after, _Moments(columns, offset)

    def _after(
        self, columns: NDArray[np.int64], moments: _Moments, ranks: NDArray[np.int64], passes: Floats,
        also: Mapping[int, float] | None = None,
    ) -> None:  # fmt: skip
        """Let columns be no sooner than ranks' moments and what passes then, [1 + gains, ranks]."""
        self.rows.follow(columns, moments.columns[ranks], MS * (moments.offset[:, ranks] + passes), also or {})

    # Quantities, [1 + K, ...] of plans, and what they gain, [1 + gains, ...]

    def _nothing(self, *shape: int) -> Floats:
        return np.zeros((1 + self.gaining, *shape))

    def _plans(self, values: Floats, dimensions: int) -> Floats:
        own = values if values.ndim == dimensions else values[None]
        return np.broadcast_to(own, (1 + self.moves.count, *own.shape[1:]))

    def _gaining(self, values: Floats) -> Floats:
        found = self._nothing(*values.shape[1:])
        found[0] = values[0]
        size = self.moves.size.reshape(-1, *[1] * (values.ndim - 1))
        found[1 : 1 + self.moves.count] = (values[1:] - values[0]) / size
        return found

    def _of_speed(self, values: Floats) -> Floats:
        """Return seconds of what devices, the last axis, compute."""
        return self._by(self._gaining(values), 1 + self.moves.count)

    def _over_links(self, sizes: Floats) -> Floats:
        """Return the seconds of bytes over the links of devices, the last axis."""
        return self._by(self._gaining(sizes / self.machine.network.bandwidth), 1 + self.moves.count + self.p)

    def _by(self, found: Floats, first: int) -> Floats:
        for rank in range(self.p):
            found[first + rank, ..., rank] = -found[0, ..., rank]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Moments:
    """Moments of ranks: a variable of each, -1 for none, and seconds after it, [1 + gains, p]."""

    columns: NDArray[np.int64]
    offset: Floats

    def later(self, seconds: Floats) -> _Moments:
        """Return the same so many seconds later."""
        return _Moments(self.columns, self.offset + seconds)


class _Rows:
    """Variables and rows of a linear program; the first variables are those along which quantities gain."""

    def __init__(self, gaining: int) -> None:
        self.count = self.number = 0
        self.least, self.most, self.cost = list[float](), list[float](), list[float]()
        self.low, self.high = list[Floats](), list[Floats]()
        self.places, self.columns, self.values = list[Any](), list[Any](), list[Any]()
        self.variables(gaining, least=-np.inf)

    def variables(self, count: int, least: float = 0.0, cost: float = 0.0) -> NDArray[np.int64]:
        """Return new variables."""
        self.least += [least] * count
        self.most += [np.inf] * count
        self.cost += [cost] * count
        self.count += count
        return np.arange(self.count - count, self.count)

    def bound(self, columns: NDArray[np.int64], least: Any, most: Any) -> None:
        """Limit variables."""
        for column, low, high in zip(columns.tolist(), *np.broadcast_arrays(least, most, columns)[:2], strict=True):
            self.least[column], self.most[column] = float(low), float(high)

    def charge(self, columns: NDArray[np.int64], costs: Floats) -> None:
        """Add costs."""
        for column, cost in zip(columns.tolist(), costs.tolist(), strict=True):
            self.cost[column] += cost

    def add(self, own: Mapping[int, float], least: float, most: float) -> int:
        """Add a row, and return its number."""
        self._entries(
            np.full(len(own), self.number), np.array(list(own), np.int64), np.array(list(own.values()), float)
        )
        return int(self._limits(np.array([least]), np.array([most]))[0])

    def follow(
        self, columns: NDArray[np.int64], after: NDArray[np.int64], passes: Floats, also: Mapping[int, float]
    ) -> None:
        """Add rows: variables are no sooner than others, -1 for none, and what passes then, [1 + gains, rows]."""
        rows = self.number + np.arange(columns.size)
        for some, own, value in ((columns != after, columns, 1.0), ((columns != after) & (after >= 0), after, -1.0)):
            self._entries(rows[some], own[some], np.full(int(some.sum()), value))
        for column, value in also.items():
            self._entries(rows, np.full(columns.size, column), np.full(columns.size, value))
        gain, place = np.nonzero(passes[1:])
        self._entries(rows[place], gain, -passes[1:][gain, place])
        self._limits(passes[0], np.full(columns.size, np.inf))

    def _entries(self, rows: NDArray[np.int64], columns: NDArray[np.int64], values: Floats) -> None:
        self.places.append(rows)
        self.columns.append(columns)
        self.values.append(values)

    def _limits(self, low: Floats, high: Floats) -> NDArray[np.int64]:
        self.low.append(low)
        self.high.append(high)
        self.number += low.size
        return np.arange(self.number - low.size, self.number)

    def solve(self, whole: NDArray[np.int64]) -> tuple[Floats, Floats, Floats] | None:
        """Return the values of variables, their reduced costs, and the duals of rows; None where there are none."""
        rows, columns, values = (np.concatenate(every) for every in (self.places, self.columns, self.values))
        order = np.argsort(rows, kind="stable")
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = self.count, self.number
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = np.array(self.cost), np.array(self.least), np.array(self.most)
        lp.row_lower_, lp.row_upper_ = np.concatenate(self.low), np.concatenate(self.high)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=self.number))])
        lp.a_matrix_.index_, lp.a_matrix_.value_ = columns[order], values[order]
        if whole.size:
            kinds = np.full(self.count, highspy.HighsVarType.kContinuous)
            kinds[whole] = highspy.HighsVarType.kInteger
            lp.integrality_ = kinds.tolist()
        highs = highspy.Highs()  # type: ignore[no-untyped-call]
        highs.setOptionValue("output_flag", False)
        highs.setOptionValue("threads", 1)
        highs.setOptionValue("mip_rel_gap", GAP)
        highs.setOptionValue("mip_max_nodes", MOST_NODES)
        highs.passModel(lp)
        highs.run()
        if highs.getInfo().primal_solution_status != FEASIBLE:
            return None
        found = highs.getSolution()
        return np.array(found.col_value), np.array(found.col_dual), np.array(found.row_dual)
