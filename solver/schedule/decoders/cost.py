"""What a language model's plan costs: the seconds of a pass, step by step, and of an answer.

A pass carries some rows, a chunk of a prompt or one token, through all layers: the steps of
`solver.schedule.decoders.steps`, with a clock for every rank. Summands go in one step, each whole to all, or in two,
every rank adding up a part of the numbers: half of the bytes of four ranks for twice the messages. A plan says from how
many rows on (`two_steps_from`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solver.base.arrays import FLOAT_BYTES
from solver.base.spans import Span
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats, Kernel
from solver.cluster.decoder_curves import DecoderPart, DecoderSpeeds
from solver.model.blocks import BlockKind, parts_of
from solver.model.decoder import Decoder
from solver.model.kinds.attention import FROM
from solver.model.kinds.part import HIDDEN, KEY, ROW, Part, Region
from solver.model.kinds.weight import PRECISIONS
from solver.plan.decoder_plan import ROWS_BY_MPI, DecoderPlan, DecoderPrediction, DecoderStage
from solver.plan.plan import Wire
from solver.schedule.clocks import Messages
from solver.schedule.decoders.asked import CHUNK_ROWS, TokenRequest
from solver.schedule.decoders.memory import RankMemory, most_memory
from solver.schedule.decoders.steps import (
    CANDIDATE_NUMBERS,
    EXACT_NAMES,
    OWN,
    SUM,
    PassParts,
    StageShares,
    before_pass,
    cuts_of,
    follow_crew,
    pass_parts,
    pass_rows,
    planned,
    planned_alike,
    stages_of,
)
from solver.schedule.exchange import of_matrix
from solver.schedule.price import Price, PricedStep
from solver.schedule.regions import lengths, some_have
from solver.schedule.schedule import AnyStep, ComputeStep, ExchangeStep, added, exchanges
from solver.schedule.stretches import PassRows, rows_to_add
from solver.schedule.timing import UNREST_S, Machine, cpu_seconds
from solver.schedule.turns import ClockTurn, Costs, Moved, priced, together_s, turns_of

CANDIDATE_BYTES = 8 * (OWN + CANDIDATE_NUMBERS)  # of a rank with words, to rank 0, of one row
SMALL_BYTES = 4096  # of a message that takes `message_s`; a longer one as much longer as its curve says


@dataclass(frozen=True, slots=True, eq=False)
class SumTimes:
    """What a sum takes on every rank, [p] seconds: sending, the wire, receiving."""

    before: Floats
    wire: Floats
    after: Floats

    @property
    def longest_s(self) -> float:
        """Of the rank that it takes longest."""
        return float((self.before + self.wire + self.after).max())


@dataclass(frozen=True, slots=True, eq=False)
class DecoderSetting:
    """Everything that a price depends on beside the plan; what was priced once is kept.

    Parameters
    ----------
    speeds
        Of every device, for `precision`.
    message_s : [p]
        Of a small message.
    """

    model: Decoder
    precision: str
    cache: str
    wire: Wire
    speeds: tuple[DecoderSpeeds, ...]
    message_s: Floats
    machine: Machine
    kept: dict[Any, Any] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """Number of devices, p."""
        return len(self.speeds)

    def kind_s(self, kind: BlockKind, share: int, rows: int, behind: int = 0) -> Floats:
        """Return the seconds of so many units of a block on every device, [p], for rows after so many tokens."""
        return self.block_s(parts_of(kind, self.model.stream), {ROW: rows, **kind.units(Span(0, share))}, behind)

    def block_s(self, parts: Sequence[Part], units: Mapping[str, int], behind: int) -> Floats:
        """Return the seconds of some parts of a block on every device, [p], for rows after so many tokens.

        Parameters
        ----------
        units
            Of every axis, its rows among them.
        """
        key = tuple(part.role for part in parts), parts[0].kind, tuple(units.items()), behind
        if key not in self.kept:
            kind, rows = parts[0].kind, units[ROW]
            found = self._part_s(DecoderPart(kind.curve), rows, self.weights_bytes(parts, units))
            if any(part.recalls for part in parts):
                recalled = kind.recalled(units, rows, behind)
                found = found + recalled * np.array([own.cached[self.cache].at(rows) for own in self.speeds])
            self.kept[key] = found
        return np.asarray(self.kept[key])

    def weights_bytes(self, parts: Sequence[Part], units: Mapping[str, int]) -> int:
        """Return the bytes of what parts of a block read of its weights, of so many units of every axis."""
        tensors = {tensor.name: (part, tensor) for part in parts for tensor in part.tensors}.values()
        precision = PRECISIONS[self.precision]
        return sum(
            tensor.held_bytes(precision, units.get(tensor.axis), part.columns(tensor, units.get(HIDDEN)))
            for part, tensor in tensors
        )

    def _part_s(self, part: DecoderPart, rows: int, size: int) -> Floats:
        if (key := (part, rows)) not in self.kept:
            alike = {id(own): own.of_rows(part, rows) for own in self.speeds}
            self.kept[key] = [alike[id(own)] for own in self.speeds], {}
        curves, known = self.kept[key]
        if size not in known:
            known[size] = np.array([curve.at(size) for curve in curves])
        return np.asarray(known[size])


def decoder_setting(
    model: Decoder, cluster: Cluster, precision: str, cache: str, wire: Wire = Wire.FLOAT32
) -> DecoderSetting:
    """Prepare to price plans."""
    speeds = tuple(device.decoder_speeds(precision) for device in cluster.devices)
    message_s = np.array([own.message_s for own in speeds])
    return DecoderSetting(model, precision, cache, wire, speeds, message_s, Machine.of(cluster))


def setting_of(model: Decoder, cluster: Cluster, asked: TokenRequest | DecoderPlan) -> DecoderSetting:
    """Prepare to price plans as they are asked for, or one that is there."""
    return decoder_setting(model, cluster, asked.precision, asked.cache, asked.wire)


def chunks(prompt: int) -> Iterator[tuple[int, int]]:
    """Yield how many rows of a prompt go together, and how many come before them."""
    for start in range(0, prompt, CHUNK_ROWS):
        yield min(CHUNK_ROWS, prompt - start), start


class AnswerPass(NamedTuple):
    """A pass of an answer: how often it is done, its rows, how many are before them, and of how many a word follows."""

    often: int
    rows: int
    behind: int
    chosen: int


def answer_passes(asked: TokenRequest) -> list[AnswerPass]:
    """Return the passes of an answer to every sequence: a token's, then those of a prompt's chunks.

    A token's pass has a row of each sequence: of llama-3.2-1b in int4 one of four rows takes 1.8 times as long as of
    one, on an x86 core. Prompts are read one by one.
    """
    several = asked.sequences
    return [AnswerPass(asked.tokens, several, asked.behind, several), *prompt_passes(asked.prompt, several)]


def prompt_passes(prompt: int, often: int = 1) -> list[AnswerPass]:
    """Return the passes of a prompt's chunks; a word follows the last row alone."""
    return [AnswerPass(often, rows, behind, int(behind + rows == prompt)) for rows, behind in chunks(prompt)]


def _chunks_as_one(passes: list[AnswerPass]) -> Iterator[AnswerPass]:
    """Yield the passes of an answer; a prompt's chunks of as many rows as one, after as many as in the mean."""
    token, *read = passes
    yield token
    for (rows, chosen), alike in groupby(read, key=lambda one: (one.rows, one.chosen)):
        several = list(alike)
        behind = (several[0].behind + several[-1].behind) // 2
        yield AnswerPass(sum(one.often for one in several), rows, behind, chosen)


def summed(
    s: DecoderSetting, senders: Sequence[int], ranks: Sequence[int], rows: int, two_steps_from: int | None = None
) -> SumTimes:
    """Return what it takes until all ranks of a stage have the sum of the senders' summands, [rows, hidden] each.

    Parameters
    ----------
    two_steps_from
        As of the plan; None: the faster way.
    """
    if two_steps_from is not None:
        return _summed(s, senders, ranks, rows, rows >= two_steps_from)
    ways = [True] if rows >= ROWS_BY_MPI else [False, True]
    return min((_summed(s, senders, ranks, rows, two) for two in ways), key=lambda moved: moved.longest_s)


def sums_s(s: DecoderSetting, ranks: Sequence[int], asked: TokenRequest) -> float:
    """Return the seconds of the sums after a block, of all passes of an answer; of one rank none."""
    if len(ranks) < 2:
        return 0.0
    return sum(one.often * summed(s, ranks, ranks, one.rows).longest_s for one in answer_passes(asked))


def two_steps_from(s: DecoderSetting, stages: Sequence[DecoderStage]) -> int:
    """Return from how many rows on sums are faster in two steps, of all layers together."""
    groups = tuple((stage.layers.size, stage.ranks) for stage in stages)

    def seconds(rows: int, since: int) -> float:
        return sum(layers * summed(s, ranks, ranks, rows, since).longest_s for layers, ranks in groups)

    key = "two steps from", groups
    if key not in s.kept:
        since = ROWS_BY_MPI
        while since > 1 and seconds(since - 1, since - 1) < seconds(since - 1, ROWS_BY_MPI):
            since -= 1
        s.kept[key] = since
    found: int = s.kept[key]
    return found


def _summed(s: DecoderSetting, senders: Sequence[int], ranks: Sequence[int], rows: int, two: bool) -> SumTimes:
    key = "sum", tuple(senders), tuple(ranks), rows, two
    if key not in s.kept:
        value = s.model.stream.value("sum", rows)
        have, want = (some_have(value, own, s.devices) for own in (senders, ranks))
        two = two and len(ranks) > 1
        between = added(want, rows_to_add(Span(0, rows), value.shape[1], len(ranks))) if two else None
        steps = exchanges(SUM, value, (have,), want, partial=True, between=between)
        s.kept[key] = _one_after_the_other(s, [moved(s, step) for step in steps])
    found: SumTimes = s.kept[key]
    return found


def _one_after_the_other(s: DecoderSetting, steps: Sequence[Moved]) -> SumTimes:
    first, *others = steps
    wire_s, *wires_s = (own.messages.wire_s(s.machine.network) for own in steps)
    if not others:
        return SumTimes(first.before, wire_s, first.messages.taking)
    (second,), (second_s,) = others, wires_s
    between = float((wire_s + first.messages.taking + second.before).max())
    return SumTimes(first.before, second_s + between * (second_s > 0), second.messages.taking)


def moved(s: DecoderSetting, step: ExchangeStep) -> Moved:
    """Return what an exchange takes: of its messages' CPU time, what is sent counts before and what arrives after."""
    key = step.name not in EXACT_NAMES, step.value.shape, step.partial, step.lies
    if key not in s.kept:
        s.kept[key] = _moved(s, step)
    found: Moved = s.kept[key]
    return found


def _moved(s: DecoderSetting, step: ExchangeStep) -> Moved:
    if step.name in EXACT_NAMES:
        return _with_messages(s, (FLOAT_BYTES * step.moved[0]).astype(float), 0.0, 0.0)
    matrix = step.wire_bytes(s.wire).sum(0)[0].astype(float)
    exchange = of_matrix(matrix, coded=step.coded[0] / np.maximum(step.moved[0].sum(1), 1) * matrix.sum(1))
    encode, _, decode, add = cpu_seconds(exchange, s.wire, s.machine.bank, adds=step.partial)
    return _with_messages(s, matrix, encode, decode + add)


def _with_messages(s: DecoderSetting, matrix: Floats, before: Floats | float, after: Floats | float) -> Moved:
    """Return what it takes that ranks send each other so many bytes, [p, p], with CPU seconds beside the messages'."""
    sent, received = matrix.sum(1), matrix.sum(0)
    total, number = sent + received, (matrix > 0).sum(0) + (matrix > 0).sum(1)
    bank = s.machine.bank
    if "small" not in s.kept:
        s.kept["small"] = bank.seconds(Kernel.MESSAGE, SMALL_BYTES)
    longer = bank.seconds(Kernel.MESSAGE, total / np.maximum(number, 1)) - s.kept["small"]
    handling = number * (s.message_s + np.maximum(longer, 0.0))
    leaving = handling * sent / np.maximum(total, 1)
    return Moved(before + leaving, Messages(matrix[None], np.zeros(s.devices), after + handling - leaving))


def sent_over(s: DecoderSetting, sizes: Sequence[tuple[int, int, float]]) -> SumTimes:
    """Return what it takes to send so many bytes from one rank to another, (from, to, bytes)."""
    matrix = np.zeros((s.devices, s.devices))
    for one, other, size in sizes:
        if one != other:
            matrix[one, other] += size
    return _one_after_the_other(s, [_with_messages(s, matrix, 0.0, 0.0)])


def price_pass(s: DecoderSetting, plan: DecoderPlan, rows: int, behind: int, chosen: int = 1) -> Price:
    """Price a pass of rows after so many tokens, step by step; arguments as of `pass_steps`."""
    held = tuple(needs.weights + needs.embedding for needs in most_memory(s.model, plan))
    return Price(tuple(pass_steps(s, plan, rows, behind, chosen)), held)


def price_token(s: DecoderSetting, plan: DecoderPlan, behind: int) -> Price:
    """Price a token of every sequence that a plan has room for, in one pass."""
    return price_pass(s, plan, plan.sequences, behind, plan.sequences)


def pass_steps(s: DecoderSetting, plan: DecoderPlan, rows: int, behind: int, chosen: int = 1) -> list[PricedStep]:
    """Return the steps of a pass of rows after so many tokens.

    Of `chosen` rows the next word is asked for: of all where they are tokens of several sequences, on their way through
    stages, or guesses; else of one, and of none in a prompt's chunks but the last.
    """
    (turns,) = _passes(s, [plan], rows, behind, chosen)
    return priced(s.machine, turns, UNREST_S)


def _passes(
    s: DecoderSetting, plans: Sequence[DecoderPlan], rows: int, behind: int, chosen: int
) -> Iterator[Iterator[ClockTurn]]:
    """Yield the turns of a pass of plans of one structure: of all at once where that can be."""
    *_, steps = _steps(s, plans[0], rows, chosen)
    if follow_crew(steps):
        yield _turns_alike(s, plans[0], cuts_of(plans), rows, behind, chosen)
        return
    for plan in plans:

        def own_steps(*of: int, plan: DecoderPlan = plan) -> Sequence[AnyStep]:
            parts, own, _ = _steps(s, plan, *of)
            return planned(parts, plan, own)

        yield _turns(plan, _costs(s, behind), rows, chosen, own_steps)


def _turns_alike(
    s: DecoderSetting, plan: DecoderPlan, cuts: StageShares, rows: int, behind: int, chosen: int
) -> Iterator[ClockTurn]:
    """Yield the turns of a pass by some plans of a plan's structure, whose exchanges are the same."""
    return _turns(plan, _costs(s, behind), rows, chosen, lambda *of: planned_alike(_steps(s, plan, *of)[-1], cuts))


def _turns(
    plan: DecoderPlan, costs: Costs, rows: int, chosen: int, steps: Callable[[int, int], Sequence[AnyStep]]
) -> Iterator[ClockTurn]:
    """Yield the turns of a pass; of tokens of several sequences those of some after those of others, as they go.

    All are handed out at once, and rank 0 hears of all when the last are done; between these a stage goes on with the
    next as soon as it has them: clocks are each rank's own.

    Parameters
    ----------
    steps
        Of a pass of so many rows, of which so many are asked for.
    """
    sizes = [some.size for some in plan.in_flight(rows)] if chosen == rows else [rows]
    if len(sizes) == 1:
        return turns_of(steps(rows, chosen), costs)
    before, handed_out, *_, candidates = steps(rows, chosen)
    flights = [[*steps(size, size)[2:-1]] for size in sizes]
    flights[0][:0] = before, handed_out
    flights[-1].append(candidates)
    return chain.from_iterable(turns_of(own, costs) for own in flights)


def _costs(s: DecoderSetting, behind: int) -> Costs:
    """Return what steps of a pass take, of rows after so many tokens."""
    return Costs(cache(partial(_computing, s, behind)), partial(moved, s))


def _steps(
    s: DecoderSetting, plan: DecoderPlan, rows: int, chosen: int
) -> tuple[PassParts, PassRows, tuple[AnyStep, ...]]:
    """Return the parts and rows of a pass, and its steps by a plan, which all of its structure have."""
    key = plan.structure, rows, chosen
    if key not in s.kept:
        own = pass_rows(s.model, plan, rows, chosen)
        parts = _parts(s, plan, own)
        s.kept[key] = parts, own, planned(parts, plan, own)
    found: tuple[PassParts, PassRows, tuple[AnyStep, ...]] = s.kept[key]
    return found


def answer_turns(
    s: DecoderSetting, plan: DecoderPlan, cuts: StageShares, asked: TokenRequest
) -> Iterator[tuple[float, Iterator[ClockTurn]]]:
    """Yield the turns of the passes of an answer, and how often each is done, by some plans of a plan's structure."""
    for often, rows, behind, chosen in _chunks_as_one(answer_passes(asked)):
        yield float(often), _turns_alike(s, plan, cuts, rows, behind, chosen)


def cut_seconds(s: DecoderSetting, plan: DecoderPlan, cuts: StageShares, asked: TokenRequest) -> Floats:
    """Return the seconds of an answer by some plans of a plan's structure, [n]."""
    passes = answer_turns(s, plan, cuts, asked)
    return np.asarray(sum(often * together_s(s.machine, turns, UNREST_S) for often, turns in passes))


def _seconds(s: DecoderSetting, plans: Sequence[DecoderPlan], rows: int, behind: int, chosen: int) -> Floats:
    """Return the seconds of a pass by plans of one structure, [n]."""
    found = (together_s(s.machine, turns, UNREST_S) for turns in _passes(s, plans, rows, behind, chosen))
    return np.concatenate([seconds.reshape(-1) for seconds in found])


def _parts(s: DecoderSetting, plan: DecoderPlan, rows: PassRows) -> PassParts:
    stages = stages_of(plan, rows)
    key = "parts", stages, rows.count, rows.asked
    if key not in s.kept:
        s.kept[key] = pass_parts(s.model, stages, rows.count, rows.asked, folded=True)
    found: PassParts = s.kept[key]
    return found


def _of_one(values: NDArray[Any]) -> NDArray[Any]:
    """Return values of plans, [n, ...], of one plan without the axis of plans."""
    return values[0] if len(values) == 1 else values


def _computing(s: DecoderSetting, behind: int, step: ComputeStep) -> tuple[Floats, tuple[str, ...]]:
    """Return the seconds of a computation, and what is computed.

    What is added to the stream before a block was measured with it, and the embedding with all that rank 0 does before
    a pass: a lookup of words is too short to count elsewhere.
    """
    key = (
        behind,
        tuple(
            (own.part.role, own.part.kind, own.axis, own.row_count, None if own.spans is None else own.spans.tobytes())
            for own in step.placed
        ),
    )
    if key not in s.kept:
        s.kept[key] = _computed(s, behind, step)
    found: tuple[Floats, tuple[str, ...]] = s.kept[key]
    return found


def _computed(s: DecoderSetting, behind: int, step: ComputeStep) -> tuple[Floats, tuple[str, ...]]:
    seconds, blocks = np.zeros(s.devices), dict[str, list[tuple[Part, Region]]]()
    if before_pass(step):
        seconds[0] = s.speeds[0].pass_s
    for part, region in step.parts:
        if part.kind.curve:
            blocks.setdefault(part.block, []).append((part, region))
    for some in blocks.values():
        seconds = seconds + _of_one(_of_block(s, behind, some))
    return seconds, tuple(some[0][0].kind.curve for some in blocks.values())


def _of_block(s: DecoderSetting, behind: int, some: Sequence[tuple[Part, Region]]) -> Floats:
    """Return the seconds of some parts of a block, [n, p]."""
    parts = [part for part, _ in some]
    units = {axis: lengths(spans) for _, region in some for axis, spans in region.items()}
    for part, region in some:
        if part.recalls and KEY in region:
            units[FROM] = region[KEY][..., 0]
    known = s.kept.setdefault((tuple(part.role for part in parts), parts[0].kind, behind), {})
    table = np.stack(np.broadcast_arrays(*units.values()), -1)
    found, rows = np.zeros(table.shape[:-1]), list(units).index(ROW)
    for plan, ranks in enumerate(table.tolist()):
        for rank, own in enumerate(map(tuple, ranks)):
            if own[rows]:
                if own not in known:
                    known[own] = s.block_s(parts, dict(zip(units, own, strict=True)), behind)
                found[plan, rank] = known[own][rank]
    return found


def token_seconds(s: DecoderSetting, plan: DecoderPlan, behind: int, sequences: int = 1) -> float:
    """Return the seconds of a token after so many others; of several sequences those of a token of each, in a pass."""
    return float(_seconds(s, [plan], sequences, behind, sequences)[0])


def first_seconds(s: DecoderSetting, plan: DecoderPlan, prompt: int) -> float:
    """Return the seconds from a prompt to the first token of the answer."""
    return float(sum((_seconds(s, [plan], *one) for _, *one in prompt_passes(prompt)), np.zeros(1))[0])


def answer_seconds(s: DecoderSetting, plan: DecoderPlan, asked: TokenRequest) -> float:
    """Return what a plan is made for: the seconds of the first token and of all others, of every sequence."""
    return float(answers_seconds(s, [plan], asked)[0])


def tokens_per_s(s: DecoderSetting, plan: DecoderPlan, asked: TokenRequest) -> float:
    """Return the tokens a second of the answers to all sequences together, of the time that their prompts take, too."""
    return asked.sequences * asked.tokens / answer_seconds(s, plan, asked)


def answers_seconds(s: DecoderSetting, plans: Sequence[DecoderPlan], asked: TokenRequest) -> Floats:
    """Return the seconds of an answer by plans of one structure, [n]."""
    return np.asarray(sum(often * _seconds(s, plans, *one) for often, *one in answer_passes(asked)))


def predicted(
    s: DecoderSetting, plan: DecoderPlan, memory: Sequence[RankMemory], prompt: int, behind: int
) -> DecoderPlan:
    """Return the plan with what is predicted for it; `memory` as `rank_memory` has it."""
    facts = price_token(s, plan, behind).prediction
    parts = facts.seconds, first_seconds(s, plan, prompt), facts.compute_s, facts.exchange_s
    return replace(plan, predicted=DecoderPrediction(*parts, tuple(needs.total for needs in memory), prompt, behind))
