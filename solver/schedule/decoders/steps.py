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
from solver.model.kinds.part import HIDDEN, NUMBER, ROW, WHOLE, WORD, Part, Spans, Value, whole
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

# What rank 0 says of a pass, int64, and then one for every sequence: that it is one, its shape, whether it chooses the
# scales of an int8 cache, how many candidates a row has, whether some words are not allowed, and whether one more word
# of each row is asked for.
FACTS = 9
OWN, CANDIDATE_NUMBERS = 2, 3  # what a rank tells of itself after a pass, float64, and of a row's likeliest word
HANDED_OUT, CANDIDATES = "tokens", "candidates"  # exchanges by rank 0, before a pass and behind it
BEFORE = -1  # the stage of what is computed before the first one
STREAM_NAME, SUM = "stream", "sum of"
EXACT_NAMES = (STREAM_NAME, HANDED_OUT, CANDIDATES)  # of exchanges whose numbers do not travel as the plan's wire says


@dataclass(frozen=True, slots=True, eq=False)
class PassParts:
    """The parts of a pass, whoever computes what of them.

    Parameters
    ----------
    embedding
        What makes rows of the stream, by words.
    layers
        Layers, and their parts; at last the head's.
    chosen
        Of how many of the last rows the next word is asked for.
    names
        What exchanges are called, by their value's name.
    """

    embedding: PlacedPart
    layers: tuple[tuple[Span, tuple[PlacedPart, ...]], ...]
    chosen: int
    names: Mapping[str, str]


def pass_schedule(
    model: Decoder, plan: DecoderPlan, rows: int, chosen: int = 1, *, folded: bool = False
) -> tuple[AnyStep, ...]:
    """Return what ranks do in a pass of rows, of which the next word of the last `chosen` is asked for.

    Parameters
    ----------
    rows
        Of all sequences together.
    folded
        As of `pass_parts`.
    """
    return planned(pass_parts(model, stages_of(plan, rows), rows, chosen, folded=folded), plan)


def stages_of(plan: DecoderPlan, rows: int) -> tuple[tuple[Span, bool], ...]:
    """Return the layers of a plan's stages, and whether a pass of so many rows is cut by rows there."""
    return tuple((stage.layers, bool(stage.rows) and rows >= plan.rows_from) for stage in plan.stages)


def pass_parts(
    model: Decoder, stages: Sequence[tuple[Span, bool]], rows: int, chosen: int, *, folded: bool = False
) -> PassParts:
    """Return the parts of a pass of rows.

    Parameters
    ----------
    stages
        As of `stages_of`.
    folded
        Whether layers that are alike stand in it once, with how many they are (`solver.schedule.schedule.unfolded`).
    """
    embedding = embedding_part(model, rows)
    x = embedding.writes
    layers: list[tuple[Span, list[PlacedPart]]] = []
    names = {x.name: STREAM_NAME}
    for number, (stage, by_rows) in enumerate(stages):
        for span in _runs(model, stage) if folded else _each(stage):
            parts, x = layer_parts(model, span.start, x)
            layers.append((span, _placed(parts, number, by_rows=by_rows)))
            names |= {part.writes.name: _brings(part) for part in parts}
        if number + 1 < len(stages):
            names[x.name] = STREAM_NAME
    layers.append((NOWHERE, _placed(head_parts(model, x), len(stages) - 1, by_rows=False)))
    every = [placed for _, some in layers for placed in some]
    read = read_rows(every, {every[-1].part.writes.name: Span(rows - chosen, rows)})
    left = {placed.part.name: placed for placed in read}
    found = ((span, tuple(left[own.part.name] for own in some if own.part.name in left)) for span, some in layers)
    return PassParts(PlacedPart(embedding, WORD, stage=BEFORE), tuple(found), chosen, names)


def planned(parts: PassParts, plan: DecoderPlan) -> tuple[AnyStep, ...]:
    """Return what ranks do in a pass under a plan."""
    ranks, spans, stream = len(plan.devices), _cuts([plan]), parts.embedding.part.writes
    for number, stage in enumerate(plan.stages):
        spans[number, WHOLE] = taking(stage.ranks, ranks) * whole(1)
        if stage.rows:
            spans[number, ROW] = _spans([Partition.of_shares(stage.rows, stream.shape[0])])
    layers = [(span, [placed.cut(spans) for placed in some]) for span, some in parts.layers]
    before = ComputeStep(())
    if plan.embedding is None:
        whole_on_0 = replace(parts.embedding, axis=WHOLE, spans=taking([0], ranks) * whole(1))
        before = ComputeStep((whole_on_0,), frozenset([stream.name]))
    else:
        # It is no node of a graph: the first layer's computation begins behind it.
        (span, some), *behind = layers
        first = next(number for number, placed in enumerate(some) if placed.axis != WITH_READER)
        some[first] = replace(some[first], begins=True)
        layers = [(NOWHERE, [parts.embedding.cut(spans)]), (span, some), *behind]
    begins = begins_with(parts.embedding.part, plan)
    given = {begins.name: (begins, some_have(begins, plan.begins, ranks))}
    body = schedule(layers, given, lambda size: size >= plan.two_steps_from, parts.names)
    return before, _tokens(plan, begins), *body, *([_candidates(plan, parts.chosen)] if parts.chosen else ())


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


def planned_alike(steps: Iterable[AnyStep], plans: Sequence[DecoderPlan]) -> list[AnyStep]:
    """Return what ranks do under some plans at once, by steps that `follow_crew`, of a plan of the same structure."""
    spans = _cuts(plans)
    return [step.cut(spans) if isinstance(step, ComputeStep) else step for step in steps]


def _cuts(plans: Sequence[DecoderPlan]) -> dict[tuple[int, str], Spans]:
    """Return who has what under some plans, [n, p, 2], by the stage and the axis that is cut."""
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


def _placed(parts: Iterable[Part], stage: int, *, by_rows: bool) -> list[PlacedPart]:
    """Return parts as the ranks of a stage cut them.

    By rows, what is kept stays where it is: who has it computes with it for all rows, and others go on with theirs. A
    computation begins with what all compute, and where it goes over from one cut to the other.
    """
    found: list[PlacedPart] = []
    before = ROW
    for part in parts:
        axis = WITH_READER
        if part.cut:
            axis = ROW if by_rows else part.kind.axis
        elif by_rows and part.recalls:
            axis = part.kind.axis
        found.append(PlacedPart(part, axis, begins=axis == WHOLE or (by_rows and axis != before), stage=stage))
        before = before if axis == WITH_READER else axis
    return found


def _brings(part: Part) -> str:
    """Return what an exchange is called that brings what a part makes: the sum of a block, rows of the stream, …."""
    if part.kind.axis == WHOLE:
        return ROW
    last = part.writes.name.rpartition("/")[2]
    return f"{SUM} {last}" if part.writes.name == part.block else last


def _spans(partitions: Iterable[Partition]) -> Spans:
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
    at_work = {rank for stage in plan.stages for rank in stage.ranks}
    having = [
        2 * (OWN + CANDIDATE_NUMBERS * chosen * (words.size > 0)) * (rank in at_work)
        for rank, words in enumerate(plan.words)
    ]
    value = Value(CANDIDATES, (NUMBER,), (sum(having),))
    have = {NUMBER: _spans([Partition.of_counts(having)])}
    return ExchangeStep(CANDIDATES, value, (have,), some_have(value, [0], len(plan.devices)))
