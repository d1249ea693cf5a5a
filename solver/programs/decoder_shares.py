"""The plan within a stage of a language model as an integer program: who takes part, with how many units of what.

Units are query heads, mostly those of a whole group that shares keys and values, blocks of columns, and words. With k
over the axes along which blocks are cut, mostly heads and columns, and words, i over the devices, U_k the units that
there are; f over the phases, the blocks of every axis for a token and for a prompt, and the head, omega_f how often
each is in an answer; a and b the lines whose maximum is a device's seconds over its units (the lower hull of its curve,
sending its summand included):

    minimise    sum_f omega_f T_f + X
    subject to  (C1)  sum_i u_ki = U_k
                (C2)  u_ki <= U_k z_ki,  z_ki <= y_i,  z_words,i <= sum of the other z_ki
                (C3)  sum_i y_i = n
                (C4)  m_i y_i + sum_k (c_k z_ki + w_k u_ki) <= M_i            weights, cache, work
                (C5)  T_f >= a z_ki + b u_ki              every line of i, k the units of f
                (C6)  X >= x_i y_i,  X >= x_ij (y_i + y_j - 1)                narrow links i, j
                (C7)  y_i >= y_j,  u_0i >= u_0j                i and j alike in all numbers, i before j
                      u whole and not negative (but for the first axis, of more than FEW: rounded), y and z 0 or 1

T_f is the slowest device's compute, X the exchanges of an answer among n devices: x_i what they take that i is in.
Every n is solved for, since what an exchange takes depends on it, and heads that are finer than groups for the best n
and the next. The plans that come of it are priced as they will run (`solver.schedule.decoders.cost`); a descent moves
single units between devices, in finer ones than the program has.

The objective is the seconds of an answer: omega is 1 for a prompt's phases, and for a token's as many as are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import accumulate, groupby, pairwise

import numpy as np

from solver.base.arrays import FLOAT_BYTES
from solver.base.spans import Partition, Span
from solver.cluster.curves import Floats
from solver.model.blocks import BlockKind
from solver.model.kinds.part import WORD
from solver.plan.decoder_plan import DecoderPlan, DecoderStage, cut_unit, totals_of
from solver.programs.integer import SharesProgram, least_answer
from solver.schedule.decoders.asked import CHUNK_ROWS, TokenRequest
from solver.schedule.decoders.cost import (
    CANDIDATE_BYTES,
    DecoderSetting,
    SumTimes,
    answer_seconds,
    chunks,
    sent_over,
    summed,
    two_steps_from,
)
from solver.schedule.decoders.memory import (
    HELD,
    block_bytes,
    cache_bytes,
    most_memory,
    work_bytes,
)

MOST_UNITS = 32  # of what is small and many: finer ones are the descent's
WORDS = 32  # the least unit of words
FEW = 16  # units of all axes but the first: of more they are rounded behind the program
TIED = 0.99  # of the slowest device's seconds
LINE = 1e-3  # of a curve's largest value: lines nearer than that are one

Counts = tuple[tuple[int, ...], ...]  # of every axis, words at last: units of every device
Lines = Sequence[Sequence[tuple[float, float]]]  # of every device


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

    def sizes(self) -> list[int]:
        """Return of how many units one of the program may be, the largest first."""
        if self.group:
            return sorted({math.lcm(self.group, self.least), min(self.least, self.total)}, reverse=True)
        many = -(-self.total // MOST_UNITS)
        return [-(-many // self.least) * self.least or self.least]


@dataclass(frozen=True, eq=False)
class StageTask:
    """What is to be shared out.

    Parameters
    ----------
    room : [p] bytes
        For weights, cache and work, and the program; below zero: takes no part.
    layers
        Of the stage.
    words
        Whether it has the head.
    """

    s: DecoderSetting
    asked: TokenRequest
    room: Floats
    layers: Span
    words: bool = True

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

    @property
    def totals(self) -> tuple[int, ...]:
        """Units of every axis."""
        return tuple(axis.total for axis in self.axes)

    @property
    def blocks(self) -> int:
        """How many blocks the stage has: each ends with a sum."""
        return sum(axis.blocks for axis in self.axes[:-1])


def unit_sizes(task: StageTask) -> list[tuple[int, ...]]:
    """Return of how many units of every axis one of the program may be: whole groups, then less if blocks allow it."""
    every = [axis.sizes() for axis in task.axes]
    return list(dict.fromkeys((tuple(own[0] for own in every), tuple(own[-1] for own in every))))


@dataclass(frozen=True, slots=True, eq=False)
class ShareUnits:
    """What is counted in the program.

    Parameters
    ----------
    sizes, counts
        Of every axis: of how many of its units one of the program is, and U_k.
    token, prompt
        Of every axis but words the lines of every device, in all layers: of a token, and of a prompt's chunks together.
    words
        The lines of every device.
    share_bytes, unit_bytes
        c_k and w_k.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    token: Sequence[Lines]
    prompt: Sequence[Lines]
    words: Lines
    share_bytes: tuple[float, ...]
    unit_bytes: tuple[float, ...]


def units_of(task: StageTask, sizes: tuple[int, ...]) -> ShareUnits:
    """Count in units of these sizes."""
    asked = task.asked
    counts = tuple(-(-axis.total // size) for axis, size in zip(task.axes, sizes, strict=True))
    of_axes = list(zip(task.axes, sizes, counts, strict=True))
    *token, words = (_lines(task, *own, [(1, asked.behind)]) for own in of_axes)
    prompt = [_lines(task, *own, list(chunks(asked.prompt))) for own in of_axes[:-1]]
    share, unit = zip(*(_bytes(task, *own[:2]) for own in of_axes), strict=True)
    return ShareUnits(sizes, counts, token, prompt, words, share, unit)


def shares(
    task: StageTask, ranks: int, units: ShareUnits, below_s: float = np.inf, *, rounded: bool = False
) -> Counts | None:
    """Solve the program for so many ranks; None where memory has no room, or nothing takes less than `below_s`."""
    found = least_answer(_program(task, ranks, units), ranks, below_s, rounded=rounded)
    if found is None:
        return None
    return tuple(_clipped(own, size, total) for own, size, total in zip(found, units.sizes, task.totals, strict=True))


def _clipped(units: Sequence[int], size: int, total: int) -> tuple[int, ...]:
    """Return how many of `total` consecutive units of this size are; the last may not be full."""
    stops = [min(size * stop, total) for stop in accumulate(units, initial=0)]
    return tuple(stop - start for start, stop in pairwise(stops))


def _program(task: StageTask, ranks: int, units: ShareUnits) -> SharesProgram:
    s, asked = task.s, task.asked
    tokens, prompt = _exchanges(task, ranks)
    sends, joins = np.stack([[own.before[i], own.wire[i] + own.after[i]] for i, own in enumerate(tokens)], axis=1)
    sends_prompt, joins_prompt = np.zeros((2, s.devices))
    for often, every in prompt:
        sends_prompt += often * np.array([own.before[i] for i, own in enumerate(every)])
        joins_prompt += often * np.array([own.wire[i] + own.after[i] for i, own in enumerate(every)])
    candidates = np.array([sent_over(s, [(rank, 0, CANDIDATE_BYTES)]).longest_s for rank in range(s.devices)])
    # Candidates go back when the slowest has them: what that takes is a phase of its own.
    back = [[(own, 0.0)] for own in candidates.tolist()]
    phases = [(len(units.token), 1.0 + asked.tokens, lines) for lines in (units.words, back)]
    for k, (axis, token, prompts) in enumerate(zip(task.axes, units.token, units.prompt, strict=False)):
        phases.append((k, float(asked.tokens), _later(token, axis.blocks * sends)))
        phases.append((k, 1.0, _later(prompts, axis.blocks * sends_prompt)))
    own = work_bytes(s.model, asked, 0, 0, shared=int(ranks > 1))
    return SharesProgram(
        units.counts, phases, task.blocks * (asked.tokens * joins + joins_prompt), list(_pairs(task, ranks)),
        task.room, np.full(s.devices, float(own)), units.share_bytes, units.unit_bytes,
    )  # fmt: skip


def _later(lines: Lines, seconds: Floats) -> Lines:
    return [[(a + later, b) for a, b in own] for own, later in zip(lines, seconds.tolist(), strict=True)]


def _lines(task: StageTask, axis: SharedAxis, size: int, count: int, passes: Sequence[tuple[int, int]]) -> Lines:
    """Return the lines of an axis on every device, in all of its blocks and passes of (rows, behind)."""

    def seconds(unit: int) -> Floats:
        share, found = min(unit * size, axis.total), np.zeros(task.s.devices)
        for kind, often in axis.kinds:
            for rows, behind in passes:
                found += often * task.s.kind_s(kind, share, rows, behind)
        return found

    return _hulls(task, [seconds(unit) for unit in range(1, count + 1)])


def _hulls(task: StageTask, seconds: Sequence[Floats]) -> Lines:
    """Return every device's lines of seconds of 1 to U units, [U][p]; of devices that are alike, once computed."""
    if not seconds:
        return [[] for _ in range(task.s.devices)]
    table = np.stack(seconds)
    alike = {own.tobytes(): own for own in table.T}
    found = {key: hull(own) for key, own in alike.items()}
    return [found[own.tobytes()] for own in table.T]


def hull(seconds: Floats) -> list[tuple[float, float]]:
    """Return the lines (a, b) whose maximum is the lower hull of seconds of 1 to U units, [U], to a thousandth."""
    found: list[tuple[float, float]] = []
    first, last = 0, seconds.size - 1
    if not last:
        return [(0.0, float(seconds[0]))]
    near = LINE * float(seconds[-1])
    while first < last:
        slopes = (seconds[first + 1 :] - seconds[first]) / np.arange(1, seconds.size - first)
        # Of those that are hardly steeper than the least the farthest: noise makes no lines.
        reach = np.arange(1, slopes.size + 1)
        ahead = int(np.flatnonzero((slopes - slopes.min()) * reach <= near)[-1]) + 1
        slope = float(slopes.min())
        found.append((float(seconds[first]) - slope * (first + 1), slope))
        first += ahead
    return found


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


def _exchanges(task: StageTask, ranks: int) -> tuple[list[SumTimes], list[tuple[int, list[SumTimes]]]]:
    """Return of every device what a sum takes among so many ranks of which it is one: of a token, and of chunks.

    The others are those to which links are widest.
    """
    rows = [(often, size) for size, often in _counted([rows for rows, _ in chunks(task.asked.prompt)])]
    groups = [_with_widest(task, ranks, [rank]) for rank in range(task.s.devices)]

    def every(size: int) -> list[SumTimes]:
        return [summed(task.s, group, group, size) for group in groups]

    return every(1), [(often, every(size)) for often, size in rows]


def _pairs(task: StageTask, ranks: int) -> Iterator[tuple[int, int, float]]:
    """Yield the narrow links, and the seconds of all exchanges of an answer that have part in them."""
    s, asked = task.s, task.asked
    if ranks < 2:
        return
    for one, other, _, _ in s.machine.network.narrow:
        group = _with_widest(task, ranks, [one, other])
        seconds = asked.tokens * _longest(summed(s, group, group, 1))
        seconds += sum(_longest(summed(s, group, group, rows)) for rows, _ in chunks(asked.prompt))
        yield one, other, task.blocks * seconds


def _with_widest(task: StageTask, ranks: int, some: list[int]) -> list[int]:
    """Return some ranks and others, `ranks` in all: those without narrow links to them, with the widest own."""
    network = task.s.machine.network
    apart = {rank for pair in network.narrow if set(pair[:2]) & set(some) for rank in pair[:2]}
    others = [rank for rank in range(task.s.devices) if rank not in some]
    others.sort(key=lambda rank: (rank in apart, -float(network.bandwidth[rank])))
    return sorted([*some, *others][:ranks])


def _longest(moved: SumTimes) -> float:
    return float((moved.wire + moved.after).max())


def _counted(values: Sequence[int]) -> list[tuple[int, int]]:
    return [(value, len(list(alike))) for value, alike in groupby(sorted(values))]


def descend(
    task: StageTask, price: Callable[[Counts], float], counts: Counts, sizes: tuple[int, ...], *, leaves: bool = True
) -> Counts:
    """Move units between devices as long as that makes a plan cheaper: coarse ones, then finer ones, or a whole share.

    Where two devices are equally slow, what takes from one of them saves nothing yet: then the squares of the devices'
    seconds must become fewer.

    Parameters
    ----------
    price
        Of counts.
    sizes
        As of `unit_sizes`; what is small and many is moved in finer ones at last.
    leaves
        Whether whole shares are moved.
    """
    finest = [size if axis.group else axis.least for axis, size in zip(task.axes, sizes, strict=True)]
    units = [[-(-count // size) for count in own] for own, size in zip(counts, finest, strict=True)]

    def counted(changed: Sequence[Sequence[int]]) -> Counts:
        return tuple(_clipped(own, size, total) for own, size, total in zip(changed, finest, task.totals, strict=True))

    @cache
    def loads(k: int, own: tuple[int, ...]) -> tuple[float, float, float]:
        return _loads(task, k, own)

    def cost(of: Counts) -> tuple[float, float]:
        return float(f"{price(of):.9g}"), sum(loads(k, own)[2] for k, own in enumerate(of))

    counts = counted(units)
    best, k, taking = cost(counts), 0, _taking(counts)
    while k < len(units):
        for givers, taker, moved in _moves(task, k, counts[k], (sizes[k], finest[k]), taking, leaves=leaves):
            own = list(units[k])
            for giver in givers:
                own[giver] -= moved
                own[taker] += moved
            if min(own) < 0:
                continue
            changed = [*units[:k], own, *units[k + 1 :]]
            then = counted(changed)
            same = [not count for count in then[k]] == [not count for count in counts[k]]
            if same and not _may_help(loads(k, counts[k]), loads(k, then[k])):
                continue
            if (found := cost(then)) < best:
                units, counts, best = changed, then, found
                break
        else:
            k += 1
        if (now := _taking(counts)) != taking:  # the exchanges are others
            k, taking = 0, now
    return counts


def _taking(counts: Counts) -> list[int]:
    return [rank for rank, own in enumerate(zip(*counts, strict=True)) if any(own)]


def _loads(task: StageTask, k: int, own: Sequence[int]) -> tuple[float, float, float]:
    """Return the slowest device's seconds for these shares, of a token and of a prompt's end, and all squares."""
    *_, end = chunks(task.asked.prompt)
    token, prompt = (_of_token(task, k, own, *rows) for rows in ((1, task.asked.behind), end))
    return float(token.max()), float(prompt.max()), float((token**2).sum())


def _may_help(now: tuple[float, float, float], then: tuple[float, float, float]) -> bool:
    return then[0] < now[0] or then[1] < now[1] or (then[2] < now[2] and then[0] <= now[0])


def _moves(
    task: StageTask, k: int, own: Sequence[int], sizes: tuple[int, int], takers: Sequence[int], *, leaves: bool
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Yield what of k may be moved: from whom to whom, and how many units of each; the least share whole."""
    coarse, size = sizes
    having = [rank for rank in takers if own[rank]]
    if not having:
        return
    step = max(coarse // size, 1)
    while step:
        for givers in dict.fromkeys(_slowest(task, k, own)):
            yield from ((givers, taker, step) for taker in takers if taker not in givers)
        step //= 2
    if not leaves:
        return
    least = min(having, key=lambda rank: own[rank])
    yield from (((least,), taker, -(-own[least] // size)) for taker in takers if taker != least)


def _slowest(task: StageTask, k: int, own: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield who takes longest for these shares of an axis, in a token's pass and in that of a prompt's end.

    That is one device, and where others take as long all of these together.
    """
    *_, end = chunks(task.asked.prompt)
    for rows in ((1, task.asked.behind), end):
        seconds = _of_token(task, k, own, *rows)
        yield (int(seconds.argmax()),)
        yield tuple(np.flatnonzero(seconds >= TIED * seconds.max()).tolist())


def _of_token(task: StageTask, k: int, own: Sequence[int], rows: int, behind: int) -> Floats:
    """Return the seconds of shares of an axis in a pass, [p], of its first block; of words in that of one row."""
    axis, seconds = task.axes[k], np.zeros(task.s.devices)
    passing = (1,) if axis.name == WORD else (rows, behind)
    for rank, count in enumerate(own):
        if count:
            seconds[rank] = task.s.kind_s(axis.first, count, *passing)[rank]
    return seconds


def one_stage(task: StageTask, devices: tuple[str, ...], counts: Counts, system: str = "") -> DecoderPlan:
    """Return the plan of one stage with these counts."""
    stage, words = stage_of(task, counts)
    asked = task.asked
    return DecoderPlan(
        system, devices, (stage,), words,
        wire=asked.wire, precision=asked.precision, cache=asked.cache,
        context=asked.context, sequences=asked.sequences, two_steps_from=two_steps_from(task.s, (stage,)),
    )  # fmt: skip


def stage_of(task: StageTask, counts: Counts) -> tuple[DecoderStage, Partition]:
    """Return the stage of these counts, and the words."""
    *shares, words = map(Partition.of_counts, counts)
    names = (axis.name for axis in task.axes)
    return DecoderStage(task.layers, dict(zip(names, shares, strict=False))), words


def best_shares(task: StageTask, devices: tuple[str, ...]) -> DecoderPlan | None:
    """Return the best plan of one stage; None where memory has no room for any."""
    price, (groups, *finer) = partial(_seconds, task, devices), unit_sizes(task)
    able = int((task.room > 0).sum())
    found: list[tuple[float, int, tuple[int, ...], Counts]] = []

    def solve(counts_of_ranks: range, sizes: tuple[int, ...]) -> None:
        units = units_of(task, sizes)
        many = min(units.counts[1:]) > FEW
        for ranks in counts_of_ranks:
            below_s = min(found)[0] if found else np.inf
            for rounded in (True, False) if many else (False,):
                counts = shares(task, ranks, units, below_s, rounded=rounded)
                if counts is None:
                    break
                if np.isfinite(seconds := price(counts)):
                    found.append((seconds, ranks, sizes, counts))
                    break

    solve(range(1, able + 1), groups)
    for sizes in finer:
        best = min(found)[1] if found else able
        solve(range(best, min(best + 1, able) + 1), sizes)
    if not found:
        return None
    _, _, sizes, counts = min(found)
    every = list(dict.fromkeys((sizes, *finer)))
    for sizes in every:
        counts = descend(task, price, counts, sizes, leaves=sizes == every[-1])
    return one_stage(task, devices, counts)


def _seconds(task: StageTask, devices: tuple[str, ...], counts: Counts) -> float:
    """Return the seconds of an answer; infinite where that cannot be, for memory or as words need a share beside."""
    plan = one_stage(task, devices, counts)
    needs = most_memory(task.s.model, plan)
    taking = plan.stages[0].ranks
    if any(words and rank not in taking for rank, words in enumerate(counts[-1])):
        return np.inf
    if any(needs[rank].total - needs[rank].embedding > task.room[rank] for rank in taking):
        return np.inf
    return answer_seconds(task.s, plan, task.asked)
