"""What a language model's plan does in a pass: its parts as they are placed, and the schedule that follows from it.

A pass begins on rank 0, which embeds tokens and hands out rows, or hands out tokens where others have words of the
embedding; and it ends there with the candidates of those who have words of the head. Both exchanges carry more than a
value, and rank 0 says with the first what is to be computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np

from solver.base.spans import Partition, Span
from solver.model.decoder import Decoder, embedding_part, head_parts, layer_parts
from solver.model.kinds.attention import PARTIAL
from solver.model.kinds.part import HIDDEN, KEY, NUMBER, ROW, WHOLE, WORD, Part, Spans, Value, whole
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.regions import some_have, spans_of, taking
from solver.schedule.schedule import (
    NOWHERE,
    WITH_READER,
    AnyStep,
    ComputeStep,
    ExchangeStep,
    PlacedPart,
    read_rows,
    schedule,
)
from solver.schedule.stretches import PassRows, rows_to_add

# What rank 0 says of a pass, int64, and then one for every sequence: that it is one, its shape, whether it chooses the
# scales of an int8 cache, how many candidates a row has, whether some words are not allowed, and whether one more word
# of each row is asked for.
FACTS = 9
OWN, CANDIDATE_NUMBERS = 2, 3  # what a rank tells of itself after a pass, float64, and of a row's likeliest word
HANDED_OUT, CANDIDATES = "tokens", "candidates"  # exchanges by rank 0, before a pass and after it
BEFORE = -1  # the stage of what is computed before the first one
StageShares = Mapping[tuple[int, str], Spans]  # who has what under some plans, [n, p, 2], by the stage and what is cut
STREAM_NAME, SUM = "stream", "sum of"
# Of exchanges whose numbers do not travel as the plan's wire says.
EXACT_NAMES = (STREAM_NAME, PARTIAL, HANDED_OUT, CANDIDATES)


@dataclass(frozen=True, slots=True, eq=False)
class PassParts:
    """The parts of a pass, whoever computes what of them.

    Parameters
    ----------
    embedding
        What makes rows of the stream, by words.
    layers
        Layers, and their parts; at last the head's.
    names
        What exchanges are called, by their value's name.
    """

    embedding: PlacedPart
    layers: tuple[tuple[Span, tuple[PlacedPart, ...]], ...]
    names: Mapping[str, str]


def pass_schedule(model: Decoder, plan: DecoderPlan, rows: PassRows, *, folded: bool = False) -> tuple[AnyStep, ...]:
    """Return what ranks do in a pass.

    Parameters
    ----------
    rows
        As of `pass_rows`, or counted in stretches.
    folded
        As of `pass_parts`.
    """
    return planned(pass_parts(model, stages_of(plan, rows), rows.count, rows.asked, folded=folded), plan, rows)


def pass_rows(model: Decoder, plan: DecoderPlan, rows: int, chosen: int) -> PassRows:
    """Return the rows of a pass, of all sequences together, and where a plan cuts them.

    Of the last `chosen` the next word is asked for.
    """
    every, asked, columns = Span(0, rows), Span(rows - chosen, rows), model.stream.value("", rows).shape[1]
    by_rows = [stage.rows if rows >= plan.rows_from else () for stage in plan.stages]
    shares = tuple(tuple(Partition.of_shares(own, rows)) if own else () for own in by_rows)
    sums = (
        (some, ranks, rows_to_add(some, columns, ranks) if some.size >= plan.two_steps_from else None)
        for some in dict.fromkeys([every, asked])
        for ranks in _crews(plan)
        if some.size
    )
    return PassRows(rows, asked, shares, tuple(sums))


def _crews(plan: DecoderPlan) -> list[int]:
    """Return of how many ranks those are that may want a sum: who has some of what is cut along an axis."""
    stages = ((*stage.shares.values(), *stage.outputs.values()) for stage in plan.stages)
    every = [own.taking for some in (*stages, (plan.words, plan.hidden or plan.words)) for own in some]
    sizes = {*map(sum, every), *(len(stage.ranks) for stage in plan.stages)}
    return sorted(size for size in sizes if size > 1)


@dataclass(frozen=True, slots=True)
class StageCuts:
    """How a pass is cut in a stage.

    Parameters
    ----------
    by_rows
        Whether what follows contexts is cut by rows: all of the layer, or, where `rows_end`, the output product alone.
    outputs
        Along which axes blocks are cut whose results are cut by columns.
    dealt
        As of `BlockKind.among`.
    by_hidden
        Of the last stage: whether ranks have summands of all logits.
    """

    layers: Span
    by_rows: bool = False
    rows_end: bool = False
    outputs: frozenset[str] = frozenset()
    dealt: tuple[int, ...] = ()
    by_hidden: bool = False


def stages_of(plan: DecoderPlan, rows: PassRows) -> tuple[StageCuts, ...]:
    """Return how a pass of some rows is cut in a plan's stages."""
    found = []
    for stage, by_rows in zip(plan.stages, map(bool, rows.shares), strict=True):
        rows_end, by_hidden = by_rows and stage.rows_end, plan.hidden is not None
        outputs = frozenset(() if by_rows and not rows_end else stage.outputs)
        found.append(StageCuts(stage.layers, by_rows, rows_end, outputs, stage.dealt, by_hidden))
    return tuple(found)


def pass_parts(
    model: Decoder, stages: Sequence[StageCuts], rows: int, asked: Span, *, folded: bool = False
) -> PassParts:
    """Return the parts of a pass of rows.

    Parameters
    ----------
    stages
        As of `stages_of`.
    asked
        The rows of which the next word is asked for.
    folded
        Whether layers that are alike stand in it once, with how many they are (`solver.schedule.schedule.unfolded`).
    """
    embedding = embedding_part(model, rows)
    x = embedding.writes
    layers: list[tuple[Span, list[PlacedPart]]] = []
    names = {x.name: STREAM_NAME}
    for number, stage in enumerate(stages):
        for span in _runs(model, stage.layers) if folded else _each(stage.layers):
            parts, x = layer_parts(model, span.start, x, stage.dealt)
            placed = _placed(parts, number, stage)
            layers.append((span, placed))
            names |= {own.part.writes.name: _brings(own) for own in placed}
        if number + 1 < len(stages):
            names[x.name] = STREAM_NAME
    head = _placed(head_parts(model, x, summed=stages[-1].by_hidden), len(stages) - 1, StageCuts(NOWHERE))
    if stages[-1].by_rows and not stages[-1].rows_end:
        # Also where the rank that has all words has all rows that are asked for: so it needs no graph of its own.
        head = _begun(head)
    layers.append((NOWHERE, head))
    names |= {own.part.writes.name: _brings(own) for own in head}
    every = [placed for _, some in layers for placed in some]
    read = read_rows(every, {every[-1].part.writes.name: asked})
    left = {placed.part.name: placed for placed in read}
    found = ((span, tuple(left[own.part.name] for own in some if own.part.name in left)) for span, some in layers)
    return PassParts(PlacedPart(embedding, WORD, stage=BEFORE), tuple(found), names)


def planned(parts: PassParts, plan: DecoderPlan, rows: PassRows) -> tuple[AnyStep, ...]:
    """Return what ranks do in a pass under a plan."""
    ranks, spans, stream = len(plan.devices), cuts_of([plan]), parts.embedding.part.writes
    for number, stage in enumerate(plan.stages):
        spans[number, WHOLE] = taking(stage.ranks, ranks) * whole(1)
        if rows.shares[number]:
            spans[number, ROW] = _spans([rows.shares[number]])
        if stage.keys:
            spans[number, KEY] = _spans([Partition.of_counts(int(own > 0) for own in stage.keys)])
        for axis, columns in stage.outputs.items():
            spans[number, output_of(axis)] = -(-_spans([columns]) // stream.shape[-1])
    if plan.hidden is not None:
        spans[len(plan.stages) - 1, HIDDEN] = -(-_spans([plan.hidden]) // stream.shape[-1])
    layers = [(span, [placed.cut(spans) for placed in some]) for span, some in parts.layers]
    before = ComputeStep(())
    if plan.embedding is None:
        whole_on_0 = replace(parts.embedding, axis=WHOLE, spans=taking([0], ranks) * whole(1))
        before = ComputeStep((whole_on_0,), frozenset([stream.name]))
    else:
        # It is no node of a graph: the first layer's computation begins after it.
        (span, some), *others = layers
        layers = [(NOWHERE, [parts.embedding.cut(spans)]), (span, _begun(some)), *others]
    begins = begins_with(parts.embedding.part, plan)
    given = {begins.name: (begins, some_have(begins, plan.begins, ranks))}
    body, chosen = schedule(layers, given, rows.summed, parts.names), rows.asked.size
    return before, _tokens(plan, begins), *body, *([_candidates(plan, chosen)] if chosen else ())


def _begun(parts: Sequence[PlacedPart]) -> list[PlacedPart]:
    """Return parts of which the first that is cut begins a computation."""
    first = next(number for number, placed in enumerate(parts) if placed.axis != WITH_READER)
    return [replace(own, begins=True) if number == first else own for number, own in enumerate(parts)]


def before_pass(step: ComputeStep) -> bool:
    """Return whether it is what rank 0 does before it hands out anything: it embeds, or nothing is computed."""
    return all(own.stage == BEFORE and own.axis == WHOLE for own in step.placed)


def begins_with(embedding: Part, plan: DecoderPlan) -> Value:
    """Return what rank 0 hands out in the beginning: the stream that it has embedded, or tokens."""
    return embedding.writes if plan.embedding is None else embedding.reads[0]


def follow_crew(steps: Iterable[AnyStep]) -> bool:
    """Return whether exchanges follow from who has some of what: no value has an axis of which there is more or less.

    Then they are the same under all plans of one structure.
    """
    return all({ROW, HIDDEN, NUMBER}.issuperset(step.value.axes) for step in steps if isinstance(step, ExchangeStep))


def planned_alike(steps: Iterable[AnyStep], cuts: StageShares) -> list[AnyStep]:
    """Return what ranks do by steps that `follow_crew`, of a plan, under some plans of its structure at once."""
    return [step.cut(cuts) if isinstance(step, ComputeStep) else step for step in steps]


def cuts_of(plans: Sequence[DecoderPlan]) -> dict[tuple[int, str], Spans]:
    """Return who has what under some plans."""
    found = {}
    for number, stages in enumerate(zip(*(plan.stages for plan in plans), strict=True)):
        for axis in stages[0].shares:
            found[number, axis] = _spans(stage.shares[axis] for stage in stages)
    found[len(plans[0].stages) - 1, WORD] = _spans(plan.words for plan in plans)
    if some := [plan.embedding for plan in plans if plan.embedding is not None]:
        found[BEFORE, WORD] = _spans(some)
    return found


def _each(stage: Span) -> Iterator[Span]:
    return (Span(number, number + 1) for number in range(stage.start, stage.stop))


def _runs(model: Decoder, stage: Span) -> Iterator[Span]:
    """Yield layers that are alike: the first, then the others together, of which a stage's last is alone again.

    The second of a model is alone, too: what is computed with it may read what the first one begins with.
    """
    start = stage.start
    for _, alike in groupby(model.layers[stage.slice]):
        stop = start + len(list(alike))
        alone = {start, start + 1, start + 1 + (start == 0), stop - (stop == stage.stop), stop}
        edges = sorted(edge for edge in alone if start <= edge <= stop)
        yield from (Span(one, other) for one, other in pairwise(edges))
        start = stop


def _placed(parts: Sequence[Part], stage: int, cuts: StageCuts) -> list[PlacedPart]:
    """Return parts as the ranks of a stage cut them.

    By rows, what is kept stays where it is: who has it computes with it for all rows, and others go on with theirs. A
    computation begins with what all compute, and where it goes over from one cut to the other: there rows may end that
    nobody reads. Where columns of a result are shared out, what they are sums over is made as shares say, and goes to
    all of them.
    """
    by_rows = _by_rows(parts, cuts)
    outputs = {
        part.name
        for part in parts
        if part.cut and HIDDEN in part.axes and part.kind.axis in cuts.outputs and part.name not in by_rows
    }
    summed = {value.name for part in parts if part.name in outputs for value in part.reads}
    found: list[PlacedPart] = []
    before = WHOLE if cuts.rows_end else ROW
    for part in parts:
        axis, share = WITH_READER, ""
        if part.along is not None:
            axis, share, _ = part.along
        elif part.name in outputs:
            axis, share = HIDDEN, output_of(part.kind.axis)
        elif part.cut:
            axis = ROW if part.name in by_rows else part.kind.axis
        elif part.writes.name in summed or (cuts.by_rows and part.recalls):
            axis = part.kind.axis
        over = KEY in (axis, before) or (cuts.by_rows and (axis == ROW) != (before == ROW))
        begins = axis != WITH_READER and (over or axis == WHOLE or part.name in outputs)
        found.append(PlacedPart(part, axis, begins=begins, stage=stage, share=share))
        before = before if axis == WITH_READER else axis
    return found


def _by_rows(parts: Sequence[Part], cuts: StageCuts) -> set[str]:
    """Return the names of the parts that are cut by rows: those that are cut, or those of what recalls alone."""
    if not cuts.by_rows:
        return set()
    recalling = {part.block for part in parts if part.recalls}
    return {part.name for part in parts if part.cut and (part.block in recalling or not cuts.rows_end)}


def output_of(axis: str) -> str:
    """Return what columns of a result are called: a block's, or those of all blocks that are cut along an axis."""
    return f"output of {axis}"


def _brings(placed: PlacedPart) -> str:
    """Return what an exchange is called that brings what a part makes: the sum of a block, rows of the stream, …."""
    part = placed.part
    if part.kind.axis == WHOLE:
        return ROW
    last = part.writes.name.rpartition("/")[2]
    if part.writes.name != part.block:
        return last
    return output_of(last) if placed.axis in (HIDDEN, ROW) else f"{SUM} {last}"


def _spans(partitions: Iterable[Iterable[Span]]) -> Spans:
    """Return the spans of plans, [n, p, 2]."""
    return np.array([[(span.start, span.stop) for span in own] for own in partitions], np.int64)


def _tokens(plan: DecoderPlan, begins: Value) -> ExchangeStep:
    """Return how all hear what to compute, some with what a pass begins with; in numbers of float32."""
    facts = 2 * (FACTS + plan.sequences)
    value = Value(HANDED_OUT, (NUMBER,), (facts + int(np.prod(begins.shape)),))
    sizes = [value.shape[0] if rank in plan.begins else facts for rank in range(len(plan.devices))]
    want = spans_of([(0, size) for size in sizes])
    return ExchangeStep(HANDED_OUT, value, (some_have(value, [0], len(plan.devices)),), {NUMBER: want})


def _candidates(plan: DecoderPlan, chosen: int) -> ExchangeStep:
    """Return how rank 0 hears of everybody's work, and of the likeliest words; in numbers of float32."""
    at_work = plan.active
    having = [
        2 * (OWN + CANDIDATE_NUMBERS * chosen * (words.size > 0)) * (rank in at_work)
        for rank, words in enumerate(plan.words)
    ]
    value = Value(CANDIDATES, (NUMBER,), (sum(having),))
    have = {NUMBER: _spans([Partition.of_counts(having)])}
    return ExchangeStep(CANDIDATES, value, (have,), some_have(value, [0], len(plan.devices)))
