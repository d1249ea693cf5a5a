"""The plan within a stage of a language model as an integer program: who takes part, with how many units of what.

Units are query heads, mostly those of a whole group that shares keys and values, blocks of columns, and words. With k
over heads, columns and words, i over the devices, U_k the units that there are; f over the phases, the two halves of
the layers for a token and for a prompt, and the head, omega_f how often each is in an answer; a and b the lines whose
maximum is a device's seconds over its units (the lower hull of its curve, sending its summand included):

    minimise    sum_f omega_f T_f + X
    subject to  (C1)  sum_i u_ki = U_k
                (C2)  u_ki <= U_k z_ki,  z_ki <= y_i,  z_words,i <= z_heads,i + z_columns,i
                (C3)  sum_i y_i = n
                (C4)  m_i y_i + sum_k (c_k z_ki + w_k u_ki) <= M_i            weights, cache, work
                (C5)  T_f >= a z_ki + b u_ki              every line of i, k the units of f
                (C6)  X >= x_i y_i,  X >= x_ij (y_i + y_j - 1)                narrow links i, j
                (C7)  y_i >= y_j,  u_heads,i >= u_heads,j      i and j alike in all numbers, i before j
                      u whole and not negative (columns and words of more than FEW: rounded), y and z 0 or 1

T_f is the slowest device's compute, X the exchanges of an answer among n devices: x_i what they take that i is in.
Every n is solved for, since what an exchange takes depends on it, and heads that are finer than groups for the best n
and the next. The plans that come of it are priced as they will run (`solver.schedule.decoders.cost`); a descent moves
single units between devices, in finer ones than the program has.

The objective is the seconds of an answer: omega is 1 for a prompt's phases, and for a token's as many as are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, groupby, pairwise

import numpy as np

from solver.base.spans import Partition, Span
from solver.cluster.curves import Floats
from solver.model.decoder import DecoderLayer
from solver.plan.decoder_plan import DecoderPlan, DecoderStage, column_unit, head_unit
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
    FLOAT_BYTES,
    HELD,
    attention_bytes,
    cache_bytes,
    mlp_bytes,
    rank_memory,
    words_bytes,
    work_bytes,
)

MOST_UNITS = 32  # of columns, and of words: finer ones are the descent's
WORDS = 32  # the least unit of words
FEW = 16  # units of columns and words: of more they are rounded behind the program
TIED = 0.99  # of the slowest device's seconds
LINE = 1e-3  # of a curve's largest value: lines nearer than that are one

Counts = tuple[tuple[int, ...], ...]  # query heads, columns and words of every device
Lines = Sequence[Sequence[tuple[float, float]]]  # of every device


@dataclass(frozen=True, slots=True, eq=False)
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

    @property
    def totals(self) -> tuple[int, int, int]:
        """Heads, columns and words."""
        layer = self.s.model.layers[self.layers.start]
        return layer.attention.heads, layer.mlp.ffn, self.s.model.vocab * self.words

    @property
    def kinds(self) -> list[tuple[DecoderLayer, int]]:
        """Layers that are alike, and how many."""
        return [(layer, len(list(alike))) for layer, alike in groupby(self.s.model.layers[self.layers.slice])]


def head_units(task: StageTask) -> tuple[int, ...]:
    """Return of how many query heads a unit may be: a whole group, and where blocks allow it less."""
    attention = task.s.model.layers[task.layers.start].attention
    least = head_unit(attention, task.asked.precision)
    return tuple(sorted({int(np.lcm(attention.group, least)), min(least, attention.heads)}, reverse=True))


@dataclass(frozen=True, slots=True, eq=False)
class ShareUnits:
    """What is counted in the program.

    Parameters
    ----------
    sizes, counts
        Of heads, columns and words: of how many a unit is, and U_k.
    token, prompt
        Of heads and columns the lines of every device, in all layers: of a token, and of a prompt's chunks together.
    words
        The lines of every device.
    share_bytes, unit_bytes
        c_k and w_k.
    """

    sizes: tuple[int, int, int]
    counts: tuple[int, ...]
    token: tuple[Lines, Lines]
    prompt: tuple[Lines, Lines]
    words: Lines
    share_bytes: tuple[float, ...]
    unit_bytes: tuple[float, ...]


def units_of(task: StageTask, heads: int) -> ShareUnits:
    """Count in units of so many query heads."""
    sizes, asked = _sizes(task, heads), task.asked
    counts = tuple(-(-total // size) for total, size in zip(task.totals, sizes, strict=True))
    token = _lines(task, sizes, counts, [(1, asked.behind)])
    prompt = _lines(task, sizes, counts, list(chunks(asked.prompt)))
    words = [task.s.words_s(min(unit * sizes[2], task.totals[2])) for unit in range(1, counts[2] + 1)]
    share, unit = zip(*_bytes(task, sizes), strict=True)
    return ShareUnits(sizes, counts, token, prompt, _hulls(task, words), share, unit)


def shares(
    task: StageTask, ranks: int, units: ShareUnits, below_s: float = np.inf, *, rounded: bool = False
) -> Counts | None:
    """Solve the program for so many ranks; None where memory has no room, or nothing takes less than `below_s`."""
    found = least_answer(_program(task, ranks, units), ranks, below_s, rounded=rounded)
    if found is None:
        return None
    return tuple(_clipped(own, size, total) for own, size, total in zip(found, units.sizes, task.totals, strict=True))


def _sizes(task: StageTask, heads: int) -> tuple[int, int, int]:
    """Return the sizes of units: heads, columns and words."""
    _, columns, words = (-(-total // MOST_UNITS) for total in task.totals)
    block = column_unit(task.asked.precision)
    return heads, -(-columns // block) * block, -(-words // WORDS) * WORDS or WORDS


def _clipped(units: Sequence[int], size: int, total: int) -> tuple[int, ...]:
    """Return how many of `total` consecutive units of this size are; the last may not be full."""
    stops = [min(size * stop, total) for stop in accumulate(units, initial=0)]
    return tuple(stop - start for start, stop in pairwise(stops))


def _program(task: StageTask, ranks: int, units: ShareUnits) -> SharesProgram:
    s, asked, layers = task.s, task.asked, task.layers.size
    tokens, prompt = _exchanges(task, ranks)
    sends, joins = np.stack([[own.before[i], own.wire[i] + own.after[i]] for i, own in enumerate(tokens)], axis=1)
    sends_prompt, joins_prompt = np.zeros((2, s.devices))
    for often, every in prompt:
        sends_prompt += often * np.array([own.before[i] for i, own in enumerate(every)])
        joins_prompt += often * np.array([own.wire[i] + own.after[i] for i, own in enumerate(every)])
    back = [sent_over(s, [(rank, 0, CANDIDATE_BYTES)]) for rank in range(s.devices)]
    candidates = np.array([float((own.before + own.wire + own.after).max()) for own in back])
    # Candidates go back when the slowest has them: what that takes is a phase of its own.
    phases = [(2, 1.0 + asked.tokens, lines) for lines in (units.words, [[(own, 0.0)] for own in candidates.tolist()])]
    for k in (0, 1):
        phases.append((k, float(asked.tokens), _later(units.token[k], layers * sends)))
        phases.append((k, 1.0, _later(units.prompt[k], layers * sends_prompt)))
    own = work_bytes(s.model, ranks, 0, 0, asked.context)
    return SharesProgram(
        units.counts, phases, 2 * layers * (asked.tokens * joins + joins_prompt), list(_pairs(task, ranks)),
        task.room, np.full(s.devices, float(own)), units.share_bytes, units.unit_bytes,
    )  # fmt: skip


def _later(lines: Lines, seconds: Floats) -> Lines:
    return [[(a + later, b) for a, b in own] for own, later in zip(lines, seconds.tolist(), strict=True)]


def _lines(
    task: StageTask, sizes: Sequence[int], counts: Sequence[int], passes: Sequence[tuple[int, int]]
) -> tuple[Lines, Lines]:
    """Return the lines of heads and of columns on every device, in all layers of passes of (rows, behind)."""
    s = task.s

    def attends(unit: int) -> Floats:
        heads, found = min(unit * sizes[0], task.totals[0]), np.zeros(s.devices)
        for layer, often in task.kinds:
            for rows, behind in passes:
                found += often * s.attention_s(layer.attention, heads, rows, behind)
        return found

    def computes(unit: int) -> Floats:
        columns, found = min(unit * sizes[1], task.totals[1]), np.zeros(s.devices)
        for layer, often in task.kinds:
            for rows, _ in passes:
                found += often * s.mlp_s(layer.mlp, columns, rows)
        return found

    heads, columns = (
        _hulls(task, [seconds(unit) for unit in range(1, count + 1)])
        for count, seconds in zip(counts, (attends, computes), strict=False)
    )
    return heads, columns


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


def _bytes(task: StageTask, sizes: Sequence[int]) -> Iterator[tuple[float, float]]:
    """Yield what a share of heads, columns and words takes beside its units, and what a unit does.

    Of less than a group it is counted as if the share began and ended within groups, at the worst.
    """
    model, asked = task.s.model, task.asked
    held = HELD[asked.precision]
    rows, tokens = min(CHUNK_ROWS, asked.context), asked.context * asked.sequences

    def heads(count: int) -> int:
        taken = 0
        for layer, often in task.kinds:
            own = layer.attention
            cut = sizes[0] % own.group and 2
            kv = min(own.kv_span(Span(0, count)).size + (cut and 1), own.kv_heads)
            taken += often * attention_bytes(model, own, count, kv, held)
            taken += often * cache_bytes(own, kv, asked.cache, tokens)
        own = task.kinds[0][0].attention
        return taken + FLOAT_BYTES * rows * (count + 2 * own.kv_span(Span(0, count)).size) * own.head_dim

    def columns(count: int) -> int:
        taken = sum(often * mlp_bytes(model, layer.mlp, count, held) for layer, often in task.kinds)
        return taken + FLOAT_BYTES * rows * (1 + task.kinds[0][0].mlp.gated) * count

    def words(count: int) -> int:
        return words_bytes(model, count, held) + FLOAT_BYTES * count

    for total, size, taken in zip(task.totals, sizes, (heads, columns, words), strict=True):
        one, every = taken(min(size, total)), taken(total)
        units = max(-(-total // size), 1)
        slope = (every - one) / (units - 1) if units > 1 else float(every)
        # The line through one and all; where steps are whole groups, a share may take more than it by one of them.
        above = max((taken(min(unit * size, total)) - slope * unit for unit in range(1, units + 1)), default=0.0)
        yield max(above, 0.0), slope


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
        yield one, other, 2 * task.layers.size * seconds


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
    task: StageTask, price: Callable[[Counts], float], counts: Counts, heads: int, *, leaves: bool = True
) -> Counts:
    """Move units between devices as long as that makes a plan cheaper: coarse ones, then finer ones, or a whole share.

    Where two devices are equally slow, what takes from one of them saves nothing yet: then the squares of the devices'
    seconds must become fewer.

    Parameters
    ----------
    price
        Of counts.
    heads
        Query heads of a unit.
    leaves
        Whether whole shares are moved.
    """
    finest = heads, column_unit(task.asked.precision), WORDS
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
        for givers, taker, moved in _moves(task, k, counts[k], finest, taking, leaves=leaves):
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
    task: StageTask, k: int, own: Sequence[int], finest: Sequence[int], takers: Sequence[int], *, leaves: bool
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Yield what of k may be moved: from whom to whom, and how many units of each; the least share whole."""
    coarse, size = _sizes(task, finest[0])[k], finest[k]
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
    """Yield who takes longest for these heads, columns or words, in a token's pass and in that of a prompt's end.

    That is one device, and where others take as long all of these together.
    """
    *_, end = chunks(task.asked.prompt)
    for rows in ((1, task.asked.behind), end):
        seconds = _of_token(task, k, own, *rows)
        yield (int(seconds.argmax()),)
        yield tuple(np.flatnonzero(seconds >= TIED * seconds.max()).tolist())


def _of_token(task: StageTask, k: int, own: Sequence[int], rows: int, behind: int) -> Floats:
    """Return the seconds of these heads, columns or words in a pass, [p], of the first layer or of the head."""
    s, layer, seconds = task.s, task.s.model.layers[task.layers.start], np.zeros(task.s.devices)
    for rank, count in enumerate(own):
        if count and k == 0:
            seconds[rank] = s.attention_s(layer.attention, count, rows, behind)[rank]
        elif count:
            seconds[rank] = (s.mlp_s(layer.mlp, count, rows) if k == 1 else s.words_s(count))[rank]
    return seconds


def one_stage(task: StageTask, devices: tuple[str, ...], counts: Counts, system: str = "") -> DecoderPlan:
    """Return the plan of one stage with these counts."""
    heads, columns, words = map(Partition.of_counts, counts)
    asked, stages = task.asked, (DecoderStage(task.layers, heads, columns),)
    return DecoderPlan(
        system, devices, stages, words,
        wire=asked.wire, precision=asked.precision, cache=asked.cache,
        context=asked.context, sequences=asked.sequences, two_steps_from=two_steps_from(task.s, stages),
    )  # fmt: skip


def best_shares(task: StageTask, devices: tuple[str, ...]) -> DecoderPlan | None:
    """Return the best plan of one stage; None where memory has no room for any."""
    price, (groups, *finer) = partial(_seconds, task, devices), head_units(task)
    able = int((task.room > 0).sum())
    found: list[tuple[float, int, int, Counts]] = []

    def solve(counts_of_ranks: range, heads: int) -> None:
        units = units_of(task, heads)
        many = min(units.counts[1:]) > FEW
        for ranks in counts_of_ranks:
            below_s = min(found)[0] if found else np.inf
            for rounded in (True, False) if many else (False,):
                counts = shares(task, ranks, units, below_s, rounded=rounded)
                if counts is None:
                    break
                if np.isfinite(seconds := price(counts)):
                    found.append((seconds, ranks, heads, counts))
                    break

    solve(range(1, able + 1), groups)
    for heads in finer:
        best = min(found)[1] if found else able
        solve(range(best, min(best + 1, able) + 1), heads)
    if not found:
        return None
    _, _, heads, counts = min(found)
    sizes = list(dict.fromkeys((heads, *finer)))
    for size in sizes:
        counts = descend(task, price, counts, size, leaves=size == sizes[-1])
    return one_stage(task, devices, counts)


def _seconds(task: StageTask, devices: tuple[str, ...], counts: Counts) -> float:
    """Return the seconds of an answer; infinite where that cannot be, for memory or as words need a share beside."""
    plan = one_stage(task, devices, counts)
    needs = rank_memory(task.s.model, plan)
    taking = plan.stages[0].ranks
    if any(words and rank not in taking for rank, words in enumerate(counts[2])):
        return np.inf
    if any(needs[rank].total - needs[rank].embedding > task.room[rank] for rank in taking):
        return np.inf
    return answer_seconds(task.s, plan, task.asked)
