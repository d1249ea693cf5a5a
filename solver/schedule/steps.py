"""What a block does under each cut, step by step: data that `pricing` prices, `listing` prints and the engine runs.

    attention rows      lay; gather keys: K, V by tiles, during: Q, attention | output by tiles; close
                        where the input is gathered: gather input, during: K, V of all rows; Q, attention | …
    attention block     gather rows, during: Q, K, V of own heads; attention; reduce, during: output; close
    attention columns   as block up to the context; gather columns; own output columns; gather columns; close
    mlp rows            lay; up, activation by tiles | down by tiles; close
    mlp block, columns  as attention, with up and activation for Q, K, V, and down for the output
    grid, of both       enter, during: the first product; add up; attention, or the activation; spread
                        leave, during: the second product; close

Behind `|` is the second half of a block, where a stage may begin. A stream that lies in rows is computed tile by tile,
up to the next exchange, and every tile is sent at once: so the output, the norms, the MLP and the next layer's K and V
of a tile hide the exchange of the tiles before it. A block therefore begins in the middle of an exchange, and ends in
the middle of another. What a rank computes between two exchanges is one graph a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from solver.cluster.curves import Bank, Floats, Kernel
from solver.model.spec import ModelSpec
from solver.model.sublayers import BLOCK
from solver.plan.plan import BlockPlan, Cut, Layout
from solver.plan.spans import Span


class Axis(StrEnum):
    """What is shared out; `FIXED` is what depends on no share, but on taking part at all."""

    FIXED = "fixed"
    ROWS = "rows"
    HEADS = "heads"
    CONTEXT = "attention output columns"
    FFN = "ffn columns"
    OUTPUT = "mlp output columns"


@dataclass(frozen=True, slots=True)
class Work:
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


Works = tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class Lay:
    """Rows come to who computes them; nothing moves where they lie so."""


@dataclass(frozen=True, slots=True)
class ByTiles:
    """Own rows are computed tile by tile."""

    works: Works


@dataclass(frozen=True, slots=True)
class AtOnce:
    """All rows are computed by who has a share of an axis."""

    axis: Axis
    works: Works


@dataclass(frozen=True, slots=True)
class GatherKeys:
    """K and V are computed by tiles, and go to whose rows attend to them; there Q is computed meanwhile; attention."""

    keys: Work
    query: Work
    attend: Work


@dataclass(frozen=True, slots=True)
class GatherInput:
    """The block's input goes to whose rows attend to it; who projects it does so as it comes, and attends (Voltage)."""

    keys: Work
    query: Work
    attend: Work


@dataclass(frozen=True, slots=True)
class GatherRows:
    """All rows go to who has a share of an axis, and are computed as they come; to all where the norm is on full."""

    axis: Axis
    works: Works
    norm: Layout


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
    work: Work
    norm: Layout


@dataclass(frozen=True, slots=True)
class Enter:
    """Columns of all rows go to the tiles of a grid of weights; the first product makes so many tensors of them.

    A unit of the axis has `columns` columns.
    """

    axis: Axis
    output: Axis
    columns: int
    tensors: int


@dataclass(frozen=True, slots=True)
class AddUp:
    """Summands of a grid's first product are added, each rank of a column some units of the axis."""

    tensors: int


@dataclass(frozen=True, slots=True)
class Spread:
    """What was computed of the sums goes to all of a column of the grid."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Summands of a grid's second product are computed tile by tile, and added where the rows belong."""

    axis: Axis


@dataclass(frozen=True, slots=True)
class Close:
    """Bias, residual and norm, on rows or on full."""

    norm: Layout
    work: Work


Step = (
    Lay | ByTiles | AtOnce | GatherKeys | GatherInput | GatherRows | GatherColumns | Reduce
    | Enter | AddUp | Spread | Leave | Close
)  # fmt: skip
WHOLE = Span(0, BLOCK)  # of a block's halves
BLOCKS = ("attention", "mlp")  # of a layer, in order


def block_steps(spec: ModelSpec, name: str, plan: BlockPlan, halves: Span = WHOLE) -> tuple[Step, ...]:
    """Return the steps of a block, "attention" or "mlp", under a plan, or of one of its halves."""
    return cut_steps(spec, name, plan.cut, plan.norm, halves, input_gathered=plan.keys is not None)


@lru_cache(maxsize=256)
def cut_steps(
    spec: ModelSpec, name: str, cut: Cut, norm: Layout, halves: Span = WHOLE, *, input_gathered: bool = False
) -> tuple[Step, ...]:
    """Return the same of a cut."""
    first, second = attention(spec, cut, norm, input_gathered) if name == "attention" else mlp(spec, cut, norm)
    return (*(first if halves.start == 0 else ()), *(second if halves.stop == BLOCK else ()))


def attention(spec: ModelSpec, cut: Cut, norm: Layout, input_gathered: bool) -> tuple[Sequence[Step], Sequence[Step]]:
    """Return the steps of multi-head attention, in halves; what is not cut by rows has all in the first."""
    H, A, d = spec.hidden, spec.heads, spec.head_dim
    heads = 1 if cut is not Cut.ROWS else A  # of a unit
    attend = Work("attention", Kernel.ATTEND, heads, d)
    out = Work("output", Kernel.CONTRACT, heads * d * H)
    if cut is Cut.GRID:
        return _grid(spec, Enter(Axis.HEADS, Axis.CONTEXT, d, 3), attend), ()
    if cut is not Cut.ROWS:
        into = Work("Q, K, V", Kernel.PROJECT, 3 * d * H)
        return [*_shared(spec, Axis.HEADS, Axis.CONTEXT, (into,), (attend,), out, cut, norm)], ()
    keys, query = Work("K, V", Kernel.PROJECT, 2 * H * H), Work("Q", Kernel.PROJECT, H * H)
    if input_gathered:
        first: Sequence[Step] = [GatherInput(keys, query, attend)]
    else:
        first = [Lay(), GatherKeys(keys, query, attend)]
    return first, [ByTiles((out,)), _close(spec, norm)]


def mlp(spec: ModelSpec, cut: Cut, norm: Layout) -> tuple[Sequence[Step], Sequence[Step]]:
    """Return the steps of the feed-forward block, in halves."""
    columns = 1 if cut is not Cut.ROWS else spec.ffn  # of a unit
    up = Work("up", Kernel.PROJECT, spec.hidden * columns)
    activation = Work("activation", Kernel.ACTIVATE, columns)
    down = Work("down", Kernel.CONTRACT, spec.hidden * columns)
    if cut is Cut.GRID:
        return _grid(spec, Enter(Axis.FFN, Axis.OUTPUT, 1, 1), activation), ()
    if cut is not Cut.ROWS:
        return [*_shared(spec, Axis.FFN, Axis.OUTPUT, (up, activation), (), down, cut, norm)], ()
    return [Lay(), ByTiles((up, activation))], [ByTiles((down,)), _close(spec, norm)]


def _shared(
    spec: ModelSpec, axis: Axis, output: Axis, into: Works, between: Works, out: Work, cut: Cut, norm: Layout
) -> Iterator[Step]:
    """Yield the steps of a block whose heads or F columns are shared out."""
    yield GatherRows(axis, into, norm)
    if between:
        yield AtOnce(axis, between)
    if cut is Cut.COLUMNS:
        # An output column has a weight of every inner column.
        columns = out.size // spec.hidden
        inner = columns * (spec.heads if axis is Axis.HEADS else spec.ffn)
        yield GatherColumns(axis, columns, output)
        yield AtOnce(output, (Work(out.name, out.kernel, inner),))
        yield GatherColumns(output, 1, Axis.FIXED)
    else:
        yield Reduce(axis, out, norm)
    yield _close(spec, norm)


def _grid(spec: ModelSpec, enter: Enter, between: Work) -> Sequence[Step]:
    """Return the steps of a block whose weights are 2-D tiles."""
    steps: list[Step] = [enter, AddUp(enter.tensors), AtOnce(enter.axis, (between,)), Spread(), Leave(enter.axis)]
    return [*steps, _close(spec, Layout.ROWS)]


def _close(spec: ModelSpec, norm: Layout) -> Close:
    return Close(norm, Work("bias, residual, norm", Kernel.NORM, spec.hidden))


def flop_of_rows(spec: ModelSpec, name: str, halves: Span, keys: int) -> int:
    """Return the floating-point operations of a row in halves of a block, where it attends to so many keys."""
    works: list[Work] = []
    for step in cut_steps(spec, name, Cut.ROWS, Layout.ROWS, halves):
        works += step.works if isinstance(step, ByTiles) else ()
        works += (step.keys, step.query, step.attend) if isinstance(step, GatherKeys) else ()
    return sum(work.flop(keys) for work in works)
