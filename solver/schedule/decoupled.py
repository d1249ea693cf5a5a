"""What decoupled layers cost: sub-blocks that see only their own columns, and the exchanges between layouts.

DeTransformer, "Communication-Efficient Model Parallelism for Distributed In-Situ Transformer Inference", DATE 2024. In
the decoupled layers of a group nothing is sent: every device computes its sub-blocks, one layer after the other. Bytes
move where the layout changes, from a device that has some rows and columns to one that wants others:

    into a group      rows -> columns   every other device gets the columns of its sub-blocks; full -> columns is free
    out of a group    columns -> full   all get all (gathered and redundant, tensor-parallel)
                      columns -> rows   one gets all (an original layer on one device)

An original layer that is cut `whole` is computed by everybody; all other cuts are priced as in other models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.model.spec import ModelSpec
from solver.plan.plan import BlockPlan, Cut, LayerPlan, Layout, Plan, Stage
from solver.plan.spans import Partition, Span, largest_remainder
from solver.schedule.exchange import Exchange, Mask, of_matrix
from solver.schedule.layer_table import Integers
from solver.schedule.pricing import Pricer, Setting, seconds_alone
from solver.schedule.steps import BLOCKS, Axis, cut_steps

# How an original layer is computed, where not on one device.
WHOLE, TENSOR_PARALLEL = -2, -1


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Which rows and columns of an activation every device has, [p, 2] each: from, and up to."""

    rows: Floats
    columns: Floats


class GroupSteps:
    """Adds the steps of decoupled layers, and what they need of the original layers between them.

    Parameters
    ----------
    setting
        The model and the cluster.
    pricer
        Adds up the steps of all layers; the stream begins on the first device that takes part.
    active
        Who takes part.
    """

    def __init__(self, setting: Setting, pricer: Pricer, active: Mask) -> None:
        self._setting, self._pricer, self._active = setting, pricer, active
        pricer.stream = setting.rows * (np.arange(setting.devices) == np.argmax(active)).astype(float)
        self._columns: Region | None = None  # None: the stream lies as `pricer` says
        self._layer_s = layer_seconds(setting, setting.spec)
        self._part_s = layer_seconds(setting, setting.spec.sub_block)

    def has_layers(self, count: int, block: BlockPlan, rows: Floats | None) -> bool:
        """Add layers that are cut by sub-blocks or whole; of others, only bring the stream to where they find it.

        Parameters
        ----------
        count
            How many layers in a row.
        block
            How their attention is cut.
        rows
            By which rows they are cut; None: they begin with everything on all devices.

        Returns
        -------
        bool
            Whether these are all their steps.
        """
        s, pricer = self._setting, self._pricer
        if block.cut is Cut.SUB_BLOCKS:
            assert block.inner is not None
            sub_blocks = np.array(block.inner.counts, float)
            columns = by_columns(s, sub_blocks)
            if pricer.stream is not None:
                pricer.send("deal columns out", regrid(s, by_rows(s, pricer.stream), columns))
            elif self._columns is not None:
                pricer.send("deal columns anew", regrid(s, self._columns, columns))
            pricer.work(count * sub_blocks * self._part_s, "sub-blocks")
            pricer.stream, self._columns = None, columns
            return True
        if self._columns is not None:
            wanted = in_full(s, self._active) if rows is None else by_rows(s, rows)
            pricer.send("gather columns", regrid(s, self._columns, wanted))
            pricer.stream, self._columns = rows, None
        if block.cut is Cut.WHOLE:
            pricer.work(count * self._layer_s, "whole layer")
        return block.cut is Cut.WHOLE


def by_rows(s: Setting, counts: Floats) -> Region:
    """Return where so many rows of every device lie, with all columns."""
    return Region(_spans(counts), _all(s.devices, s.spec.hidden))


def by_columns(s: Setting, sub_blocks: Floats) -> Region:
    """Return where the columns of so many sub-blocks of every device lie, in all rows."""
    width = s.spec.hidden // s.spec.sub_blocks
    return Region(_all(s.devices, s.rows), _spans(width * sub_blocks))


def in_full(s: Setting, active: Mask) -> Region:
    """Return everything, on the devices that take part."""
    return Region(_all(s.devices, s.rows) * active[:, None], _all(s.devices, s.spec.hidden))


def regrid(s: Setting, have: Region, want: Region) -> Exchange:
    """Bring every device the rows and columns that it wants, of which no two others have the same."""
    rows, columns = _common(have.rows, want.rows), _common(have.columns, want.columns)
    moved = rows * (columns * (s.wire.bits / 8) + (columns > 0) * s.wire.scale_bytes)
    np.fill_diagonal(moved, 0.0)
    return of_matrix(moved)


def layer_seconds(s: Setting, spec: ModelSpec) -> Floats:
    """Return the seconds in which every device computes a layer alone, [p]; `spec` may be that of a sub-block."""
    own = [step for name in BLOCKS for step in cut_steps(spec, name, Cut.ROWS, Layout.ROWS)]
    return np.asarray(seconds_alone(replace(s, spec=spec, tile_rows=0), np.full((1, 1), float(s.rows)), own)[0])


def tensor_shares(s: Setting, taking: Mask) -> dict[Axis, list[int]]:
    """Return heads and MLP columns in proportion to the speeds of the devices that take part."""
    speeds = (taking / layer_seconds(s, s.spec)).tolist()
    return {axis: largest_remainder(speeds, s.length(axis)) for axis in (Axis.HEADS, Axis.FFN)}


def decoupled_plan(s: Setting, cluster: Cluster, system: str, sub_blocks: Integers, originals: Sequence[int]) -> Plan:
    """Lay a plan out.

    Parameters
    ----------
    s, cluster, system
        What it is for, and who makes it.
    sub_blocks : [p]
        Of every device, in all groups.
    originals
        For every original layer the rank that computes it alone, or `WHOLE` or `TENSOR_PARALLEL`.
    """
    spec, size = s.spec, s.spec.layers // s.spec.groups
    parts = BlockPlan(Cut.SUB_BLOCKS, inner=Partition.of_counts(sub_blocks.tolist()), norm=Layout.COLS)
    runs: list[tuple[Span, LayerPlan]] = []
    for group, how in enumerate(originals):
        if how == TENSOR_PARALLEL:
            shares = [Partition.of_counts(counts) for counts in tensor_shares(s, sub_blocks > 0).values()]
            layer = LayerPlan(*(BlockPlan(Cut.BLOCK, inner=share) for share in shares))
        else:
            alone = tuple(float(rank == how) for rank in range(s.devices))
            block = BlockPlan(Cut.WHOLE) if how == WHOLE else BlockPlan(Cut.ROWS, norm=Layout.ROWS, rows=alone)
            layer = LayerPlan(block, block)
        end = (group + 1) * size
        runs += [(Span(end - size, end - 1), LayerPlan(parts, parts)), (Span(end - 1, end), layer)]
    return Plan(
        (Stage(cluster.names, tuple(runs)),), spec.name, spec.fingerprint, cluster.fingerprint, system, s.rows,
    )  # fmt: skip


def _spans(counts: Floats) -> Floats:
    stop = np.cumsum(counts)
    return np.stack([stop - counts, stop], axis=1)


def _all(devices: int, length: int) -> Floats:
    return np.tile([0.0, float(length)], (devices, 1))


def _common(have: Floats, want: Floats) -> Floats:
    """Return how much each device has of what each wants, [owner, receiver]."""
    start = np.maximum.outer(have[:, 0], want[:, 0])
    return np.asarray(np.maximum(np.minimum.outer(have[:, 1], want[:, 1]) - start, 0.0))
