"""What a language model's plan does in a pass: its parts as they are placed, and the schedule that follows from it.

A pass begins on rank 0, which embeds tokens and hands them out, and ends there with the candidates of those who have
words: both exchanges carry more than a value, and rank 0 says with the first what is to be computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np

from solver.base.spans import Partition, Span
from solver.model.decoder import STREAM, Decoder, head_parts, layer_parts
from solver.model.kinds.part import FFN, HEAD, NUMBER, WORD, Part, Region, Spans, Value
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.regions import Lengths, spans_of
from solver.schedule.schedule import NOWHERE, WHOLE, WITH_READER, AnyStep, ExchangeStep, PlacedPart, read_rows, schedule

# Along which axis the ranks of a stage cut the last part of a block; the parts before it are computed with it.
CUTS: Mapping[str, str] = {"output": HEAD, "down": FFN, "join": WHOLE}
# What rank 0 says of a pass, int64, and then one for every sequence: that it is one, its shape, how many candidates a
# row has, whether some words are not allowed, and whether one more word of each row is asked for.
FACTS = 9
OWN, CANDIDATE_NUMBERS = 2, 3  # what a rank tells of itself after a pass, float64, and of a row's likeliest word
BY_RANK_0 = ("tokens", "candidates")  # exchanges
SUMS = {"attention": "sum of attention", "mlp": "sum of mlp"}


@dataclass(frozen=True, slots=True, eq=False)
class PassParts:
    """The parts of a pass, whoever computes what of them.

    Parameters
    ----------
    begin
        The stream that rank 0 has embedded.
    layers
        The stage of some layers, these, and their parts; at last the head's.
    chosen
        Of how many of the last rows the next word is asked for.
    names
        What exchanges are called, by their value's name.
    """

    begin: Value
    layers: tuple[tuple[int, Span, tuple[PlacedPart, ...]], ...]
    chosen: int
    names: Mapping[str, str]


def pass_schedule(model: Decoder, plan: DecoderPlan, rows: int, chosen: int = 1) -> tuple[AnyStep, ...]:
    """Return what ranks do in a pass of rows, of which the next word of the last `chosen` is asked for.

    Parameters
    ----------
    rows
        Of all sequences together.
    """
    parts = pass_parts(model, [stage.layers for stage in plan.stages], rows, chosen)
    return planned(pass_structure(parts, plan), [plan])[0]


def pass_parts(model: Decoder, stages: Sequence[Span], rows: int, chosen: int, *, folded: bool = False) -> PassParts:
    """Return the parts of a pass of rows through stages of these layers.

    Parameters
    ----------
    folded
        Whether layers that are alike stand in it once, with how many they are: enough for a price.
    """
    x = begin = model.stream.value(STREAM, rows)
    layers: list[tuple[int, Span, list[PlacedPart]]] = []
    for number, stage in enumerate(stages):
        last = chosen < rows and stage.stop == len(model.layers)
        for span in _runs(model, stage, last=last) if folded else _each(stage):
            parts, x = layer_parts(model, span.stop - 1, x)
            layers.append((number, span, [_cut(part) for part in parts]))
    layers.append((len(stages) - 1, NOWHERE, [PlacedPart(part, WORD) for part in head_parts(model, x)]))
    every = [placed for _, _, some in layers for placed in some]
    read = read_rows(every, {every[-1].part.writes.name: Span(rows - chosen, rows)})
    left = {placed.part.name: placed for placed in read}
    found = (
        (number, span, tuple(left[own.part.name] for own in some if own.part.name in left))
        for number, span, some in layers
    )
    return PassParts(begin, tuple(found), chosen, _names(model))


@dataclass(frozen=True, slots=True, eq=False)
class PassStructure:
    """What a pass is under all plans of which the same ranks have some of everything (`DecoderPlan.structure`).

    Parameters
    ----------
    layers
        As of `PassParts`; what a stage's ranks compute as a whole has its spans.
    given
        Who has the stream at the beginning.
    before, after
        What rank 0 hands out, and hears.
    begins
        Where computations begin; None: not found yet.
    """

    layers: tuple[tuple[int, Span, tuple[PlacedPart, ...]], ...]
    given: Mapping[str, tuple[Value, Region]]
    before: ExchangeStep
    after: tuple[ExchangeStep, ...]
    names: Mapping[str, str]
    two_steps_from: int
    begins: Collection[int] | None = None


def pass_structure(parts: PassParts, plan: DecoderPlan) -> PassStructure:
    """Return the structure of a pass under a plan."""
    devices = len(plan.devices)
    layers = []
    for number, span, some in parts.layers:
        taking = _mask(plan.stages[number].ranks, devices)
        spans = {WHOLE: spans_of(np.stack([0 * taking, taking], -1))}
        layers.append((number, span, tuple(_with(placed, spans) for placed in some)))
    given = {STREAM: (parts.begin, some_have(parts.begin, plan.stages[0].ranks, devices))}
    after = tuple(_candidates(plan, parts.chosen)) if parts.chosen else ()
    return PassStructure(
        tuple(layers), given, _tokens(plan, parts.begin), after, parts.names, plan.two_steps_from
    )  # fmt: skip


def planned(s: PassStructure, plans: Sequence[DecoderPlan]) -> tuple[tuple[AnyStep, ...], Collection[int]]:
    """Return what ranks do in a pass under some plans of a structure at once, and where computations begin."""
    words = _spans(plan.words for plan in plans)
    cuts = [
        {HEAD: _spans(stage.heads for stage in stages), FFN: _spans(stage.columns for stage in stages), WORD: words}
        for stages in zip(*(plan.stages for plan in plans), strict=True)
    ]
    layers = [(span, [_with(placed, cuts[number]) for placed in some]) for number, span, some in s.layers]
    body, begins = schedule(layers, s.given, lambda size: size >= s.two_steps_from, s.names, s.begins)
    return (s.before, *body, *s.after), begins


def _with(placed: PlacedPart, spans: Mapping[str, Spans]) -> PlacedPart:
    return replace(placed, spans=spans[placed.axis]) if placed.axis in spans else placed


def _each(stage: Span) -> Iterator[Span]:
    return (Span(number, number + 1) for number in range(stage.start, stage.stop))


def _runs(model: Decoder, stage: Span, *, last: bool) -> Iterator[Span]:
    """Yield layers that are alike: the first, then the others together; of the model's end the `last` by itself."""
    start = stage.start
    for _, alike in groupby(model.layers[stage.slice]):
        stop = start + len(list(alike))
        ends = {start, start + 1, stop, stop - (last and stop == stage.stop)}
        edges = sorted(end for end in ends if start <= end <= stop)
        yield from (Span(one, other) for one, other in pairwise(edges))
        start = stop


def _cut(part: Part) -> PlacedPart:
    axis = CUTS.get(part.role, WITH_READER)
    return PlacedPart(part, axis, begins=axis == WHOLE)


def _spans(partitions: Iterable[Partition]) -> Spans:
    """Return the spans of plans, [n, p, 2]."""
    return np.array([[(span.start, span.stop) for span in own] for own in partitions], np.int64)


def _mask(ranks: Collection[int], devices: int) -> Lengths:
    return np.array([rank in ranks for rank in range(devices)], np.int64)


def some_have(value: Value, ranks: Collection[int], devices: int) -> Region:
    """Return that some ranks have all of a value."""
    taking = _mask(ranks, devices)
    return {
        axis: np.stack([0 * taking, length * taking], -1)[None]
        for axis, length in zip(value.axes, value.shape, strict=True)
    }


def _names(model: Decoder) -> dict[str, str]:
    found = {STREAM: "stream"}
    for number in range(len(model.layers)):
        for half, name in SUMS.items():
            found |= {f"layers/{number}/{half}": name, f"layers/{number}/{half}/joined": "stream"}
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
    have = {NUMBER: _spans([Partition.of_counts(having)])}
    yield ExchangeStep("candidates", value, (have,), some_have(value, [0], len(plan.devices)))
