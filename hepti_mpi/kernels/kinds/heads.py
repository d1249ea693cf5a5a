"""Heads as caches keep them, whatever computes: runs of them, how wide they are, and the tables by which they turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from solver.base.arrays import Array
from solver.base.errors import HeptiError
from solver.base.spans import Span
from solver.model.kinds.attention import Attention, Rope

UNSEEN = -1e30  # is added to the score of a token that a row does not see: no float32 is left of it beside another
HEAD_MULTIPLE = 8  # the operator takes heads of a multiple of so many columns


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads with equally many to a key and value head: one operator, and one cache."""

    query: int
    kv: int


def check_width(name: str, attention: Attention, precision: str) -> None:
    """Refuse heads that the operator does not take, and that cannot be made wider.

    Raises
    ------
    HeptiError
        If the model of this name cannot have them.
    """
    if wide(attention) != attention.head_dim and (precision != "float32" or attention.qk_norm):
        what = "of normed heads" if attention.qk_norm else f"in {precision}"
        raise HeptiError(
            f"model {name}: a head is {attention.head_dim} wide, {what} it must be a multiple of {HEAD_MULTIPLE}"
        )


def wide(attention: Attention) -> int:
    """Return how wide heads are as the operator takes them: columns of zeros change nothing.

    Where tokens are shared out, the operator is not asked.
    """
    if attention.dealt:
        return attention.head_dim
    return -(-attention.head_dim // HEAD_MULTIPLE) * HEAD_MULTIPLE


def runs_of(attention: Attention, heads: Span) -> list[Heads]:
    """Return a span of query heads as runs of heads with equally many to a key and value head.

    Whole groups are one run; a group that is cut has its key and value head on both sides, and is a run of its own.
    """
    kv = attention.kv_span(heads)
    sizes = [
        Span(number * attention.group, (number + 1) * attention.group).intersect(heads).size
        for number in range(kv.start, kv.stop)
    ]
    return [Heads(size * (count := len(list(same))), count) for size, same in groupby(sizes)]


def turning_tables(rope: Rope, context: int) -> Mapping[str, Array]:
    """Return the tables by which heads turn, cosines and sines [context, width / 2]."""
    angles = np.arange(context)[:, None] * np.array(rope.frequencies)
    of = {"cos": np.cos(angles), "sin": np.sin(angles)}
    return {name: (table * rope.factor).astype(np.float32) for name, table in of.items()}
