"""What a language model's plan does in a pass: its parts as they are placed, and the schedule that follows from it.

A pass begins on rank 0, which embeds tokens and hands them out, and ends there with the candidates of those who have
words: both exchanges carry more than a value, and rank 0 says with the first what is to be computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise

import numpy as np

from solver.base.spans import Partition, Span
from solver.model.decoder import STREAM, Decoder, head_parts, layer_parts
from solver.model.kinds.part import FFN, HEAD, NUMBER, ROW, WORD, Part, Region, Value
from solver.plan.decoder_plan import DecoderPlan, DecoderStage
from solver.schedule.regions import spans_of
from solver.schedule.schedule import WHOLE, WITH_READER, AnyStep, ExchangeStep, PlacedPart, read_rows, schedule

# Along which axis the ranks of a stage cut parts; those before them are computed with them.
CUTS: Mapping[str, str] = {"output": HEAD, "down": FFN, "join": WHOLE}
BY_ROWS: Mapping[str, str] = {"contexts": HEAD, "output": ROW, "down": ROW, "join": ROW}
# What rank 0 says of a pass, int64, and then one for every sequence: that it is one, its shape, how many candidates a
# row has, whether some words are not allowed, and whether one more word of each row is asked for.
FACTS = 9
OWN, CANDIDATE_NUMBERS = 2, 3  # what a rank tells of itself after a pass, float64, and of a row's likeliest word
BY_RANK_0 = ("tokens", "candidates")  # exchanges
# Exchanges by what they bring, and those whose numbers travel as the plan's wire says.
STREAM_NAME = "stream"
NAMES = {
    "attention": "sum of attention", "mlp": "sum of mlp", "attention/contexts": "contexts", "mlp/joined": "rows",
}  # fmt: skip
CODED = tuple(NAMES.values())


def pass_schedule(
    model: Decoder, plan: DecoderPlan, rows: int, chosen: int = 1, *, folded: bool = False
) -> tuple[AnyStep, ...]:
    """Return what ranks do in a pass of rows, of which the next word of the last `chosen` is asked for.

    Parameters
    ----------
    rows
        Of all sequences together.
    folded
        Whether layers that are alike stand in it once, with how many they are: enough for a price.
    """
    x = model.stream.value(STREAM, rows)
    begin = x
    layers: list[tuple[Span, list[PlacedPart]]] = []
    for stage in plan.stages:
        for span in _runs(model, stage, last=chosen < rows and stage is plan.stages[-1]) if folded else _each(stage):
            parts, x = layer_parts(model, span.stop - 1, x)
            layers.append((span, [_placed(part, stage, by_rows=_by_rows(plan, stage, rows)) for part in parts]))
    end = [PlacedPart(part, WORD, _spans(plan.words)) for part in head_parts(model, x)]
    wanted = {end[-1].part.writes.name: Span(rows - chosen, rows)}
    read = iter(read_rows([*(own for _, some in layers for own in some), *end], wanted))
    left = {placed.part.name: placed for placed in read}
    kept = [(span, [left[own.part.name] for own in some if own.part.name in left]) for span, some in layers]
    kept.append((Span(0, 0), [left[own.part.name] for own in end if own.part.name in left]))
    given = {STREAM: (begin, some_have(begin, plan.stages[0].ranks, len(plan.devices)))}
    body = schedule(kept, given, lambda size: size >= plan.two_steps_from, _names(plan))
    return _tokens(plan, begin), *body, *(_candidates(plan, chosen) if chosen else ())


def _each(stage: DecoderStage) -> Iterator[Span]:
    return (Span(number, number + 1) for number in range(stage.layers.start, stage.layers.stop))


def _runs(model: Decoder, stage: DecoderStage, *, last: bool) -> Iterator[Span]:
    """Yield layers that are alike: the first, then the others together; of the model's end the `last` by itself."""
    start = stage.layers.start
    for _, alike in groupby(model.layers[stage.layers.slice]):
        stop = start + len(list(alike))
        ends = {start, start + 1, stop, stop - (last and stop == stage.layers.stop)}
        edges = sorted(end for end in ends if start <= end <= stop)
        yield from (Span(one, other) for one, other in pairwise(edges))
        start = stop


def _by_rows(plan: DecoderPlan, stage: DecoderStage, rows: int) -> bool:
    """Return whether a pass of so many rows is cut by rows in a stage."""
    return bool(stage.rows) and rows >= plan.rows_from


def _placed(part: Part, stage: DecoderStage, *, by_rows: bool) -> PlacedPart:
    axis = (BY_ROWS if by_rows else CUTS).get(part.role, WITH_READER)
    if axis == WITH_READER:
        return PlacedPart(part, axis)
    if axis == WHOLE:
        taking = np.isin(np.arange(len(stage.heads)), stage.ranks)
        return PlacedPart(part, axis, spans_of(np.stack([0 * taking, taking], -1)), begins=True)
    begins = by_rows and part.role in ("contexts", "output")
    if axis == ROW:
        return PlacedPart(part, axis, _spans(Partition.of_shares(stage.rows, part.axes[ROW])), begins=begins)
    return PlacedPart(part, axis, _spans(stage.heads if axis == HEAD else stage.columns), begins=begins)


def _spans(partition: Partition) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return spans_of([(span.start, span.stop) for span in partition])


def some_have(value: Value, ranks: Sequence[int], devices: int) -> Region:
    """Return that some ranks have all of a value."""
    taking = np.isin(np.arange(devices), list(ranks)).astype(np.int64)
    return {
        axis: np.stack([0 * taking, length * taking], -1)[None]
        for axis, length in zip(value.axes, value.shape, strict=True)
    }


def _names(plan: DecoderPlan) -> dict[str, str]:
    """Return what exchanges are called, by their value's name; what goes from stage to stage is the stream."""
    found = {STREAM: STREAM_NAME}
    for stage in plan.stages:
        layers = range(stage.layers.start, stage.layers.stop)
        found |= {f"layers/{number}/{value}": name for number in layers for value, name in NAMES.items()}
        if stage is not plan.stages[-1]:
            found[f"layers/{layers[-1]}/mlp/joined"] = STREAM_NAME
    return found


def _tokens(plan: DecoderPlan, stream: Value) -> ExchangeStep:
    """Return how all hear what to compute, the first stage with the embedded tokens; in numbers of float32."""
    facts = 2 * (FACTS + plan.sequences)
    value = Value("tokens", (NUMBER,), (facts + int(np.prod(stream.shape)),))
    sizes = [value.shape[0] if rank in plan.stages[0].ranks else facts for rank in range(len(plan.devices))]
    want = spans_of([(0, size) for size in sizes])
    return ExchangeStep("tokens", value, (some_have(value, [0], len(plan.devices)),), {NUMBER: want})


def _candidates(plan: DecoderPlan, chosen: int) -> Iterator[ExchangeStep]:
    """Yield how rank 0 hears of everybody's work, and of the likeliest words; in numbers of float32."""
    at_work = {rank for stage in plan.stages for rank in stage.ranks}
    having = [
        2 * (OWN + CANDIDATE_NUMBERS * chosen * (words.size > 0)) * (rank in at_work)
        for rank, words in enumerate(plan.words)
    ]
    value = Value("candidates", (NUMBER,), (sum(having),))
    have = {NUMBER: _spans(Partition.of_counts(having))}
    yield ExchangeStep("candidates", value, (have,), some_have(value, [0], len(plan.devices)))
