"""A rank's share of a block: its weights, as they are got, and ready to compute: the graphs that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import TypeVar

import numpy as np

from hepti_mpi.base.lacking import Lacking
from hepti_mpi.engine.load import Done, WeightsSource
from hepti_mpi.kernels import numpy_kernels
from hepti_mpi.kernels.products import AddBias, AddResidual, Graph, Linear, MakeGraph, Norm, Operation
from hepti_mpi.kernels.relative import Relative
from solver.base.arrays import Array
from solver.model.blocks import Block, BlockKind
from solver.model.kinds.attention import FULL_KEYS, Attention
from solver.model.kinds.join import Join
from solver.model.kinds.mlp import Mlp
from solver.model.kinds.norm import InputNorm
from solver.model.spec import ModelSpec
from solver.plan.changes import BlockShare, Shares, everything, layer_shares
from solver.plan.holdings import TensorSlice, end_slices
from solver.plan.plan import Plan

# A rank's share of one block, as it lies in the file; what is empty of it has no rows or columns. The key is the part
# of the block that tensors are of, with `_bias` for vectors of this name: "into" is [query, key, value] stacked for
# attention ([3 A' d, H]) and up for the MLP ([F', H]); "out" is the attention output ([A' d, H']) or down ([F', H']).
# A' and F' are the rank's heads and columns (all for cut rows), H' is H but for cut columns. For cut grid A' and F',
# and H' in both, are those of the rank's tile. "into_bias" goes with "into", for cut grid with the heads or columns
# that the rank adds up; the other vectors are [H].
BlockWeights = Mapping[str, Array]
Made = TypeVar("Made")
Makes = Callable[[BlockShare, BlockWeights], Made]


Roles = tuple[str, ...]  # of consecutive parts


@dataclass(frozen=True, slots=True, eq=False)
class BlockKernels:
    """A rank's share of one block, ready to compute.

    Parameters
    ----------
    graphs
        By the roles of the parts that each computes, one after the other. Keys and values are one product.
    avoided
        K's and V's weights, where these are not projected.
    relative
        What distances between rows add to the scores of all heads, where they do.
    """

    graphs: Mapping[Roles, Graph]
    avoided: numpy_kernels.KeyWeights | None = None
    relative: Relative | None = None

    @property
    def kind(self) -> tuple[object, ...]:
        """What tells of which parts it has graphs."""
        return *self.graphs, self.avoided is None


# Of every block of a layer a rank's share; of a decoupled layer those of each of its sub-blocks, or none.
LayerKernels = tuple[tuple[BlockKernels, ...], ...]


def rank_layers(
    spec: ModelSpec, plan: Plan, rank: int, held: Mapping[int, Mapping[BlockShare, BlockKernels]]
) -> list[LayerKernels]:
    """Return the layers of a rank's stage, of the blocks that it holds of every layer."""
    layers: list[LayerKernels] = []
    for number, shares in layer_shares(spec, plan, rank).items():
        kernels, blocks = [held[number][share] for share in shares], len(spec.run(number).blocks)
        layers.append(tuple(tuple(kernels[place::blocks]) for place in range(blocks)))
    return layers


def block_kernels(make: MakeGraph, share: BlockShare, w: BlockWeights) -> BlockKernels:
    """Make the kernels of a rank's share of a block."""
    return KINDS[type(share.block.kind)](make, share, w)


def attention(make: MakeGraph, share: BlockShare, w: BlockWeights) -> BlockKernels:
    """Make the kernels of multi-head attention."""
    weight, bias, kind, avoided = w["into"], w["into_bias"], share.block.kind, None
    assert isinstance(kind, Attention)
    H, into = share.block.hidden, dict[Roles, Sequence[Operation]]()
    if share.avoided and len(weight):
        # K's bias adds the same to every score of a query, which a softmax does not see.
        avoided = numpy_kernels.KeyWeights(weight[H : 2 * H], weight[2 * H :], bias[2 * H :])
        into["queries",] = [Linear(weight[:H], bias[:H])]
    else:
        third = len(weight) // 3  # of a grid biases are of other heads than weights
        of_bias = len(bias) // 3
        into |= _first("queries", share, weight[:third], bias[:of_bias])
        into |= _first(FULL_KEYS, share, weight[third:], bias[of_bias:])
    kernels = finished(make, share, into, {"output": Linear(w["out"], None)}, w)
    relative = Relative(w["relative"].reshape(-1, kind.buckets)) if kind.buckets else None
    return replace(kernels, avoided=avoided, relative=relative)


def mlp(make: MakeGraph, share: BlockShare, w: BlockWeights) -> BlockKernels:
    """Make the kernels of the feed-forward block."""
    assert isinstance(share.block.kind, Mlp)
    weight, bias, activation = w["into"], w["into_bias"], share.block.kind.activation
    down = Linear(w["out"], None)
    # By rows in one graph, but where another stage has the other half.
    if share.alone and len(weight) and len(w["out"]):
        return finished(make, share, {}, {"up": Linear(weight, bias, activation), "down": down}, w)
    return finished(make, share, _first("up", share, weight, bias, activation), {"down": down}, w)


def _first(
    role: str, share: BlockShare, weight: Array, bias: Array, activation: str = "identity"
) -> dict[Roles, Sequence[Operation]]:
    """Return a block's first product; of a grid a summand of it, and what is made of the sum."""
    found: dict[Roles, Sequence[Operation]] = {}
    if not share.grid:
        return {(role,): [Linear(weight, bias, activation)]} if weight.size else found
    if weight.size:
        found[f"summed {role}",] = [Linear(np.ascontiguousarray(weight.T), None)]
    if bias.size:
        found[f"added {role}",] = [AddBias(bias, activation)]
    return found


# By the class of a block's kind: what makes its kernels.
KINDS: dict[type[BlockKind], Callable[[MakeGraph, BlockShare, BlockWeights], BlockKernels]] = {
    Attention: attention,
    Mlp: mlp,
}


def finished(
    make: MakeGraph, share: BlockShare, into: Mapping[Roles, Sequence[Operation]], rest: Mapping[str, Linear],
    w: BlockWeights,
) -> BlockKernels:  # fmt: skip
    """Make a block's kernels, of which `rest` are the products after `into`, by their roles, and then come the join."""
    stream = share.block.stream
    norm = Norm(w["norm"], w["norm_bias"], stream.eps)
    join: list[Operation] = [AddResidual(w["out_bias"]), *([norm] if stream.sum_norms else [])]
    graphs = dict(into)
    if stream.pre_norms:
        graphs[InputNorm.name,] = [norm]
    if all(own.weight.size for own in rest.values()):
        if share.closes:
            graphs[(*rest, Join.name)] = [*rest.values(), *join]
        else:
            graphs[(*rest,)] = [*rest.values()]
    if not share.closes:
        graphs[Join.name,] = join
    return BlockKernels({roles: make(operations) for roles, operations in graphs.items()})


def load(
    source: WeightsSource,
    spec: ModelSpec,
    plans: Sequence[Plan],
    make: Makes[Made],
    bar: AbstractContextManager[Done] | None = None,
) -> tuple[dict[str, Array], dict[int, dict[BlockShare, Made]]]:
    """Get all that a rank needs for any of these plans; a step of all ranks.

    Return rank 0's embeddings and heads, by name, and what was made of the blocks of every layer.

    Parameters
    ----------
    make
        Makes of a block's weights what is kept.
    bar
        As in `WeightsSource.complete`.
    """
    rank = source.group.rank
    ends = {piece.name: np.empty(piece.shape, np.float32) for piece in (end_slices(spec) if rank == 0 else ())}
    layers: dict[int, dict[BlockShare, Made]] = {}
    before = Lacking([(piece, ends[piece.name]) for piece in end_slices(spec) if rank == 0], lambda: None)
    source.complete(chain([before], blocks(everything(spec, plans, rank), make, layers)), bar)
    return ends, layers


def blocks(
    lacking: Shares,
    make: Makes[Made],
    layers: MutableMapping[int, dict[BlockShare, Made]],
    has_room: Callable[[int], bool] = lambda size: True,
) -> Iterator[Lacking | None]:
    """Yield what a rank lacks, block by block.

    Parameters
    ----------
    make
        As in `load`.
    layers
        Where every layer is put when all that it lacks is there.
    has_room
        Whether there is room for a layer of so many bytes; where not, none is begun.
    """
    for layer, shares in lacking.items():
        size = sum(share.held_bytes() for share in shares)
        while size and not has_room(size):
            yield None
        made: dict[BlockShare, Made] = {}
        for share in shares:
            yield _block(layer, share, make, made)
        layers[layer] = made


def _block(layer: int, share: BlockShare, make: Makes[Made], made: dict[BlockShare, Made]) -> Lacking:
    """Return what a rank lacks of a block."""
    weights, rooms = _rooms({piece.name: piece for piece in share.slices}, share.block)
    pieces = zip(share.of_layer(layer), share.slices, strict=True)

    def put() -> None:
        made[share] = make(share, weights)

    return Lacking([(piece, rooms[own.name]) for piece, own in pieces], put)


def _rooms(pieces: Mapping[str, TensorSlice], block: Block) -> tuple[BlockWeights, dict[str, Array]]:
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
