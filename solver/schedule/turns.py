"""What a schedule takes, turn by turn, by the clocks of ranks: of one plan, or of many at once.

A turn is what stands in a row of a table: computations, which ranks do piece by piece, and exchanges, in which a piece
is on its way as soon as it is done (`solver.schedule.clocks`). A network's are those of its segments, each of many
values at a time (`solver.schedule.networks.segment_steps`). Those of a flat list of steps are found here (`turns_of`):
a rank computes, codes and hands over what it sends, as one piece.

Where the longest computation of a turn takes c seconds, a language model's s and R of clocks are min(1, c / U) of the
devices', with the seconds U of the steps in which they are measured (`timing.UNREST_S`): a token's few milliseconds a
layer are disturbed as much more seldom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from solver.base.spans import Span
from solver.cluster.curves import Floats
from solver.schedule.clocks import Messages, Moment, TurnPart, advanced
from solver.schedule.price import PricedStep
from solver.schedule.schedule import NOWHERE, AnyStep, ComputeStep, ExchangeStep
from solver.schedule.timing import Machine, Times


@dataclass(frozen=True, slots=True, eq=False)
class ClockTurn:
    """What ranks do in a turn, and what a table says of it.

    Parameters
    ----------
    parts
        Seconds of computations, and messages, one after the other.
    name, computes
        What it is called, and what is computed.
    layers
        Of which layers of the model, or segments of the plan, it is.
    repeats
        How often it is done, in layers that are alike.
    block
        The kind of block whose exchange it is, if it is one's.
    meanwhile
        What is computed with what comes.
    coding : [..., p]
        Of the seconds of computations those in which what is sent is coded and handed over.
    """

    parts: tuple[TurnPart, ...]
    name: str
    computes: tuple[str, ...] = ()
    layers: Span = NOWHERE
    repeats: int = 1
    block: str = ""
    meanwhile: tuple[str, ...] = ()
    coding: Floats | float = 0.0

    @property
    def messages(self) -> list[Messages]:
        """What is exchanged."""
        return [part for part in self.parts if isinstance(part, Messages)]

    @property
    def computed(self) -> list[Floats]:
        """What computations take, [..., pieces, p] seconds."""
        return [part for part in self.parts if not isinstance(part, Messages)]

    @property
    def compute_s(self) -> Floats:
        """The CPU seconds of every rank, [..., p]: of computations, also as it comes, and of handling messages."""
        handled = (messages.sending + messages.taking + messages.worked for messages in self.messages)
        return np.asarray(sum((part.sum(-2) for part in self.computed), sum(handled)))

    @property
    def handled_s(self) -> Floats:
        """Those of them in which messages are coded, handled and added up, [..., p]."""
        return np.asarray(self.coding + sum(messages.sending + messages.taking for messages in self.messages))


def timed(
    machine: Machine, turns: Iterable[ClockTurn], now: Moment, unrest_s: float = 0.0
) -> Iterator[tuple[ClockTurn, Floats, Moment]]:
    """Yield every turn, by how much the last rank's clock goes on each time that it is done, and the clocks after it.

    What is done several times is done three times, of which the last two stand for half of the others each: ranks that
    wait for each other in turn are faster every second time. Of these others clocks go on in step, but for those of
    ranks that have nothing to do in such turns, and may be ahead. `unrest_s` is as of `clocks.advanced`.
    """
    for repeats, some in groupby(turns, key=lambda turn: turn.repeats):
        once, done, began = list(some), 0, now
        found = list[tuple[ClockTurn, Floats, Moment]]()
        others = np.zeros(1)  # the seconds of those times for which another stands
        for often in (1, repeats // 2, (repeats - 1) // 2):
            start = now
            for turn in once if often else ():
                before, now = now, advanced(machine, now, turn.parts, unrest_s)
                found.append((turn if repeats == 1 else _at(turn, done, often), now.last - before.last, now))
            done, others = done + often, others + (often - 1) * now.gained(start)
        if done > 3:
            now = now.later(others)
            *_, (turn, seconds, _) = found
            # Who is ahead hides what the others do, until they are further than that.
            counted = sum(own.repeats * gained for own, gained, _ in found)
            found[-1] = turn, seconds + (now.last - began.last - counted) / turn.repeats, now
        yield from found


def _at(turn: ClockTurn, time: int, often: int) -> ClockTurn:
    """Return what is done in a layer of several that are alike, and as often in those after it."""
    first = turn.layers.start + time
    return replace(turn, layers=Span(first, first + often) if turn.layers.size else NOWHERE, repeats=often)


def together_s(machine: Machine, turns: Iterable[ClockTurn], unrest_s: float = 0.0) -> Floats:
    """Return what all turns take together, of n plans [n]."""
    *_, (_, _, now) = timed(machine, turns, Moment.at(np.zeros(machine.devices)), unrest_s)
    return np.asarray(now.last[..., 0])


def priced(machine: Machine, turns: Iterable[ClockTurn], unrest_s: float = 0.0) -> list[PricedStep]:
    """Return the turns with what they take; those of layers that are alike as one.

    The seconds of a step are those by which the last rank's clock goes on; of layers that are alike, in the mean.
    """
    found = timed(machine, turns, Moment.at(np.zeros(machine.devices)), unrest_s)
    return list(_merged(_steps(machine, found)))


def _steps(machine: Machine, found: Iterable[tuple[ClockTurn, Floats, Moment]]) -> Iterator[tuple[Span, PricedStep]]:
    """Yield the turns of one plan as steps, and of which layers they are."""
    for turn, seconds, _ in found:
        nothing, messages = np.zeros(machine.devices), turn.messages
        wire_s = sum((own.wire_s(machine.network) for own in messages), nothing)
        times = Times(turn.compute_s, wire_s, np.full(machine.devices, seconds), nothing + turn.handled_s)
        sent, received = (sum((getattr(own, way) for own in messages), nothing) for way in ("sent", "received"))
        step = PricedStep("", turn.name, turn.computes, turn.meanwhile, turn.repeats, times, sent, received, turn.block)
        yield turn.layers, step


def _merged(steps: Iterable[tuple[Span, PricedStep]]) -> Iterator[PricedStep]:
    """Yield the steps; those of layers that follow each other as one, where ranks have the same to do."""
    found: list[tuple[Span, PricedStep]] = []
    for layers, step in steps:
        for number, (before, other) in enumerate(found):
            alike = (step.name, step.computes) == (other.name, other.computes)
            if alike and before.size and before.stop == layers.start and _same(step.times, other.times):
                often = other.repeats + step.repeats
                end = (other.repeats * other.times.end + step.repeats * step.times.end) / often
                one = replace(other, repeats=often, times=replace(other.times, end=end))
                found[number] = Span(before.start, layers.stop), one
                break
        else:
            found.append((layers, step))
    for layers, step in found:
        text = f"{layers.start}" + f"-{layers.stop - 1}" * (layers.size > 1) if layers.size else ""
        yield replace(step, layers=text)


def _same(one: Times, other: Times) -> bool:
    return np.allclose(one.compute, other.compute) and np.allclose(one.exchange, other.exchange)


# The turns of a flat list of steps: computations, and the exchanges of a value after them.


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """What an exchange takes on every rank.

    Parameters
    ----------
    before : [..., p]
        The CPU seconds in which what it sends is coded and handed over: only then it is on its way.
    messages
        And what goes then, with the CPU seconds in which what comes is taken.
    """

    before: Floats
    messages: Messages


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """What steps take.

    Parameters
    ----------
    computing
        The seconds of a computation, [..., p], and the names of what is computed.
    moving
        What an exchange takes.
    """

    computing: Callable[[ComputeStep], tuple[Floats, tuple[str, ...]]]
    moving: Callable[[ExchangeStep], Moved]


def turns_of(steps: Iterable[AnyStep], costs: Costs) -> Iterator[ClockTurn]:
    """Yield the turns of a schedule: the exchanges of a value with the computations before them."""
    for computes, exchanges in _together(steps):
        seconds: Floats | float = 0.0
        coding: Floats | float = 0.0
        parts, names = list[TurnPart](), list[str]()
        for step in computes:
            own_s, some = costs.computing(step)
            seconds, names = seconds + own_s, [*names, *some]
        for exchange in exchanges:
            moved = costs.moving(exchange)
            parts += [(seconds + moved.before)[..., None, :], moved.messages]
            seconds, coding = 0.0, coding + moved.before
        if not exchanges:
            parts.append(np.asarray(seconds)[..., None, :])
        first = (*exchanges, *computes)[0]
        name = exchanges[0].name if exchanges else ", ".join(names)
        yield ClockTurn(tuple(parts), name, tuple(names), first.layers, first.repeats, coding=coding)


def _together(steps: Iterable[AnyStep]) -> Iterator[tuple[list[ComputeStep], list[ExchangeStep]]]:
    """Yield computations, and the exchanges of a value after them; none at the end of a pass that leaves nothing."""
    computes, exchanges = list[ComputeStep](), list[ExchangeStep]()
    for step in steps:
        last = exchanges[-1] if exchanges else None
        if last or computes if isinstance(step, ComputeStep) else last and step.value != last.value:
            yield computes, exchanges
            computes, exchanges = [], []
        if isinstance(step, ComputeStep):
            computes.append(step)
        else:
            exchanges.append(step)
    yield computes, exchanges
