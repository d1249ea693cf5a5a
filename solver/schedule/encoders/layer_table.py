"""Kinds of layers, and what a request all of whose layers are of a kind costs for any whole shares: in tables.

A kind is a cut of every block with the place of its norm, a route, and what attention by rows gathers. Shares are
counted in units: rows, heads, tiles of F or output columns. Seconds are those of a layer, with its part of what stands
before the first one and after the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.base.spans import Partition
from solver.cluster.curves import Floats
from solver.model.blocks import Axis, Block, Cut
from solver.model.kinds.attention import Attention
from solver.model.kinds.part import Spans, TensorUse
from solver.plan.plan import BlockPlan, Keys, LayerPlan, StreamLayout
from solver.plan.routes import Route
from solver.schedule.encoders.placing import CutBlock, LayerCuts
from solver.schedule.encoders.pricing import Pricer, any_blocks, avoiding
from solver.schedule.encoders.request import BlockSteps, request_steps
from solver.schedule.encoders.setting import Setting
from solver.schedule.encoders.steps import Step, cut_steps
from solver.schedule.exchange import Mask
from solver.schedule.timing import (
    BlockCount,
    Load,
    Machine,
    TimedStep,
    Times,
    Transfer,
    Values,
    ends,
    step_times,
    times,
)

Integers = NDArray[np.int64]
Units = Mapping[Axis, Integers]  # [..., p], in units of the axis

TILE = 64  # columns: the widest panel that OpenBLAS and onnxruntime pack at a time is a divisor or a small multiple


@dataclass(frozen=True, slots=True)
class LayerKind:
    """How each block of a layer is cut, where the norms after them are, and how rows come to those who need them.

    With `input_gathered` attention by rows gathers its input, not K and V, and every device makes of it what takes it
    least time (`solver.plan.plan.Keys`). `groups` are those of blocks that are cut `to_rows`.
    """

    cuts: tuple[tuple[Cut, StreamLayout], ...]
    route: Route = Route.DIRECT
    input_gathered: bool = False
    groups: int = 1

    def __str__(self) -> str:
        cuts, norms = "/".join(cut for cut, _ in self.cuts), "".join(norm[0] for _, norm in self.cuts)
        route = f" {self.route}" if self.route is not Route.DIRECT else ""
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        return f"{cuts} {norms}{route}{groups}" + (" input gathered" if self.input_gathered else "")

    @property
    def begins_by_rows(self) -> bool:
        """Whether the request is handed out by rows."""
        return self.cuts[0][1] is StreamLayout.ROWS

    @property
    def ends_by_rows(self) -> bool:
        """Whether the stream lies in rows after a layer."""
        return self.cuts[-1][1] is StreamLayout.ROWS

    @property
    def sends_inner(self) -> bool:
        """Whether some block sends what its heads make to the owners of rows."""
        return TO_ROWS in self.cuts

    def steps(self, blocks: Sequence[Block]) -> Iterator[tuple[Block, tuple[Step, ...]]]:
        """Yield the blocks of a layer, each with its steps."""
        for block, (cut, norm) in zip(blocks, self.cuts, strict=True):
            gathers = self.input_gathered and isinstance(block.kind, Attention)
            yield block, cut_steps(block, cut, norm, input_gathered=gathers)

    def axes(self, blocks: Sequence[Block]) -> tuple[Axis, ...]:
        """Return the axes whose shares a planner chooses."""
        used = [Axis.ROWS] if any(norm is StreamLayout.ROWS for _, norm in self.cuts) else []
        for block, (cut, _) in zip(blocks, self.cuts, strict=True):
            if cut is not Cut.ROWS and block.inner is not None:
                used += [block.inner.axis, *([block.inner.output] if cut is Cut.COLUMNS else [])]
        return tuple(used)


ROWS, BLOCK_ROWS, BLOCK_FULL, TO_ROWS = (
    (Cut.ROWS, StreamLayout.ROWS),
    (Cut.BLOCK, StreamLayout.ROWS),
    (Cut.BLOCK, StreamLayout.FULL),
    (Cut.TO_ROWS, StreamLayout.ROWS),
)
# Columns with norm on rows gathers all columns everywhere all the same: it is never cheaper than block.
BLOCK_CUTS = (ROWS, BLOCK_ROWS, BLOCK_FULL, (Cut.COLUMNS, StreamLayout.FULL))


def kind_by_rows(blocks: Sequence[Block]) -> LayerKind:
    """Return the kind that cuts every block by rows."""
    return LayerKind((ROWS,) * len(blocks))


@lru_cache(maxsize=16)
def layer_kinds(blocks: tuple[Block, ...]) -> tuple[LayerKind, ...]:
    """Return all kinds that blocks of a layer may be cut by.

    Half of what K and V are is worth it where links are slow: there all is cut by rows, and the input gathered.
    To rows attention alone sends what it makes: an MLP's inner columns are as many as several of the stream's, and are
    summed up where they are.
    """
    found = [LayerKind(cuts) for cuts in product(BLOCK_CUTS, repeat=len(blocks)) if _legal(blocks, cuts)]
    leaving_rows = ((TO_ROWS,) if isinstance(block.kind, Attention) else (ROWS, BLOCK_ROWS) for block in blocks)
    found += [LayerKind(cuts) for cuts in product(*leaving_rows) if TO_ROWS in cuts and _legal(blocks, cuts)]
    if any(isinstance(block.kind, Attention) for block in blocks):
        found.append(replace(kind_by_rows(blocks), input_gathered=True))
    return tuple(found)


def _legal(blocks: Sequence[Block], cuts: Sequence[tuple[Cut, StreamLayout]]) -> bool:
    return all(cut in block.cuts for block, (cut, _) in zip(blocks, cuts, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Bytes that a layer of a kind holds.

    Parameters
    ----------
    per_unit
        For every unit of an axis.
    whole
        For any share of rows at all: cuts by rows need all weights of their block.
    """

    per_unit: Mapping[Axis, int]
    whole: int

    def held_bytes(self, units: Units) -> Floats:
        """Return the bytes of weights that every device holds of one layer, [..., p]."""
        held = sum(size * units[axis] for axis, size in self.per_unit.items())
        if self.whole:
            held = held + self.whole * (units[Axis.ROWS] > 0)
        return np.asarray(held, float)


def layer_weights(setting: Setting, kind: LayerKind) -> Weights:
    """Return what a share of a layer weighs; norms and last biases, which everybody holds, are not counted."""
    per_unit, whole = {}, 0
    for block, (cut, _) in zip(setting.spec.blocks, kind.cuts, strict=True):
        if cut is Cut.ROWS or block.inner is None:
            whole += sum(tensor.held_bytes() for tensor in block.shared)
            continue
        inner, output = block.inner.axis, block.inner.output
        last = [tensor for tensor in block.shared if tensor.use is TensorUse.OUT]
        apart = last if cut in (Cut.COLUMNS, Cut.TO_ROWS) else []
        size = unit_size(setting, inner)
        per_unit[inner] = sum(tensor.held_bytes(units=size) for tensor in block.shared if tensor not in apart)
        if cut is Cut.COLUMNS:
            per_unit[output] = sum(tensor.held_bytes(columns=unit_size(setting, output)) for tensor in apart)
        else:
            whole += sum(tensor.held_bytes() for tensor in apart)
    return Weights(per_unit, whole)


def unit_size(setting: Setting, axis: Axis) -> int:
    """Return how many columns a unit of an axis has: the widest tile that divides it; one row, one head."""
    if axis in (Axis.ROWS, Axis.HEADS):
        return 1
    length = setting.length(axis)
    return max(tile for tile in range(1, TILE + 1) if length % tile == 0)


def unit_count(setting: Setting, axis: Axis) -> int:
    """Return how many units of an axis there are."""
    return setting.length(axis) // unit_size(setting, axis)


PARTS = ("before", "first", "during", "edge")


@dataclass(frozen=True, slots=True, eq=False)
class TableStep:
    """A step whose loads are tables, its `PARTS` stacked, by axis; transfer, reduces and blocks as in `TimedStep`.

    Parameters
    ----------
    loads : [blocks + 1 or 1, units + 1, p, parts]
        Where products run on blocks of rows, they depend on how many there are.
    per_layer
        How often the step comes in a request, for every layer of it.
    """

    loads: Mapping[Axis, Floats]
    transfer: Transfer | None
    reduces: bool
    blocks: BlockCount | None
    per_layer: float


class LayerTable:
    """What a layer of a kind costs for any shares, among layers of its kind.

    Parameters
    ----------
    setting
        The model and the cluster.
    kind
        The kind of layer.
    """

    def __init__(self, setting: Setting, kind: LayerKind) -> None:
        self.setting, self.kind = setting, kind
        self.units = {axis: unit_count(setting, axis) for axis in kind.axes(setting.spec.blocks)}
        self.sizes = {axis: unit_size(setting, axis) for axis in self.units}
        self.weights = layer_weights(setting, kind)
        self._devices = np.arange(setting.devices)
        values = {axis: np.arange(total + 1.0)[:, None] * self.sizes[axis] for axis, total in self.units.items()}
        steps = kind_steps(setting, kind, values, None)
        self.steps = [self._table(step, repeats / setting.spec.layers) for repeats, step in _merged(steps)]

    def seconds(self, units: Units) -> Floats:
        """Return the seconds of one layer, [...]."""
        return np.asarray(sum(end.max(-1) for end in self.step_ends(units)))

    def step_ends(self, units: Units) -> list[Floats]:
        """Return how much of a layer's seconds every device takes for each step, [..., p]."""
        return [often * ends(*arguments) for often, arguments in self._priced(units)]

    def step_times(self, units: Units) -> list[tuple[float, Times]]:
        """Return what every device does in each step, [..., p], and how often for a layer.

        `step_ends` takes two thirds of the time.
        """
        return [(often, times(*arguments)) for often, arguments in self._priced(units)]

    def axis_seconds(self, axis: Axis, owners: int) -> Floats:
        """Return what every share of an axis costs in compute, [units + 1, p], where so many devices have rows."""
        tile_rows = self.setting.tile_rows
        blocks = {True: max(owners, round(self.setting.rows / tile_rows) if tile_rows else 0), False: owners}
        seconds = sum(
            step.per_layer * load[blocks[step.reduces] if len(load) > 1 else 0][..., [0, 2]].sum(-1)
            for step in self.steps
            if (load := step.loads.get(axis)) is not None
        )
        # One row more may need fewer, larger tiles.
        return np.maximum.accumulate(np.asarray(seconds), axis=0)

    def held_bytes(self, units: Units) -> Floats:
        """Return the bytes of weights that every device holds of one layer, [..., p]."""
        return self.weights.held_bytes(units)

    def _priced(
        self, units: Units
    ) -> Iterator[tuple[float, tuple[list[Floats], Transfer | None, bool, Values, Mask, Machine]]]:
        """Yield how often every step comes for a layer, and the arguments of `ends` for it."""
        values = {axis: counts.astype(float) * self.sizes[axis] for axis, counts in units.items()}
        active = taking(units)
        for step in self.steps:
            loads = self._loads(step, units, values, active)
            yield step.per_layer, (loads, step.transfer, step.reduces, values, active, self.setting.machine)

    def _loads(self, step: TableStep, units: Units, values: Values, active: Mask) -> list[Floats]:
        blocks = 0 if step.blocks is None else step.blocks(values, active).astype(np.intp)
        parts = [
            table[blocks if len(table) > 1 else 0, units[axis], self._devices]
            if axis in units
            else table[0, 0] * (active[..., None] if axis is Axis.FIXED else 1.0)
            for axis, table in step.loads.items()
        ]
        load = np.add.reduce(np.broadcast_arrays(*parts)) if parts else np.zeros((*active.shape, len(PARTS)))
        return [load[..., part] for part in range(len(PARTS))]

    def _table(self, step: TimedStep, per_layer: float) -> TableStep:
        def stacked(axis: Axis) -> Floats:
            def part(load: Load) -> Floats:
                return np.asarray(load.get(axis, np.zeros(())))

            parts = [part(getattr(step, name)) for name in PARTS]
            shape = np.broadcast_shapes((1, self.units.get(axis, 0) + 1, self._devices.size), *(p.shape for p in parts))
            return np.stack([np.broadcast_to(values, shape) for values in parts], -1)

        axes = {*step.before, *step.during}
        loads = {axis: stacked(axis) for axis in sorted(axes)}
        return TableStep(loads, step.transfer, step.reduces, step.blocks, per_layer)


def _merged(steps: Iterable[tuple[int, TimedStep]]) -> list[tuple[int, TimedStep]]:
    """Return the steps, each once: the first layer and its like have the same ones, but where they begin."""
    often: dict[TimedStep, int] = {}
    for repeats, step in steps:
        often[step] = often.get(step, 0) + repeats
    return [(repeats, step) for step, repeats in often.items()]


def kind_steps(
    setting: Setting, kind: LayerKind, values: Values, active: Mask | None
) -> Iterator[tuple[int, TimedStep]]:
    """Yield the steps of a request all of whose layers are of a kind, and how often; arguments as in `Pricer`."""

    def avoids(block: Block) -> Mask | None:
        if isinstance(block.kind, Attention) and kind.input_gathered:
            rows = values[Axis.ROWS]
            owners = any_blocks(setting) if active is None else (rows > 0).sum(-1, keepdims=True)
            return avoiding(setting, block, rows, owners)
        return None

    blocks = [
        BlockSteps(block, own, kind.route, kind.groups, avoids(block)) for block, own in kind.steps(setting.spec.blocks)
    ]
    pricer = Pricer(setting, values, values[Axis.ROWS] if kind.begins_by_rows else None, active)
    yield from request_steps(setting, pricer, blocks)


def layer_seconds(setting: Setting, kind: LayerKind, units: Units) -> Floats:
    """Return the seconds of a layer of a kind without its table, [...]: for few shares; of many, a table is faster."""
    values = {axis: counts.astype(float) * unit_size(setting, axis) for axis, counts in units.items()}
    active, machine = taking(units), setting.machine
    steps = kind_steps(setting, kind, values, active)
    seconds = sum(repeats * step_times(step, values, active, machine).end.max(-1) for repeats, step in steps)
    return np.asarray(seconds / setting.spec.layers)


# A solve asks again for few of its tables, and at once (13 to 15 of 211 hits are lost with 8 for 64); while a service
# follows its boards, every new measurement makes others, of 0.1 to 0.5 MiB.
@lru_cache(maxsize=8)
def layer_table(setting: Setting, kind: LayerKind) -> LayerTable:
    """Return the table of a kind, made once for a setting."""
    return LayerTable(setting, kind)


def taking(units: Mapping[Axis, Any]) -> Mask:
    """Return who has a share of anything, [..., p]."""
    return np.asarray(np.logical_or.reduce([counts > 0 for counts in units.values()]))


def with_root(crew: Mask) -> NDArray[np.intp]:
    """Return the devices of a crew, [p], and rank 0: requests come from it, and go back."""
    return np.flatnonzero(crew | (np.arange(crew.size) == 0))


def over_all(values: NDArray[Any], devices: NDArray[np.intp], ranks: int) -> NDArray[Any]:
    """Return values of some devices as values of all ranks, [p]; nothing for the others."""
    every = np.zeros(ranks, values.dtype)
    every[devices] = values
    return every


def kind_of(layer: LayerPlan) -> LayerKind:
    """Return how a layer of a plan is cut, by whatever route."""
    gathers, groups = any(block.keys is not None for block in layer), max(block.groups for block in layer)
    return LayerKind(tuple((block.cut, block.norm) for block in layer), input_gathered=gathers, groups=groups)


def layer_plan(setting: Setting, kind: LayerKind, units: Units) -> LayerPlan:
    """Return the plan of a layer with these shares, [p]."""
    parts = {axis: Partition.of_counts((counts * unit_size(setting, axis)).tolist()) for axis, counts in units.items()}

    def plan(block: Block, cut: Cut, norm: StreamLayout) -> BlockPlan:
        rows = tuple((units[Axis.ROWS] / units[Axis.ROWS].sum()).tolist()) if norm is StreamLayout.ROWS else None
        inner = output = keys = None
        if block.inner is not None:
            inner, output = parts.get(block.inner.axis), parts.get(block.inner.output)
        if isinstance(block.kind, Attention) and kind.input_gathered:
            avoids = avoiding(setting, block, units[Axis.ROWS], int(np.count_nonzero(units[Axis.ROWS])))
            keys = tuple(Keys.AVOIDED if avoided else Keys.PROJECTED for avoided in avoids)
        groups = kind.groups if cut is Cut.TO_ROWS else 1
        return BlockPlan(block.name, cut, inner, output, norm, rows, kind.route, keys, groups)

    return tuple(plan(block, cut, norm) for block, (cut, norm) in zip(setting.spec.blocks, kind.cuts, strict=True))


def layer_cuts(setting: Setting, layer: LayerPlan, units: Units, crew: Sequence[int]) -> LayerCuts:
    """Return how ranks of a crew cut a layer by shares, [n, p], whose cuts are those of its plan."""
    spans = {axis: _spans(counts * unit_size(setting, axis))[:, crew] for axis, counts in units.items()}

    def cut(block: Block, plan: BlockPlan) -> CutBlock:
        rows = spans[Axis.ROWS] if plan.norm is StreamLayout.ROWS else None
        if plan.keys is not None:
            own = units[Axis.ROWS]
            return CutBlock(plan, rows, avoids=avoiding(setting, block, own, (own > 0).sum(-1, keepdims=True))[:, crew])
        if block.inner is None or plan.inner is None:
            return CutBlock(plan, rows)
        return CutBlock(plan, rows, spans[block.inner.axis], spans.get(block.inner.output))

    return tuple(cut(block, plan.only(crew)) for block, plan in zip(setting.spec.blocks, layer, strict=True))


def _spans(counts: Integers) -> Spans:
    """Return spans of so many one after the other, [..., p, 2]."""
    stops = np.cumsum(counts, -1)
    return np.stack([stops - counts, stops], -1)
