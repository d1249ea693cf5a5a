"""`DecoderPlan`: which rank has what of a language model's blocks, and which words, stage by stage.

Within a stage every rank has some units of every axis along which its blocks are cut: some query heads, with the key
and value heads that these need, some columns of the MLP; what they compute of a block are summands, which all ranks of
the stage exchange. Or a block's result is cut by its own columns: all get what is summed over, and then all columns,
and nothing is added. Passes of many rows, those of prompts, may be cut otherwise: contexts go from who has their heads
to who has their rows, and all of the layer that follows them is computed there, by ranks that hold all of its weights.
From stage to stage goes the stream. The ranks of the last stage share out the vocabulary. Rank 0 embeds tokens and
chooses the next one, with or without a share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from solver.base.errors import HeptiError, InfeasiblePlanError
from solver.base.spans import Partition, Span
from solver.model.blocks import BlockKind, one_of, parts_of, tensors_of, total_of
from solver.model.decoder import Decoder
from solver.model.kinds.attention import CACHES
from solver.model.kinds.part import HEAD, HIDDEN, Residual
from solver.model.kinds.weight import BLOCK, PRECISIONS
from solver.plan.plan import Wire

# Passes of so many rows have summands that sockets may not hold: they go by MPI, and always in two steps.
ROWS_BY_MPI = 8
WIRES = (Wire.FLOAT32, Wire.FLOAT16, Wire.INT8)


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
        return self.layers, shares, self.rows, tuple(self.outputs.items()), self.keys


@dataclass(frozen=True, slots=True)
class DecoderPrediction:
    """What the planner expects of a generation.

    Parameters
    ----------
    token_s
        Of a token behind `behind` others.
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
        Columns of the head a rank, where these are shared out: its summands of all logits go to who has the words;
        None: who has words has all columns of them.
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

    @property
    def structure(self) -> tuple[object, ...]:
        """What the steps of a pass follow from: who has some of what, how much or little it may be."""
        stages = tuple(stage.structure for stage in self.stages)
        return stages, self.words.taking, self.hidden, self.two_steps_from, self.rows_from, self.sequences

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
        if len(self.devices) != ranks:
            raise InfeasiblePlanError(f"the plan is for {len(self.devices)} devices, the job has {ranks} ranks")
        if [stage.layers.start for stage in self.stages] != [0, *(stage.layers.stop for stage in self.stages[:-1])]:
            raise InfeasiblePlanError("the stages do not follow each other from layer 0 on")
        if self.stages[-1].layers.stop != len(model.layers):
            last = self.stages[-1].layers.stop
            raise InfeasiblePlanError(f"the stages end at layer {last}, {model.name} has {len(model.layers)}")
        for number, stage in enumerate(self.stages):
            self._check_shares(model, number, stage)
            self._check_outputs(model, number, stage)
            self._check_keys(model, number, stage)
            self._check_rows(number, stage)
        if len(self.words) != ranks or self.words.total != model.vocab:
            raise InfeasiblePlanError(f"{self.words.total} words, {model.name} has {model.vocab}")
        self._check_hidden(model)
        for what, shared in (("words", self.words), ("columns of the head", self.hidden or ())):
            idle = [rank for rank, own in enumerate(shared) if own.size and rank not in self.stages[-1].ranks]
            if idle:
                raise InfeasiblePlanError(f"{self.devices[idle[0]]} has {what}, and no share of the last stage")
        if not 1 <= self.context <= model.positions:
            raise InfeasiblePlanError(f"a context of {self.context} tokens, {model.name} has {model.positions}")

    def _check_shares(self, model: Decoder, number: int, stage: DecoderStage) -> None:
        kinds, ranks = dict.fromkeys(chain(*model.layers[stage.layers.slice])), len(self.devices)
        for axis in dict.fromkeys((*stage.shares, *(kind.axis for kind in kinds))):
            own = [kind for kind in kinds if kind.axis == axis]
            if not own or axis not in stage.shares:
                which = f"{model.name} has no" if axis in stage.shares else "there are no"
                raise InfeasiblePlanError(f"stage {number}: {which} {axis}")
            partition, totals = stage.shares[axis], {total_of(kind, model.stream) for kind in own}
            if len(partition) != ranks:
                raise InfeasiblePlanError(f"stage {number}: {axis} of {len(partition)} devices, not of {ranks}")
            if totals != {partition.total}:
                has = ", ".join(map(str, sorted(totals)))
                raise InfeasiblePlanError(f"stage {number}: {partition.total} {axis}, {model.name} has {has}")
            if axis not in stage.outputs:
                unit = math.lcm(*(cut_unit(kind, model.stream, self.precision) for kind in own))
                blocks = f"of which {self.precision} makes blocks of {BLOCK}"
                _check_units(f"stage {number}: {axis}", partition, unit, blocks)

    def _check_outputs(self, model: Decoder, number: int, stage: DecoderStage) -> None:
        for axis, partition in stage.outputs.items():
            if axis not in stage.shares:
                raise InfeasiblePlanError(f"stage {number}: output of {axis}, of which there are no shares")
            for kind in dict.fromkeys(chain(*model.layers[stage.layers.slice])):
                parts = parts_of(kind, model.stream)
                if kind.axis == axis and not any(part.cut and HIDDEN in part.axes for part in parts):
                    raise InfeasiblePlanError(f"stage {number}: {kind.name} cannot be cut by output: cut it by {axis}")
            self._check_columns(f"stage {number}: output of {axis}", model, partition)

    def _check_hidden(self, model: Decoder) -> None:
        if self.hidden is not None:
            self._check_columns("head: hidden", model, self.hidden)

    def _check_columns(self, where: str, model: Decoder, partition: Partition) -> None:
        """Refuse columns of the stream that are not all of them, or cut within what goes together."""
        if len(partition) != len(self.devices):
            raise InfeasiblePlanError(f"{where} of {len(partition)} devices, not of {len(self.devices)}")
        if partition.total != model.hidden:
            raise InfeasiblePlanError(f"{where} has {partition.total} columns, {model.name} has {model.hidden}")
        unit = model.stream.unit
        why = f"which have one scale on thin wires and in blocks: cut at multiples of {unit}"
        _check_units(where, partition, unit, why)

    def _check_keys(self, model: Decoder, number: int, stage: DecoderStage) -> None:
        keys, where = stage.keys, f"stage {number}: keys"
        if not keys:
            return
        if len(keys) != len(self.devices):
            raise InfeasiblePlanError(f"{where} of {len(keys)} devices, not of {len(self.devices)}")
        if HEAD not in stage.shares:
            raise InfeasiblePlanError(f"{where}: no block of these layers keeps any, leave them out")
        if min(keys) < 0 or not any(keys):
            raise InfeasiblePlanError(f"{where} are {list(keys)}: none may be negative, and somebody must have some")
        if sum(keys) > self.context:
            raise InfeasiblePlanError(
                f"{where} are of every {sum(keys)} tokens, the context has room for {self.context}: write fewer"
            )

    def _check_rows(self, number: int, stage: DecoderStage) -> None:
        if not stage.rows:
            return
        if len(stage.rows) != len(self.devices):
            raise InfeasiblePlanError(f"stage {number}: rows of {len(stage.rows)} devices, not of {len(self.devices)}")
        idle = [rank for rank, own in enumerate(stage.rows) if own and rank not in stage.ranks]
        if idle or not any(stage.rows):
            who = self.devices[idle[0]] if idle else "nobody"
            raise InfeasiblePlanError(f"stage {number}: {who} has rows: who has some must have a share of the stage")
        if self.rows_from < ROWS_BY_MPI:
            raise InfeasiblePlanError(f"rows_from is {self.rows_from}, must be {ROWS_BY_MPI} rows at least")


def _check_units(where: str, partition: Partition, unit: int, why: str) -> None:
    """Refuse a cut that is not between units."""
    for span in partition:
        if span.size and (span.start % unit or (span.stop % unit and span.stop != partition.total)):
            raise InfeasiblePlanError(f"{where} {span.start} to {span.stop} are cut within {unit}, {why}")


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
