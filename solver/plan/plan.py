"""`Plan`: for every block its cut and partitions, and how they are exchanged; `solver.plan.file` writes it.

Heads and columns are half-open spans, one per device; rows are shares of any request's length, resolved for the
length at hand by the largest remainder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from solver.base.errors import HeptiError, InfeasiblePlanError
from solver.base.phrases import counted
from solver.base.spans import Partition, Span
from solver.model.blocks import Block, Cut
from solver.model.kinds.every import KINDS
from solver.model.spec import ModelSpec, Run
from solver.model.sublayers import HALVES
from solver.plan.routes import Route


class Wire(StrEnum):
    """How numbers travel: exactly, or as half of the bytes, or as fewer with a scale for every row.

    Six bits and fewer, and as many as the links carry, are for what goes from stage to stage (QuantPipe).
    """

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8 = "int8"
    INT6 = "int6"
    INT4 = "int4"
    INT2 = "int2"
    ADAPTIVE = "adaptive"

    @property
    def bits(self) -> int:
        """Bits of one number."""
        return {Wire.FLOAT16: 16, Wire.INT8: 8, Wire.INT6: 6, Wire.INT4: 4, Wire.INT2: 2}.get(self, 32)

    @property
    def scale_bytes(self) -> int:
        """Bytes that come with every row of a tensor: a scale, of few bits also the least value."""
        return 0 if self.bits > 8 else 4 if self is Wire.INT8 else 8

    def row_bytes(self, width: int, tensors: int = 1) -> int:
        """Return the bytes of a row of so many numbers of so many tensors; few bits fill whole bytes together."""
        together = 8 // math.gcd(8, self.bits)
        return -(-width // together) * together * self.bits // 8 + tensors * self.scale_bytes

    @property
    def within(self) -> Wire:
        """What the ranks of one stage send each other where this is between stages."""
        return self if self in WIRES else Wire.FLOAT32

    def check_one_stage(self) -> None:
        """Refuse a format that only goes from stage to stage, where one stage has all layers and devices.

        Raises
        ------
        InfeasiblePlanError
            If it is one.
        """
        if self is not self.within:
            raise InfeasiblePlanError(
                f"{self} on the wire is for what goes from stage to stage, this plan has 1 stage: "
                f"take float32, float16 or int8, or --system pipeedge"
            )


WIRES = (Wire.FLOAT32, Wire.FLOAT16, Wire.INT8)  # of all families, and within a stage
# What `adaptive` chooses from.
STAGE_WIRES = (Wire.FLOAT32, Wire.FLOAT16, Wire.INT8, Wire.INT6, Wire.INT4, Wire.INT2)


class Keys(StrEnum):
    """What a device makes of the input of an attention by rows, where that is gathered and not K and V (Voltage)."""

    PROJECTED = "projected"  # it computes K and V of all rows
    AVOIDED = "avoided"  # (q W_k) Xᵀ for the scores, (weights X) W_v for the context: neither K nor V


def cut_word(block: str, cut: Cut) -> str:
    """Return the word of plan files for a cut of a block: what it shares out."""
    return {Cut.BLOCK: KINDS[block].axis, Cut.COLUMNS: "output"}.get(cut, str(cut))


class StreamLayout(StrEnum):
    """How an activation lies on the ranks."""

    FULL = "full"  # all have all
    ROWS = "rows"  # each its rows
    COLS = "cols"  # each the columns of its sub-blocks


# Where cuts that leave no choice leave the stream.
_NORMS = {
    Cut.ROWS: (StreamLayout.ROWS,), Cut.TO_ROWS: (StreamLayout.ROWS,), Cut.GRID: (StreamLayout.ROWS,),
    Cut.WHOLE: (StreamLayout.FULL,), Cut.SUB_BLOCKS: (StreamLayout.COLS,),
}  # fmt: skip
ROUNDING = 1e-6  # what shares may lack of one, or have above it


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """One block's cut and partitions.

    Parameters
    ----------
    block
        The kind of block, as `Block.name`.
    cut
        How the block is split.
    inner
        Heads (attention), F columns (MLP) or sub-blocks per rank; None for the cuts `rows` and `whole`.
    columns
        Output columns per rank, for cut `columns`; for cut `grid` columns of H per row of the grid.
    norm
        Where the residual is added and normalised after the block; always `rows` for cuts `rows`, `to_rows` and
        `grid`, `full` for `whole`, `cols` for `sub_blocks`.
    rows
        Shares of the rows per rank, where `norm` is `rows`; they add up to one.
    route
        How the rows that the block needs (K and V for attention by rows) come to the ranks.
    keys
        For attention by rows that gathers its input, not K and V: what every rank does with it.
    groups
        For cut `to_rows`: in how many groups a rank computes its heads or columns, each of which it sends at once.
    """

    block: str
    cut: Cut
    inner: Partition | None = None
    columns: Partition | None = None
    norm: StreamLayout = StreamLayout.FULL
    rows: tuple[float, ...] | None = None
    route: Route = Route.DIRECT
    keys: tuple[Keys, ...] | None = None
    groups: int = 1

    def __post_init__(self) -> None:
        norms = _NORMS.get(self.cut, (StreamLayout.FULL, StreamLayout.ROWS))
        if self.norm not in norms:
            raise HeptiError(f"cut {self.cut}: its norm is {self.norm}, must be {' or '.join(norms)}")
        for name, found, needed in (
            ("heads, columns or sub-blocks", self.inner, self.cut not in (Cut.ROWS, Cut.WHOLE)),
            ("output columns", self.columns, self.cut in (Cut.COLUMNS, Cut.GRID)),
            ("shares of rows", self.rows, self.norm is StreamLayout.ROWS),
        ):
            if (found is not None) != needed:
                raise HeptiError(f"cut {self.cut}, norm {self.norm}: it {'needs' if needed else 'has no'} {name}")
        if self.keys is not None and self.cut is not Cut.ROWS:
            raise HeptiError(f"cut {self.cut} has no keys: they are of attention by rows")
        if self.groups < 1 or (self.groups > 1 and self.cut is not Cut.TO_ROWS):
            raise HeptiError(f"cut {self.cut} in {self.groups} groups: at least 1, and more of cut to_rows only")
        if self.rows is not None and not (min(self.rows) >= 0 and abs(math.fsum(self.rows) - 1) <= ROUNDING):
            raise HeptiError(f"shares of rows {list(self.rows)} must be at least 0 and add up to 1")

    def only(self, ranks: Sequence[int]) -> BlockPlan:
        """Return the plan as seen by a group of these ranks; the others must hold nothing."""

        def narrow(partition: Partition | None) -> Partition | None:
            return partition and Partition(tuple(partition[rank] for rank in ranks))

        rows = self.rows and tuple(self.rows[rank] for rank in ranks)
        # All ranks of a grid take part: its rows stay as they are.
        columns = self.columns if self.cut is Cut.GRID else narrow(self.columns)
        keys = self.keys and tuple(self.keys[rank] for rank in ranks)
        return replace(self, inner=narrow(self.inner), columns=columns, rows=rows, keys=keys)

    def shared(self, rows: int) -> Partition:
        """Return who computes how much: of so many rows, for cut `rows`, else of the heads, F columns or sub-blocks."""
        partition = self.row_partition(rows) if self.cut is Cut.ROWS else self.inner
        assert partition is not None
        return partition

    def crew(self, rank: int) -> range:
        """Return the ranks of a rank's column of the grid; cut `grid` only.

        A grid of X by Y has rank j X + i in row i and column j: one span of columns a row, and the ranks of a column
        one after the other, whose heads or F columns together are those of its tiles.
        """
        assert self.columns is not None
        first = rank - rank % len(self.columns)
        return range(first, first + len(self.columns))

    def tile(self, rank: int) -> tuple[Span, Span]:
        """Return the heads or F columns, and the columns of H, of a rank's tile of both weights; cut `grid` only."""
        assert self.inner is not None
        assert self.columns is not None
        crew = self.crew(rank)
        return Span(self.inner[crew[0]].start, self.inner[crew[-1]].stop), self.columns[rank - crew[0]]

    def has_tile(self, rank: int) -> bool:
        """Return whether a rank's tile has any weights; cut `grid` only."""
        return all(span.size for span in self.tile(rank))

    def has_share(self, rank: int) -> bool:
        """Return whether a rank has anything to do in this block; in a grid all have."""
        if self.cut is Cut.GRID:
            return True
        spans = [partition[rank] for partition in (self.inner, self.columns) if partition is not None]
        return any(span.size for span in spans) or (self.rows is not None and self.rows[rank] > 0)

    def row_partition(self, rows: int) -> Partition | None:
        """Return who has which of `rows` rows after the block; None where all have all."""
        return None if self.rows is None else Partition.of_shares(self.rows, rows)


LayerPlan = tuple[BlockPlan, ...]  # of every block of a layer


def layer_by_rows(blocks: Sequence[Block], shares: Sequence[float]) -> LayerPlan:
    """Return the plan of a layer all of whose blocks are cut by rows, in these shares."""
    return tuple(block_by_rows(block, shares) for block in blocks)


def block_by_rows(block: Block, shares: Sequence[float]) -> BlockPlan:
    """Return the plan of a block that is cut by rows, in these shares."""
    return BlockPlan(block.name, Cut.ROWS, norm=StreamLayout.ROWS, rows=tuple(shares))


NOTHING = Span(0, 0)


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive layers on a group of devices; `devices` are names in rank order.

    Its first and last layer may be in part another stage's: `sublayers` says what this one computes, in sub-layers of
    the model (`solver.model.sublayers`); where not given, all of its layers.
    """

    devices: tuple[str, ...]
    layers: tuple[tuple[Span, LayerPlan], ...]  # runs of equal layers
    sublayers: Span = NOTHING

    def __post_init__(self) -> None:
        if not self.layers:
            raise HeptiError(f"the stage of {', '.join(self.devices)} has no layers")
        if self.sublayers.size and len({len(layer) for _, layer in self.layers}) > 1:
            raise HeptiError(
                f"the stage of {', '.join(self.devices)} has sublayers, and layers of unlike numbers of blocks: "
                f"it must have all of its layers"
            )
        if not self.sublayers.size:
            object.__setattr__(self, "sublayers", self.span.scaled(self.per_layer))
        touched = Span(self.sublayers.start // self.per_layer, -(-self.sublayers.stop // self.per_layer))
        if touched != self.span:
            raise HeptiError(
                f"the stage of {', '.join(self.devices)} has layers {self.span.start} to {self.span.stop - 1}, "
                f"its sublayers [{self.sublayers.start}, {self.sublayers.stop}) are in layers {touched.start} to "
                f"{touched.stop - 1}: there are {self.per_layer} a layer"
            )
        for end, block in ((self.sublayers.start, self.first), (self.sublayers.stop, self.last)):
            if end % HALVES and block.cut is not Cut.ROWS:
                raise HeptiError(
                    f"the stage of {', '.join(self.devices)} is cut at sub-layer {end}, within a block that is "
                    f"cut by {cut_word(block.block, block.cut)}: only blocks that are cut by rows can be"
                )

    @property
    def span(self) -> Span:
        """The layers of the stage."""
        return Span(self.layers[0][0].start, self.layers[-1][0].stop)

    @property
    def per_layer(self) -> int:
        """Sub-layers of a layer; a model whose layers have more blocks here than there has whole stages only."""
        return HALVES * len(self.layers[0][1])

    @property
    def is_whole(self) -> bool:
        """Whether it computes all of its layers."""
        return self.sublayers == self.span.scaled(self.per_layer)

    @property
    def first(self) -> BlockPlan:
        """The block that it begins with, or in."""
        return self.layers[0][1][self.begins // HALVES]

    @property
    def begins(self) -> int:
        """How many sub-layers of its first layer another stage computes."""
        return self.sublayers.start % self.per_layer

    @property
    def last(self) -> BlockPlan:
        """The block that it ends with, or in."""
        return self.layers[-1][1][-1 if self.is_whole else (self.sublayers.stop - 1) % self.per_layer // HALVES]

    @property
    def label(self) -> str:
        """Its first and its last layer; where it has not all of them, LAYER.SUB-LAYER, of both the ones it has."""
        (first, start), (last, stop) = (
            divmod(at, self.per_layer) for at in (self.sublayers.start, self.sublayers.stop - 1)
        )
        if not self.is_whole:
            return f"{first}.{start}-{last}.{stop}"
        return f"{first}-{last}" if first != last else str(first)

    def part(self, layer: int) -> Span:
        """Return which of the sub-layers of a layer it computes."""
        if self.is_whole:
            return Span(0, HALVES * len(self.layer(layer) or ()))
        own = Span(layer, layer + 1).scaled(self.per_layer)
        return own.intersect(self.sublayers).within(own)

    def layer(self, number: int) -> LayerPlan | None:
        """Return the cuts of one layer; None where the stage does not have it."""
        return next((layer for span, layer in self.layers if span.start <= number < span.stop), None)

    @property
    def active(self) -> tuple[int, ...]:
        """Ranks that have a share; the others take no part in any exchange."""
        blocks = [block for _, layer in self.layers for block in layer]
        return tuple(rank for rank in range(len(self.devices)) if any(block.has_share(rank) for block in blocks))


class NamedModel(Protocol):
    """A model, as plans name it."""

    @property
    def name(self) -> str:
        """As people call it."""

    @property
    def fingerprint(self) -> str:
        """Of its layers and widths."""


def check_named(name: str, fingerprint: str, model: NamedModel) -> None:
    """Refuse a plan that names another model; without a fingerprint it is for all of this name.

    Raises
    ------
    HeptiError
        Naming both.
    """
    if fingerprint and fingerprint != model.fingerprint:
        raise HeptiError(
            f"the plan is for model {name} ({fingerprint}), the weights are {model.name} ({model.fingerprint}): plan "
            f"again with hepti plan"
        )
    if not fingerprint and name != model.name:
        raise HeptiError(
            f"the plan is for model {name}, the weights are {model.name}: if it is meant for these, write {model.name} "
            f"into its model"
        )


def layers_in_words(layers: Span) -> str:
    """Return which layers these are, as a complaint about them begins."""
    return f"layers {layers.start} to {layers.stop - 1}"


def check_ranks(devices: Sequence[str], ranks: int) -> None:
    """Refuse a plan of more or fewer devices than there are ranks.

    Raises
    ------
    InfeasiblePlanError
        With both numbers.
    """
    if (count := len(devices)) != ranks:
        raise InfeasiblePlanError(
            f"the plan is for {counted(count, 'device')}, the job has {counted(ranks, 'rank')}: start "
            f"{counted(count, 'rank')} or plan again for {ranks}"
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the planner expects of one request."""

    seconds: float
    compute_s: float
    exchange_s: float
    weights_bytes: tuple[int, ...]  # per device
    bytes_on_wire: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Who computes what: all that a run needs to know.

    Parameters
    ----------
    stages
        In the order of their layers, one after the other; where layer 0 comes again, another replica begins. A device
        is in one stage at most.
    model_name, model_fingerprint
        What it is for; no fingerprint where a person wrote the plan.
    cluster_fingerprint, system
        What it was made of, and how.
    rows
        The length that it was made for, 0 if unknown; it fits every other.
    tile_rows
        Ranks with rows of their own compute and send about so many at a time; 0: all at once.
    wire
        The number format of the exchanges that it was made for.
    predicted
        What the planner expects.
    devices
        All devices in rank order, also those that hold nothing; where not given, those of the stages in their order.
    """

    stages: tuple[Stage, ...]
    model_name: str
    model_fingerprint: str = ""
    cluster_fingerprint: str = ""
    system: str = ""
    rows: int = 0
    tile_rows: int = 0
    wire: Wire = Wire.FLOAT32
    predicted: Prediction | None = field(default=None)
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.devices:
            names = dict.fromkeys(name for stage in self.stages for name in stage.devices)
            object.__setattr__(self, "devices", tuple(names))

    @property
    def predicted_s(self) -> float:
        """Predicted seconds of a request, of a plan that has been priced."""
        assert self.predicted is not None
        return self.predicted.seconds

    @property
    def in_one(self) -> bool:
        """Whether there is one stage, of all devices."""
        return len(self.stages) == 1 and self.stages[0].devices == self.devices

    @property
    def replicas(self) -> tuple[tuple[Stage, ...], ...]:
        """Stages that have every layer between them, for every replica."""
        found: list[list[Stage]] = []
        for stage in self.stages:
            if not found or stage.sublayers.start == 0:
                found.append([])
            found[-1].append(stage)
        return tuple(map(tuple, found))

    def place(self, rank: int) -> tuple[Stage, int] | None:
        """Return the stage that a rank is in, and its number among the stage's devices; None where it is in none."""
        name = self.devices[rank]
        return next(((stage, stage.devices.index(name)) for stage in self.stages if name in stage.devices), None)

    def ranks(self, stage: Stage) -> tuple[int, ...]:
        """Return the ranks of a stage's devices."""
        return tuple(self.devices.index(name) for name in stage.devices)

    def check(self, spec: ModelSpec, ranks: int) -> None:
        """Refuse a plan that does not fit the model or the number of ranks.

        Raises
        ------
        HeptiError
            Naming the number that does not fit.
        """
        check_named(self.model_name, self.model_fingerprint, spec)
        check_ranks(self.devices, ranks)
        self._check_devices()
        for replica in self.replicas or ((),):
            _check_replica(replica, spec)
        if self.in_one:
            self.wire.check_one_stage()
        if spec.groups and not self.in_one:
            raise HeptiError(
                f"the plan has {len(self.stages)} stages, or not all devices in one: model {spec.name} has decoupled "
                f"layers, and needs one stage of all devices"
            )

    def _check_devices(self) -> None:
        seen: set[str] = set()
        for stage in self.stages:
            order = [name for name in self.devices if name in stage.devices]
            if list(stage.devices) != order:
                raise HeptiError(
                    f"devices {', '.join(stage.devices)} of a stage do not stand in the order of the ranks, "
                    f"{', '.join(self.devices)}"
                )
            for name in seen.intersection(stage.devices):
                raise HeptiError(f"device {name} is in two stages: a device can be in one")
            seen.update(stage.devices)

    @property
    def unheeded(self) -> list[str]:
        """What it says that comes to less, in words: more groups than any device has heads or columns to send in."""
        blocks = ((span, block) for stage in self.stages for span, layer in stage.layers for block in layer)
        return [
            f"{layers_in_words(span)}, {block.block}: groups is {block.groups}, no device has more than "
            f"{max(block.inner.counts)} {KINDS[block.block].axis}"
            for span, block in blocks
            if block.inner is not None and 0 < max(block.inner.counts) < block.groups
        ]

    def layer(self, number: int) -> LayerPlan:
        """Return the cuts of one layer, in the first replica."""
        for stage in self.stages:
            if (layer := stage.layer(number)) is not None:
                return layer
        raise HeptiError(f"the plan has no layer {number}")


def uniform_plan(spec: ModelSpec, devices: Sequence[str], layer: LayerPlan, **facts: Any) -> Plan:
    """Return the plan that cuts every layer of `spec` the same way, in one stage."""
    return _one_stage(spec, devices, [(Span(0, spec.layers), layer)], **facts)


def blockwise_plan(spec: ModelSpec, devices: Sequence[str], cut: Callable[[Block], BlockPlan], **facts: Any) -> Plan:
    """Return the plan that cuts every block of `spec` by one rule, in one stage; its layers need not be alike."""
    starts = zip(spec.starts, spec.runs, strict=True)
    runs = [(Span(start, start + run.layers), tuple(map(cut, run.blocks))) for start, run in starts]
    return _one_stage(spec, devices, runs, **facts)


def _one_stage(spec: ModelSpec, devices: Sequence[str], runs: Sequence[tuple[Span, LayerPlan]], **facts: Any) -> Plan:
    stage = Stage(tuple(devices), tuple(runs))
    return Plan((stage,), model_name=spec.name, model_fingerprint=spec.fingerprint, **facts)


def _check_replica(replica: Sequence[Stage], spec: ModelSpec) -> None:
    runs = [(span, layer, len(stage.devices)) for stage in replica for span, layer in stage.layers]
    whole = all(stage.is_whole for stage in replica)
    try:
        if whole:
            covered = Partition(tuple(span for span, _, _ in runs))
        else:
            for stage in replica:
                Partition(tuple(span.within(stage.span) for span, _ in stage.layers))
            covered = Partition(tuple(stage.sublayers for stage in replica))
    except HeptiError as error:
        raise HeptiError(f"{'layers' if whole else 'sublayers'} of the stages: {error}") from error
    total, unit = (spec.layers, "layers") if whole else (replica[0].per_layer * spec.layers, "sub-layers")
    if covered.total != total:
        raise HeptiError(f"the plan has {covered.total} {unit}, model {spec.name} has {total}: share out {total}")
    for span, layer, devices in runs:
        where = layers_in_words(span)
        for number in (span.start, *(start for start in spec.starts if span.start < start < span.stop)):
            run = spec.run(number)
            has, needs = (", ".join(names) for names in ([b.block for b in layer], [b.name for b in run.blocks]))
            if has != needs:
                raise HeptiError(
                    f"{where}: a layer has blocks {has}, layer {number} of model {spec.name} has {needs}: write these, "
                    f"in this order"
                )
            _check_decoupled(number, run, layer, where, spec)
            for block, plan in zip(run.blocks, layer, strict=True):
                _check_block(plan, block, f"{where}, {block.name}", spec, devices)


def _check_decoupled(number: int, run: Run, layer: LayerPlan, where: str, spec: ModelSpec) -> None:
    """Refuse a decoupled layer that is cut otherwise than by sub-blocks, and others that are."""
    cuts = {block.cut for block in layer}
    if Cut.WHOLE in cuts and not spec.groups:
        raise HeptiError(f"{where}: cut whole is for models with decoupled layers, model {spec.name} has none")
    if len(cuts) > 1 and {Cut.WHOLE, Cut.SUB_BLOCKS} & cuts:
        named = ", ".join(f"{plan.block} is cut {cut_word(plan.block, plan.cut)}" for plan in layer)
        raise HeptiError(f"{where}: {named}: cut all so, or none")
    if Cut.SUB_BLOCKS in cuts and len({plan.inner for plan in layer}) > 1:
        named = ", ".join(f"of {plan.block} {list(plan.inner.counts)}" for plan in layer if plan.inner)
        raise HeptiError(f"{where}: sub_blocks {named}: must be the same")
    decoupled = run.parts > 1
    if decoupled != (Cut.SUB_BLOCKS in cuts):
        is_not = "" if decoupled else "not "
        raise HeptiError(
            f"{where}: layer {number} of model {spec.name} is {is_not}decoupled: its cut must {is_not}be sub_blocks"
        )


def _check_block(plan: BlockPlan, block: Block, where: str, spec: ModelSpec, devices: int) -> None:
    count, unit = (0, "") if block.inner is None else (block.inner.count, str(block.inner.axis))
    if plan.cut is Cut.SUB_BLOCKS:
        count, unit = spec.sub_blocks, "sub-blocks"
    elif plan.cut not in block.cuts:
        word, *words = (cut_word(plan.block, cut) for cut in (plan.cut, *block.cuts))
        raise HeptiError(f"{where}: cut {word} is not one of {', '.join(words)}")
    for partition, total, name in ((plan.inner, count, unit), (plan.columns, spec.hidden, "output columns")):
        if partition is None:
            continue
        if plan.cut is Cut.GRID and name != unit:
            if devices % len(partition):
                raise HeptiError(
                    f"{where}: a grid of {len(partition)} rows, as many as spans of columns, for {devices} devices: "
                    f"all rows must have as many devices"
                )
        elif len(partition) != devices:
            raise HeptiError(f"{where}: {len(partition)} numbers of {name} for {devices} devices: write one for each")
        if partition.total != total:
            raise HeptiError(
                f"{where}: {name} add up to {partition.total}, model {spec.name} has {total}: share out {total}"
            )
    if plan.rows is not None and len(plan.rows) != devices:
        raise HeptiError(f"{where}: {len(plan.rows)} shares of rows for {devices} devices: write one for each")
    if plan.keys is not None and len(plan.keys) != devices:
        raise HeptiError(f"{where}: {len(plan.keys)} words of keys for {devices} devices: write one for each")
