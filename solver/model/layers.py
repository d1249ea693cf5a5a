"""The parts of layers: of blocks one after the other, each of which adds to the stream what it computes of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from solver.model.blocks import BlockKind
from solver.model.kinds.join import Join
from solver.model.kinds.norm import InputNorm
from solver.model.kinds.part import HIDDEN, ROW, Part, Residual, Value


def parts_of_blocks(
    blocks: Iterable[tuple[str, BlockKind]], stream: Residual, x: Value, *, normed_apart: bool = False
) -> tuple[list[Part], Value]:
    """Return the parts of blocks that begin with these rows of the stream, and the stream after them.

    What tensors a block has that none of its parts uses is added where its result joins the stream.

    Parameters
    ----------
    blocks
        Their names, and their kinds.
    normed_apart
        Whether the norm before a block is a part of its own: who has rows may norm them for others.
    """
    parts: list[Part] = []
    for name, kind in blocks:
        read, within = x, stream
        if normed_apart and stream.pre_norms:
            parts.append(InputNorm().part(name, stream, x))
            read, within = parts[-1].writes, replace(stream, pre_norms=False)
        own = kind.parts(name, within, read)
        used = {tensor.name for part in own for tensor in part.tensors}
        added = tuple(tensor for tensor in kind.tensors(name, within).values() if tensor.name not in used)
        joined = Join().part(name, stream, x, own[-1].writes, added)
        parts += [*own, joined]
        x = joined.writes
    return parts, x


def over_tiles(part: Part) -> tuple[Part, Part]:
    """Return a part that reads the stream as two: summands of some columns of it, and what is made of their sums."""
    (x,) = part.reads
    matrices = tuple(tensor for tensor in part.tensors if len(tensor.shape) > 1)
    vectors = tuple(tensor for tensor in part.tensors if len(tensor.shape) == 1)
    sums, axes = replace(part.writes, name=f"{part.writes.name} sums"), {**part.axes, HIDDEN: x.shape[1]}
    summed = replace(
        part, name=f"{part.name} sums", role=f"summed {part.role}", axes=axes, writes=sums, tensors=matrices
    )
    return summed, replace(part, role=f"added {part.role}", reads=(sums,), tensors=vectors)


def in_sub_blocks(names: Sequence[str], kind: BlockKind, stream: Residual, x: Value) -> tuple[list[Part], Value]:
    """Return the parts of a decoupled block: of all of its sub-blocks at once, each of its own columns of the stream.

    They have all columns of the stream as a further axis, which is cut between sub-blocks, and the tensors of all.

    Parameters
    ----------
    names
        Of the sub-blocks.
    stream
        Of one of them.
    x
        The rows that it reads.
    """
    own = replace(x, shape=(x.shape[0], stream.hidden // stream.unit, stream.unit))
    every = [parts_of_blocks([(name, kind)], stream, own, normed_apart=True)[0] for name in names]
    return [_of_all(parts, x) for parts in zip(*every, strict=True)], _over_columns(every[0][-1].writes, x)


def _of_all(parts: Sequence[Part], x: Value) -> Part:
    first = parts[0]
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    reads = tuple(_over_columns(value, x) for value in first.reads)
    axes = {**first.axes, HIDDEN: x.shape[1]}
    return replace(first, axes=axes, reads=reads, writes=_over_columns(first.writes, x), tensors=tensors)


def _over_columns(value: Value, x: Value) -> Value:
    """Return a value of one sub-block as that of all."""
    if HIDDEN in value.axes:
        return replace(value, shape=x.shape)
    return replace(value, axes=(ROW, HIDDEN, *value.axes[1:]), shape=(x.shape[0], x.shape[1], *value.shape[1:]))
