"""What a rank lacks when a plan changes; a worker asks this, so it imports no solver."""

from __future__ import annotations

import math

from solver.model import ModelSpec
from solver.plan import Cut, Plan
from solver.shares import TensorSlice, layer_slices
from solver.steps import FLOAT_BYTES


def layers_to_load(spec: ModelSpec, before: Plan, after: Plan, rank: int) -> list[int]:
    """Return the layers whose weights on a rank are others under another plan; those that need none are left out."""
    return [layer for layer in range(spec.layers) if _needs(spec, before, after, rank, layer)]


def moved_bytes(spec: ModelSpec, before: Plan, after: Plan, rank: int) -> int:
    """Return the float32 bytes that a rank reads, or gets, to change from one plan to another."""
    return sum(
        FLOAT_BYTES * math.prod(piece.shape)
        for layer in layers_to_load(spec, before, after, rank)
        for piece in layer_slices(spec, after, layer, rank)
    )


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
