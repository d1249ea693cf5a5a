"""A rank's share of a block, ready to compute: its graphs, made of its share of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hepti_mpi.base.arrays import Array
from hepti_mpi.engine.load import BlockWeights
from hepti_mpi.kernels import numpy_kernels
from hepti_mpi.kernels.products import AddResidual, Graph, Linear, MakeGraph, Norm, Operation
from solver.model.spec import ModelSpec
from solver.plan.changes import BlockShare, layer_shares
from solver.plan.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class BlockKernels:
    """A rank's share of one block, ready to compute.

    `into` is, for attention by rows, (K and V, Q), where K and V are avoided Q alone; for attention by heads, all three
    at once; for the MLP, up and its activation; for cut grid, without bias and activation, which go on the sum.
    `into_bias` is that bias, of the columns that the rank adds up. `out` is the attention output or down, a summand or
    some columns, without bias. `last` makes the stream of what is computed, and of the residual: by rows it is all from
    the context on, or the whole MLP; else what stands behind the exchange. `norm` is the norm in front, if it is there.
    `width` is the columns between the two products. `avoided` are K's and V's weights where these are not projected.
    """

    into: tuple[Graph, ...]
    into_bias: Array
    out: Graph
    last: Graph
    norm: Graph | None
    width: int
    avoided: numpy_kernels.KeyWeights | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LayerKernels:
    """A rank's share of one layer, ready to compute."""

    attention: BlockKernels
    mlp: BlockKernels


# A layer's kernels; of a decoupled layer, those of every sub-block that the rank has.
Layer = LayerKernels | tuple[LayerKernels, ...]


def rank_layers(
    spec: ModelSpec, plan: Plan, rank: int, held: Mapping[int, Mapping[BlockShare, BlockKernels]]
) -> list[Layer]:
    """Return the layers of a rank's stage, of the blocks that it holds of every layer."""
    layers: list[Layer] = []
    for number, shares in layer_shares(spec, plan, rank).items():
        blocks = [held[number][share] for share in shares]
        parts = tuple(map(LayerKernels, blocks[::2], blocks[1::2]))
        layers.append(parts if spec.is_decoupled(number) else parts[0])
    return layers


def block_kernels(spec: ModelSpec, make: MakeGraph, share: BlockShare, w: BlockWeights) -> BlockKernels:
    """Make the kernels of a rank's share of a block."""
    part = spec if share.sub_block is None else spec.sub_block
    return (_attention if share.block == "attention" else _mlp)(part, make, share, w)


def _attention(spec: ModelSpec, make: MakeGraph, share: BlockShare, w: BlockWeights) -> BlockKernels:
    H, avoided = spec.hidden, None
    if share.grid:
        into = [make([Linear(np.ascontiguousarray(w.into.T), None)])]
    elif w.into.size and share.avoided:
        into = [make([Linear(w.into[:H], w.into_bias[:H])])]
        # K's bias adds the same to every score of a query, which a softmax does not see.
        avoided = numpy_kernels.KeyWeights(w.into[H : 2 * H], w.into[2 * H :], w.into_bias[2 * H :])
    elif w.into.size and share.alone:
        # K and V first: they travel while Q is computed.
        into = [make([Linear(w.into[rows], w.into_bias[rows])]) for rows in (slice(H, None), slice(H))]
    else:
        into = [make([Linear(w.into, w.into_bias)])] * 2
    return _block(spec, make, share, into, [Linear(w.out, None)], w, w.into.shape[0] // 3, avoided)


def _mlp(spec: ModelSpec, make: MakeGraph, share: BlockShare, w: BlockWeights) -> BlockKernels:
    up, down = Linear(w.into, w.into_bias, spec.activation), Linear(w.out, None)
    if share.grid:
        up = Linear(np.ascontiguousarray(w.into.T), None)
    # By rows in one graph, but where another stage has the other half.
    apart = not share.alone or not (w.into.size and w.out.size)
    into, rest = ([make([up])], [down]) if apart else ([], [up, down])
    return _block(spec, make, share, into, rest, w, w.into.shape[0])


def _block(
    spec: ModelSpec, make: MakeGraph, share: BlockShare, into: Sequence[Graph], rest: Sequence[Linear], w: BlockWeights,
    width: int, avoided: numpy_kernels.KeyWeights | None = None,
) -> BlockKernels:  # fmt: skip
    """Make a block's kernels, of which `rest` are the products behind `into`."""
    norm = Norm(w.norm, w.norm_bias, spec.norm_eps)
    behind: list[Operation] = [AddResidual(w.out_bias), *([norm] if spec.norm == "post" else [])]
    last = make([*rest, *behind] if share.alone else behind)
    out = last if share.alone else make(rest)
    return BlockKernels(
        tuple(into), w.into_bias, out, last, make([norm]) if spec.norm == "pre" else None, width, avoided
    )
