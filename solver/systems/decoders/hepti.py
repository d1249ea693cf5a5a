"""Hepti's own plan of a language model: the best of shares in one stage, of any devices, and of stages.

Shares: `solver.programs.decoders.shares`. Stages pay where memory is scarce, and where links are so slow that exchanges
within layers cost more than devices that wait; of several sequences those of PipeEdge, too, whose slowest stage is the
fastest. Layers go to stages by the dynamic program of `solver.programs.path`: a
leg is a set T of devices; its layers take what shares of them do in which all are done at once, or as much as memory
has room for, with their sums, and the hop to them; the last leg has to leave room for the head.
Within a stage of several devices shares are found as for one. Of more than MOST devices it sees the fastest.
Of prompts output products are cut by rows where that is faster: all who have rows hold that product whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from solver.base.arrays import FLOAT_BYTES
from solver.base.errors import InfeasiblePlanError
from solver.base.spans import Span, largest_remainder
from solver.cluster.cluster import MIB, Cluster
from solver.cluster.curves import Floats
from solver.model.decoder import Decoder
from solver.model.kinds.part import HEAD
from solver.plan.decoder_plan import ROWS_BY_MPI, DecoderPlan, DecoderStage, all_on, stage_on, whole_on
from solver.programs.decoders.shares import StageTask, best_shares
from solver.programs.path import Leg, alike_units, best_path
from solver.schedule.decoders.asked import CHUNK_ROWS, TokenRequest
from solver.schedule.decoders.cost import (
    DecoderSetting,
    answer_passes,
    answer_seconds,
    first_seconds,
    price_pass,
    price_token,
    sent_over,
    setting_of,
    sums_s,
)
from solver.schedule.decoders.memory import HELD, decoder_lacks, rank_memory, words_bytes, work_bytes
from solver.systems.decoders.common import WholeLayers, finished, memory_room, plan_of, whole_layers
from solver.systems.decoders.pipeedge import plan_pipeedge

MOST = 8  # devices that the program of stages sees: 3^8 steps
MOST_SHARING = 12  # devices that the program of shares sees
PARTS = 64  # of a prompt's rows
BETWEEN = 8  # steps from the shares of heads to even ones
EXCHANGES = 0.25  # of a token's seconds: from there on stages are tried

ChosenStage = tuple[tuple[int, ...], int]  # ranks, and the number of layers


def plan_hepti(model: Decoder, cluster: Cluster, asked: TokenRequest, *, thorough: bool = False) -> DecoderPlan:
    """Choose the best of shares and stages; `thorough`: whether all that may lead to a better plan is tried.

    Raises
    ------
    InfeasiblePlanError
        If memory has no room: how long the context could be, or how much is missing.
    """
    task, whole = all_shared(model, cluster, asked)
    s, task = task.s, replace(task, thorough=thorough)
    found = [plan] if (plan := best_shares(task)) else []
    if not found or thorough or _is_scarce(task) or _waits(s, found[0], asked):
        found += [plan for plan in [_staged(s, cluster, asked, whole)] if plan is not None]
    if asked.sequences > 1:
        with suppress(InfeasiblePlanError):
            found.append(plan_pipeedge(model, cluster, asked))
    if not found:
        raise _no_room(s, cluster, asked, task)
    found += [other for plan in found for other in [_by_rows(s, cluster, plan, asked)] if other is not None]
    best = min(found, key=lambda plan: answer_seconds(s, plan, asked))
    return finished(s, cluster, asked, replace(best, system="hepti"))


def all_shared(model: Decoder, cluster: Cluster, asked: TokenRequest) -> tuple[StageTask, WholeLayers]:
    """Return the task to share out all layers among the fastest devices, and what whole layers take on each."""
    s = setting_of(model, cluster, asked)
    whole, room = whole_layers(s, cluster, asked), memory_room(model, cluster)
    room[np.argsort(whole.seconds, kind="stable")[MOST_SHARING:]] = -1.0
    return StageTask(s, cluster.names, asked, room, Span(0, len(model.layers))), whole


def _is_scarce(task: StageTask) -> bool:
    """Return whether the fastest device has no room for all: it may be faster with some layers than with a share."""
    if not task.fastest:
        return True
    only = np.arange(task.s.devices) == task.fastest[0]
    return not task.has_room(task.totals[:, None] * only)


def _waits(s: DecoderSetting, plan: DecoderPlan, asked: TokenRequest) -> bool:
    """Return whether exchanges are so much of a token that stages may be better."""
    token = price_token(s, plan, asked.behind).prediction
    return len(plan.stages[0].ranks) > 1 and token.exchange_s > EXCHANGES * token.seconds


def _staged(s: DecoderSetting, cluster: Cluster, asked: TokenRequest, whole: WholeLayers) -> DecoderPlan | None:
    """Return the plan of the best stages, two or more; None where there are none."""
    chosen = best_stages(_sets(s, cluster, asked, whole), len(s.model.layers))
    if not chosen:
        return None
    ranks, stages, words = s.devices, list[DecoderStage](), None
    for (members, _), layers in zip(chosen, _spans(chosen), strict=True):
        last = layers.stop == len(s.model.layers)
        if len(members) == 1:
            stages.append(stage_on(s.model, layers, members[0], ranks))
            words = all_on(members[0], ranks, s.model.vocab)
            continue
        room = np.where(np.isin(np.arange(ranks), members), memory_room(s.model, cluster), -1.0)
        task = StageTask(s, cluster.names, asked, room, layers, words=last)
        own = best_shares(task)
        if own is None:
            return None
        stages += own.stages
        words = own.words
    assert words is not None
    plan = plan_of(asked, cluster.names, stages, words, "hepti")
    return None if decoder_lacks(cluster, rank_memory(s.model, plan)) else plan


def _spans(chosen: list[ChosenStage]) -> Iterator[Span]:
    stops = accumulate((count for _, count in chosen), initial=0)
    return (Span(start, stop) for start, stop in pairwise(stops))


def _by_rows(s: DecoderSetting, cluster: Cluster, plan: DecoderPlan, asked: TokenRequest) -> DecoderPlan | None:
    """Return the plan with prompts' output products cut by rows; None where there are none, or no room for it.

    Rows are shared out as heads are, or more evenly as long as a prompt is sooner read: contexts of own rows are not
    sent, and products of even rows are sooner done. They are cut from so many rows on as it is faster, in halves.
    """
    rows_from = min(asked.prompt, CHUNK_ROWS)
    if rows_from < ROWS_BY_MPI or all(len(stage.ranks) == 1 for stage in plan.stages):
        return None
    best, best_s = None, np.inf
    for step in range(BETWEEN + 1):
        stages = tuple(_with_rows(stage, step / BETWEEN) for stage in plan.stages)
        other = replace(plan, stages=stages, rows_from=rows_from)
        if decoder_lacks(cluster, rank_memory(s.model, other)):
            break
        seconds = first_seconds(s, other, asked.prompt)
        if seconds >= best_s:
            break
        best, best_s = other, seconds
    while best is not None and (fewer := best.rows_from // 2) >= ROWS_BY_MPI:
        other = replace(best, rows_from=fewer)
        if price_pass(s, other, fewer, 0).seconds >= price_pass(s, plan, fewer, 0).seconds:
            break
        best = other
    return best


def _with_rows(stage: DecoderStage, evenly: float) -> DecoderStage:
    """Return a stage with rows as its heads are shared out, at 0, to even ones, at 1; of one device none."""
    if len(stage.ranks) == 1 or HEAD not in stage.shares:
        return stage
    heads = stage.shares[HEAD]
    even = [(rank in stage.ranks) / len(stage.ranks) for rank in range(len(heads))]
    rows = [(1 - evenly) * own / heads.total + evenly * equal for own, equal in zip(heads.counts, even, strict=True)]
    return replace(stage, rows=tuple(largest_remainder(rows, PARTS)), rows_end=True)


@dataclass(frozen=True, slots=True, eq=False)
class StageSet:
    """A set of devices as a stage: the seconds of 0 to L layers, [L + 1], within a path and at its end."""

    ranks: tuple[int, ...]
    seconds: Floats
    last_s: Floats


def _sets(s: DecoderSetting, cluster: Cluster, asked: TokenRequest, whole: WholeLayers) -> list[StageSet]:
    """Return all sets of the fastest devices that hold a layer; none takes all layers: that is no stage."""
    model = s.model
    head = words_bytes(model, model.vocab, HELD[asked.precision]) + FLOAT_BYTES * model.vocab
    free = memory_room(model, cluster)
    able = [rank for rank in np.argsort(whole.seconds, kind="stable").tolist() if free[rank] > 0][:MOST]
    blocks = sum(map(len, model.layers)) / len(model.layers)  # of a mean layer: each ends with a sum
    found = []
    for number in range(1, 1 << len(able)):
        ranks = tuple(sorted(rank for place, rank in enumerate(able) if number >> place & 1))
        sums = sums_s(s, ranks, asked)
        work = work_bytes(model, asked, 0, 0, shared=int(len(ranks) > 1))
        room = np.maximum(free[list(ranks)] - work, 0.0)
        without_head = room * max(1 - head / room.sum(), 0.0) if room.any() else room
        hop_s = sum(one.often * _hop_s(s, ranks, one.rows) for one in answer_passes(asked))
        besides_s = hop_s + np.arange(len(model.layers) + 1) * blocks * sums
        seconds, last_s = (
            besides_s + layers_s(whole.seconds[list(ranks)], own / whole.size, len(model.layers))
            for own in (room, without_head)
        )
        last_s[-1] = np.inf
        if np.isfinite(seconds[1]):
            found.append(StageSet(ranks, seconds, last_s))
    return found


def layers_s(seconds: Floats, holds: Floats, layers: int) -> Floats:
    """Return what 0 to L layers take some devices that share each of them, [L + 1]; infinite where they hold fewer.

    Of n layers device d takes min(T / c_d, m_d) in T seconds: so T is the least for which these add up to n. Whoever is
    full first, by m_d c_d, leaves the rest to the others: T = max over k of (n - m_1 - … - m_k) / (1 / c_k+1 + …).

    Parameters
    ----------
    seconds, holds : [devices]
        c, of a layer by itself, and m, how many layers each has room for.
    """
    order = np.argsort(seconds * holds)
    full = np.cumsum(holds[order]) - holds[order]
    speed = np.cumsum(1 / seconds[order][::-1])[::-1]
    count = np.arange(layers + 1.0)
    took = np.maximum((count[:, None] - full) / speed, 0.0).max(1)
    return np.where(count <= holds.sum(), took, np.inf)


def _hop_s(s: DecoderSetting, ranks: tuple[int, ...], rows: int) -> float:
    """Return the seconds of the stream's way to a stage, from the device with the widest link of the others."""
    others = [rank for rank in range(s.devices) if rank not in ranks]
    if not others:
        return 0.0
    sender = max(others, key=lambda rank: float(s.machine.network.bandwidth[rank]))
    size = float(FLOAT_BYTES * s.model.hidden * rows)
    moved = sent_over(s, [(sender, rank, size) for rank in ranks])
    return float(moved.before.max() + (moved.wire + moved.after).max())


def best_stages(sets: list[StageSet], layers: int) -> list[ChosenStage]:
    """Run the dynamic program; no stages where memory has no room for the layers."""
    devices = sorted({rank for own in sets for rank in own.ranks})
    legs = [
        Leg(tuple(int(rank in own.ranks) for rank in devices), alike_units(own.seconds), last=alike_units(own.last_s))
        for own in sets
    ]
    nothing = np.zeros(1)
    found = best_path(legs, (1,) * len(devices), np.zeros((1, 1, layers + 1)), start=nothing, back=nothing)
    return [] if found is None else [(sets[number].ranks, size) for number, size in found.legs]


def _no_room(s: DecoderSetting, cluster: Cluster, asked: TokenRequest, task: StageTask) -> InfeasiblePlanError:
    """Return the error that says how long the context could be, and of how many, or how much memory is missing."""
    crews = [task.able, *([rank] for rank in task.able)]

    def fits(less: TokenRequest) -> bool:
        smaller = replace(task, asked=less)
        return any(smaller.has_room(counts) for crew in crews if crew for _, counts in smaller.first_shares(crew))

    what = f"{s.model.name} in {asked.precision} with a {asked.cache} cache"
    context = _most(asked.context, lambda tokens: fits(replace(asked, context=tokens)))
    if context:
        several = asked.sequences > 1
        each, wanted = f"{asked.sequences} of " * several, f"a context of {asked.context} tokens"
        room, instead = [f"{each}{context}"], [f"--context {context}"]
        if sequences := _most(asked.sequences, lambda number: fits(replace(asked, sequences=number))):
            room.append(f"{sequences} of {asked.context}")
            instead.append(f"--sequences {sequences}")
        if fits(replace(asked, cache="int8")):
            instead.append("--cache int8")
        if several:
            wanted = f"{asked.sequences} sequences of {asked.context} tokens"
        return InfeasiblePlanError(
            f"{what} has no room for {wanted}, it has for {', or for '.join(room)}: take {', or '.join(instead)}"
        )
    facts = {"precision": asked.precision, "cache": asked.cache, "sequences": asked.sequences}
    needed = rank_memory(s.model, whole_on(s.model, cluster.names, 0, context=1, **facts))[0].total / MIB
    has = sum(device.memory_bytes for device in cluster.devices) / MIB
    return InfeasiblePlanError(
        f"{what} needs {needed:.0f} MiB on one device without any context, more on several; all of them have {has:.0f}"
    )


def _most(asked: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number below `asked`, which does not fit, that does, within a hundredth; 0 if none."""
    least, most = 0, asked
    while most - least > max(least // 100, 1):
        middle = (least + most) // 2
        least, most = (middle, most) if fits(middle) else (least, middle)
    return least
