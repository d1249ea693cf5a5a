"""What a rank lacks when a plan changes; a worker asks this, so it imports no solver."""

from __future__ import annotations

import math
from collections.abc import Collection

from solver.model import ModelSpec
from solver.plan import Cut, Plan
from solver.shares import TensorSlice, all_weights_bytes, layer_slices
from solver.steps import FLOAT_BYTES


class Holdings:
    """By which plan every rank holds its weights: the one that runs, or, without a share, the last that gave it one.

    Where all is cut by rows, a rank whose rows are given up keeps its weights unless memory is wanted, and takes rows
    again at once.

    Parameters
    ----------
    plan
        What all ranks have loaded.
    ranks
        How many.
    """

    def __init__(self, plan: Plan, ranks: int) -> None:
        self._plans = [plan] * ranks

    def adopt(self, plan: Plan, frees: Collection[int] = ()) -> None:
        """Take note of the plan that runs from now on; `frees` are ranks that keep nothing."""
        self._plans = [
            held if self._keeps(plan, rank) and rank not in frees else plan for rank, held in enumerate(self._plans)
        ]

    def _keeps(self, plan: Plan, rank: int) -> bool:
        """Return whether a rank that has no share under a plan has all weights, and may keep them."""
        return rank not in plan.stages[0].active and all_by_rows(plan) and all_by_rows(self._plans[rank])

    def held_bytes(self, spec: ModelSpec, rank: int, precision: str = "float32") -> int:
        """Return the bytes of what a rank holds."""
        return all_weights_bytes(spec, self._plans[rank], precision)[rank]

    def lacking(self, spec: ModelSpec, plan: Plan, rank: int, frees: Collection[int] = ()) -> list[int]:
        """Return the layers whose weights on a rank have to change before it adopts a plan."""
        if self._keeps(plan, rank) and rank not in frees:
            return []
        return layers_to_load(spec, self._plans[rank], plan, rank)

    def moved_bytes(self, spec: ModelSpec, plan: Plan, rank: int) -> int:
        """Return the float32 bytes that a rank reads, or gets, before it adopts a plan."""
        return _bytes(spec, plan, rank, self.lacking(spec, plan, rank))


def all_by_rows(plan: Plan) -> bool:
    """Return whether all blocks of a plan of one stage are cut by rows."""
    (stage,) = plan.stages
    return all(block.cut is Cut.ROWS for _, layer in stage.layers for block in (layer.attention, layer.mlp))


def layers_to_load(spec: ModelSpec, before: Plan, after: Plan, rank: int) -> list[int]:
    """Return the layers whose weights on a rank are others under another plan; those that need none are left out."""
    if all_by_rows(before) and all_by_rows(after) and {rank} & {*before.stages[0].active} & {*after.stages[0].active}:
        return []  # it has, and needs, all: comparing them tensor by tensor takes milliseconds
    return [layer for layer in range(spec.layers) if _needs(spec, before, after, rank, layer)]


def moved_bytes(spec: ModelSpec, before: Plan, after: Plan, rank: int) -> int:
    """Return the float32 bytes that a rank reads, or gets, to change from one plan to another."""
    return _bytes(spec, after, rank, layers_to_load(spec, before, after, rank))


def held(spec: ModelSpec, plan: Plan, layer: int, rank: int) -> tuple[bool, list[bool], list[TensorSlice]]:
    """Return what tells a rank's kernels of a layer from others.

    Whether K and V stand apart, in which blocks the first product is a summand, without bias and activation, and the
    weights.
    """
    cuts = plan.layer(layer)
    summands = [block.cut is Cut.GRID for block in (cuts.attention, cuts.mlp)]
    return cuts.attention.cut is Cut.ROWS, summands, layer_slices(spec, plan, layer, rank)


def _needs(spec: ModelSpec, before: Plan, after: Plan, rank: int, layer: int) -> bool:
    return held(spec, before, layer, rank) != held(spec, after, layer, rank)


def _bytes(spec: ModelSpec, plan: Plan, rank: int, layers: Collection[int]) -> int:
    return sum(
        FLOAT_BYTES * math.prod(piece.shape) for layer in layers for piece in layer_slices(spec, plan, layer, rank)
    )
