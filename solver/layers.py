"""What a layer consists of: compute and exchanges, step by step, as the engine runs them.

    attention rows      before: K, V of own rows; gather K, V; during: Q, scores, context; after: output, norm
    attention block     gather rows; during: Q, K, V of own heads, block by block; after: scores, context
                        reduce to rows; during: the output product; after: add, norm
    attention columns   as block up to the context; gather it; after: own output columns; gather them; after: norm
    mlp rows            up, activation, down, norm, without an exchange
    mlp block, columns  as attention, with up and activation for Q, K, V, and down for the output

Where the norm is on full, a stream that lies in rows is gathered first, and summands come to all active devices: by
one swap between two, else by a reduce-scatter of equal rows and an all-gather. A stream enters a layer as the layer
before left it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from solver.curves import Bank, Floats, Kernel
from solver.exchange import Mask, Network, gather, move, scatter
from solver.model import ModelSpec
from solver.plan import Cut, Layout
from solver.spans import largest_remainder
from solver.steps import Axis, Load, Step, Transfer, Values, message_seconds, plus

FLOAT_BYTES = 4

# What the engine hides. It waits for all K and V before it computes scores, and for a whole product before it sends
# the first summand. Where the engine changes, change it here.
KEYS_AS_THEY_ARRIVE = False
SUMMANDS_BY_BLOCK = False


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """A model, S rows of it, and a cluster: everything that a cost depends on besides the plan."""

    spec: ModelSpec
    bank: Bank
    network: Network
    rows: int

    def length(self, axis: Axis) -> int:
        """Return how much of an axis there is to share out."""
        return {Axis.ROWS: self.rows, Axis.HEADS: self.spec.heads, Axis.FFN: self.spec.ffn}.get(axis, self.spec.hidden)


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Shares of one layer.

    Parameters
    ----------
    values
        Who has how much, [..., p].
    takes
        Who has any, [..., p]; given apart from the values, so that a table over all values can be made.
    active : [p]
        Who takes part in the plan at all.
    """

    values: Values
    takes: Mapping[Axis, Mask]
    active: Mask


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """How a stream that lies in rows is laid: who has how many, and who any."""

    counts: Floats
    owners: Mask


@dataclass(frozen=True, slots=True, eq=False)
class Inner:
    """A block whose inner dimension is shared out: its axes and its kernels' seconds.

    `into` and `out` are the two products, for (rows, units); `between` is what stands between them, for (units).
    """

    name: str
    axis: Axis
    output: Axis
    columns: int  # for one unit of the axis
    into: Callable[[Any, Floats], Floats]
    between: Callable[[Floats], Floats]
    out: Callable[[Any, Floats], Floats]


class LayerSteps:
    """Adds up the steps of one layer, block by block.

    Parameters
    ----------
    setting
        The model and the cluster.
    shares
        Shares of the block at hand; may be set anew between blocks.
    stream
        How the residual stream lies, None for full; advances with every block.
    """

    def __init__(self, setting: Setting, shares: Shares, stream: Rows | None) -> None:
        self._setting = setting
        self.shares = shares
        self.stream = stream
        self.steps: list[Step] = []

    def attention(self, cut: Cut, norm: Layout) -> None:
        """Add an attention block."""
        spec, S, bank = self._setting.spec, self._setting.rows, self._setting.bank
        H, A, d = spec.hidden, spec.heads, spec.head_dim
        if cut is not Cut.ROWS:
            inner = Inner(
                "attention", Axis.HEADS, Axis.CONTEXT, d,
                into=lambda m, heads: bank.seconds(Kernel.PROJECT, m * (heads > 0), 3 * d * H * heads),
                between=lambda heads: bank.attend(S * (heads > 0), S, heads, d),
                out=lambda m, heads: bank.seconds(Kernel.CONTRACT, m * (heads > 0), d * H * heads),
            )  # fmt: skip
            self._inner(inner, cut, norm)
            return
        rows = self._lay_by_rows()
        attend = bank.attend(rows.counts, S, A, d)
        self._exchange(
            "gather K, V", self._gather(rows, rows.owners, 2 * H), Axis.ROWS,
            before={Axis.ROWS: bank.seconds(Kernel.PROJECT, rows.counts, 2 * H * H)},
            during={Axis.ROWS: bank.seconds(Kernel.PROJECT, rows.counts, H * H) + attend},
            edge={Axis.ROWS: attend / rows.owners.sum(-1, keepdims=True) if KEYS_AS_THEY_ARRIVE else attend},
        )  # fmt: skip
        self._compute("output", Axis.ROWS, bank.seconds(Kernel.CONTRACT, rows.counts, H * H))
        self._norm_on_rows()

    def mlp(self, cut: Cut, norm: Layout) -> None:
        """Add an MLP block."""
        H, F, bank = self._setting.spec.hidden, self._setting.spec.ffn, self._setting.bank
        inner = Inner(
            "mlp", Axis.FFN, Axis.OUTPUT, 1,
            into=lambda m, columns: bank.seconds(Kernel.PROJECT, m * (columns > 0), H * columns)
            + bank.seconds(Kernel.ACTIVATE, m * columns),
            between=lambda columns: np.zeros(columns.shape),
            out=lambda m, columns: bank.seconds(Kernel.CONTRACT, m * (columns > 0), H * columns),
        )  # fmt: skip
        if cut is not Cut.ROWS:
            self._inner(inner, cut, norm)
            return
        rows, every = self._lay_by_rows(), np.array(float(F))
        self._compute("mlp", Axis.ROWS, inner.into(rows.counts, every) + inner.out(rows.counts, every))
        self._norm_on_rows()

    def _inner(self, block: Inner, cut: Cut, norm: Layout) -> None:
        """Add a block whose heads or F columns are shared out."""
        S, H = self._setting.rows, self._setting.spec.hidden
        units, takes = self.shares.values[block.axis], self.shares.takes[block.axis]
        if norm is Layout.FULL and self.stream is not None:
            self._exchange("gather rows", self._gather(self.stream, self.shares.active, H), Axis.ROWS)
            self.stream = None
        if self.stream is None:
            self._compute(block.name, block.axis, block.into(S, units))
        else:
            # A product for every block of rows that arrives: each packs the weights anew.
            blocks = self.stream.owners.sum(-1, keepdims=True)
            piece = block.into(S / blocks, units)
            self._exchange(
                "gather rows", self._gather(self.stream, takes, H), Axis.ROWS,
                during={block.axis: blocks * piece}, edge={block.axis: piece},
            )  # fmt: skip
        self._compute(block.name, block.axis, block.between(units))
        if cut is Cut.COLUMNS:
            self._output_columns(block, norm)
        elif norm is Layout.ROWS:
            self._reduce(block, self._rows(), Axis.ROWS)
            self._norm_on_rows()
        else:
            self._reduce_to_all(block)
            self._norm_on_full()

    def _output_columns(self, block: Inner, norm: Layout) -> None:
        """Gather the inner columns, compute output columns of all rows, gather those."""
        S, H, active = self._setting.rows, self._setting.spec.hidden, self.shares.active
        columns, takes = self.shares.values[block.output], self.shares.takes[block.output]
        inner = Rows(self.shares.values[block.axis], self.shares.takes[block.axis])
        self._exchange(f"gather {block.name}", self._gather(inner, takes, S * block.columns, block.axis), block.axis)
        # All inner units and some output columns have the weights of some inner units and all output columns.
        units = columns * self._setting.length(block.axis) / H
        self._compute(block.name, block.output, block.out(S, units))
        self._exchange("gather columns", self._gather(Rows(columns, takes), active, S, block.output), block.output)
        if norm is Layout.ROWS:
            self._norm_on_rows()
        else:
            self._norm_on_full()

    def _reduce(self, block: Inner, rows: Rows, axis: Axis) -> None:
        """Add the summands where their rows belong; `axis` says whose share the rows are."""
        S, H = self._setting.rows, self._setting.spec.hidden
        units, takes = self.shares.values[block.axis], self.shares.takes[block.axis]
        blocks = rows.owners.sum(-1, keepdims=True) if SUMMANDS_BY_BLOCK else 1
        piece = block.out(S / blocks, units)
        unit_bytes = H * FLOAT_BYTES
        transfer = Transfer(
            scatters=True, axis=axis, unit_bytes=unit_bytes, peers=takes, owners=rows.owners,
            exchange=lambda values: scatter(
                unit_bytes * values.get(axis, rows.counts), takes, unit_bytes * S, rows.owners
            ),
        )  # fmt: skip
        self._exchange(
            "reduce", transfer, axis, during={block.axis: blocks * piece}, edge={block.axis: piece}, reduces=True
        )
        others = takes.sum(-1, keepdims=True) - takes
        self._compute("add", axis, self._setting.bank.seconds(Kernel.ADD, others * rows.counts * H))

    def _reduce_to_all(self, block: Inner) -> None:
        """Add the summands on all active devices."""
        active, S, H = self.shares.active, self._setting.rows, self._setting.spec.hidden
        if active.sum() > 2:
            equal = Rows(np.array(largest_remainder(active.astype(float).tolist(), S), float), active)
            self._reduce(block, equal, Axis.FIXED)
            self._exchange("gather sums", self._gather(equal, active, H, Axis.FIXED), Axis.FIXED)
            return
        units, takes = self.shares.values[block.axis], self.shares.takes[block.axis]
        product = {block.axis: block.out(S, units)}
        summand = Rows(np.where(takes, float(S), 0.0), takes)
        swap = self._gather(summand, active, H, Axis.FIXED, total=S * H * FLOAT_BYTES * takes.sum(-1, keepdims=True))
        self._exchange("swap sums", swap, Axis.FIXED, during=product, edge=product, reduces=True)
        others = takes.sum(-1, keepdims=True) - takes
        self._compute("add", Axis.FIXED, self._setting.bank.seconds(Kernel.ADD, others * active * S * H))

    def _gather(self, have: Rows, peers: Mask, width: int, axis: Axis = Axis.ROWS, total: Any = None) -> Transfer:
        """Give every peer all blocks; one unit of `axis` is `width` elements."""
        unit_bytes = width * FLOAT_BYTES
        everything = (
            total if total is not None else unit_bytes * self._setting.length(Axis.ROWS if axis is Axis.FIXED else axis)
        )
        # The stream of the layer before may lie by other rows than this layer's shares.
        axis = axis if have.counts is self.shares.values.get(axis) else Axis.FIXED
        return Transfer(
            scatters=False, axis=axis, unit_bytes=unit_bytes, peers=peers, owners=have.owners,
            exchange=lambda values: gather(
                unit_bytes * values.get(axis, have.counts), peers, everything, have.owners
            ),
        )  # fmt: skip

    def _exchange(
        self,
        name: str,
        transfer: Transfer,
        axis: Axis,
        *,
        before: Load | None = None,
        during: Load | None = None,
        edge: Load | None = None,
        reduces: bool = False,
    ) -> None:
        """Add a step; compute that stands before it alone becomes its `before`, messages cost CPU time during it."""
        if self.steps and self.steps[-1].transfer is None:
            before = plus(self.steps.pop().before, before or {})
        cpu = {axis: message_seconds(transfer.exchange(self.shares.values), self._setting.bank)}
        self.steps.append(Step(name, before or {}, plus(during or {}, cpu), edge or {}, {}, transfer, reduces))

    def _compute(self, name: str, axis: Axis, seconds: Floats) -> None:
        """Add compute behind the last exchange."""
        if not self.steps:
            self.steps.append(Step(name))
        last = self.steps.pop()
        load = {axis: seconds}
        if last.transfer is None:
            self.steps.append(replace(last, before=plus(last.before, load)))
        else:
            self.steps.append(replace(last, after=plus(last.after, load)))

    def _rows(self) -> Rows:
        return Rows(self.shares.values[Axis.ROWS], self.shares.takes[Axis.ROWS])

    def _lay_by_rows(self) -> Rows:
        """Bring the stream to this block's rows; nothing moves where it lies so already, or in full."""
        rows = self._rows()
        if self.stream is not None and self.stream.counts is not rows.counts:
            exchange = move(self.stream.counts, rows.counts, self._setting.spec.hidden * FLOAT_BYTES)
            nobody = np.zeros_like(self.shares.active)
            self._exchange(
                "move rows", Transfer(False, Axis.FIXED, 0, nobody, nobody, lambda values: exchange), Axis.FIXED
            )
        self.stream = rows
        return rows

    def _norm_on_rows(self) -> None:
        rows = self._rows()
        elements = rows.counts * self._setting.spec.hidden
        self._compute("norm", Axis.ROWS, self._setting.bank.seconds(Kernel.NORM, elements))
        self.stream = rows

    def _norm_on_full(self) -> None:
        elements = self.shares.active * self._setting.rows * self._setting.spec.hidden
        self._compute("norm", Axis.FIXED, self._setting.bank.seconds(Kernel.NORM, elements))
        self.stream = None
