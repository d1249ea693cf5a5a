"""`DecoderPlan`: which rank has what of a language model's blocks, and which words, stage by stage.

Within a stage every rank has some units of every axis along which its blocks are cut: some query heads, with the key
and value heads that these need, some columns of the MLP; what they compute of a block are summands, which all ranks of
the stage exchange. Or a block's result is cut by its own columns: all get what is summed over, and then all columns,
and nothing is added. Passes of many rows, those of prompts, may be cut otherwise: contexts go from who has their heads
to who has their rows, and what follows them is computed there: the output product, by ranks that hold all of it, or all
of the layer, by ranks that hold all of its weights.
From stage to stage goes the stream. The ranks of the last stage share out the vocabulary. Rank 0 embeds tokens and
chooses the next one, with or without a share.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sized
from dataclasses import dataclass, field
from itertools import chain

from solver.base.errors import HeptiError, InfeasiblePlanError
from solver.base.spans import Partition, Span, tiles
from solver.model.blocks import BlockKind, one_of, parts_of, tensors_of, total_of
from solver.model.decoder import Decoder
from solver.model.kinds.attention import CACHES
from solver.model.kinds.part import HEAD, HIDDEN, KEY, ROW, WORD, Residual
from solver.model.kinds.weight import BLOCK, PRECISIONS
from solver.plan.plan import Wire, check_ranks, layers_in_words

# Passes of so many rows have summands that sockets may not hold: they go by MPI, and always in two steps.
ROWS_BY_MPI = 8


@dataclass(frozen=True, slots=True)
class DecoderStage:
    """Consecutive layers, and who has what of each of them.

    Parameters
    ----------
    shares
        Of every axis along which blocks of these layers are cut: who has which units, consecutive in rank order.
    rows
        Of a prompt's rows, parts of every rank: who has some computes what follows the contexts of these rows; none:
        prompts are cut as tokens are.
    rows_end
        Whether that is the output product alone, and all else is cut as for tokens; else it is all of the layer.
    keys
        Of every so many tokens, whose keys and values every rank keeps: all of their heads'; none: who has heads keeps
        theirs, of all tokens.
    outputs
        Of some of these axes: who has which columns of the results of their blocks, instead of summands of all.
    """

    layers: Span
    shares: Mapping[str, Partition]
    rows: tuple[float, ...] = ()
    outputs: Mapping[str, Partition] = field(default_factory=dict)
    keys: tuple[int, ...] = ()
    rows_end: bool = False

    @property
    def dealt(self) -> tuple[int, ...]:
        """Of every so many tokens, how many each of those keeps who keep some."""
        return tuple(own for own in self.keys if own)

    def keeper(self, rank: int) -> int:
        """Return which of those who keep tokens a rank is."""
        return sum(own > 0 for own in self.keys[:rank])

    @property
    def ranks(self) -> tuple[int, ...]:
        """Who takes part."""
        numbers = [
            *(own.counts for own in (*self.shares.values(), *self.outputs.values())),
            *[self.keys] * bool(self.keys),
        ]
        return tuple(rank for rank, own in enumerate(zip(*numbers, strict=True)) if any(own))

    @property
    def structure(self) -> tuple[object, ...]:
        """What the steps of a pass through it follow from."""
        shares = tuple((axis, own.taking) for axis, own in self.shares.items())
        return self.layers, shares, self.rows, self.rows_end, tuple(self.outputs.items()), self.keys


@dataclass(frozen=True, slots=True)
class DecoderPrediction:
    """What the planner expects of a generation.

    Parameters
    ----------
    token_s
        Of a token after `behind` others; of several sequences, of one of each in a pass.
    first_s
        From a prompt of `prompt` tokens to the first answer token.
    compute_s, exchange_s
        Parts of `token_s`.
    memory_bytes
        A device: weights, cache, activations.
    """

    token_s: float
    first_s: float
    compute_s: float
    exchange_s: float
    memory_bytes: tuple[int, ...]
    prompt: int
    behind: int


@dataclass(frozen=True, slots=True)
class DecoderPlan:
    """A language model on a cluster.

    Parameters
    ----------
    devices
        Names, in rank order.
    stages
        Cover the layers.
    words
        Rows of the head a rank; only ranks of the last stage have any.
    hidden
        Columns of the head a rank, where these are shared out: its summands of all logits go to the ranks that have the
        words; None: these have all columns of them.
    wire
        How summands travel.
    precision, cache
        What weights, and keys and values, are held in.
    context
        Tokens that there is room for, of one sequence.
    sequences
        How many sequences have room.
    rows_from
        Rows of a pass from which it is cut by rows, in stages that say whose they are; 0: none is.
    two_steps_from
        Rows of a pass from which each rank adds up a part of the summands, and sends the sums to all; fewer rows'
        summands go to all, and all add.
    system
        Who made the plan.
    predicted
        What was predicted for it, where it was.
    embedding
        Words of the embedding a rank; None: rank 0 reads rows of all words from the file as they come.
    """

    system: str
    devices: tuple[str, ...]
    stages: tuple[DecoderStage, ...]
    words: Partition
    wire: Wire = Wire.FLOAT32
    precision: str = "float32"
    cache: str = "float32"
    context: int = 4096
    sequences: int = 1
    two_steps_from: int = ROWS_BY_MPI
    rows_from: int = 0
    hidden: Partition | None = None
    predicted: DecoderPrediction | None = None
    embedding: Partition | None = None

    @property
    def begins(self) -> tuple[int, ...]:
        """Who gets what a pass begins with: the stream, for the first stage, or tokens, for those who have words."""
        if self.embedding is None:
            return self.stages[0].ranks
        return tuple(rank for rank, words in enumerate(self.embedding) if words.size)

    @property
    def active(self) -> tuple[int, ...]:
        """Ranks that have a share of a stage."""
        return tuple(sorted({rank for stage in self.stages for rank in stage.ranks}))

    @property
    def predicted_s(self) -> float:
        """Predicted seconds of a token."""
        assert self.predicted is not None
        return self.predicted.token_s

    @property
    def word_columns(self) -> dict[str, Partition]:
        """Who has which words, by the headings of tables: of the head, and of an embedding that is cut."""
        return {"words": self.words} | ({} if self.embedding is None else {"embedded": self.embedding})

    @property
    def structure(self) -> tuple[object, ...]:
        """What the steps of a pass follow from: who has some of what, how much or little it may be."""
        stages = tuple(stage.structure for stage in self.stages)
        embedding = self.embedding and self.embedding.taking
        ends = self.words.taking, self.hidden, embedding
        return stages, ends, self.two_steps_from, self.rows_from, self.sequences

    def in_flight(self, sequences: int) -> list[Span]:
        """Return which sequences go through the stages together in a token's pass: in as many parts as stages are."""
        return list(tiles(Span(0, sequences), -(-sequences // len(self.stages))))

    def check(self, model: Decoder, ranks: int) -> None:
        """Refuse a plan that does not fit a model and a number of ranks.

        Raises
        ------
        InfeasiblePlanError
            Saying which number does not.
        """
        one_of("precision", self.precision, tuple(PRECISIONS))
        one_of("cache", self.cache, CACHES)
        if not 1 <= self.two_steps_from <= ROWS_BY_MPI:
            raise InfeasiblePlanError(f"two_steps_from is {self.two_steps_from}, must be 1 to {ROWS_BY_MPI} rows")
        check_ranks(self.devices, ranks)
        if [stage.layers.start for stage in self.stages] != [0, *(stage.layers.stop for stage in self.stages[:-1])]:
            spans = ", ".join(f"[{stage.layers.start}, {stage.layers.stop}]" for stage in self.stages)
            raise InfeasiblePlanError(
                f"layers of the stages are {spans}: the first must begin with 0, and each where the one before ends"
            )
        if self.stages[-1].layers.stop != len(model.layers):
            last, layers = self.stages[-1].layers.stop, len(model.layers)
            raise InfeasiblePlanError(f"the plan has {last} layers, {model.name} has {layers}: share out {layers}")
        for stage in self.stages:
            self._check_shares(model, stage)
            self._check_outputs(model, stage)
            self._check_keys(stage)
            self._check_rows(stage)
        if self.rows_from and not any(stage.rows for stage in self.stages):
            raise InfeasiblePlanError(f"rows_from is {self.rows_from}, and no run has rows: leave it out")
        last_ranks = self.stages[-1].ranks
        self._check_words("head", model, self.words, last_ranks, "the last stage")
        if self.hidden is not None:
            self._check_columns("head", HIDDEN, model, self.hidden)
            self._check_idle("head", f"columns of {HIDDEN}", self.hidden, last_ranks, "the last stage")
        if self.embedding is not None:
            self._check_words("embedding", model, self.embedding, self.active, "a stage")
            if model.learned_positions:
                raise InfeasiblePlanError(
                    f"embedding: {model.name} adds rows of places, which only rank 0 reads: leave it out"
                )
        if not 1 <= self.context <= model.positions:
            raise InfeasiblePlanError(
                f"context is {self.context} tokens, {model.name} has {model.positions}: write 1 to {model.positions}"
            )

    def _check_shares(self, model: Decoder, stage: DecoderStage) -> None:
        where = layers_in_words(stage.layers)
        kinds = dict.fromkeys(chain(*model.layers[stage.layers.slice]))
        for axis in dict.fromkeys((*stage.shares, *(kind.axis for kind in kinds))):
            own = [kind for kind in kinds if kind.axis == axis]
            if not own or axis not in stage.shares:
                which = f"{model.name} has no {axis}: leave" if axis in stage.shares else f"there are no {axis}: write"
                raise InfeasiblePlanError(f"{where}: {which} them{' out' * (axis in stage.shares)}")
            partition, totals = stage.shares[axis], {total_of(kind, model.stream) for kind in own}
            self._check_each(where, axis, partition)
            if totals != {partition.total}:
                has = ", ".join(map(str, sorted(totals)))
                raise InfeasiblePlanError(
                    f"{where}: {axis} add up to {partition.total}, {model.name} has {has}: share out {has}"
                )
            if axis not in stage.outputs:
                unit = math.lcm(*(cut_unit(kind, model.stream, self.precision) for kind in own))
                why = f"of which {self.precision} makes blocks of {BLOCK}"
                _check_units(f"{where}: {axis}", partition, unit, why)

    def _check_outputs(self, model: Decoder, stage: DecoderStage) -> None:
        where = layers_in_words(stage.layers)
        for axis, partition in stage.outputs.items():
            if axis not in stage.shares:
                raise InfeasiblePlanError(f"{where}: output of {axis}, of which there are no shares: leave it out")
            for kind in dict.fromkeys(chain(*model.layers[stage.layers.slice])):
                parts = parts_of(kind, model.stream)
                if kind.axis == axis and not any(part.cut and HIDDEN in part.axes for part in parts):
                    raise InfeasiblePlanError(f"{where}: {kind.name} cannot be cut by output: cut it by {axis}")
            self._check_columns(where, f"output of {axis}", model, partition)

    def _check_columns(self, where: str, what: str, model: Decoder, partition: Partition) -> None:
        """Refuse columns of the stream that are not all of them, or cut within what goes together."""
        self._check_each(where, what, partition)
        if partition.total != model.hidden:
            raise InfeasiblePlanError(
                f"{where}: columns of {what} add up to {partition.total}, {model.name} has {model.hidden}: share out "
                f"{model.hidden}"
            )
        why = "which have one scale on thin wires and in blocks"
        _check_units(f"{where}: {what}", partition, model.stream.unit, why)

    def _check_keys(self, stage: DecoderStage) -> None:
        keys, where = stage.keys, f"{layers_in_words(stage.layers)}: keys"
        if not keys:
            return
        self._check_each(layers_in_words(stage.layers), KEY, keys)
        if HEAD not in stage.shares:
            raise InfeasiblePlanError(f"{where}: no block of these layers keeps any, leave them out")
        if min(keys) < 0 or not any(keys):
            raise InfeasiblePlanError(f"{where} are {list(keys)}: none may be negative, and somebody must have some")
        if sum(keys) > self.context:
            raise InfeasiblePlanError(
                f"{where} are of every {sum(keys)} tokens, the context has room for {self.context}: write fewer"
            )

    def _check_words(self, what: str, model: Decoder, words: Partition, taking: Collection[int], part: str) -> None:
        """Refuse shares of words that are not all, or of devices that do not take part."""
        self._check_each(what, WORD, words)
        if words.total != model.vocab:
            raise InfeasiblePlanError(
                f"{what}: words add up to {words.total}, {model.name} has {model.vocab}: share out {model.vocab}"
            )
        self._check_idle(what, WORD, words, taking, part)

    def _check_each(self, where: str, what: str, numbers: Sized) -> None:
        """Refuse more or fewer numbers than devices."""
        if len(numbers) != len(self.devices):
            raise InfeasiblePlanError(
                f"{where}: {len(numbers)} numbers of {what} for {len(self.devices)} devices: write one for each"
            )

    def _check_idle(self, where: str, what: str, shared: Partition, taking: Collection[int], part: str) -> None:
        """Refuse shares of devices that do not take part."""
        for rank, own in enumerate(shared):
            if own.size and rank not in taking:
                raise InfeasiblePlanError(
                    f"{where}: {self.devices[rank]} has {own.size} {what}, and no share of {part}: give it one, or 0"
                )

    def _check_rows(self, stage: DecoderStage) -> None:
        if not stage.rows:
            return
        where = layers_in_words(stage.layers)
        self._check_each(where, ROW, stage.rows)
        idle = [rank for rank, own in enumerate(stage.rows) if own and rank not in stage.ranks]
        if idle or not any(stage.rows):
            who = self.devices[idle[0]] if idle else "nobody"
            raise InfeasiblePlanError(f"{where}: {who} has rows: who has some must have a share of the stage")
        if self.rows_from < ROWS_BY_MPI:
            raise InfeasiblePlanError(f"rows_from is {self.rows_from}, must be {ROWS_BY_MPI} rows at least")


def _check_units(where: str, partition: Partition, unit: int, why: str) -> None:
    """Refuse a cut that is not between units."""
    for span in partition:
        if span.size and (span.start % unit or (span.stop % unit and span.stop != partition.total)):
            raise InfeasiblePlanError(
                f"{where} {span.start} to {span.stop} are cut within {unit}, {why}: write multiples of {unit}"
            )


def cut_unit(kind: BlockKind, stream: Residual, precision: str) -> int:
    """Return the units of a block's axis between which a cut may be: those of whole blocks of what is summed over."""
    if precision == "float32":
        return 1
    summed = [own for own in tensors_of(kind, stream).values() if own.axis == kind.axis and own.weight.summed == 0]
    return math.lcm(*(BLOCK // math.gcd(BLOCK, own.shape[0] // own.units) for own in summed))


def totals_of(model: Decoder, layers: Span) -> dict[str, int]:
    """Return of every axis along which blocks of some layers are cut how many units there are, in order of the blocks.

    Where layers differ it is the first one that says so; `DecoderPlan.check` refuses others beside it in a stage.
    """
    found: dict[str, int] = {}
    for kind in chain(*model.layers[layers.slice]):
        found.setdefault(kind.axis, total_of(kind, model.stream))
    return found


def kind_names(model: Decoder, layers: Span) -> list[str]:
    """Return the names of the kinds of blocks of some layers, in order of the blocks."""
    return list(dict.fromkeys(kind.name for kind in chain(*model.layers[layers.slice])))


def all_on(rank: int, ranks: int, total: int) -> Partition:
    """Return the partition of which one rank has all."""
    return Partition.of_counts([total * (other == rank) for other in range(ranks)])


def stage_on(model: Decoder, layers: Span, rank: int, ranks: int) -> DecoderStage:
    """Return the stage of a device alone."""
    totals = totals_of(model, layers).items()
    return DecoderStage(layers, {axis: all_on(rank, ranks, total) for axis, total in totals})


def whole_on(model: Decoder, devices: tuple[str, ...], rank: int, **facts: object) -> DecoderPlan:
    """Return the plan of a device alone."""
    ranks = len(devices)
    if not 0 <= rank < ranks:
        raise HeptiError(f"there is no rank {rank} of {ranks}")
    stage = stage_on(model, Span(0, len(model.layers)), rank, ranks)
    return DecoderPlan("single", devices, (stage,), all_on(rank, ranks, model.vocab), **facts)  # type: ignore[arg-type]
