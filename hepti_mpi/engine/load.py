"""Get the weights that a rank lacks: from its own file, or from rank 0 where it has none.

A start is a change of plan from nothing: `load` runs to the end, before the first request, what `live.change_over` runs
between requests, a piece at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from hepti_mpi.base.memory import freed_at_once
from hepti_mpi.comm.group import Group
from solver.base.arrays import Array
from solver.base.errors import HeptiError
from solver.model.blocks import Block
from solver.model.spec import ModelSpec
from solver.plan.changes import BlockShare, Shares, everything
from solver.plan.holdings import TensorSlice, end_slices
from solver.plan.plan import Plan
from weights.file.store import WeightsFile

# A piece of work: what is read, or sent to a rank without the file, at a time.
STREAM_BYTES = 4 << 20
UNDERWAY = 2  # pieces that rank 0 lets be on their way

Made = TypeVar("Made")
Value = TypeVar("Value")


# A rank's share of one block, as it lies in the file; what is empty of it has no rows or columns. The key is the part
# of the block that tensors are of, with `_bias` for vectors of this name: "into" is [query, key, value] stacked for
# attention ([3 A' d, H]) and up for the MLP ([F', H]); "out" is the attention output ([A' d, H']) or down ([F', H']).
# A' and F' are the rank's heads and columns (all for cut rows), H' is H but for cut columns. For cut grid A' and F',
# and H' in both, are those of the rank's tile. "into_bias" goes with "into", for cut grid with the heads or columns
# that the rank adds up; the other vectors are [H].
BlockWeights = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class KnownModel:
    """What all ranks know of the model before there is a plan."""

    path: Path
    fingerprint: str
    spec: ModelSpec


@dataclass(frozen=True, slots=True, eq=False)
class RankWeights(Generic[Made]):
    """Everything a rank holds: rank 0's embeddings and heads, by name, and what was made of the blocks of a layer."""

    ends: Mapping[str, Array]
    layers: Mapping[int, dict[BlockShare, Made]]


@dataclass(frozen=True, slots=True)
class WeightsSource:
    """Where a rank's weights come from: its own file, or rank 0, which sends to all `without_file`."""

    group: Group
    file: WeightsFile | None
    without_file: Sequence[int] = ()

    def fill(self, piece: TensorSlice, out: Array) -> Iterator[bool]:
        """Fill an array with a slice, a bounded part of it at a time; yield whether one was here."""
        if self.file is None:
            return self.group.weights.fill(out)
        return (True for _ in self.file.read_pieces(piece, STREAM_BYTES, out))

    def serve(self, lacking: Callable[[int], Shares]) -> list[Iterator[bool]]:
        """Return rank 0's work for each rank without a file: to send it what it lacks, in the order of its `get`."""
        return [self._send(lacking, peer) for peer in self.without_file] if self.group.rank == 0 else []

    def _send(self, lacking: Callable[[int], Shares], peer: int) -> Iterator[bool]:
        assert self.file is not None
        for layer, shares in lacking(peer).items():
            for piece in (piece for share in shares for piece in share.of_layer(layer)):
                for block in self.file.read_pieces(piece, STREAM_BYTES):
                    while self.group.weights.leaving() > UNDERWAY:
                        yield False
                    self.group.weights.send(block, [peer])
                    yield True
        while self.group.weights.leaving():  # the last pieces leave while MPI is called
            yield False


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
        raise differs(path, file.fingerprint, fingerprint)
    return file


def differs(path: Path, own: str, fingerprint: str) -> HeptiError:
    """Return the complaint of a rank whose file is another than rank 0's."""
    return HeptiError(
        f"{path} differs from rank 0's: fingerprint {own[:12]} against {fingerprint[:12]}; "
        f"copy rank 0's file, or remove this one and rank 0 will send the share"
    )


def load(
    source: WeightsSource,
    spec: ModelSpec,
    plans: Sequence[Plan],
    make: Callable[[BlockShare, BlockWeights], Made],
    done: Callable[[int], object] = lambda size: None,
) -> RankWeights[Made]:
    """Get all that a rank needs for any of these plans, once rank 0 has sent theirs to the ranks without a file.

    Parameters
    ----------
    make
        As in `get`.
    done
        Called with the bytes of what this rank has got.
    """
    rank = source.group.rank
    ends: dict[str, Array] = {}
    layers: dict[int, dict[BlockShare, Made]] = {}

    def made(share: BlockShare, weights: BlockWeights) -> Made:
        done(share.held_bytes())
        return make(share, weights)

    def get_ends() -> Iterator[bool]:
        for piece in end_slices(spec) if rank == 0 else ():
            ends[piece.name] = np.empty(piece.shape, np.float32)
            yield from source.fill(piece, ends[piece.name])
            done(ends[piece.name].nbytes)

    lacking = partial(everything, spec, plans)
    with freed_at_once():
        own = get(source, lacking(rank), made, layers, ahead=True)
        for worked in chain(*source.serve(lacking), get_ends(), own):
            if not worked:
                source.group.pause()
    return RankWeights(ends, layers)


def get(
    source: WeightsSource,
    lacking: Shares,
    make: Callable[[BlockShare, BlockWeights], Made],
    layers: MutableMapping[int, dict[BlockShare, Made]],
    *,
    has_room: Callable[[int], bool] = lambda size: True,
    ahead: bool = False,
) -> Iterator[bool]:
    """Get what a rank lacks, in bounded pieces of work; yield whether there was something to do.

    Parameters
    ----------
    make
        Makes of a block's weights what is kept.
    layers
        Where every layer is put when all that it lacks is there.
    has_room
        Whether there is room for a layer of so many bytes; where not, none is begun.
    ahead
        Whether a thread reads the next block of the rank's own file while one is made; `has_room` is not asked then.
    """
    reading = (_reading(source, layer, share) for layer, shares in lacking.items() for share in shares)
    by_thread = ahead and source.file is not None  # MPI is called by one thread only
    blocks = _ahead(partial(_read, *block) for block in reading) if by_thread else reading
    for layer, shares in lacking.items():
        size = sum(share.held_bytes() for share in shares)
        while size and not has_room(size):
            yield False
        made = {}
        for share in shares:
            weights, filling = next(blocks)
            yield from filling
            made[share] = make(share, weights)
            del weights  # or it would be held while the next but one is read
            yield True
        layers[layer] = made


def _reading(source: WeightsSource, layer: int, share: BlockShare) -> tuple[BlockWeights, Iterable[bool]]:
    """Allocate a block's arrays; return them, and what fills them."""
    weights, places = _block({piece.name: piece for piece in share.slices}, share.block)
    pieces = zip(share.of_layer(layer), share.slices, strict=True)
    return weights, chain.from_iterable(source.fill(piece, places[own.name]) for piece, own in pieces)


def _read(weights: BlockWeights, filling: Iterable[bool]) -> tuple[BlockWeights, Iterable[bool]]:
    """Fill a block's arrays; nothing is left to do."""
    for _ in filling:
        pass
    return weights, ()


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


def _block(pieces: Mapping[str, TensorSlice], block: Block) -> tuple[BlockWeights, dict[str, Array]]:
    """Allocate a block's arrays, and name the place in them of every tensor: those of a part lie one below another."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for tensor in block.tensors:
        empty = (0, *tensor.shape[1:]) if tensor.axis else tensor.shape
        field = f"{tensor.use}_bias" if tensor.name.endswith("/bias") else f"{tensor.use}"
        shapes.setdefault(field, {})[tensor.name] = pieces[tensor.name].shape if tensor.name in pieces else empty
    arrays: dict[str, Array] = {}
    places: dict[str, Array] = {}
    for field, own in shapes.items():
        rows = list(accumulate((shape[0] for shape in own.values()), initial=0))
        arrays[field] = np.empty((rows[-1], *next(iter(own.values()))[1:]), np.float32)
        places |= {name: arrays[field][start:stop] for name, (start, stop) in zip(own, pairwise(rows), strict=True)}
    return arrays, places
