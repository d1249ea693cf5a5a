"""`DecoderPlan`: which rank has which heads, columns and words of a language model, stage by stage.

Within a stage every rank has some query heads, with the key and value heads that these need, and some columns of the
MLP; what they compute of a half layer are summands, which all ranks of the stage exchange. Passes of many rows, those
of prompts, may be cut otherwise: contexts go from who has their heads to who has their rows, and all of the layer that
follows them is computed there, by ranks that hold all of its weights. From stage to stage goes the stream. The ranks of
the last stage share out the vocabulary. Rank 0 embeds tokens and chooses the next one, with or without a share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from solver.base.errors import HeptiError, InfeasiblePlanError
from solver.base.spans import Partition, Span
from solver.model.blocks import one_of
from solver.model.decoder import Decoder
from solver.model.kinds.attention import CACHES, Attention
from solver.model.kinds.weight import BLOCK, PRECISIONS
from solver.model.precision import FLOAT32, Precision
from solver.plan.plan import Wire

# Passes of so many rows have summands that sockets may not hold: they go by MPI, and always in two steps.
ROWS_BY_MPI = 8
WIRES = (Wire.FLOAT32, Wire.FLOAT16, Wire.INT8)


@dataclass(frozen=True, slots=True)
class DecoderStage:
    """Consecutive layers, and who has what of each of them.

    Parameters
    ----------
    heads
        Query heads, consecutive in rank order.
    columns
        Of the MLP.
    rows
        Of a prompt's rows, parts of every rank: who has some computes what follows the contexts of these rows; none:
        prompts are cut as tokens are.
    """

    layers: Span
    heads: Partition
    columns: Partition
    rows: tuple[float, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Who takes part."""
        pairs = zip(self.heads, self.columns, strict=True)
        return tuple(rank for rank, (heads, columns) in enumerate(pairs) if heads.size or columns.size)


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
    predicted: DecoderPrediction | None = None

    @property
    def structure(self) -> tuple[object, ...]:
        """What the steps of a pass follow from: who has some of what, how much or little it may be."""
        stages = tuple((stage.layers, stage.heads.taking, stage.columns.taking, stage.rows) for stage in self.stages)
        return stages, self.words.taking, self.two_steps_from, self.rows_from, self.sequences

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
            layers = model.layers[stage.layers.slice]
            for what, partition, totals in (
                ("heads", stage.heads, {layer.attention.heads for layer in layers}),
                ("columns", stage.columns, {layer.mlp.ffn for layer in layers}),
            ):
                if len(partition) != ranks:
                    raise InfeasiblePlanError(f"stage {number}: {what} of {len(partition)} devices, not of {ranks}")
                if totals != {partition.total}:
                    has = ", ".join(map(str, sorted(totals)))
                    raise InfeasiblePlanError(f"stage {number}: {partition.total} {what}, {model.name} has {has}")
            self._check_rows(number, stage)
            unit = head_unit(layers[0].attention, self.precision)
            for what, partition, of in (
                ("heads", stage.heads, unit),
                ("columns", stage.columns, column_unit(self.precision)),
            ):
                for span in partition:
                    if span.size and (span.start % of or (span.stop % of and span.stop != partition.total)):
                        raise InfeasiblePlanError(
                            f"stage {number}: {what} {span.start} to {span.stop} are cut within {of}, "
                            f"of which {self.precision} makes blocks of {BLOCK}"
                        )
        if len(self.words) != ranks or self.words.total != model.vocab:
            raise InfeasiblePlanError(f"{self.words.total} words, {model.name} has {model.vocab}")
        idle = [rank for rank, words in enumerate(self.words) if words.size and rank not in self.stages[-1].ranks]
        if idle:
            raise InfeasiblePlanError(f"{self.devices[idle[0]]} has words, and no share of the last stage")
        if not 1 <= self.context <= model.positions:
            raise InfeasiblePlanError(f"a context of {self.context} tokens, {model.name} has {model.positions}")

    def _check_rows(self, number: int, stage: DecoderStage) -> None:
        if not stage.rows:
            return
        if len(stage.rows) != len(self.devices):
            raise InfeasiblePlanError(f"stage {number}: rows of {len(stage.rows)} devices, not of {len(self.devices)}")
        idle = [rank for rank, own in enumerate(stage.rows) if own and rank not in stage.ranks]
        if idle or not any(stage.rows):
            who = self.devices[idle[0]] if idle else "nobody"
            raise InfeasiblePlanError(f"stage {number}: {who} has rows: who has some must have heads or columns")
        if self.rows_from < ROWS_BY_MPI:
            raise InfeasiblePlanError(f"rows_from is {self.rows_from}, must be {ROWS_BY_MPI} rows at least")


def head_unit(attention: Attention, precision: str | Precision) -> int:
    """Return the query heads between which a cut may be: those of whole blocks of the output's summed axis."""
    if precision in (FLOAT32, "float32"):
        return 1
    return BLOCK // math.gcd(BLOCK, attention.head_dim)


def column_unit(precision: str | Precision) -> int:
    """Return the columns of the MLP between which a cut may be."""
    return 1 if precision in (FLOAT32, "float32") else BLOCK


def whole_on(model: Decoder, devices: tuple[str, ...], rank: int, **facts: object) -> DecoderPlan:
    """Return the plan of a device alone."""
    ranks = len(devices)
    if not 0 <= rank < ranks:
        raise HeptiError(f"there is no rank {rank} of {ranks}")

    def alone(total: int) -> Partition:
        return Partition.of_counts([total * (other == rank) for other in range(ranks)])

    layer = model.layers[0]
    stage = DecoderStage(Span(0, len(model.layers)), alone(layer.attention.heads), alone(layer.mlp.ffn))
    return DecoderPlan("single", devices, (stage,), alone(model.vocab), **facts)  # type: ignore[arg-type]
