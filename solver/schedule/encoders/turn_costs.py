"""What an encoder's schedule takes, turn by turn: seconds of pieces, and messages, by the curves of devices.

Every part calls kernels, each of which has a curve; products of the same rows of a value are one call, of all their
weights. A turn is the computations up to an exchange, and that; what ranks compute with what comes, as it comes, is of
the exchange.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.base.spans import Span
from solver.cluster.curves import Bank, Floats, Kernel
from solver.model.kinds.attention import FULL_CONTEXTS, FULL_KEYS
from solver.model.kinds.join import JOINED
from solver.model.kinds.norm import NORM
from solver.model.kinds.part import HIDDEN, ROW, Part, Region, TensorUse
from solver.model.spec import ImageInput
from solver.plan.plan import Wire
from solver.plan.routes import Route
from solver.schedule.clocks import Messages
from solver.schedule.encoders.placing import HAND_IN, HAND_OUT, REDUCE, SPREAD_SUMS
from solver.schedule.encoders.setting import Setting
from solver.schedule.exchange import Exchange, gather
from solver.schedule.price import PricedStep
from solver.schedule.regions import Lengths, lengths, overlaps
from solver.schedule.schedule import AnyStep, ComputeStep, ExchangeStep, PlacedPart
from solver.schedule.timing import CODING, Machine, Times, cpu_seconds
from solver.schedule.turns import ClockTurn, priced, together_s

PACE = 2  # layers in which ranks that wait for each other come to it
# What parts compute, in words, by their roles, where those do not say it; of what no table tells nothing.
WORDS: Mapping[str, tuple[str, ...]] = {
    FULL_KEYS: ("K, V",), "queries": ("Q",), FULL_CONTEXTS: ("attention",), "up": ("up", "activation"), NORM: (),
    "join": ("bias, residual, norm",), "summed up": ("first product",), f"summed {FULL_KEYS}": ("first product",),
    "summed queries": (), "added up": ("activation",), f"added {FULL_KEYS}": (), "added queries": (),
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PartWork:
    """What is computed of a part under some plans, [n, p] each, or [n, pieces, p].

    Parameters
    ----------
    rows, keys
        How many rows, and how many others each of them sees.
    units
        Of every other axis how much.
    """

    own: PlacedPart
    rows: Floats
    keys: Floats
    units: Mapping[str, Floats]

    @property
    def part(self) -> Part:
        """The part."""
        return self.own.part

    @property
    def shared(self) -> Floats:
        """How much of the axis it has along which its kind is cut."""
        return self.units[self.part.kind.axis]

    def product(self) -> tuple[Kernel, Floats] | None:
        """Return by which kernel its matrices are multiplied, and how many weights they have; None: it has none."""
        part, copies = self.part, self.copies
        matrices = [tensor for tensor in part.tensors if len(tensor.shape) > 1][:: copies or 1]
        if not matrices:
            return None
        weights: Any = float(sum(math.prod(tensor.shape) for tensor in matrices))
        for axis, length in part.axes.items():
            if axis != ROW and not (axis == HIDDEN and copies):
                weights = weights * (self.units[axis] / length)
        # A tile of a grid sums over columns of the stream.
        sums = HIDDEN in part.axes and not copies
        return Kernel.PROJECT if matrices[0].use is TensorUse.INTO and not sums else Kernel.CONTRACT, weights

    @property
    def copies(self) -> int:
        """How many sub-blocks there are, each with tensors and columns of the stream of its own; 0: it has none."""
        found = self.part.axes.get(HIDDEN, 0) * self.part.stream.unit // self.part.stream.hidden
        return found if found > 1 else 0

    @property
    def avoids(self) -> NDArray[np.bool_] | None:
        """Who does without what it reads, as an array like these."""
        found = self.own.avoids
        return found if found is None or self.rows.ndim < 3 else found[:, None]

    @property
    def times(self) -> Floats | float:
        """How many of them are computed."""
        return self.units[HIDDEN] * self.part.stream.unit / self.part.stream.hidden if self.copies else 1.0


def _norm(bank: Bank, own: PartWork) -> Floats:
    return bank.seconds(Kernel.NORM, own.rows * own.part.stream.hidden)


def _activate(bank: Bank, own: PartWork) -> Floats:
    return bank.seconds(Kernel.ACTIVATE, own.rows * own.shared)


def _attend(bank: Bank, own: PartWork) -> Floats:
    rows, heads = own.rows * (own.shared > 0), own.shared
    found = bank.attend(rows, own.keys, heads, own.part.writes.shape[-1])
    if (avoids := own.avoids) is None:
        return found
    return np.asarray(np.where(avoids, without_keys(bank, rows, own.keys, heads, own.part.stream.hidden), found))


def without_keys(bank: Bank, rows: Any, keys: Any, heads: Any, hidden: int) -> Floats:
    """Return the seconds from Q to the contexts of own rows without K and V, [..., p].

    A head's queries are as wide as the stream, and meet all rows of it twice.
    """
    found = 2 * bank.seconds(Kernel.PROJECT, heads * rows, hidden * keys) + bank.attend(rows, keys, heads, 0)
    return np.asarray(found + 2 * bank.seconds(Kernel.CONTRACT, rows, hidden * hidden))


# What parts call beside products, by their roles.
CALLED: Mapping[str, Callable[[Bank, PartWork], Floats]] = {
    FULL_CONTEXTS: _attend, "up": _activate, "added up": _activate, "join": _norm,
}  # fmt: skip


def seconds_of(bank: Bank, works: Sequence[PartWork]) -> Floats:
    """Return what parts take together on every device, [n, p] or [n, pieces, p]; 0 for none."""
    found: Any = 0.0
    products = dict[tuple[Kernel, str, bytes], list[Any]]()
    for own in works:
        if (call := CALLED.get(own.part.role)) is not None:
            found = found + own.times * call(bank, own)
        if (product := own.product()) is not None:
            kernel, weights = product
            key = kernel, own.part.reads[0].name, own.rows.tobytes()
            rows, before, times = products.get(key, (own.rows, 0.0, own.times))
            if (avoids := own.avoids) is not None:
                weights = weights * ~avoids
            products[key] = [rows, before + weights, times]
    for (kernel, _, _), (rows, weights, times) in products.items():
        found = found + times * bank.seconds(kernel, rows * (weights > 0), weights)
    return np.asarray(found)


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """What a computation takes.

    Parameters
    ----------
    working : [n, p, p]
        What is computed with what comes from each, as it comes; of who computes the own and what needs nothing.
    pieces : [n, pieces, p]
        What is computed then.
    """

    working: Floats | None
    pieces: Floats


def seconds_of_turns(s: Setting, crew: Sequence[int], steps: Sequence[AnyStep]) -> Floats:
    """Return what steps of some ranks take, of n plans [n], of one [].

    Arguments as of `priced_turns`, of which it takes two thirds.
    """
    own = s.only(np.array(crew))
    return together_s(own.machine, _one_by_one_first(_Costs(own, s.wire).turns(steps)))


def _one_by_one_first(turns: Iterable[ClockTurn]) -> Iterator[ClockTurn]:
    """Yield turns, the first of layers that are alike by themselves: it takes some until ranks keep pace."""
    for repeats, some in groupby(turns, key=lambda turn: turn.repeats):
        every, alone = list(some), min(repeats - 1, PACE)
        for first, often in [*((number, 1) for number in range(alone)), (alone, repeats - alone)]:
            for turn in every:
                start = turn.layers.start + first
                layers = Span(start, start + often) if turn.layers.size and repeats > 1 else turn.layers
                yield replace(turn, layers=layers, repeats=often)


def turns_of_some(s: Setting, crew: Sequence[int], steps: Sequence[AnyStep]) -> tuple[Machine, list[ClockTurn]]:
    """Return the turns of some ranks, and these as a machine: arguments as of `priced_turns`."""
    own = s.only(np.array(crew))
    return own.machine, list(_Costs(own, s.wire).turns(steps))


class _Before:
    """Computations that no exchange follows yet; the last of them in its pieces."""

    def __init__(self, devices: int) -> None:
        self.pieces, self.names = np.zeros((1, 1, devices)), list[str]()
        self.layers = Span(0, 0)

    def add(self, step: ComputeStep, names: Sequence[str], pieces: Floats) -> None:
        """Add one."""
        first = self.pieces.sum(1, keepdims=True) + pieces[:, :1]
        self.pieces = np.concatenate([first, np.broadcast_to(pieces, (len(first), *pieces.shape[1:]))[:, 1:]], 1)
        if self.names[-len(names) :] != names:  # else it is a layer like the one before
            self.names += names
        own = step.layers
        self.layers = Span(self.layers.start, own.stop) if self.layers.size and own.size else own


def priced_turns(s: Setting, crew: Sequence[int], steps: Sequence[AnyStep], first: int = 0) -> tuple[PricedStep, ...]:
    """Return what steps of some ranks take, turn by turn, on all devices; turns of layers that are alike as one.

    Parameters
    ----------
    s
        With the wire of the exchanges.
    crew
        The device of every rank.
    first
        The first layer.
    """
    own = s.only(np.array(crew))

    def of_all(values: Floats) -> Floats:
        found = np.zeros(s.devices)
        found[list(crew)] = values
        return found

    ends, found = {HAND_OUT: "start", HAND_IN: "end"}, []
    for step in priced(own.machine, _one_by_one_first(_Costs(own, s.wire).turns(steps))):
        layers = f"layer{'s' * ('-' in step.layers)} {step.layers or first}"
        end = np.full(s.devices, step.times.end.max())
        times = Times(of_all(step.times.compute), of_all(step.times.exchange), end, of_all(step.times.handled))
        sent, received = of_all(step.sent), of_all(step.received)
        found.append(replace(step, layers=ends.get(step.name, layers), times=times, sent=sent, received=received))
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class _Costs:
    """The costs of steps of some devices."""

    s: Setting
    wire: Wire

    @property
    def bank(self) -> Bank:
        return self.s.machine.bank

    def turns(self, steps: Sequence[AnyStep]) -> Iterator[ClockTurn]:
        """Yield turns: computations and the exchanges after them, with what is computed as that comes.

        What a layer computes last stands before the first exchange of the next, which is alike; what layers without
        exchanges compute, once.
        """
        exchanging = {step.run for step in steps if isinstance(step, ExchangeStep)}
        exchanges, before = list[ExchangeStep](), _Before(self.s.devices)
        for step in steps:
            if isinstance(step, ExchangeStep):
                if step.value.name in {other.value.name for other in exchanges}:  # it goes on with what came
                    yield self._turn(before, exchanges, None, ())
                    exchanges, before = [], _Before(self.s.devices)
                exchanges.append(step)
                continue
            made, roles = self.computed(step, exchanges[-1] if exchanges else None), _names(step)
            if exchanges:
                meanwhile = [] if made.working is None else roles
                yield self._turn(before, exchanges, made.working, meanwhile)
                exchanges, before = [], _Before(self.s.devices)
                roles = roles[len(meanwhile) :]
            if step.repeats > 1 and step.run not in exchanging:
                yield ClockTurn((_of_one(made.pieces),), "", tuple(roles), step.layers, step.repeats - 1)
            before.add(step, roles, made.pieces)
        if exchanges:
            yield self._turn(before, exchanges, None, ())
        elif before.pieces.any():
            yield ClockTurn((_of_one(before.pieces),), "", tuple(before.names), before.layers)

    def computed(self, step: ComputeStep, exchange: ExchangeStep | None) -> Computed:
        """Return what a computation takes, after an exchange.

        What reads what comes is computed with what each sends, what does not before; what reads its result after all.
        """
        if not step.placed:
            return Computed(None, self._embedding()[None, None])
        coming = exchange if exchange is not None and exchange.value.name == step.as_comes else None
        comes, later, late = list[PartWork](), list[PartWork](), set[str]()
        for own, region in step.walked[0]:
            reads = {value.name for value in own.part.reads}
            if coming is None or reads & late:
                later.append(_work(own, region))
            else:
                comes.append(_with_each(own, region, coming))
            if step.as_comes in reads or reads & late:
                late.add(own.part.writes.name)
        working = seconds_of(self.bank, comes) if comes else None
        pieces = seconds_of(self.bank, later) + np.zeros((1, self.s.devices))
        pieces = pieces if pieces.ndim > 2 else pieces[:, None]
        return Computed(working, _even(pieces) if step.placed[-1].in_tiles else pieces)

    def _turn(
        self, before: _Before, exchanges: Sequence[ExchangeStep], working: Floats | None, meanwhile: Sequence[str]
    ) -> ClockTurn:
        """Return a turn: pieces, of which each is sent once it is done, and exchanges that are one."""
        pieces, first = _of_one(before.pieces), exchanges[0]
        count = pieces.shape[-2]
        moved = _of_one(reduce(np.add, (_in_so_many(own.wire_bytes(self.wire), count) for own in exchanges)))
        routed = None if first.route is Route.DIRECT else _routed(moved, first.route)
        carried = _direct(moved, exchanges, coded=CODING[self.wire] > 0) if routed is None else routed
        adds = any(exchange.partial for exchange in exchanges)
        encode, messages, decode, add = cpu_seconds(carried, self.wire, self.bank, adds=adds)
        leaving = moved.sum(-1)
        pieces = pieces + encode[..., None, :] * leaving / np.maximum(leaving.sum(-2, keepdims=True), 1)
        after = decode + add if adds else np.zeros(self.s.devices)
        working = None if working is None else _of_one(working)
        handled = Messages(moved, messages if adds else messages + decode, after, working, routed)
        name = SPREAD_SUMS if first.name == REDUCE and not before.names and not first.partial else first.name
        block = _block(first.value.name)
        layers = first.layers if block or not first.run.size else first.run  # of the stream: those that ask for it
        names, beside = tuple(before.names), tuple(meanwhile)
        return ClockTurn((pieces, handled), name, names, layers, first.repeats, block, beside, encode)

    def _embedding(self) -> Floats:
        """Return the seconds in which rank 0 embeds; also where it takes no part in the layers."""
        s, source, every = self.s, self.s.spec.input, np.ones(self.s.devices)
        if isinstance(source, ImageInput):
            weights = s.spec.hidden * source.channels * source.patch**2
            found = self.bank.seconds(Kernel.PROJECT, s.rows * every, weights)
        else:
            # Looked up, added and normalised: about as long as two norms of a layer.
            found = 2 * self.bank.seconds(Kernel.NORM, s.rows * s.spec.hidden * every)
        return np.asarray(found * (np.arange(s.devices) == 0))


def _of_one(values: NDArray[Any]) -> Floats:
    """Return values of plans, [n, ...], of one plan without the axis of plans."""
    return np.asarray(values[0] if len(values) == 1 else values)


def _in_so_many(sizes: Lengths, count: int) -> Floats:
    """Return bytes of pieces, [pieces, n, ...], as [n, pieces, ...]: of other than so many pieces, with the last."""
    found = np.moveaxis(sizes, 0, 1).astype(float)
    if found.shape[1] == count:
        return found
    nothing = np.zeros((len(found), count - 1, *found.shape[2:]))
    return np.concatenate([nothing, found.sum(1, keepdims=True)], 1)


def _work(own: PlacedPart, region: Region) -> PartWork:
    """Return what a region of a part is."""
    units = {axis: _pieces_last(lengths(spans)) for axis, spans in region.items()}
    rows = units.pop(ROW)
    return PartWork(own, rows, _keys(own, region, rows), units)


def _pieces_last(values: Lengths) -> Floats:
    """Return what is [n, p] as it is, and what is [pieces, n, p] as [n, pieces, p]."""
    return (values if values.ndim < 3 else np.moveaxis(values, 0, 1)).astype(float)


def _keys(own: PlacedPart, region: Region, rows: Floats) -> Floats:
    seen = next((name for name, axis in own.part.reach if axis == ROW), None)
    return np.zeros(rows.shape) if seen is None else _pieces_last(lengths(own.part.needs(region)[seen][ROW]))


def _even(amounts: Floats) -> Floats:
    """Return blocks, [..., blocks, p], as if they were equally large where there are some, as the planner counts."""
    some = amounts > 0
    return np.asarray(some * amounts.sum(-2, keepdims=True) / np.maximum(some.sum(-2, keepdims=True), 1))


def _with_each(own: PlacedPart, region: Region, coming: ExchangeStep) -> PartWork:
    """Return what is computed of a part with what comes from each, [n, p, p].

    What reads nothing of that is computed with the own.
    """
    (name, part), work = (coming.value.name, own.part), _work(own, region)
    rows, keys = work.rows[:, None], work.keys[:, None]
    units = {axis: some[:, None] for axis, some in work.units.items()}
    if name not in {value.name for value in part.reads}:
        own_only = np.eye(rows.shape[-1])
        return PartWork(own, rows * own_only, keys * own_only, units)
    wanted = part.needs(region)[name][ROW]
    common = sum(overlaps({ROW: piece[ROW]}, {ROW: wanted}) for piece in coming.have)
    found = _even(np.asarray(common, float))
    if (name, ROW) in part.reach:
        return PartWork(own, rows * (found > 0), found, units)
    return PartWork(own, found, found, units)


def _direct(moved: Floats, exchanges: Sequence[ExchangeStep], *, coded: bool) -> Exchange:
    """Return what an exchange is to CPUs: bytes, messages, and what is coded, if anything is."""
    every, sent = moved > 0, moved.sum((-3, -1))
    once = np.zeros(sent.shape)
    if coded:
        numbers = sum(_of_one(exchange.moved).sum(-1) for exchange in exchanges)
        once = sum(_of_one(exchange.coded) for exchange in exchanges) / np.maximum(numbers, 1) * sent
    messages = (every.sum((-3, -2)) + every.sum((-3, -1))).astype(float)
    tiles = every.any(-1).sum(-2)
    return Exchange(sent, moved.sum((-3, -2)), messages, lambda j, i: moved[..., j, i].sum(-1), once, tiles, sent)


def _routed(moved: Floats, route: Route) -> Exchange:
    """Return an exchange in which others pass on what its owners would send to all."""
    blocks, tiles = moved.sum(-3).max(-1), (moved > 0).any(-1).sum(-2).astype(float)
    return gather(blocks, moved.sum((-3, -2)) > 0, tiles, route)


def _block(value: str) -> str:
    """Return the kind of block within which a value is, if it is within one: of `layers/N/KIND/…`, or of sub-blocks."""
    kinds = [word for word in value.split("/")[1:] if not word.isdigit()]
    return "" if not kinds or kinds[-1] == JOINED else kinds[0]


def _names(step: ComputeStep) -> list[str]:
    """Return what is computed, in words."""
    found = [] if step.placed else ["embed"]
    for own, _ in step.walked[0]:
        for word in WORDS.get(own.part.role, (own.part.role,)):
            if word == "Q" and found[-1:] == ["K, V"]:
                found[-1] = "Q, K, V"  # one product
            else:
                found.append(word)
    return found
