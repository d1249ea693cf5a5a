"""Plans for requests of other lengths, with the same weights on every device.

A run has one plan for every bucket of lengths, and changes between them without reading a weight: only shares of rows
change, and how they are sent.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

import numpy as np

from solver.base.spans import Partition, largest_remainder
from solver.cluster.cluster import Cluster
from solver.model.blocks import Axis, Cut
from solver.model.spec import ModelSpec
from solver.plan.plan import BlockPlan, LayerPlan, Plan, Stage
from solver.plan.routes import Route
from solver.programs.search import Terms, improved, redraft
from solver.programs.tiles_and_routes import best_sending
from solver.schedule.encoders.cost import price, request_seconds, setting
from solver.schedule.encoders.layer_table import Units, kind_of, layer_plan, unit_size
from solver.schedule.encoders.setting import Setting

SHORTEST = 16  # rows of the smallest bucket


def bucket(rows: int) -> int:
    """Return the length whose plan requests of so many rows use: the next power of two."""
    return max(SHORTEST, 1 << (rows - 1).bit_length())


class PlansByLength:
    """A plan for every bucket of lengths, made when it is first asked for; weights stay as in `plan`.

    The bucket that `plan` was made for keeps it. Another takes some 30 ms for 4 devices, up to 200 where layers are cut
    in many ways.
    """

    def __init__(self, spec: ModelSpec, cluster: Cluster, plan: Plan) -> None:
        self._spec, self._cluster, self._plan = spec, cluster, plan
        self._plans = {bucket(plan.rows): plan}

    def of(self, rows: int) -> Plan:
        """Return the plan under which requests of `rows` rows run."""
        length = bucket(rows)
        if length not in self._plans:
            self._plans[length] = for_rows(self._spec, self._cluster, self._plan, length)
        return self._plans[length]


def for_rows(
    spec: ModelSpec, cluster: Cluster, plan: Plan, rows: int, *, resend: bool = True, joining: Collection[int] = ()
) -> Plan:
    """Return the plan for requests of `rows` rows: other shares of rows, among the devices that hold what rows need.

    These are those that have a share, and `joining`. Ways to keys stay, since weights are packed for them. Unless they
    are to be sent anew, too, tiles and routes stay: trying these takes three quarters of the time.
    """
    if len(plan.stages) > 1 or spec.groups:  # what shares rows out has one stage, and no decoupled layers
        return plan
    s = setting(spec, cluster, rows, plan.wire, plan.tile_rows)
    (stage,) = plan.stages
    layers = tuple((span, _other_rows(s, layer, stage.active, joining, resend)) for span, layer in stage.layers)
    kept = replace(plan, rows=rows)
    other = replace(kept, stages=(Stage(stage.devices, layers),))
    if other != kept and not joining:  # what is better as tables count may be none by clocks
        other = min(other, kept, key=partial(request_seconds, s))
    if resend:
        other = best_sending(s, other)
    return replace(other, predicted=price(s, other).prediction)


def _other_rows(
    s: Setting, layer: LayerPlan, active: Collection[int], joining: Collection[int], resend: bool
) -> LayerPlan:
    """Return the layer with the shares of rows that are best for it.

    As it is, where it has none, a person's, or a grid's, whose prices no table has.
    """
    if any(block.cut is Cut.GRID for block in layer):
        return layer
    kind, units = kind_of(layer), _units(s, layer)
    if Axis.ROWS not in units or _plain(layer_plan(s, kind, units), s.rows) != _plain(layer, s.rows):
        return layer
    if not resend:
        kind = replace(kind, route=next((block.route for block in layer if block.route != Route.DIRECT), Route.DIRECT))
    crew = np.array(sorted({*active, *joining}))
    mine = {axis: counts[crew] for axis, counts in units.items()}
    free = np.zeros(crew.size)
    draft = redraft(s.only(crew), kind, mine, Terms(free, free + np.inf))
    # Those at work hold no more than now.
    terms = Terms(free, np.where(np.isin(crew, [*joining]), np.inf, draft.table.held_bytes(mine)))
    found = improved(draft, terms, axes=(Axis.ROWS,))
    counts = np.zeros(s.devices, np.int64)
    counts[crew] = found.units[Axis.ROWS]
    other = layer_plan(s, kind, {**units, Axis.ROWS: counts})
    return tuple(replace(block, keys=now.keys) for block, now in zip(other, layer, strict=True))


def _units(s: Setting, layer: LayerPlan) -> Units:
    """Return a layer's shares in whole units, rounded down where a person's are none."""
    parts: dict[Axis, Partition | None] = {}
    for block, plan in zip(s.spec.blocks, layer, strict=True):
        if block.inner is not None:
            parts |= {block.inner.axis: plan.inner, block.inner.output: plan.columns}
    units = {
        axis: np.array(part.counts, np.int64) // unit_size(s, axis) for axis, part in parts.items() if part is not None
    }
    shares = next((block.rows for block in layer if block.rows is not None), None)
    if shares is not None:
        units[Axis.ROWS] = np.array(largest_remainder(shares, s.rows), np.int64)
    return units


def _plain(layer: LayerPlan, rows: int) -> LayerPlan:
    """Return the layer with rows as they are rounded, no routes, and no ways to keys, which depend on the rows."""

    def plain(block: BlockPlan) -> BlockPlan:
        partition = block.row_partition(rows)
        shares = None if partition is None else tuple((np.array(partition.counts) / rows).tolist())
        return replace(block, route=Route.DIRECT, rows=shares, keys=None)

    return tuple(map(plain, layer))
