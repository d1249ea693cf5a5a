"""Shares within a stage of a language model: who takes part, with how many units of what.

Units are query heads, mostly those of a whole group that shares keys and values, blocks of columns, and words. Crews
grow by the device with which an answer is estimated to be soonest: on every axis the shares are those of least makespan
that memory has room for, and after every block all have its sum. Of the crews that are estimated to be nearly as fast
as the fastest, shares are bettered by the clocks of ranks (`solver.programs.polish`): by the program of shares for the
passes of an answer, a token's as often as tokens are asked for, and those of a prompt's chunks; then move by move, in
finer heads, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from operator import itemgetter

import numpy as np

from solver.base.arrays import FLOAT_BYTES
from solver.base.spans import Partition, Span
from solver.cluster.curves import Floats
from solver.model.blocks import BlockKind
from solver.model.kinds.part import WORD, Spans
from solver.plan.decoder_plan import DecoderPlan, DecoderStage, cut_unit, totals_of
from solver.programs.first_shares import within_room
from solver.programs.moves import least_changes
from solver.programs.polish import FEW_UNITS, by_program, polished
from solver.programs.shares import ClockProgram, FoundShares, HeldBytes, Moves
from solver.schedule.decoders.asked import CHUNK_ROWS, TokenRequest
from solver.schedule.decoders.cost import (
    DecoderSetting,
    answer_passes,
    answer_turns,
    cut_seconds,
    sums_s,
    two_steps_from,
)
from solver.schedule.decoders.memory import (
    HELD,
    block_bytes,
    cache_bytes,
    most_memory,
    work_bytes,
)
from solver.schedule.encoders.layer_table import Integers
from solver.schedule.exchange import Mask
from solver.schedule.timing import UNREST_S

MOST_UNITS = 32  # of what is small and many, in first shares
MOST_MOVED = 256  # of them in programs and moves
WORDS = 32  # the least unit of words
WIDE = 2  # crews of every number that grow
# How much slower than the fastest crews are estimated that programs are solved for, and how many.
NEAR, PROGRAMS = 1.3, 4
THOROUGH_NEAR, THOROUGH_PROGRAMS = 3.0, 64  # where all is to be tried


@dataclass(frozen=True, slots=True, eq=False)
class SharedAxis:
    """What a stage shares out along an axis.

    Parameters
    ----------
    name
        Of the axis.
    kinds
        The blocks that are cut along it, and in how many layers.
    total
        Units that there are.
    least
        Of how many units a share is made up.
    group
        How many are best given away together; 0: they are small, and many.
    """

    name: str
    kinds: Sequence[tuple[BlockKind, int]]
    total: int
    least: int
    group: int = 0

    @property
    def first(self) -> BlockKind:
        """The first of its blocks."""
        return self.kinds[0][0]

    @property
    def blocks(self) -> int:
        """How many blocks of the stage are cut along it."""
        return sum(often for _, often in self.kinds)

    def size(self, most: int) -> int:
        """Return of how many units one is that is given away: whole groups, or `most` in all, of what is small."""
        if self.group:
            return math.lcm(self.group, self.least)
        many = -(-self.total // most)
        return -(-many // self.least) * self.least or self.least

    @property
    def finest(self) -> int:
        """Return the same, but within groups."""
        return self.least if self.group else self.size(MOST_MOVED)


@dataclass(frozen=True, eq=False)
class StageTask:
    """What is to be shared out.

    Parameters
    ----------
    devices
        Their names, in rank order.
    room : [p] bytes
        For weights, cache and work, and the program; below zero: takes no part.
    layers
        Of the stage.
    words
        Whether it has the head.
    thorough
        Whether all crews are tried that may lead to better shares.
    """

    s: DecoderSetting
    devices: tuple[str, ...]
    asked: TokenRequest
    room: Floats
    layers: Span
    words: bool = True
    thorough: bool = False

    @cached_property
    def axes(self) -> list[SharedAxis]:
        """What is shared out along which axis; words at last."""
        model, precision = self.s.model, self.asked.precision
        alike = [(layer, len(list(same))) for layer, same in groupby(model.layers[self.layers.slice])]
        found = []
        for axis, total in totals_of(model, self.layers).items():
            kinds = [(kind, often) for layer, often in alike for kind in layer if kind.axis == axis]
            least = math.lcm(*(cut_unit(kind, model.stream, precision) for kind, _ in kinds))
            found.append(SharedAxis(axis, kinds, total, least, kinds[0][0].group))
        return [*found, SharedAxis(WORD, [(model.head_block, 1)], model.vocab * self.words, WORDS)]

    @cached_property
    def totals(self) -> Integers:
        """Units of every axis."""
        return np.array([axis.total for axis in self.axes])

    @property
    def blocks(self) -> int:
        """How many blocks the stage has: each ends with a sum."""
        return sum(axis.blocks for axis in self.axes[:-1])

    @property
    def able(self) -> list[int]:
        """Who may take part."""
        return [int(rank) for rank in np.flatnonzero(self.room > 0)]

    def exact(self, units: Integers, sizes: Integers) -> Integers:
        """Return how many units of every axis consecutive ones of these sizes are, [..., axes, p]; a last may be less.

        Parameters
        ----------
        sizes : [axes]
            Units of each.
        """
        stops = np.minimum(np.cumsum(units, -1) * sizes[:, None], self.totals[:, None])
        return np.asarray(np.diff(stops, prepend=0))

    def plan(self, counts: Integers) -> DecoderPlan:
        """Return the plan of one stage with so many units, [axes, p]."""
        *shares, words = map(Partition.of_counts, counts.tolist())
        names, asked = (axis.name for axis in self.axes), self.asked
        stage = DecoderStage(self.layers, dict(zip(names, shares, strict=False)))
        return DecoderPlan(
            "", self.devices, (stage,), words,
            wire=asked.wire, precision=asked.precision, cache=asked.cache,
            context=asked.context, sequences=asked.sequences, two_steps_from=two_steps_from(self.s, (stage,)),
        )  # fmt: skip

    def held_bytes(self, counts: Integers) -> Floats:
        """Return the bytes that every device needs for so many units, [axes, p], at the most: [p]."""
        needs = most_memory(self.s.model, self.plan(counts))
        return np.array([float(own.total - own.embedding) for own in needs])

    def has_room(self, counts: Integers) -> bool:
        """Return whether memory has room for so many units, [axes, p]."""
        return bool((self.held_bytes(counts) <= self.room)[counts.any(0)].all())

    # First shares: by least makespan

    @cached_property
    def whole_groups(self) -> FirstUnits:
        """What coarse units take."""
        return FirstUnits.of(self, [axis.size(MOST_UNITS) for axis in self.axes])

    @cached_property
    def within_groups(self) -> FirstUnits:
        """The same, where groups are cut."""
        return FirstUnits.of(self, [axis.least if axis.group else axis.size(MOST_UNITS) for axis in self.axes])

    def cuts_groups(self, crew: Sequence[int]) -> bool:
        """Return whether there are fewer groups of an axis than are in a crew."""
        groups = [axis.group > 0 for axis in self.axes]
        return bool((self.whole_groups.counts[groups] < len(crew)).any())

    def first_shares(self, crew: Sequence[int]) -> list[tuple[float, Integers]]:
        """Return shares among a crew by least makespan, [axes, p], and about their seconds; none without room for any.

        What has the largest units is shared out first, or the smallest, and all else in the room that it leaves; or
        each axis within a like part of the room.
        """
        first = self.within_groups if self.cuts_groups(crew) else self.whole_groups
        own = work_bytes(self.s.model, self.asked, 0, 0, shared=int(len(crew) > 1))
        room = np.where(np.isin(np.arange(self.s.devices), crew), self.room - own, -1.0)
        found = list[Integers]()
        largest_first = np.argsort(-first.unit_bytes, kind="stable").tolist()
        for order in (largest_first, largest_first[::-1], None):
            units = within_room(
                first.seconds, first.counts.tolist(), first.unit_bytes.tolist(), first.share_bytes.tolist(), room, order
            )
            if units is None or units[-1, ~units[:-1].any(0)].any():  # who has words has a share of the blocks
                continue
            if not any((units == other).all() for other in found):
                found.append(units)
        return [(self._estimated_s(first, units), self.exact(units, first.sizes)) for units in found]

    def _estimated_s(self, first: FirstUnits, units: Integers) -> float:
        """Return about the seconds of an answer: all have computed, and then comes a sum."""
        crew, every = np.flatnonzero(units.any(0)).tolist(), np.arange(self.s.devices)
        computed = sum(float(own[some, every].max()) for own, some in zip(first.seconds, units, strict=True))
        return computed + self.blocks * sums_s(self.s, crew, self.asked)

    def crews(self) -> list[tuple[float, Integers]]:
        """Return first shares of crews, [axes, p], and about their seconds; the soonest first."""
        found, grown = dict[tuple[int, ...], list[tuple[float, Integers]]](), [tuple[int, ...]()]
        for size in range(1, len(self.able) + 1):
            tried = {tuple(sorted((*some, rank))) for some in grown for rank in self.able if rank not in some}
            found |= {crew: shares for crew in tried if (shares := self.first_shares(crew))}
            fitting = sorted(tried & found.keys(), key=lambda crew: found[crew][0][0])
            # Where memory has no room those with most of it grow; and the fastest, in any case.
            roomy = sorted(tried, key=lambda crew: -float(self.room[list(crew)].sum()))
            grown = [*(fitting or roomy)[:WIDE], tuple(self.fastest[:size])]
        return sorted(chain(*found.values()), key=itemgetter(0))

    @cached_property
    def fastest(self) -> list[int]:
        """Who may take part, the fastest by itself first."""
        alone = sum((own[-1] for own in self.whole_groups.seconds), np.zeros(self.s.devices))
        return sorted(self.able, key=lambda rank: float(alone[rank]))


@dataclass(frozen=True, slots=True, eq=False)
class FirstUnits:
    """What units of first shares take.

    Parameters
    ----------
    sizes, counts : [axes]
        Of how many units one is, and how many there are.
    seconds
        Of every axis, [counts + 1, p]: of so many on every device, in all blocks and passes of an answer; rising.
    share_bytes, unit_bytes : [axes]
        What a share of an axis takes beside its units, and one of these.
    """

    sizes: Integers
    counts: Integers
    seconds: Sequence[Floats]
    share_bytes: Floats
    unit_bytes: Floats

    @classmethod
    def of(cls, task: StageTask, sizes: Sequence[int]) -> FirstUnits:
        """Return those of a stage that are of these sizes."""
        counts = [-(-axis.total // size) for axis, size in zip(task.axes, sizes, strict=True)]
        every = list(zip(task.axes, sizes, counts, strict=True))
        seconds = [_answer_s(task, *own) for own in every]
        share_bytes, unit_bytes = zip(*(_bytes(task, axis, size) for axis, size, _ in every), strict=True)
        return cls(np.array(sizes), np.array(counts), seconds, np.array(share_bytes), np.array(unit_bytes))


def _answer_s(task: StageTask, axis: SharedAxis, size: int, count: int) -> Floats:
    """Return the seconds of 0 to `count` units of an axis on every device, [count + 1, p], in all passes."""
    passes = [(often, rows, behind) for often, rows, behind, _ in answer_passes(task.asked)]
    if axis.name == WORD:
        passes = [(often, chosen, behind) for often, _, behind, chosen in answer_passes(task.asked) if chosen]
    found = np.zeros((count + 1, task.s.devices))
    for unit in range(1, count + 1):
        share = min(unit * size, axis.total)
        for kind, often in axis.kinds:
            for times, rows, behind in passes:
                found[unit] += often * times * task.s.kind_s(kind, share, rows, behind)
    return np.maximum.accumulate(found)


def _bytes(task: StageTask, axis: SharedAxis, size: int) -> tuple[float, float]:
    """Return what a share of an axis takes beside its units, and what a unit of this size does.

    Of less than a group it is counted as if the share began and ended within groups, at the worst.
    """
    model, asked, total = task.s.model, task.asked, axis.total
    rows, tokens = min(CHUNK_ROWS, asked.context), asked.context * asked.sequences
    rows = 1 if axis.name == WORD else rows
    within = bool(axis.group and size % axis.group)

    def taken(count: int) -> int:
        found = FLOAT_BYTES * rows * axis.first.made_columns(axis.first.units(Span(0, count)))
        for kind, often in axis.kinds:
            whole = kind.units(Span(0, total))
            units = {
                name: own if name == axis.name else min(own + within, whole[name])
                for name, own in kind.units(Span(0, count)).items()
            }
            found += often * block_bytes(model, kind, units, HELD[asked.precision])
            found += often * cache_bytes(kind, units, asked.cache, tokens)
        return found

    one, every = taken(min(size, total)), taken(total)
    units = max(-(-total // size), 1)
    slope = (every - one) / (units - 1) if units > 1 else float(every)
    # The line through one and all; where steps are whole groups, a share may take more than it by one of them.
    above = max((taken(min(unit * size, total)) - slope * unit for unit in range(1, units + 1)), default=0.0)
    return max(above, 0.0), slope


@dataclass(frozen=True, slots=True, eq=False)
class PartedStage:
    """A stage whose shares are sought (`solver.programs.polish.Parted`), in units of these sizes, [axes]."""

    task: StageTask
    sizes: Integers

    def units(self, counts: Integers) -> Integers:
        """Return in these sizes what are so many units, [axes, p]; a last one may be less."""
        return np.asarray(-(-counts // self.sizes[:, None]))

    def seconds(self, units: Integers) -> Floats:
        """Return the seconds of an answer by any of these shares, [n, axes, p]: [n]; those of one crew at once."""
        found, counts = np.full(len(units), np.inf), self.task.exact(units, self.sizes)
        idle = (counts[:, -1] > 0) & (counts[:, :-1] == 0).all(1)  # who has words has a share of the blocks
        alike: dict[bytes, list[int]] = {}
        for number, some in enumerate(counts > 0):
            if not idle[number].any():
                alike.setdefault(some.tobytes(), []).append(number)
        for numbers in alike.values():
            plan = self.task.plan(counts[numbers[0]])
            found[numbers] = cut_seconds(self.task.s, plan, self._cuts(counts[numbers]), self.task.asked)
        return found

    def fits(self, units: Integers) -> Mask:
        """Return for which of them memory has room, [n]."""
        counts = self.task.exact(units, self.sizes)
        return np.array([self.task.has_room(own) for own in counts])

    def program(self, units: Integers) -> ClockProgram:
        """Return the program of shares around some, [axes, p]."""
        task = self.task
        counts = task.exact(units, self.sizes)
        moves = Moves.of(units)
        per_unit = task.whole_groups.unit_bytes * self.sizes / task.whole_groups.sizes
        now, crew = task.held_bytes(counts), units.any(0)
        # What is rounded afterwards may be a unit more: that is left free where there is room for it.
        free = per_unit[units.sum(1) > FEW_UNITS].sum()
        free *= (task.room - now)[crew].sum() > free * crew.sum()
        caps = np.where(crew, task.room - free, np.inf)
        held = HeldBytes(per_unit, now - per_unit @ units, caps, np.zeros(task.s.devices))
        cuts = self._cuts(task.exact(moves.plans, self.sizes))
        turns = answer_turns(task.s, task.plan(counts), cuts, task.asked)
        return ClockProgram(task.s.machine, turns, moves, 1.0, held, UNREST_S)

    def _cuts(self, counts: Integers) -> dict[tuple[int, str], Spans]:
        """Return who has what, of plans of one stage."""
        stops = np.cumsum(counts, -1)
        spans = np.stack([stops - counts, stops], -1)
        return {(0, axis.name): spans[:, number] for number, axis in enumerate(self.task.axes)}


@dataclass(frozen=True, slots=True)
class CrewTried:
    """A crew whose shares were bettered by the program of shares: the seconds of an answer.

    Parameters
    ----------
    ranks
        Who takes part, to begin with.
    first_s, best_s
        With first shares, infinite where memory has no room for them, and with the best that were found from these.
    """

    ranks: tuple[int, ...]
    first_s: float
    best_s: float


def best_shares(task: StageTask) -> DecoderPlan | None:
    """Return the best plan of one stage; None where memory has no room for any."""
    fitting = [way for way in _ways(task) if np.isfinite(way[2])]
    if not fitting:
        return None
    _, parted, _, units = min(fitting, key=itemgetter(2))
    finest, (_, units) = _finest(task), polished(parted, units)
    fine = finest.units(task.exact(units, parted.sizes))
    return task.plan(task.exact(_with_others(finest, *polished(finest, fine)), finest.sizes))


def crews_tried(task: StageTask) -> list[CrewTried]:
    """Return the crews of which `best_shares` chooses, each with its best first shares, the soonest first."""
    found = dict[tuple[int, ...], CrewTried]()
    for counts, parted, best_s, _ in _ways(task):
        (first_s,) = parted.seconds(parted.units(counts)[None]) if task.has_room(counts) else (np.inf,)
        crew = CrewTried(tuple(np.flatnonzero(counts.any(0)).tolist()), float(first_s), best_s)
        if crew.ranks not in found or best_s < found[crew.ranks].best_s:
            found[crew.ranks] = crew
    return sorted(found.values(), key=lambda crew: crew.best_s)


def parted_around(task: StageTask, plan: DecoderPlan) -> FoundShares | None:
    """Return what the program of shares finds around a plan of one stage, in fractions of units."""
    finest = _finest(task)
    return finest.program(finest.units(_counts(plan))).solve()


def least_shares(task: StageTask, plan: DecoderPlan) -> dict[int, float]:
    """Return for ranks without a share how many seconds longer an answer takes with the best of the least ones."""
    finest = _finest(task)
    units = finest.units(_counts(plan))
    after = units + least_changes(units, task.room > 0)
    seconds, now = finest.seconds(after), float(finest.seconds(units[None])[0])
    some = np.asarray((after > 0).any(1))
    idle = [rank for rank in np.flatnonzero(~units.any(0)).tolist() if np.isfinite(seconds[some[:, rank]]).any()]
    return {rank: float(seconds[some[:, rank]].min()) - now for rank in idle}


def _counts(plan: DecoderPlan) -> Integers:
    """Return how many units devices have by a plan of one stage, [axes, p]."""
    (stage,) = plan.stages
    return np.array([*(own.counts for own in stage.shares.values()), plan.words.counts])


def _finest(task: StageTask) -> PartedStage:
    return PartedStage(task, np.array([axis.finest for axis in task.axes]))


def _ways(task: StageTask) -> Iterator[tuple[Integers, PartedStage, float, Integers]]:
    """Yield first shares, and what the program makes of them: in which units, the seconds of an answer, and shares."""
    by_groups, finest = PartedStage(task, np.array([axis.size(MOST_MOVED) for axis in task.axes])), _finest(task)
    best_s, tried, crews = np.inf, 0, task.crews()
    near, programs = (THOROUGH_NEAR, THOROUGH_PROGRAMS) if task.thorough else (NEAR, PROGRAMS)
    for estimate_s, counts in crews:
        if tried and (estimate_s > near * crews[0][0] or tried == programs):
            break
        parted = finest if task.cuts_groups(np.flatnonzero(counts.any(0)).tolist()) else by_groups
        seconds, units = by_program(parted, parted.units(counts), best_s)
        best_s, tried = min(best_s, seconds), tried + bool(np.isfinite(seconds))
        yield counts, parted, seconds, units


def _with_others(parted: PartedStage, seconds: float, units: Integers) -> Integers:
    """Return shares that are better where one device more or less has some of an axis, or those given."""
    while (moves := least_changes(units, parted.task.room > 0)).size:
        after = units + moves
        now, other = by_program(parted, after[parted.seconds(after).argmin()], seconds)
        if now >= seconds:
            break
        seconds, units = polished(parted, other)
    return units
