"""What memory a language model's plan needs on every rank, in bytes.

Weights are counted as they are held (`HELD`), also of query heads that share a key and value head with another rank's:
both hold it, and its cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from solver.base.arrays import FLOAT_BYTES
from solver.base.errors import InfeasiblePlanError
from solver.base.spans import Span
from solver.cluster.cluster import MIB, PROGRAM_BYTES, Cluster
from solver.model.blocks import BlockKind, parts_of, tensors_of, total_of
from solver.model.decoder import Decoder
from solver.model.kinds.attention import SEEN_ROWS, Attention
from solver.model.kinds.part import WORD, PartTensor, TensorUse
from solver.model.kinds.weight import PRECISIONS
from solver.model.precision import Precision
from solver.plan.decoder_plan import DecoderPlan, DecoderStage
from solver.plan.layout import Box
from solver.plan.plan import Wire
from solver.schedule.decoders.asked import CHUNK_ROWS, TokenRequest
from solver.schedule.decoders.passes import DecoderPasses
from solver.schedule.places import arriving, own_steps, places_of
from solver.schedule.schedule import ExchangeStep


def _in_blocks(minimum: int, **beside: int) -> Mapping[str, Precision]:
    """Return what weights are in, with so many bytes beside the 16 or 32 of a block's levels, and of a minimum."""
    words = PRECISIONS["int4m"].of_words
    found = {**PRECISIONS, **{name: replace(PRECISIONS[name], scale_bytes=size) for name, size in beside.items()}}
    with_minima = replace(found["int4"], scale_bytes=beside["int4"] + minimum, minima=True)
    return found | {"int4m": replace(with_minima, words=replace(words, scale_bytes=beside["int8"] + minimum))}


# onnxruntime 1.32 lays blocks out anew, with sums beside the scales. Bytes of a block of int4 and int8 that stay in
# memory: 24 and 40 on x86, 20 and 45 on an emulated Cortex-A76, 20 and 36 on an A72. A cluster does not say which its
# devices are, and a board that lacks memory is worse off than one with some to spare: the larger ones count.
# Minima are float32, and onnxruntime keeps its own order of them beside ours.
HELD = _in_blocks(8, int4=8, int8=13)
STORED = _in_blocks(2, int4=2, int8=2)  # in the file, where scales are float16

NUMBER_BYTES = {"float32": 4, "int8": 1}  # of a number in the cache
WORDS_KEPT = 2048  # embedded words that stay in rank 0's memory, where it reads them from the file
# Of [rows, hidden], at the most: the stream before a block, its summand, the sum, the stream after it; what arrives
# from the stage before; and of every stage where ranks share blocks what arrives of summands and of sums.
STREAMS, SUMS = 5, 2


@dataclass(frozen=True, slots=True)
class RankMemory:
    """What a rank needs.

    Parameters
    ----------
    weights
        Of its blocks and words.
    embedding
        Words that rank 0 keeps embedded.
    cache
        Keys and values of all sequences.
    work
        What it computes with, and the program.
    """

    weights: int
    embedding: int
    cache: int
    work: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.embedding + self.cache + self.work


def block_bytes(
    model: Decoder, kind: BlockKind, units: Mapping[str, int], precision: Precision, output: int | None = None
) -> int:
    """Return the bytes of a block's weights, of so many units of every axis (`BlockKind.units`).

    `output`: how many columns of its result, where these are shared out.
    """
    tensors = tensors_of(kind, model.stream).values()
    if output is None:
        return _bytes(tensors, units, precision) * (units[kind.axis] > 0)
    summing = [own for own in tensors if own.use is TensorUse.OUT and len(own.shape) > 1]
    others = _bytes((own for own in tensors if own not in summing), units, precision) * (units[kind.axis] > 0)
    return others + sum(own.held_bytes(precision, columns=output) for own in summing)


def rows_bytes(model: Decoder, kind: BlockKind, precision: Precision) -> int:
    """Return the bytes of a block's weights on a rank that computes rows of prompts: all that follows contexts."""
    units = whole_units(model, kind)
    if not _recalls(model, kind):
        return block_bytes(model, kind, units, precision)
    parts = parts_of(kind, model.stream)
    return _bytes([tensor for part in parts if part.cut for tensor in part.tensors], units, precision)


def _recalls(model: Decoder, kind: BlockKind) -> bool:
    """Return whether a block reads what is kept from pass to pass: it makes contexts."""
    return any(part.recalls for part in parts_of(kind, model.stream))


def words_bytes(model: Decoder, words: int, precision: Precision) -> int:
    """Return the bytes of some rows of the head, and of the norm before it."""
    return block_bytes(model, model.head_block, {WORD: words}, precision)


def summed_bytes(model: Decoder, columns: int, precision: Precision) -> int:
    """Return the bytes of some columns of the head, and of the norm before it."""
    tensors = model.head_block.tensors("head", model.stream).values()
    return sum(own.held_bytes(precision, columns=columns if len(own.shape) > 1 else None) for own in tensors) * (
        columns > 0
    )


def embedding_bytes(model: Decoder) -> int:
    """Return the bytes of the embedded words that rank 0 keeps; it reads one from the file once."""
    return FLOAT_BYTES * min(WORDS_KEPT, model.vocab) * model.hidden


def cache_bytes(kind: BlockKind, units: Mapping[str, int], cache: str, tokens: int) -> int:
    """Return the bytes of what a block keeps of so many tokens."""
    return kind.kept_numbers(units) * tokens * NUMBER_BYTES[cache]


def shared_bytes(model: Decoder, kind: Attention, plan: DecoderPlan, stage: DecoderStage, rank: int) -> tuple[int, int]:
    """Return what is kept of a rank's tokens where these are shared out, and what it takes to attend to them, in bytes.

    That is scores, of some rows at a time, as they are, hidden and as powers; and keys and values in float32.
    """
    if not stage.keys[rank]:
        return 0, 0
    room = int(kind.among(stage.dealt).kept_by(stage.keeper(rank), plan.context))
    units = whole_units(model, kind)
    rows = max(min(CHUNK_ROWS, plan.context, SEEN_ROWS), plan.sequences)
    numbers = 3 * rows * kind.heads + 2 * kind.kv_heads * kind.head_dim
    return cache_bytes(kind, units, plan.cache, room * plan.sequences), FLOAT_BYTES * numbers * room


def whole_units(model: Decoder, kind: BlockKind) -> dict[str, int]:
    """Return how many units of every axis a block has."""
    return kind.units(Span(0, total_of(kind, model.stream)))


def work_bytes(
    model: Decoder, asked: TokenRequest | DecoderPlan, width: int, words: int, *, shared: int,
    numbers: int | None = None,
) -> int:  # fmt: skip
    """Return what a rank computes with: a chunk's values and messages, `width` columns, logits, and the program.

    Parameters
    ----------
    shared
        In how many stages it shares blocks with other ranks.
    numbers
        As `chunk_numbers` has it of a plan; None: at the most, as searches count it, which ask of thousands of plans.
    """
    rows = min(CHUNK_ROWS, asked.context)
    if numbers is None:
        numbers = (rows + 1) * (STREAMS + SUMS * _copies(asked.wire) * shared) * model.hidden
    return PROGRAM_BYTES + FLOAT_BYTES * (numbers + rows * width + words)


def _copies(wire: Wire) -> int:
    """Return how often numbers lie there that arrive: as they travel, and as they are added."""
    return 1 if wire is Wire.FLOAT32 else 2


def chunk_numbers(model: Decoder, plan: DecoderPlan) -> list[int]:
    """Return how many numbers of values every rank has in the pass of a prompt's chunk, and of messages that arrive."""
    passes, rows = DecoderPasses(model, plan), min(CHUNK_ROWS, plan.context)
    steps, given = passes.steps(passes.rows(rows, 1), folded=True), passes.given(rows)

    def wire(step: ExchangeStep) -> Wire:
        return plan.wire if passes.coded(step) else Wire.FLOAT32

    found = [0] * len(plan.devices)
    for rank in plan.active:
        every = own_steps(steps, rank)
        places = places_of(every, [(given.name, Box.whole(*given.shape))] if rank in passes.first else ())
        found[rank] = places.numbers + -(-arriving(every, rank, places, wire) // FLOAT_BYTES)
    return found


def rank_memory(model: Decoder, plan: DecoderPlan) -> tuple[RankMemory, ...]:
    """Return what every rank needs; of one that takes no part and is not rank 0, nothing."""
    numbers = chunk_numbers(model, plan)
    return tuple(_of_rank(model, plan, rank, HELD[plan.precision], own) for rank, own in enumerate(numbers))


def most_memory(model: Decoder, plan: DecoderPlan) -> tuple[RankMemory, ...]:
    """Return what every rank needs, at the most, as searches count it: of passes that are not cut by rows."""
    return tuple(_of_rank(model, plan, rank, HELD[plan.precision]) for rank in range(len(plan.devices)))


def stored_bytes(model: Decoder, plan: DecoderPlan, rank: int) -> int:
    """Return what a rank's weights take in the file."""
    return _of_rank(model, plan, rank, STORED[plan.precision]).weights


def _of_rank(
    model: Decoder, plan: DecoderPlan, rank: int, precision: Precision, numbers: int | None = None
) -> RankMemory:
    """Return what a rank needs that has so many numbers of values in a pass; None: at the most."""
    weights, cache, width, shared, seen = 0, 0, 0, 0, 0
    tokens = plan.context * plan.sequences
    for stage in plan.stages:
        if rank not in stage.ranks:
            continue
        shared += len(stage.ranks) > 1
        for layer, alike in groupby(model.layers[stage.layers.slice]):
            layers = len(list(alike))
            for kind in layer:
                units = kind.units(stage.shares[kind.axis][rank])
                output = stage.outputs[kind.axis][rank].size if kind.axis in stage.outputs else None
                weights += layers * block_bytes(model, kind, units, precision, output)
                if stage.keys and isinstance(kind, Attention):
                    kept, scores = shared_bytes(model, kind, plan, stage, rank)
                    cache, seen = cache + layers * kept, max(seen, scores)
                else:
                    cache += layers * cache_bytes(kind, units, plan.cache, tokens)
                width = max(width, kind.made_columns(units))
                recalls = _recalls(model, kind)
                if stage.rows and stage.rows[rank] and (recalls or not stage.rows_end):
                    weights += layers * rows_bytes(model, kind, precision)
                    if not recalls:
                        width = max(width, kind.made_columns(whole_units(model, kind)))
    words = plan.words[rank].size
    if plan.hidden is None:
        weights += words_bytes(model, words, precision)
    else:
        weights += summed_bytes(model, plan.hidden[rank].size, precision)
    if plan.embedding is not None:
        weights += block_bytes(model, model.embedding, {WORD: plan.embedding[rank].size}, precision)
    embedding = embedding_bytes(model) if rank == 0 and plan.embedding is None else 0
    if not weights and not embedding and not cache:
        return RankMemory(0, 0, 0, 0)
    work = seen + work_bytes(model, plan, width, words, shared=shared, numbers=numbers)
    return RankMemory(weights, embedding, cache, work)


def decoder_lacks(cluster: Cluster, memory: tuple[RankMemory, ...]) -> str:
    """Return what memory a plan lacks, in words, and where; "" where it fits."""
    short = [
        f"{(needs.total - has.memory_bytes) / MIB:.0f} MiB more on {has.name} (has {has.memory_bytes / MIB:.0f}, "
        f"needs {needs.total / MIB:.0f}, {needs.cache / MIB:.0f} of it for the cache)"
        for has, needs in zip(cluster.devices, memory, strict=True)
        if needs.total > has.memory_bytes
    ]
    return f"does not fit: it would with {' and '.join(short)}" if short else ""


def check_memory(model: Decoder, cluster: Cluster, plan: DecoderPlan) -> tuple[RankMemory, ...]:
    """Return what every rank needs; refuse a plan for which devices lack memory.

    Raises
    ------
    InfeasiblePlanError
        Naming them, with what they have and need.
    """
    memory = rank_memory(model, plan)
    if lacks := decoder_lacks(cluster, memory):
        raise InfeasiblePlanError(f"{model.name} by {plan.system} {lacks}")
    return memory


def _bytes(tensors: Iterable[PartTensor], units: Mapping[str, int], precision: Precision) -> int:
    return sum(tensor.held_bytes(precision, units.get(tensor.axis)) for tensor in tensors)
