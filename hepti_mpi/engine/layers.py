"""A rank's share of a block, ready to compute: its graphs, made of its share of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hepti_mpi.engine.load import BlockWeights
from hepti_mpi.kernels import numpy_kernels
from hepti_mpi.kernels.products import AddResidual, Graph, Linear, MakeGraph, Norm, Operation
from hepti_mpi.kernels.relative import Relative
from solver.base.arrays import Array
from solver.model.blocks import BlockKind
from solver.model.kinds.attention import Attention
from solver.model.kinds.mlp import Mlp
from solver.model.spec import ModelSpec
from solver.plan.changes import BlockShare, layer_shares
from solver.plan.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class BlockKernels:
    """A rank's share of one block, ready to compute.

    Parameters
    ----------
    into
        The first products. Of attention by rows: K and V together, then Q; Q alone where K and V are avoided. Of
        attention by heads: all three at once. Of the MLP: up and its activation; by rows nothing, since `last` has it.
        Of cut grid: without bias and activation, which go on the sum.
    into_bias
        Of cut grid: that bias, of the columns that the rank adds up.
    out
        The second product, without bias: of all rows and some inner columns, a summand; or some output columns. Not
        used by rows, where `last` has it.
    last
        Makes the stream that leaves the block, given the residual. By rows it computes everything behind the context
        (attention), or the whole block (MLP); cut to rows, everything behind the context or the inner columns. Under
        other cuts it adds bias and residual, and norms.
    norm
        The norm in front, if there is one.
    width
        Columns between the two products.
    avoided
        K's and V's weights, where these are not projected.
    relative
        What distances between rows add to the scores of all heads, where they do.
    """

    into: tuple[Graph, ...]
    into_bias: Array
    out: Graph
    last: Graph
    norm: Graph | None
    width: int
    avoided: numpy_kernels.KeyWeights | None = None
    relative: Relative | None = None


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
    H, weight, bias, avoided = share.block.hidden, w["into"], w["into_bias"], None
    if share.grid:
        into = [make([Linear(np.ascontiguousarray(weight.T), None)])]
    elif weight.size and share.avoided:
        into = [make([Linear(weight[:H], bias[:H])])]
        # K's bias adds the same to every score of a query, which a softmax does not see.
        avoided = numpy_kernels.KeyWeights(weight[H : 2 * H], weight[2 * H :], bias[2 * H :])
    elif weight.size and share.alone:
        # K and V first: they travel while Q is computed.
        into = [make([Linear(weight[rows], bias[rows])]) for rows in (slice(H, None), slice(H))]
    else:
        into = [make([Linear(weight, bias)])] * 2
    kernels = finished(make, share, into, [Linear(w["out"], None)], w, weight.shape[0] // 3, avoided)
    assert isinstance(share.block.kind, Attention)
    if not share.block.kind.buckets:
        return kernels
    return replace(kernels, relative=Relative(w["relative"].reshape(-1, share.block.kind.buckets)))


def mlp(make: MakeGraph, share: BlockShare, w: BlockWeights) -> BlockKernels:
    """Make the kernels of the feed-forward block."""
    assert isinstance(share.block.kind, Mlp)
    up, down = Linear(w["into"], w["into_bias"], share.block.kind.activation), Linear(w["out"], None)
    if share.grid:
        up = Linear(np.ascontiguousarray(w["into"].T), None)
    # By rows in one graph, but where another stage has the other half.
    apart = not share.alone or not (w["into"].size and w["out"].size)
    into, rest = ([make([up])], [down]) if apart else ([], [up, down])
    return finished(make, share, into, rest, w, w["into"].shape[0])


# By the class of a block's kind: what makes its kernels.
KINDS: dict[type[BlockKind], Callable[[MakeGraph, BlockShare, BlockWeights], BlockKernels]] = {
    Attention: attention,
    Mlp: mlp,
}


def finished(
    make: MakeGraph, share: BlockShare, into: Sequence[Graph], rest: Sequence[Operation], w: BlockWeights, width: int,
    avoided: numpy_kernels.KeyWeights | None = None,
) -> BlockKernels:  # fmt: skip
    """Make a block's kernels, of which `rest` are the products behind `into`, and then come residual and norm."""
    stream = share.block.stream
    norm = Norm(w["norm"], w["norm_bias"], stream.eps)
    behind: list[Operation] = [AddResidual(w["out_bias"]), *([norm] if stream.sum_norms else [])]
    last = make([*rest, *behind] if share.closes else behind)
    out = last if share.closes else make(rest)
    in_front = make([norm]) if stream.pre_norms else None
    return BlockKernels(tuple(into), w["into_bias"], out, last, in_front, width, avoided)
