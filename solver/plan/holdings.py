"""Which part of which tensor a rank holds under a plan: what is loaded, what is paid for in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from solver.model.spec import ModelSpec, layer_parts, layer_tensor_shapes, tensor_shapes
from solver.model.sublayers import BLOCK
from solver.plan.plan import BlockPlan, Cut, LayerPlan, Plan, Stage
from solver.plan.spans import Span

# [H] vectors: every rank that adds the residual needs them.
COMMON_TENSORS = ("norm/weight", "norm/bias", "output/bias", "down/bias")
WEIGHT_BYTES = {"float32": 4, "int8": 1}


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """Some rows of a tensor, one contiguous read, or some columns of some rows."""

    name: str
    span: Span
    shape: tuple[int, ...]  # of the slice
    columns: Span | None = None  # None: all

    @property
    def index(self) -> tuple[slice, ...]:
        """The slice as an index of the tensor."""
        return (self.span.slice,) if self.columns is None else (self.span.slice, self.columns.slice)


def own_plan(plan: Plan, rank: int) -> Plan:
    """Return the plan with the stage of this rank alone, of whose layers it holds a share; as it is without one."""
    place = plan.place(rank)
    return plan if place is None else replace(plan, stages=place[:1])


def held_layers(plan: Plan, rank: int) -> Span:
    """Return the layers of which a rank may hold a share."""
    place = plan.place(rank)
    return Span(0, 0) if place is None else place[0].span


def rank_slices(spec: ModelSpec, plan: Plan, rank: int) -> list[TensorSlice]:
    """Return everything that `rank` holds, in file order; embeddings and heads are rank 0's."""
    slices = [*end_slices(spec)] if rank == 0 else []
    held = held_layers(plan, rank)
    for layer in range(held.start, held.stop):
        slices += layer_slices(spec, plan, layer, rank)
    return slices


@lru_cache(maxsize=4)
def end_slices(spec: ModelSpec) -> tuple[TensorSlice, ...]:
    """Return embeddings and heads, which rank 0 holds; kept, since to list all names of the model takes 0.2 ms."""
    return tuple(_whole(name, shape) for name, shape in tensor_shapes(spec).items() if not name.startswith("layers/"))


def alike(stage: Stage) -> Iterator[tuple[int, int, LayerPlan]]:
    """Yield runs of layers that cost the same: the first of them, how many, and their cuts."""
    ends = () if stage.is_whole else (stage.span.start + 1, stage.span.stop - 1)
    for span, layer in stage.layers:
        stops = sorted({span.start, span.stop, *(end for end in ends if span.start < end < span.stop)})
        yield from ((start, stop - start, layer) for start, stop in pairwise(stops))


def layer_slices(spec: ModelSpec, plan: Plan, layer: int, rank: int) -> list[TensorSlice]:
    """Return what `rank` holds of one layer; nothing of those that its stage does not have."""
    place = plan.place(rank)
    cuts = place and place[0].layer(layer)
    if place is None or cuts is None:
        return []
    stage, within = place
    if cuts.attention.cut is Cut.SUB_BLOCKS:
        assert cuts.attention.inner is not None
        own = layer_parts(spec, layer)[cuts.attention.inner[within].slice]
        return [
            _whole(f"{prefix}/{name}", shape)
            for prefix, part in own
            for name, shape in layer_tensor_shapes(part.hidden, part.ffn).items()
        ]
    shapes = layer_tensor_shapes(spec.hidden, spec.ffn)
    if cuts.attention.cut is Cut.WHOLE and within in stage.active:
        return [_whole(f"layers/{layer}/{name}", shape) for name, shape in shapes.items()]
    part = stage.part(layer)
    blocks = (("attention", cuts.attention, spec.head_dim, 0), ("mlp", cuts.mlp, 1, BLOCK))
    return [
        piece
        for prefix, block, width, first in blocks
        for name, shape in shapes.items()
        if name.startswith(prefix) and _is_in(part, first, name, spec.norm)
        for piece in _block_slices(f"layers/{layer}/{name}", shape, block, within, width)
    ]


def weights_bytes(spec: ModelSpec, plan: Plan, rank: int, precision: str = "float32") -> int:
    """Return the bytes of everything that `rank` holds; int8 is for the matrices of the layers.

    One layer of each run stands for all.
    """
    place = plan.place(rank)
    runs = (
        count * sum(held_bytes(piece, precision) for piece in layer_slices(spec, plan, number, rank))
        for number, count, _ in (alike(place[0]) if place else ())
    )
    return sum(runs) + sum(held_bytes(piece, precision) for piece in (end_slices(spec) if rank == 0 else ()))


@lru_cache(maxsize=16)
def all_weights_bytes(spec: ModelSpec, plan: Plan, precision: str = "float32") -> tuple[int, ...]:
    """Return the bytes of what every rank holds.

    Kept, since who may change plans asks for the same ones before every request; and of ranks with the same share, as
    1024 replicas have, counted once.
    """
    places = {name: (stage, within) for stage in plan.stages for within, name in enumerate(stage.devices)}
    known: dict[object, int] = {}
    found = []
    for rank, name in enumerate(plan.devices):
        stage, within = places.get(name, (None, 0))
        key = (rank == 0, within, stage and (stage.layers, stage.sublayers))
        if key not in known:
            known[key] = weights_bytes(spec, plan, rank, precision)
        found.append(known[key])
    return tuple(found)


def held_bytes(piece: TensorSlice, precision: str = "float32") -> int:
    """Return the bytes of one slice as a rank holds it."""
    is_matrix = piece.name.startswith("layers/") and len(piece.shape) > 1
    return math.prod(piece.shape) * WEIGHT_BYTES[precision if is_matrix else "float32"]


def _is_in(part: Span, first: int, name: str, norm: str) -> bool:
    """Return whether a tensor is of the sub-layers `part`; its block begins with sub-layer `first`."""
    behind = name.split("/")[1] in ("output", "down") or (name.split("/")[1] == "norm" and norm == "post")
    return part.start <= first + behind < part.stop


def _block_slices(name: str, shape: tuple[int, ...], block: BlockPlan, rank: int, width: int) -> Iterator[TensorSlice]:
    """Yield the slice of one tensor; nothing where the share of `rank`, within its stage, is empty."""
    tensor = name.split("/", 2)[2]
    if tensor.endswith(COMMON_TENSORS):
        yield _whole(name, shape)
    elif block.cut is Cut.WHOLE:
        return
    elif block.cut is Cut.ROWS:
        assert block.rows is not None
        if block.rows[rank] > 0:
            yield _whole(name, shape)
    elif block.cut is Cut.COLUMNS and tensor.endswith(("output/weight", "down/weight")):
        assert block.columns is not None
        span = block.columns[rank]
        if span.size:
            yield TensorSlice(name, Span(0, shape[0]), (shape[0], span.size), span)
    elif block.cut is Cut.GRID and len(shape) > 1:
        inner, columns = block.tile(rank)
        span = inner.scaled(width)
        if block.has_tile(rank):
            yield TensorSlice(name, span, (span.size, columns.size), columns)
    else:
        assert block.inner is not None
        span = block.inner[rank].scaled(width)
        if span.size:
            yield TensorSlice(name, span, (span.size, *shape[1:]))


def _whole(name: str, shape: tuple[int, ...]) -> TensorSlice:
    return TensorSlice(name, Span(0, shape[0]), shape)
