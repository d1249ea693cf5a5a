"""What a block does under each cut, step by step, as the planner's tables count it; what runs says the schedule.

    attention rows      lay; gather keys: K, V by tiles, during: Q, attention | output by tiles; close
                        where the input is gathered: gather input, during: K, V of all rows; Q, attention | …
    attention block     gather rows, during: Q, K, V of own heads; attention; reduce, during: output; close
    attention to rows   gather rows, during: Q, K, V of own heads; attention by groups of heads | send inner; output
                        by tiles; close
    attention columns   as block up to the context; gather columns; own output columns; gather columns; close
    mlp rows            lay; up, activation by tiles | down by tiles; close
    mlp block, to rows, columns  as attention, with up and activation for Q, K, V, and down for the output

After `|` is the second half of a block, where a stage may begin. A stream that lies in rows is computed tile by tile,
up to the next exchange, and every tile is sent at once: so the output, the norms, the MLP and the next layer's K and V
of a tile hide the exchange of the tiles before it. A block therefore begins in the middle of an exchange, and ends in
the middle of another. What a rank computes between two exchanges is one graph a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from solver.base.spans import Span
from solver.cluster.curves import Bank, Floats, Kernel
from solver.model.blocks import Axis, Block, BlockKind, Cut
from solver.model.kinds.attention import Attention
from solver.model.kinds.mlp import Mlp
from solver.model.sublayers import HALVES
from solver.plan.plan import StreamLayout


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a kernel on some rows.

    Parameters
    ----------
    name
        What is computed.
    kernel
        By what.
    size
        Of a row, and of a unit of the axis that is shared out: weights of a product, heads of attention, else elements.
    head_dim
        d, of attention.
    """

    name: str
    kernel: Kernel
    size: int
    head_dim: int = 0

    def seconds(self, bank: Bank, rows: Any, units: Any = 1.0, keys: Any = 0.0) -> Floats:
        """Return the seconds on every device, [..., p]; `keys` are how many rows each attends to."""
        if self.kernel is Kernel.ATTEND:
            return bank.attend(rows * (units > 0), keys, self.size * units, self.head_dim)
        if self.kernel in (Kernel.PROJECT, Kernel.CONTRACT):
            return bank.seconds(self.kernel, rows * (units > 0), self.size * units)
        return bank.seconds(self.kernel, rows * self.size * units)

    def flop(self, keys: int) -> int:
        """Return the floating-point operations of a row and a unit; none of what passes over elements."""
        if self.kernel is Kernel.ATTEND:
            return 4 * keys * self.size * self.head_dim
        return 2 * self.size * (self.kernel in (Kernel.PROJECT, Kernel.CONTRACT))


Calls = tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Lay:
    """Rows come to who computes them; nothing moves where they lie so."""


@dataclass(frozen=True, slots=True)
class ByTiles:
    """Own rows are computed tile by tile."""

    calls: Calls


@dataclass(frozen=True, slots=True)
class AtOnce:
    """All rows are computed by who has a share of an axis."""

    axis: Axis
    calls: Calls


@dataclass(frozen=True, slots=True)
class GatherKeys:
    """K and V are computed by tiles, and go to whose rows attend to them; there Q is computed meanwhile; attention."""

    keys: Call
    query: Call
    attend: Call


@dataclass(frozen=True, slots=True)
class GatherInput:
    """The block's input goes to whose rows attend to it; who projects it does so as it comes, and attends (Voltage)."""

    keys: Call
    query: Call
    attend: Call


@dataclass(frozen=True, slots=True)
class GatherRows:
    """All rows go to who has a share of an axis, and are computed as they come; to all where the norm is on full."""

    axis: Axis
    calls: Calls
    norm: StreamLayout


@dataclass(frozen=True, slots=True)
class SendInner:
    """What a unit of an axis has, `columns` wide, goes to the owners of rows, in as many groups as the plan says."""

    axis: Axis
    columns: int
    calls: Calls


@dataclass(frozen=True, slots=True)
class GatherColumns:
    """What a unit of an axis has, `columns` wide in all rows, goes to who has a share of another; FIXED: to all."""

    axis: Axis
    columns: int
    to: Axis


@dataclass(frozen=True, slots=True)
class Reduce:
    """Summands are computed tile by tile, and added where the rows belong, or everywhere."""

    axis: Axis
    call: Call
    norm: StreamLayout


@dataclass(frozen=True, slots=True)
class Close:
    """Bias, residual and norm, on rows or on full."""

    norm: StreamLayout
    call: Call


Step = (
    Lay | ByTiles | AtOnce | GatherKeys | GatherInput | GatherRows | SendInner | GatherColumns | Reduce | Close
)  # fmt: skip
Halves = tuple[Sequence[Step], Sequence[Step]]
BOTH_HALVES = Span(0, HALVES)  # of a block's halves


@lru_cache(maxsize=256)
def cut_steps(
    block: Block, cut: Cut, norm: StreamLayout, halves: Span = BOTH_HALVES, *, input_gathered: bool = False
) -> tuple[Step, ...]:
    """Return the steps of a block under a cut, or of one of its halves."""
    first, second = KINDS[type(block.kind)](block, cut, norm, input_gathered)
    return (*(first if halves.start == 0 else ()), *(second if halves.stop == HALVES else ()))


def attention(block: Block, cut: Cut, norm: StreamLayout, input_gathered: bool) -> Halves:
    """Return the steps of multi-head attention, in halves; what is not cut by rows has all in the first."""
    own = block.kind
    assert isinstance(own, Attention)
    H, A, d = block.hidden, own.heads, own.head_dim
    heads = 1 if cut is not Cut.ROWS else A  # of a unit
    attend = Call("attention", Kernel.ATTEND, heads, d)
    out = Call("output", Kernel.CONTRACT, heads * d * H)
    if cut is not Cut.ROWS:
        into = Call("Q, K, V", Kernel.PROJECT, 3 * d * H)
        return _shared(block, (into,), (attend,), out, cut, norm)
    keys, query = Call("K, V", Kernel.PROJECT, 2 * H * H), Call("Q", Kernel.PROJECT, H * H)
    if input_gathered:
        first: Sequence[Step] = [GatherInput(keys, query, attend)]
    else:
        first = [Lay(), GatherKeys(keys, query, attend)]
    return first, [ByTiles((out,)), close(block, norm)]


def mlp(block: Block, cut: Cut, norm: StreamLayout, input_gathered: bool) -> Halves:
    """Return the steps of the feed-forward block, in halves."""
    columns = 1 if cut is not Cut.ROWS else block.kind.inner_columns  # of a unit
    up = Call("up", Kernel.PROJECT, block.hidden * columns)
    activation = Call("activation", Kernel.ACTIVATE, columns)
    down = Call("down", Kernel.CONTRACT, block.hidden * columns)
    if cut is not Cut.ROWS:
        return _shared(block, (up, activation), (), down, cut, norm)
    return [Lay(), ByTiles((up, activation))], [ByTiles((down,)), close(block, norm)]


# By the class of a block's kind: its steps under a cut, with the norm on rows or on full, and, of attention by rows,
# where its input is gathered and not K and V.
KINDS: dict[type[BlockKind], Callable[[Block, Cut, StreamLayout, bool], Halves]] = {Attention: attention, Mlp: mlp}


def _shared(block: Block, into: Calls, between: Calls, out: Call, cut: Cut, norm: StreamLayout) -> Halves:
    """Return the steps of a block whose heads or F columns are shared out."""
    inner, ends = block.inner, close(block, norm)
    assert inner is not None
    if cut is Cut.TO_ROWS:
        every = replace(out, size=out.size * inner.count)
        return [GatherRows(inner.axis, into, norm), SendInner(inner.axis, inner.unit, between)], [
            ByTiles((every,)),
            ends,
        ]
    steps: list[Step] = [GatherRows(inner.axis, into, norm)]
    if between:
        steps.append(AtOnce(inner.axis, between))
    if cut is Cut.COLUMNS:
        # An output column has a weight of every inner column.
        steps.append(GatherColumns(inner.axis, inner.unit, inner.output))
        steps.append(AtOnce(inner.output, (Call(out.name, out.kernel, block.kind.inner_columns),)))
        steps.append(GatherColumns(inner.output, 1, Axis.FIXED))
    else:
        steps.append(Reduce(inner.axis, out, norm))
    return [*steps, ends], ()


def close(block: Block, norm: StreamLayout) -> Close:
    """Return the step with which a block ends."""
    return Close(norm, Call("bias, residual, norm", Kernel.NORM, block.hidden))


def flop_of_rows(block: Block, halves: Span, keys: int) -> int:
    """Return the floating-point operations of a row in halves of a block, where it attends to so many keys."""
    calls: list[Call] = []
    for step in cut_steps(block, Cut.ROWS, StreamLayout.ROWS, halves):
        calls += step.calls if isinstance(step, ByTiles) else ()
        calls += (step.keys, step.query, step.attend) if isinstance(step, GatherKeys) else ()
    return sum(call.flop(keys) for call in calls)
