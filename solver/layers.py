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

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.curves import Floats, Kernel
from solver.exchange import Exchange, Mask, gather, move, scatter
from solver.model import ModelSpec
from solver.plan import Cut, Layout
from solver.steps import FLOAT_BYTES, Axis, Machine, Step, Transfer, Values, plus

# What the engine hides. It waits for all K and V before it computes scores, and for a whole product before it sends
# the first summand. Where the engine changes, change it here.
KEYS_AS_THEY_ARRIVE = False
SUMMANDS_BY_BLOCK = False


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """A model, S rows of it, and a cluster: everything that a cost depends on besides the plan."""

    spec: ModelSpec
    machine: Machine
    rows: int

    @property
    def devices(self) -> int:
        """Number of devices, p."""
        return self.machine.devices

    def only(self, devices: NDArray[np.intp]) -> Setting:
        """Return the same model on some of the devices."""
        if devices.size == self.devices:
            return self
        return replace(self, machine=self.machine.only(devices))

    def length(self, axis: Axis) -> int:
        """Return how much of an axis there is to share out."""
        return {Axis.ROWS: self.rows, Axis.HEADS: self.spec.heads, Axis.FFN: self.spec.ffn}.get(axis, self.spec.hidden)


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
    values
        Shares of the block at hand, [..., p]; may be set anew between blocks.
    stream
        How many rows each device has of the residual stream, None for full; advances with every block.
    owners
        How many devices have rows at all; counted from the rows where not given. A table over one device's share
        cannot know it.
    """

    def __init__(self, setting: Setting, values: Values, stream: Floats | None, owners: Floats | None = None) -> None:
        self._setting = setting
        self.values = values
        self.stream = stream
        self._given_owners = owners
        self.steps: list[Step] = []

    def attention(self, cut: Cut, norm: Layout) -> None:
        """Add an attention block."""
        spec, S, bank = self._setting.spec, self._setting.rows, self._setting.machine.bank
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
        attend = bank.attend(rows, S, A, d)
        self._exchange(
            Step(
                "gather K, V",
                before={Axis.ROWS: bank.seconds(Kernel.PROJECT, rows, 2 * H * H)},
                during={Axis.ROWS: bank.seconds(Kernel.PROJECT, rows, H * H) + attend},
                edge={Axis.ROWS: attend / self._owners(rows) if KEYS_AS_THEY_ARRIVE else attend},
                transfer=self._gather(rows, Axis.ROWS, 2 * H, peers=Axis.ROWS),
            )
        )
        self._compute("output", Axis.ROWS, bank.seconds(Kernel.CONTRACT, rows, H * H))
        self._norm(Layout.ROWS)

    def mlp(self, cut: Cut, norm: Layout) -> None:
        """Add an MLP block."""
        H, F, bank = self._setting.spec.hidden, self._setting.spec.ffn, self._setting.machine.bank
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
        self._compute("mlp", Axis.ROWS, inner.into(rows, every) + inner.out(rows, every))
        self._norm(Layout.ROWS)

    def _inner(self, block: Inner, cut: Cut, norm: Layout) -> None:
        """Add a block whose heads or F columns are shared out."""
        S, H = self._setting.rows, self._setting.spec.hidden
        units = self.values[block.axis]
        if norm is Layout.FULL and self.stream is not None:
            self._exchange(Step("gather rows", transfer=self._gather(self.stream, Axis.ROWS, H)))
            self.stream = None
        if self.stream is None:
            self._compute(block.name, block.axis, block.into(S, units))
        else:
            # A product for every block of rows that arrives: each packs the weights anew.
            blocks = self._owners(self.stream)
            piece = block.into(S / blocks, units)
            transfer = self._gather(self.stream, Axis.ROWS, H, peers=block.axis)
            during, edge = {block.axis: blocks * piece}, {block.axis: piece}
            self._exchange(Step("gather rows", during=during, edge=edge, transfer=transfer))
        self._compute(block.name, block.axis, block.between(units))
        if cut is Cut.COLUMNS:
            self._output_columns(block)
        elif norm is Layout.ROWS:
            self._reduce_to_rows(block)
        else:
            self._reduce_to_all(block)
        self._norm(norm)

    def _output_columns(self, block: Inner) -> None:
        """Gather the inner columns, compute output columns of all rows, gather those."""
        S, H = self._setting.rows, self._setting.spec.hidden
        columns = self.values[block.output]
        inner = self._gather(self.values[block.axis], block.axis, S * block.columns, peers=block.output)
        self._exchange(Step(f"gather {block.name}", transfer=inner))
        # All inner units and some output columns have the weights of some inner units and all output columns.
        units = columns * self._setting.length(block.axis) / H
        self._compute(block.name, block.output, block.out(S, units))
        self._exchange(Step("gather columns", transfer=self._gather(columns, block.output, S)))

    def _reduce_to_rows(self, block: Inner) -> None:
        """Add the summands where their rows belong."""
        rows, units = self.values[Axis.ROWS], self.values[block.axis]
        unit_bytes = FLOAT_BYTES * self._setting.spec.hidden

        def exchange(values: Values, active: Mask) -> Exchange:
            return scatter(unit_bytes * values.get(Axis.ROWS, rows), values.get(block.axis, units) > 0)

        blocks = self._owners(rows) if SUMMANDS_BY_BLOCK else 1
        piece = block.out(self._setting.rows / blocks, units)
        transfer = Transfer(exchange, scatters=True, axis=Axis.ROWS, unit_bytes=unit_bytes, peers=block.axis)
        during, edge = {block.axis: blocks * piece}, {block.axis: piece}
        self._exchange(Step("reduce", during=during, edge=edge, transfer=transfer, reduces=True))

    def _reduce_to_all(self, block: Inner) -> None:
        """Add the summands on all active devices: a swap between two, else a reduce-scatter and an all-gather."""
        S, row_bytes = self._setting.rows, FLOAT_BYTES * self._setting.spec.hidden
        units = self.values[block.axis]

        def owned(active: Mask, alone: float) -> Floats:
            """Return whose rows a device adds: equal ones, or of two devices all."""
            devices = active.sum(-1, keepdims=True)
            return np.asarray(active * np.where(devices > 2, S / np.maximum(devices, 1), alone))

        def reduce(values: Values, active: Mask) -> Exchange:
            return scatter(row_bytes * owned(active, S), values.get(block.axis, units) > 0)

        def spread(values: Values, active: Mask) -> Exchange:
            return gather(row_bytes * owned(active, 0), active)

        product = {block.axis: block.out(S, units)}
        self._exchange(Step("reduce", during=product, edge=product, transfer=Transfer(reduce), reduces=True))
        self._exchange(Step("gather sums", transfer=Transfer(spread)))

    def _gather(self, have: Floats, axis: Axis, width: int, peers: Axis = Axis.FIXED) -> Transfer:
        """Give blocks to every peer; a unit of `axis` is `width` elements."""
        unit_bytes = FLOAT_BYTES * width
        # The stream of the layer before may lie by other rows than this layer's shares.
        own = have is self.values.get(axis)
        wanted = self.values.get(peers)

        def exchange(values: Values, active: Mask) -> Exchange:
            counts = values.get(axis, have) if own else have
            receivers = active if wanted is None else values.get(peers, wanted) > 0
            return gather(unit_bytes * counts, receivers)

        return Transfer(exchange, axis=axis if own else Axis.FIXED, unit_bytes=unit_bytes, peers=peers)

    def _exchange(self, step: Step) -> None:
        """Add a step; compute that stands before it alone becomes its `before`."""
        if self.steps and self.steps[-1].transfer is None:
            step = replace(step, before=plus(self.steps.pop().before, step.before))
        self.steps.append(step)

    def _compute(self, name: str, axis: Axis, seconds: Floats) -> None:
        """Add compute behind the last exchange."""
        last = self.steps.pop() if self.steps else Step(name)
        load = {axis: seconds}
        if last.transfer is None:
            self.steps.append(replace(last, before=plus(last.before, load)))
        else:
            self.steps.append(replace(last, after=plus(last.after, load)))

    def _lay_by_rows(self) -> Floats:
        """Bring the stream to this block's rows; nothing moves where it lies so already, or in full."""
        rows = self.values[Axis.ROWS]
        if self.stream is not None and self.stream is not rows:
            exchange = move(self.stream, rows, FLOAT_BYTES * self._setting.spec.hidden)
            self._exchange(Step("move rows", transfer=Transfer(lambda values, active: exchange)))
        self.stream = rows
        return rows

    def _norm(self, norm: Layout) -> None:
        """Add bias, residual and norm, on rows or on full."""
        bank, H = self._setting.machine.bank, self._setting.spec.hidden
        if norm is Layout.ROWS:
            self.stream = self.values[Axis.ROWS]
            self._compute("norm", Axis.ROWS, bank.seconds(Kernel.NORM, self.stream * H))
        else:
            self.stream = None
            self._compute("norm", Axis.FIXED, bank.seconds(Kernel.NORM, self._setting.rows * H))

    def _owners(self, rows: Floats) -> Any:
        if self._given_owners is not None:
            return self._given_owners
        return np.maximum((rows > 0).sum(-1, keepdims=True), 1)
