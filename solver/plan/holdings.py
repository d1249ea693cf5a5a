"""Which part of which tensor a rank holds under a plan: what is loaded, what is paid for in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from solver.base.spans import Span
from solver.model.blocks import Cut
from solver.model.kinds.part import PartTensor, TensorUse
from solver.model.precision import FLOAT32, Precision
from solver.model.spec import ModelSpec, layer_prefixes, tensor_shapes
from solver.model.sublayers import HALVES
from solver.plan.plan import BlockPlan, LayerPlan, Plan, Stage


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """Some rows of a tensor, one contiguous read, or some columns of some rows."""

    name: str
    span: Span
    shape: tuple[int, ...]  # of the slice
    columns: Span | None = None  # None: all
    summed: int | None = None  # the dimension that its product sums over; None: of what is float32 in any precision

    @property
    def index(self) -> tuple[slice, ...]:
        """The slice as an index of the tensor."""
        return (self.span.slice,) if self.columns is None else (self.span.slice, self.columns.slice)

    def held_bytes(self, precision: Precision = FLOAT32) -> int:
        """Return its bytes as a rank holds it."""
        return precision.bytes_of(self.shape, self.summed)


@lru_cache(maxsize=4)
def end_slices(spec: ModelSpec) -> tuple[TensorSlice, ...]:
    """Return embeddings and heads, which rank 0 holds; kept, since to list all names of the model takes 0.2 ms."""
    own = [(name, shape) for name, shape in tensor_shapes(spec).items() if not name.startswith("layers/")]
    return tuple(TensorSlice(name, Span(0, shape[0]), shape) for name, shape in own)


def alike(spec: ModelSpec, stage: Stage) -> Iterator[tuple[int, int, LayerPlan]]:
    """Yield runs of layers that cost the same: the first of them, how many, and their cuts."""
    ends = spec.starts if stage.is_whole else (*spec.starts, stage.span.start + 1, stage.span.stop - 1)
    for span, layer in stage.layers:
        stops = sorted({span.start, span.stop, *(end for end in ends if span.start < end < span.stop)})
        yield from ((start, stop - start, layer) for start, stop in pairwise(stops))


def layer_slices(spec: ModelSpec, plan: Plan, layer: int, rank: int) -> list[TensorSlice]:
    """Return what `rank` holds of one layer; nothing of those that its stage does not have."""
    place = plan.place(rank)
    cuts = place and place[0].layer(layer)
    if place is None or cuts is None:
        return []
    (stage, within), run = place, spec.run(layer)
    prefixes, part = layer_prefixes(run, layer), stage.part(layer)
    if run.parts > 1:
        own = cuts[0].inner
        assert own is not None
        return [_whole(prefix, tensor) for prefix in prefixes[own[within].slice] for tensor in run.tensors]
    (prefix,) = prefixes
    if cuts[0].cut is Cut.WHOLE and within in stage.active:
        return [_whole(prefix, tensor) for tensor in run.tensors]
    return [
        piece
        for number, (block, cut) in enumerate(zip(run.blocks, cuts, strict=True))
        for tensor in block.tensors
        if part.start <= HALVES * number + tensor.half(block.stream) < part.stop
        for piece in _slices(prefix, tensor, cut, within)
    ]


def weights_bytes(spec: ModelSpec, plan: Plan, rank: int, precision: Precision = FLOAT32) -> int:
    """Return the bytes of everything that `rank` holds; int8 is for the matrices of the layers.

    One layer of each run stands for all.
    """
    place = plan.place(rank)
    runs = (
        count * sum(piece.held_bytes(precision) for piece in layer_slices(spec, plan, number, rank))
        for number, count, _ in (alike(spec, place[0]) if place else ())
    )
    return sum(runs) + sum(piece.held_bytes(precision) for piece in (end_slices(spec) if rank == 0 else ()))


@lru_cache(maxsize=16)
def all_weights_bytes(spec: ModelSpec, plan: Plan, precision: Precision = FLOAT32) -> tuple[int, ...]:
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


def _slices(prefix: str, tensor: PartTensor, block: BlockPlan, rank: int) -> Iterator[TensorSlice]:
    """Yield the slice of one tensor; nothing where the share of `rank`, within its stage, is empty."""
    shape = tensor.shape
    if tensor.everywhere:
        yield _whole(prefix, tensor)
    elif block.cut is Cut.WHOLE:
        return
    elif block.cut is Cut.ROWS or (block.cut is Cut.TO_ROWS and tensor.use is TensorUse.OUT):
        assert block.rows is not None
        if block.rows[rank] > 0:
            yield _whole(prefix, tensor)
    elif block.cut is Cut.COLUMNS and tensor.use is TensorUse.OUT:
        assert block.columns is not None
        if block.columns[rank].size:
            yield _part(prefix, tensor, Span(0, shape[0]), block.columns[rank])
    elif block.cut is Cut.GRID and len(shape) > 1:
        inner, columns = block.tile(rank)
        if block.has_tile(rank):
            yield _part(prefix, tensor, tensor.rows(inner), columns)
    else:
        assert block.inner is not None
        if block.inner[rank].size:
            yield _part(prefix, tensor, tensor.rows(block.inner[rank]))


def _whole(prefix: str, tensor: PartTensor) -> TensorSlice:
    return _part(prefix, tensor, Span(0, tensor.shape[0]))


def _part(prefix: str, tensor: PartTensor, span: Span, columns: Span | None = None) -> TensorSlice:
    shape = (span.size, *tensor.shape[1:]) if columns is None else (span.size, columns.size)
    return TensorSlice(f"{prefix}/{tensor.name}", span, shape, columns, tensor.weight.summed)
