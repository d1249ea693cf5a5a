"""What a language model's plan costs: the seconds of a pass on every rank, step by step, and of an answer.

A pass carries some rows, a chunk of a prompt or one token, through all layers. With c_i the compute of rank i in a half
layer, s_i what sending takes it, W_i the exchange and r_i what receiving and adding takes, the half layer lasts

    max_i (c_i + s_i) + max_i (W_i + r_i)

since every rank needs what all others have computed. Summands go in one step, each whole to all, or in two, every rank
adding up a part of the numbers: half of the bytes of four ranks for twice the messages. A plan says from how many rows
on (`two_steps_from`). A pass begins on rank 0, which embeds and hands out, and ends there with the candidates of those
who have words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from solver.base.spans import Span, largest_remainder
from solver.cluster.cluster import Cluster
from solver.cluster.curves import Bank, Floats, Kernel
from solver.cluster.decoder_curves import DecoderPart, DecoderSpeeds
from solver.model.decoder import PRECISIONS, Decoder, DecoderLayer, GatedMlp, GroupedAttention
from solver.plan.decoder_plan import ROWS_BY_MPI, DecoderPlan, DecoderPrediction, DecoderStage
from solver.plan.plan import Wire
from solver.schedule.decoders.asked import CHUNK_ROWS, TokenRequest
from solver.schedule.decoders.memory import attention_bytes, mlp_bytes, rank_memory, words_bytes
from solver.schedule.exchange import Exchange, Mask, Network, gather, of_matrix, scatter
from solver.schedule.price import Price, PricedStep
from solver.schedule.timing import FLOAT_BYTES, Times, cpu_seconds

BLOCK = 32  # numbers of a summand that share a scale where they travel in few bits
CANDIDATE_BYTES = 512  # of a rank with words, to rank 0
HEADER_BYTES = 64  # before what rank 0 hands out
SMALL_BYTES = 4096  # of a message that takes `message_s`; a longer one as much longer as its curve says


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """What an exchange takes on every rank, [p]: sending, the wire, receiving; seconds, and bytes."""

    before: Floats
    wire: Floats
    after: Floats
    sent: Floats
    received: Floats

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
    bank: Bank
    network: Network
    kept: dict[Any, Any] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """Number of devices, p."""
        return len(self.speeds)

    def attention_s(self, attention: GroupedAttention, heads: int, kv_heads: int, rows: int, behind: int) -> Floats:
        """Return the seconds of so many heads on every device, [p], for rows behind so many tokens."""
        key = attention, heads, kv_heads, rows, behind
        if key not in self.kept:
            size = attention_bytes(self.model, attention, heads, kv_heads, PRECISIONS[self.precision])
            pairs = rows * seen(attention, rows, behind) * heads * attention.head_dim
            self.kept[key] = self._part_s(DecoderPart.ATTENTION, rows, size) + pairs * np.array(
                [own.cached[self.cache].at(rows) for own in self.speeds]
            )
        return np.asarray(self.kept[key])

    def mlp_s(self, mlp: GatedMlp, columns: int, rows: int) -> Floats:
        """Return the seconds of so many columns on every device, [p]."""
        return self._part_s(DecoderPart.MLP, rows, mlp_bytes(self.model, mlp, columns, PRECISIONS[self.precision]))

    def words_s(self, words: int, rows: int = 1) -> Floats:
        """Return the seconds of so many words of some rows on every device, [p]."""
        return self._part_s(DecoderPart.HEAD, rows, words_bytes(self.model, words, PRECISIONS[self.precision]))

    def _part_s(self, part: DecoderPart, rows: int, size: int) -> Floats:
        key = part, rows, size
        if key not in self.kept:
            alike = {id(own): own.seconds(part, rows, size) for own in self.speeds}
            self.kept[key] = np.array([alike[id(own)] for own in self.speeds], float)
        return np.asarray(self.kept[key])


def decoder_setting(
    model: Decoder, cluster: Cluster, precision: str, cache: str, wire: Wire = Wire.FLOAT32
) -> DecoderSetting:
    """Prepare to price plans."""
    speeds = tuple(device.decoder_speeds(precision) for device in cluster.devices)
    bank = Bank([device.kernels for device in cluster.devices])
    message_s = np.array([own.message_s for own in speeds])
    return DecoderSetting(model, precision, cache, wire, speeds, message_s, bank, Network.of(cluster))


def setting_of(model: Decoder, cluster: Cluster, asked: TokenRequest | DecoderPlan) -> DecoderSetting:
    """Prepare to price plans as they are asked for, or one that is there."""
    return decoder_setting(model, cluster, asked.precision, asked.cache, asked.wire)


def seen(attention: GroupedAttention, rows: int, behind: int) -> float:
    """Return how many tokens a row sees on average, itself among them."""
    if not attention.window or behind + rows <= attention.window:
        return behind + (rows + 1) / 2
    return float(np.minimum(behind + np.arange(1, rows + 1), attention.window).mean())


def chunks(prompt: int) -> Iterator[tuple[int, int]]:
    """Yield how many rows of a prompt go together, and how many are behind them."""
    for start in range(0, prompt, CHUNK_ROWS):
        yield min(CHUNK_ROWS, prompt - start), start


def summed(
    s: DecoderSetting, senders: Sequence[int], ranks: Sequence[int], rows: int, two_steps_from: int | None = None
) -> Moved:
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


def two_steps_from(s: DecoderSetting, stages: Sequence[DecoderStage]) -> int:
    """Return from how many rows on sums are faster in two steps, of all layers together."""

    def seconds(rows: int, since: int) -> float:
        return sum(stage.layers.size * summed(s, stage.ranks, stage.ranks, rows, since).longest_s for stage in stages)

    since = ROWS_BY_MPI
    while since > 1 and seconds(since - 1, since - 1) < seconds(since - 1, ROWS_BY_MPI):
        since -= 1
    return since


def block_width(hidden: int) -> int:
    """Return how many numbers of a summand's row share a scale: all of a row that is not made of whole blocks."""
    return BLOCK if hidden % BLOCK == 0 else hidden


def _summed(s: DecoderSetting, senders: Sequence[int], ranks: Sequence[int], rows: int, two: bool) -> Moved:
    key = "sum", tuple(senders), tuple(ranks), rows, two
    if key not in s.kept:
        s.kept[key] = (_in_two_steps if two and len(ranks) > 1 else _in_one_step)(s, senders, ranks, rows)
    found: Moved = s.kept[key]
    return found


def _in_one_step(s: DecoderSetting, senders: Sequence[int], ranks: Sequence[int], rows: int) -> Moved:
    width = block_width(s.model.hidden)
    size = rows * s.model.hidden // width * s.wire.row_bytes(width)
    return _moved(s, gather(size * _mask(s, senders).astype(float), _mask(s, ranks)), adds=True)


def _in_two_steps(s: DecoderSetting, senders: Sequence[int], ranks: Sequence[int], rows: int) -> Moved:
    sends, takes = _mask(s, senders), _mask(s, ranks)
    width = block_width(s.model.hidden)
    parts = np.zeros(s.devices)
    parts[list(ranks)] = largest_remainder([1.0] * len(ranks), rows * s.model.hidden // width)
    parts *= s.wire.row_bytes(width)
    first = _moved(s, scatter(parts, sends), adds=True)
    second = _moved(s, gather(parts, takes), adds=False)
    between = float((first.wire + first.after + second.before).max())
    return Moved(
        first.before, second.wire + between * takes, second.after,
        first.sent + second.sent, first.received + second.received,
    )  # fmt: skip


def _moved(s: DecoderSetting, exchange: Exchange, *, adds: bool) -> Moved:
    """Return what an exchange takes; of its messages' CPU time, what is sent counts before and what arrives after."""
    encode, _, decode, add = cpu_seconds(exchange, s.wire, s.bank, adds=adds)
    return _with_messages(s, exchange, encode, decode + add)


def _with_messages(s: DecoderSetting, exchange: Exchange, before: Floats, after: Floats) -> Moved:
    moved = exchange.sent + exchange.received
    size = moved / np.maximum(exchange.messages, 1)
    longer = s.bank.seconds(Kernel.MESSAGE, size) - s.bank.seconds(Kernel.MESSAGE, SMALL_BYTES)
    messages = exchange.messages * (s.message_s + np.maximum(longer, 0.0))
    leaving = messages * exchange.sent / np.maximum(moved, 1)
    wire = exchange.seconds(s.network)
    return Moved(before + leaving, wire, after + messages - leaving, exchange.sent, exchange.received)


def sent_over(s: DecoderSetting, sizes: Sequence[tuple[int, int, float]]) -> Moved:
    """Return what it takes to send so many bytes from one rank to another, (from, to, bytes)."""
    moved = np.zeros((s.devices, s.devices))
    for one, other, size in sizes:
        if one != other:
            moved[one, other] += size
    return _with_messages(s, of_matrix(moved), np.zeros(s.devices), np.zeros(s.devices))


def price_pass(s: DecoderSetting, plan: DecoderPlan, rows: int, behind: int, chosen: int = 1) -> Price:
    """Price a pass of rows behind so many tokens, step by step; arguments as of `pass_steps`."""
    held = tuple(needs.weights + needs.embedding for needs in rank_memory(s.model, plan))
    return Price(tuple(pass_steps(s, plan, rows, behind, chosen)), held)


def pass_steps(s: DecoderSetting, plan: DecoderPlan, rows: int, behind: int, chosen: int = 1) -> Iterator[PricedStep]:
    """Yield the steps of a pass of rows behind so many tokens.

    Of `chosen` rows the next word is asked for: of one, of all where guesses are checked, of none in a prompt's chunks
    but the last.
    """
    stream = float(FLOAT_BYTES * s.model.hidden * rows)
    nobody, first = np.zeros(s.devices), plan.stages[0].ranks
    begins = nobody.copy()
    begins[0] = s.speeds[0].pass_s
    # All hear of it, the first stage with the embedded tokens.
    sizes = [(0, rank, HEADER_BYTES + stream * (rank in first)) for rank in range(s.devices)]
    yield _step("tokens", (), begins, sent_over(s, sizes))
    for number, stage in enumerate(plan.stages):
        if number:
            speaker = plan.stages[number - 1].ranks[0]
            yield _step("stream", (), nobody, sent_over(s, [(speaker, rank, stream) for rank in stage.ranks]))
        yield from layer_steps(s, stage, rows, behind, plan.two_steps_from)
    if chosen:
        having = [rank for rank, span in enumerate(plan.words) if span.size]
        compute = nobody.copy()
        for rank in having:
            compute[rank] = s.words_s(plan.words[rank].size, chosen)[rank]
        yield _step(
            "candidates", ("head",), compute, sent_over(s, [(rank, 0, chosen * CANDIDATE_BYTES) for rank in having])
        )


def layer_steps(
    s: DecoderSetting, stage: DecoderStage, rows: int, behind: int, two_steps_from: int
) -> Iterator[PricedStep]:
    """Yield the steps of a stage's layers; those alike that follow each other are one, repeated."""
    ranks, start = stage.ranks, stage.layers.start
    having = [rank for rank in ranks if stage.heads[rank].size]
    computing = [rank for rank in ranks if stage.columns[rank].size]
    for layer, alike in groupby(s.model.layers[stage.layers.slice]):
        layers = Span(start, start := start + len(list(alike)))
        compute = _attends(s, layer, stage, having, rows, behind), _columns(s, layer, stage, computing, rows)
        for what, seconds, senders in zip(("attention", "mlp"), compute, (having, computing), strict=True):
            step = _step(f"sum of {what}", (what,), seconds, summed(s, senders, ranks, rows, two_steps_from))
            yield replace(step, repeats=layers.size, layers=_numbers(layers))


def _attends(
    s: DecoderSetting, layer: DecoderLayer, stage: DecoderStage, ranks: Sequence[int], rows: int, behind: int
) -> Floats:
    seconds, attention = np.zeros(s.devices), layer.attention
    for rank in ranks:
        heads = stage.heads[rank]
        kv = attention.kv_span(heads).size
        seconds[rank] = s.attention_s(attention, heads.size, kv, rows, behind)[rank]
    return seconds


def _columns(s: DecoderSetting, layer: DecoderLayer, stage: DecoderStage, ranks: Sequence[int], rows: int) -> Floats:
    seconds = np.zeros(s.devices)
    for rank in ranks:
        seconds[rank] = s.mlp_s(layer.mlp, stage.columns[rank].size, rows)[rank]
    return seconds


def _step(name: str, computes: tuple[str, ...], compute: Floats, moved: Moved) -> PricedStep:
    """Return a step by the formula above."""
    before = compute + moved.before
    end = float(before.max()) + moved.wire + moved.after
    return PricedStep(
        "", name, computes, (), 1, Times(before + moved.after, moved.wire, end), moved.sent, moved.received
    )


def _numbers(layers: Span) -> str:
    return f"{layers.start}" + f"-{layers.stop - 1}" * (layers.size > 1)


def _mask(s: DecoderSetting, ranks: Sequence[int]) -> Mask:
    return np.isin(np.arange(s.devices), list(ranks))


def token_seconds(s: DecoderSetting, plan: DecoderPlan, behind: int) -> float:
    """Return the seconds of a token behind so many others."""
    return _seconds(pass_steps(s, plan, 1, behind))


def first_seconds(s: DecoderSetting, plan: DecoderPlan, prompt: int) -> float:
    """Return the seconds from a prompt to the first token of the answer."""
    return sum(
        _seconds(pass_steps(s, plan, rows, behind, chosen=int(behind + rows == prompt)))
        for rows, behind in chunks(prompt)
    )


def _seconds(steps: Iterable[PricedStep]) -> float:
    return math.fsum(step.repeats * float(step.times.end.max()) for step in steps)


def answer_seconds(s: DecoderSetting, plan: DecoderPlan, asked: TokenRequest) -> float:
    """Return what a plan is made for: the seconds of the first token and of all others."""
    return first_seconds(s, plan, asked.prompt) + asked.tokens * token_seconds(s, plan, asked.behind)


def predicted(s: DecoderSetting, plan: DecoderPlan, prompt: int, behind: int) -> DecoderPlan:
    """Return the plan with what is predicted for it."""
    token = price_pass(s, plan, 1, behind)
    facts = token.prediction
    memory = tuple(needs.total for needs in rank_memory(s.model, plan))
    first_s = first_seconds(s, plan, prompt)
    return replace(
        plan,
        predicted=DecoderPrediction(facts.seconds, first_s, facts.compute_s, facts.exchange_s, memory, prompt, behind),
    )
