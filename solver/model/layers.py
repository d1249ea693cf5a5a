"""The parts of layers: of blocks one after the other, each of which adds to the stream what it computes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from solver.model.blocks import BlockKind
from solver.model.kinds.join import Join
from solver.model.kinds.norm import InputNorm
from solver.model.kinds.part import Part, Residual, Value


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
