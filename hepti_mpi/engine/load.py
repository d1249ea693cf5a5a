"""Load a rank's share of the weights: from its own file, or from rank 0 where it has none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from hepti_mpi.base.arrays import Array
from hepti_mpi.base.memory import freed_at_once
from hepti_mpi.comm.group import Group
from solver.base.errors import HeptiError
from solver.model.blocks import Block
from solver.model.spec import ModelSpec, layer_parts
from solver.plan.changes import BlockShare
from solver.plan.holdings import TensorSlice, held_layers, layer_slices, rank_slices
from solver.plan.plan import Plan
from weights.file.store import WeightsFile

# What rank 0 holds at a time of a share that it sends to a rank without the file.
STREAM_BYTES = 4 << 20

Read = Callable[[TensorSlice, Array], object]
Layer = TypeVar("Layer")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, eq=False)
class BlockWeights:
    """A rank's share of one block, as it lies in the file; arrays of a share that is empty have no rows or columns.

    `into` is [query, key, value] stacked for attention ([3 A' d, H]) and up for the MLP ([F', H]); `out` is the
    attention output ([A' d, H']) or down ([F', H']). A' and F' are the rank's heads and columns (all for cut rows),
    H' is H but for cut columns. For cut grid A' and F', and H' in both, are those of the rank's tile. `into_bias` goes
    with `into`, for cut grid with the heads or columns that the rank adds up; the other vectors are [H].
    """

    into: Array
    into_bias: Array
    out: Array
    out_bias: Array
    norm: Array
    norm_bias: Array


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """A rank's share of one layer."""

    attention: BlockWeights
    mlp: BlockWeights


@dataclass(frozen=True, slots=True, eq=False)
class RankWeights(Generic[Layer]):
    """Everything a rank holds; `ends` are rank 0's embeddings and heads, by name."""

    ends: Mapping[str, Array]
    layers: tuple[Layer, ...]


def open_weights(path: Path, fingerprint: str) -> WeightsFile | None:
    """Open this rank's own copy of rank 0's weights file; None where it has none and rank 0 must send its share.

    Raises
    ------
    HeptiError
        If the file is damaged, or is another than rank 0's.
    """
    if not path.is_file():
        return None
    file = WeightsFile(path)
    if file.fingerprint != fingerprint:
        raise HeptiError(
            f"{path} differs from rank 0's: fingerprint {file.fingerprint[:12]} against {fingerprint[:12]}; "
            f"copy rank 0's file, or remove this one and rank 0 will send the share"
        )
    return file


def serve_weights(file: WeightsFile, spec: ModelSpec, plan: Plan, peer: int, group: Group) -> None:
    """Send a rank without the file its share, in bounded pieces; `load` with no file is the other end."""
    for piece in rank_slices(spec, plan, peer):
        for block in file.read_pieces(piece, STREAM_BYTES):
            group.weights.send(block, [peer])
            while group.weights.leaving():
                group.pause()


def load(
    file: WeightsFile | None,
    spec: ModelSpec,
    plan: Plan,
    group: Group,
    make: Callable[[int, LayerWeights | tuple[LayerWeights, ...]], Layer],
    done: Callable[[int], object],
) -> RankWeights[Layer]:
    """Read this rank's share.

    Parameters
    ----------
    file
        The rank's weights file; None: rank 0 sends what would have been read, in the same order.
    make
        Takes the number of a layer and its weights and makes of them what is kept, while the next layer is read.
    done
        Called with the bytes of every tensor that has been read.
    """

    def read(piece: TensorSlice, out: Array) -> None:
        if file is None:
            for came in group.weights.fill(out):
                if not came:
                    group.pause()
        else:
            file.read(piece, out)
        done(out.nbytes)

    ends = {}
    for piece in rank_slices(spec, plan, group.rank):
        if not piece.name.startswith("layers/"):
            ends[piece.name] = np.empty(piece.shape, np.float32)
            read(piece, ends[piece.name])
    held = held_layers(plan, group.rank)
    layers = range(held.start, held.stop)
    steps = (partial(load_layer, spec, plan, layer, group.rank, read) for layer in layers)
    # MPI is called by one thread only.
    weights = (step() for step in steps) if file is None else _ahead(steps)
    with freed_at_once():
        # Nothing but `make` holds a layer's weights: a loop over them would, while the next but one is read.
        return RankWeights(ends, tuple(make(layer, next(weights)) for layer in layers))


def _ahead(steps: Iterable[Callable[[], Value]]) -> Iterator[Value]:
    """Yield what the steps return, each run by a thread while the former's result is used."""
    with ThreadPoolExecutor(1) as thread:
        pending: Future[Value] | None = None
        for step in steps:
            following = thread.submit(step)
            if pending is not None:
                yield pending.result()
            pending = following
        if pending is not None:
            yield pending.result()


def load_layer(
    spec: ModelSpec, plan: Plan, layer: int, rank: int, read: Read
) -> LayerWeights | tuple[LayerWeights, ...]:
    """Read a rank's share of one layer; of a decoupled one, every sub-block that the rank has."""
    pieces = {piece.name: piece for piece in layer_slices(spec, plan, layer, rank)}
    parts = [
        (
            {name.removeprefix(f"{prefix}/"): piece for name, piece in pieces.items() if name.startswith(f"{prefix}/")},
            part,
        )
        for prefix, part in layer_parts(spec, layer)
    ]
    if spec.is_decoupled(layer):
        return tuple(_load_part(own, part, read) for own, part in parts if own)
    ((own, _),) = parts
    return _load_part(own, spec, read)


def load_block(spec: ModelSpec, layer: int, share: BlockShare, read: Read) -> BlockWeights:
    """Read a share of one block of a layer that is not decoupled."""
    pieces = {piece.name: piece for piece in share.slices}
    (block,) = (block for block in spec.blocks if block.name == share.block)
    weights, places = _block(pieces, block)
    for name, piece in zip(pieces, share.of_layer(layer), strict=True):
        read(piece, places[name])
    return weights


def _load_part(pieces: Mapping[str, TensorSlice], spec: ModelSpec, read: Read) -> LayerWeights:
    """Read what a rank has of a layer or a sub-block, every tensor straight to its place."""
    (attention, attention_places), (mlp, mlp_places) = (_block(pieces, block) for block in spec.blocks)
    places = attention_places | mlp_places
    for name, piece in pieces.items():
        read(piece, places[name])
    return LayerWeights(attention, mlp)


def _block(pieces: Mapping[str, TensorSlice], block: Block) -> tuple[BlockWeights, dict[str, Array]]:
    """Allocate a block's arrays, and name the place in them of every tensor: those of a part lie one below another."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for tensor in block.tensors:
        empty = tensor.shape if tensor.axis is None else (0, *tensor.shape[1:])
        field = f"{tensor.part}_bias" if tensor.name.endswith("/bias") else f"{tensor.part}"
        shapes.setdefault(field, {})[tensor.name] = pieces[tensor.name].shape if tensor.name in pieces else empty
    arrays: dict[str, Array] = {}
    places: dict[str, Array] = {}
    for field, own in shapes.items():
        rows = list(accumulate((shape[0] for shape in own.values()), initial=0))
        arrays[field] = np.empty((rows[-1], *next(iter(own.values()))[1:]), np.float32)
        places |= {name: arrays[field][start:stop] for name, (start, stop) in zip(own, pairwise(rows), strict=True)}
    return BlockWeights(**arrays), places
