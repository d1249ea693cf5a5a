"""What a schedule takes, turn by turn: computations, and the exchanges of a value after them, by the clocks of ranks.

A rank computes, codes and hands over what it sends, as one piece, and goes on when all that it needs is there; a
message is on its way as soon as its sender is done with that (`solver.schedule.clocks`).

Where a turn's longest computation takes c seconds, s and R there are min(1, c / U) of the devices', with the seconds U
of the steps in which they are measured (`timing.UNREST_S`): a token's few milliseconds a layer are disturbed as much
more seldom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from solver.base.spans import Span
from solver.cluster.curves import Floats
from solver.schedule.clocks import Messages, Moment, computed, exchanged
from solver.schedule.price import PricedStep
from solver.schedule.schedule import NOWHERE, AnyStep, ComputeStep, ExchangeStep
from solver.schedule.timing import UNREST_S, Machine, Times


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """What an exchange takes on every rank, [..., p].

    Parameters
    ----------
    before
        The CPU seconds in which what it sends is coded and handed over: only then it is on its way.
    messages
        And what goes then, with the CPU seconds in which what comes is taken.
    wire
        The seconds until all is there, if it leaves everywhere at once.
    """

    before: Floats
    messages: Messages
    wire: Floats

    @property
    def after(self) -> Floats:
        """The CPU seconds after it."""
        return self.messages.taking


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

    machine: Machine
    computing: Callable[[ComputeStep], tuple[Floats, tuple[str, ...]]]
    moving: Callable[[ExchangeStep], Moved]


def priced(steps: Iterable[AnyStep], costs: Costs) -> list[PricedStep]:
    """Return the steps with what they take: an exchange with the computations before it.

    The seconds of a step are those by which the last rank's clock goes on; of layers that are alike, in the mean.
    """
    return list(_merged(_timed(steps, costs)))


def together_s(steps: Iterable[AnyStep], costs: Costs) -> Floats:
    """Return what the steps take together, of n plans [n]."""
    return np.asarray(sum(step.repeats * step.times.end.max(-1) for _, step in _timed(steps, costs)))


def _timed(steps: Iterable[AnyStep], costs: Costs) -> Iterator[tuple[Span, PricedStep]]:
    """Yield the steps one by one, and of which layers they are."""
    now = Moment.at(np.zeros(costs.machine.devices))
    for repeats, some in groupby(_together(steps), key=lambda turn: turn.repeats):
        once = list(some)
        # From the second time on all are alike.
        for time, often in enumerate((1, repeats - 1) if repeats > 1 else (1,)):
            began = now.last
            for turn in once:
                now, step = _advanced(now, turn, costs)
                first = turn.layers.start + time
                layers = Span(first, first + often) if turn.layers.size else NOWHERE
                yield layers, step if often == 1 else replace(step, repeats=often)
            now = now.later((often - 1) * (now.last - began))


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """Computations, and the exchanges of a value after them; none at the end of a pass of which nothing is wanted."""

    computed: list[ComputeStep]
    exchanges: list[ExchangeStep] = field(default_factory=list)

    @property
    def repeats(self) -> int:
        """How often it is done."""
        return self.exchanges[0].repeats if self.exchanges else self.computed[0].repeats

    @property
    def layers(self) -> Span:
        """After which layers."""
        return (self.exchanges[0] if self.exchanges else self.computed[0]).layers


def _together(steps: Iterable[AnyStep]) -> Iterator[_Turn]:
    turn = _Turn([])
    for step in steps:
        last = turn.exchanges[-1] if turn.exchanges else None
        after = last or turn.computed if isinstance(step, ComputeStep) else last and step.value != last.value
        if after:
            yield turn
            turn = _Turn([])
        if isinstance(step, ComputeStep):
            turn.computed.append(step)
        else:
            turn.exchanges.append(step)
    yield turn


def _advanced(now: Moment, turn: _Turn, costs: Costs) -> tuple[Moment, PricedStep]:
    """Return the clocks after a turn, and what it takes."""
    began = now.last
    own_s, wire_s, sent, received = np.zeros((4, costs.machine.devices))
    names: list[str] = []
    for step in turn.computed:
        seconds, some = costs.computing(step)
        own_s, names = own_s + seconds, [*names, *some]
    to_compute = own_s
    for exchange in turn.exchanges:
        moved = costs.moving(exchange)
        to_compute = to_compute + moved.before
        unrest = _unrest(to_compute)
        now = computed(costs.machine, now, to_compute[..., None, :], unrest)
        now, to_compute = exchanged(costs.machine, now, moved.messages, unrest), np.zeros_like(own_s)
        own_s, wire_s = own_s + moved.before + moved.after, wire_s + moved.wire
        sent, received = sent + moved.messages.sent, received + moved.messages.received
    if not turn.exchanges:
        now = computed(costs.machine, now, to_compute[..., None, :], _unrest(to_compute))
    times = Times(own_s, wire_s, np.full_like(now.ready, now.last - began))
    return now, PricedStep(
        "", turn.exchanges[0].name if turn.exchanges else ", ".join(names), tuple(names), (), 1, times, sent, received
    )


def _unrest(seconds: Floats) -> Floats:
    """Return how much of the devices' jitter and rest a turn has whose computations take so long, [..., 1]."""
    return np.asarray(np.minimum(seconds.max(-1, keepdims=True) / UNREST_S, 1.0))


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
