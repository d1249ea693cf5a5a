"""What a layer consists of: compute and exchanges, step by step, as the engine runs them.

    attention rows      K, V of own rows; gather K, V; during: Q, scores, context block by block; output, norm
                        with `keys`: gather rows; during: K, V of all rows, block by block; Q, scores, context
    attention block     gather rows; during: Q, K, V of own heads, block by block; scores, context
                        reduce to rows; during: the output product, block by block; norm
    attention columns   as block up to the context; gather it; own output columns; gather them; norm
    mlp rows            up, activation, down, norm, without an exchange
    mlp block, columns  as attention, with up and activation for Q, K, V, and down for the output
    grid, of both       columns to the tiles; during: the first product, block by block; add it up
                        scores, context, or the activation; spread
                        reduce; during: the second product; norm

A stream that lies in rows is computed tile by tile, up to the next exchange, and every tile is sent at once: so the
output, the norms, the MLP and the next layer's K and V of a tile hide the exchange of the tiles before it. A layer
therefore begins in the middle of a step, and ends in the middle of another.

Where the norm is on full, a stream that lies in rows is gathered first, and summands come to all active devices: by
one swap between two, else by a reduce-scatter of equal rows and an all-gather. A stream enters a layer as the layer
before left it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.cluster.curves import Floats, Kernel
from solver.model.precision import FLOAT32, Precision
from solver.model.spec import ModelSpec
from solver.model.sublayers import BLOCK
from solver.plan.plan import Cut, Layout, Wire
from solver.plan.routes import Route
from solver.plan.spans import Span
from solver.schedule.exchange import Exchange, Mask, gather, move, scatter, tile_counts
from solver.schedule.grid import GridExchanges
from solver.schedule.timing import Axis, Blocks, Load, Machine, Step, Transfer, Values, plus

WHOLE = Span(0, BLOCK)  # of a block's halves


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """A model, S rows of it, a cluster, and how it is run: all that a cost depends on besides shares and routes."""

    spec: ModelSpec
    machine: Machine
    rows: int
    wire: Wire = Wire.FLOAT32
    tile_rows: int = 0
    precision: Precision = FLOAT32  # of weights

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

    def row_bytes(self, width: int, tensors: int = 1) -> int:
        """Return the bytes on the wire of a row of so many numbers of so many tensors."""
        return self.wire.row_bytes(width, tensors)


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


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """Compute that no exchange follows yet: all of it, and what of it stands before the first tile is done."""

    all: Load = field(default_factory=dict)
    first: Load = field(default_factory=dict)


class LayerSteps:
    """Adds up the steps of layers, block by block.

    Parameters
    ----------
    setting
        The model and the cluster.
    values
        Shares of the block at hand, [..., p]; may be set anew between blocks.
    stream
        How many rows each device has of the residual stream, None for full; advances with every block.
    active
        Who takes part; None in a table over one device's share: its loads are priced for every number of blocks.
    """

    def __init__(self, setting: Setting, values: Values, stream: Floats | None, active: Mask | None) -> None:
        self._setting = setting
        self.values = values
        self.stream = stream
        self.route = Route.DIRECT  # of the block at hand
        self._active = active
        self._steps: list[Step] = []
        self._pending = Pending()

    def taken(self) -> list[Step]:
        """Return the steps since the last call; what no exchange follows yet belongs to the next one."""
        steps, self._steps = self._steps, []
        return steps

    def closed(self) -> list[Step]:
        """Return the steps of a layer among layers of its kind: what it ends with stands before its first exchange."""
        first, *others = self.taken()
        pending, self._pending = self._pending, Pending()
        before, begun = plus(pending.all, first.before), plus(pending.first, first.first)
        return [replace(first, before=before, first=begun), *others]

    def attention(self, cut: Cut, norm: Layout, halves: Span = WHOLE, avoids: Mask | None = None) -> None:
        """Add an attention block, or a half of one that is cut by rows: up to the context, or from there on.

        Where `avoids` is given, attention by rows gathers its input; it says who avoids K and V.
        """
        spec, S, bank = self._setting.spec, self._setting.rows, self._setting.machine.bank
        H, A, d = spec.hidden, spec.heads, spec.head_dim
        if cut is Cut.GRID:
            self._grid(Axis.HEADS, Axis.CONTEXT, d, 3, lambda heads: bank.attend(S * (heads > 0), S, heads, d))
            return
        if cut is not Cut.ROWS:
            inner = Inner(
                "attention", Axis.HEADS, Axis.CONTEXT, d,
                into=lambda m, heads: bank.seconds(Kernel.PROJECT, m * (heads > 0), 3 * d * H * heads),
                between=lambda heads: bank.attend(S * (heads > 0), S, heads, d),
                out=lambda m, heads: bank.seconds(Kernel.CONTRACT, m * (heads > 0), d * H * heads),
            )  # fmt: skip
            self._inner(inner, cut, norm)
            return
        if halves.start == 0 and avoids is not None:
            self._context_of_input(avoids)
        rows = self._lay_by_rows()
        if halves.start == 0 and avoids is None:
            self._by_rows(lambda m: bank.seconds(Kernel.PROJECT, m, 2 * H * H))
            counted, blocks = self._blocks(self._owners_of(rows))
            attend = bank.attend(rows, S / blocks, A, d)
            self._exchange(
                Step(
                    "gather K, V",
                    during={Axis.ROWS: bank.seconds(Kernel.PROJECT, rows, H * H) + blocks * attend},
                    edge={Axis.ROWS: attend},
                    transfer=self._gather(rows, Axis.ROWS, 2 * H, tensors=2, peers=Axis.ROWS),
                    blocks=counted,
                )
            )
        if halves.stop == BLOCK:
            self._by_rows(lambda m: bank.seconds(Kernel.CONTRACT, m, H * H))
            self._norm(Layout.ROWS)

    def _context_of_input(self, avoids: Mask) -> None:
        """Gather the block's input, and compute the context of own rows from it; who avoids them without K and V."""
        spec, S, bank, rows = self._setting.spec, self._setting.rows, self._setting.machine.bank, self.values[Axis.ROWS]
        H, A, d = spec.hidden, spec.heads, spec.head_dim
        every = S * ((rows > 0) & ~avoids)  # of K and V
        if self.stream is None:
            self._compute(Axis.ROWS, bank.seconds(Kernel.PROJECT, every, 2 * H * H))
        else:
            self._move_residual(rows > 0)
            counted, blocks = self._blocks(self._owners_of(self.stream))
            piece = bank.seconds(Kernel.PROJECT, every / blocks, 2 * H * H)
            transfer = self._gather(self.stream, Axis.ROWS, H, peers=Axis.ROWS)
            during, edge = {Axis.ROWS: blocks * piece}, {Axis.ROWS: piece}
            self._exchange(Step("gather rows", during=during, edge=edge, transfer=transfer, blocks=counted))
        self.stream = rows
        context = np.where(avoids, _without_keys(self._setting, rows), bank.attend(rows, S, A, d))
        self._compute(Axis.ROWS, bank.seconds(Kernel.PROJECT, rows, H * H) + context)

    def mlp(self, cut: Cut, norm: Layout, halves: Span = WHOLE) -> None:
        """Add an MLP block, or a half of one that is cut by rows: up to its inner columns, or from there on."""
        s, H, F = self._setting, self._setting.spec.hidden, self._setting.spec.ffn
        bank = s.machine.bank
        if cut is Cut.GRID:
            self._grid(Axis.FFN, Axis.OUTPUT, 1, 1, lambda columns: bank.seconds(Kernel.ACTIVATE, s.rows * columns))
            return
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
        self._lay_by_rows()
        every = np.array(float(F))
        if halves.size == BLOCK:
            self._by_rows(lambda m: inner.into(m, every) + inner.out(m, every))
        else:
            self._by_rows(lambda m: (inner.into if halves.start == 0 else inner.out)(m, every))
        if halves.stop == BLOCK:
            self._norm(Layout.ROWS)

    def _inner(self, block: Inner, cut: Cut, norm: Layout) -> None:
        """Add a block whose heads or F columns are shared out."""
        S, H = self._setting.rows, self._setting.spec.hidden
        units = self.values[block.axis]
        if norm is Layout.FULL and self.stream is not None:
            self._exchange(Step("gather rows", transfer=self._gather(self.stream, Axis.ROWS, H, routed=False)))
            self.stream = None
        if self.stream is None:
            self._compute(block.axis, block.into(S, units))
        else:
            # A product for every block of rows that arrives.
            self._move_residual(units > 0)
            counted, blocks = self._blocks(self._owners_of(self.stream))
            piece = block.into(S / blocks, units)
            transfer = self._gather(self.stream, Axis.ROWS, H, peers=block.axis)
            during, edge = {block.axis: blocks * piece}, {block.axis: piece}
            self._exchange(Step("gather rows", during=during, edge=edge, transfer=transfer, blocks=counted))
        self._compute(block.axis, block.between(units))
        if cut is Cut.COLUMNS:
            self._output_columns(block)
        elif norm is Layout.ROWS:
            self._reduce_to_rows(block)
        else:
            self._reduce_to_all(block)
        self._norm(norm)

    def _grid(self, axis: Axis, output: Axis, width: int, tensors: int, between: Callable[[Floats], Floats]) -> None:
        """Add a block whose weights are 2-D tiles; of known shares: no table has it.

        A unit of the axis has `width` columns, and the first product makes so many tensors of it; `between` as in
        `Inner`.
        """
        s, units, rows = self._setting, self.values[axis], self._lay_by_rows()
        grid = GridExchanges(units * width, self.values[output], rows, s.row_bytes, s.tile_rows)

        def product(blocks: Any, tensors: int) -> tuple[Load, Load]:
            """Return the seconds of a product in so many blocks of rows, and of one of them."""
            rows = s.rows / blocks * (grid.weights > 0)
            piece = s.machine.bank.seconds(Kernel.CONTRACT, rows, tensors * grid.weights)
            return {axis: blocks * piece}, {axis: piece}

        during, edge = product(np.maximum((rows > 0).sum(), 1), tensors)
        self._exchange(Step("columns to tiles", during=during, edge=edge, transfer=self._known(grid.enter())))
        self._exchange(Step("add up", transfer=self._known(grid.add_up(tensors)), reduces=True))
        self._compute(axis, between(units))
        self.send("spread", grid.spread())
        during, edge = product(np.maximum(tile_counts(rows, s.tile_rows).sum(), 1), 1)
        summing = self._known(grid.leave())
        self._exchange(Step("reduce", during=during, edge=edge, transfer=summing, reduces=True))
        self._norm(Layout.ROWS)

    def _output_columns(self, block: Inner) -> None:
        """Gather the inner columns, compute output columns of all rows, gather those."""
        S, H = self._setting.rows, self._setting.spec.hidden
        columns = self.values[block.output]
        inner = self._gather(self.values[block.axis], block.axis, S * block.columns, peers=block.output)
        self._exchange(Step(f"gather {block.name}", transfer=inner))
        # All inner units and some output columns have the weights of some inner units and all output columns.
        units = columns * self._setting.length(block.axis) / H
        self._compute(block.output, block.out(S, units))
        self._exchange(Step("gather columns", transfer=self._gather(columns, block.output, S)))

    def _reduce_to_rows(self, block: Inner) -> None:
        """Add the summands where their rows belong, computing them tile by tile of the owner's."""
        s, rows, units = self._setting, self.values[Axis.ROWS], self.values[block.axis]
        unit_bytes = s.row_bytes(s.spec.hidden)

        def exchange(values: Values, active: Mask) -> Exchange:
            have = values.get(Axis.ROWS, rows)
            return scatter(unit_bytes * have, values.get(block.axis, units) > 0, tile_counts(have, s.tile_rows))

        counted, blocks = self._blocks(
            lambda values, active: tile_counts(values.get(Axis.ROWS, rows), s.tile_rows).sum(-1, keepdims=True)
        )
        piece = block.out(s.rows / blocks, units)
        transfer = Transfer(
            exchange, scatters=True, axis=Axis.ROWS, unit_bytes=unit_bytes, peers=block.axis,
            wire=s.wire, tile_rows=s.tile_rows,
        )  # fmt: skip
        during, edge = {block.axis: blocks * piece}, {block.axis: piece}
        self._exchange(Step("reduce", during=during, edge=edge, transfer=transfer, reduces=True, blocks=counted))

    def _reduce_to_all(self, block: Inner) -> None:
        """Add the summands on all active devices: a swap between two, else a reduce-scatter and an all-gather."""
        s, units = self._setting, self.values[block.axis]
        row_bytes = s.row_bytes(s.spec.hidden)

        def owned(active: Mask, alone: float) -> Floats:
            """Return whose rows a device adds: equal ones, or of two devices all."""
            devices = active.sum(-1, keepdims=True)
            each, over = np.divmod(s.rows, np.maximum(devices, 1))
            equal = each + (np.cumsum(active, axis=-1) <= over)
            return np.asarray(active * np.where(devices > 2, equal, alone))

        def tiles(active: Mask) -> Floats:
            by_two = active.sum(-1, keepdims=True) <= 2
            return np.asarray(np.where(by_two, active, tile_counts(owned(active, 0), s.tile_rows)))

        def reduce(values: Values, active: Mask) -> Exchange:
            return scatter(row_bytes * owned(active, s.rows), values.get(block.axis, units) > 0, tiles(active))

        def spread(values: Values, active: Mask) -> Exchange:
            return gather(row_bytes * owned(active, 0), active)

        def count(values: Values, active: Mask) -> Floats:
            by_two = active.sum(-1, keepdims=True) <= 2
            return np.where(by_two, 1, tiles(active).sum(-1, keepdims=True))

        counted, blocks = self._blocks(count)
        piece = block.out(s.rows / blocks, units)
        during, edge = {block.axis: blocks * piece}, {block.axis: piece}
        summing = Transfer(reduce, wire=s.wire)
        self._exchange(Step("reduce", during=during, edge=edge, transfer=summing, reduces=True, blocks=counted))
        self._exchange(Step("gather sums", transfer=Transfer(spread, wire=s.wire)))

    def _gather(
        self, have: Floats, axis: Axis, width: int, tensors: int = 1, peers: Axis = Axis.FIXED, *, routed: bool = True
    ) -> Transfer:
        """Give blocks to every peer; a unit of `axis` is `width` numbers."""
        s = self._setting
        # The stream of the layer before may lie by other rows than this layer's shares.
        own = have is self.values.get(axis)
        wanted = self.values.get(peers)
        if axis is Axis.ROWS:
            unit_bytes, scale_bytes, tile_rows = s.row_bytes(width, tensors), 0, s.tile_rows
            route = self.route if routed else Route.DIRECT
        else:
            unit_bytes, scale_bytes, tile_rows = s.row_bytes(width, 0), s.rows * s.wire.scale_bytes, 0
            route = Route.DIRECT

        def exchange(values: Values, active: Mask) -> Exchange:
            counts = values.get(axis, have) if own else have
            receivers = active if wanted is None else values.get(peers, wanted) > 0
            blocks = unit_bytes * counts + scale_bytes * (counts > 0)
            return gather(blocks, receivers, tile_counts(counts, tile_rows), route)

        return Transfer(
            exchange, axis=axis if own else Axis.FIXED, unit_bytes=unit_bytes, scale_bytes=scale_bytes, peers=peers,
            wire=s.wire, tile_rows=tile_rows, route=route,
        )  # fmt: skip

    def send(self, name: str, exchange: Exchange) -> None:
        """Add an exchange that is known."""
        self._exchange(Step(name, transfer=self._known(exchange)))

    def _known(self, exchange: Exchange) -> Transfer:
        return Transfer(lambda values, active: exchange, wire=self._setting.wire)

    def work(self, seconds: Floats) -> None:
        """Add compute that is known, [p]."""
        self._compute(Axis.FIXED, seconds)

    def _exchange(self, step: Step) -> None:
        """Add an exchange; the compute since the last one stands before it."""
        self._steps.append(replace(step, before=self._pending.all, first=self._pending.first))
        self._pending = Pending()

    def _compute(self, axis: Axis, seconds: Floats) -> None:
        """Add compute that is not done by tiles of rows."""
        load = {axis: seconds}
        self._pending = Pending(plus(self._pending.all, load), plus(self._pending.first, load))

    def _by_rows(self, seconds: Callable[[Floats], Floats]) -> None:
        """Add compute on the stream's rows, tile by tile."""
        assert self.stream is not None
        tiles = np.maximum(tile_counts(self.stream, self._setting.tile_rows), 1)
        tile = seconds(self.stream / tiles)
        whole, first = {Axis.ROWS: tiles * tile}, {Axis.ROWS: tile}
        self._pending = Pending(plus(self._pending.all, whole), plus(self._pending.first, first))

    def _lay_by_rows(self) -> Floats:
        """Bring the stream to this block's rows; nothing moves where it lies so already, or in full."""
        rows = self.values[Axis.ROWS]
        self._move_residual(np.zeros(rows.shape, bool))
        self.stream = rows
        return rows

    def _move_residual(self, gathering: Mask) -> None:
        """Bring the rows that a device keeps to it, where the stream lies by others and it does not gather them all.

        With the norm in front what is normed and the residual are two, and only what is normed is gathered.
        """
        s, rows, stream = self._setting, self.values.get(Axis.ROWS), self.stream
        if stream is None or rows is None or stream is rows:
            return
        row_bytes, tiles = s.row_bytes(s.spec.hidden), tile_counts(stream, s.tile_rows)
        if s.spec.norm == "pre":
            self.send("move residual", move(stream, rows, row_bytes, tiles))
        if not gathering.all():
            self.send("move rows", move(stream, rows, np.where(gathering, 0.0, row_bytes), tiles))

    def _norm(self, norm: Layout) -> None:
        """Add bias, residual and norm, on rows or on full."""
        bank, H = self._setting.machine.bank, self._setting.spec.hidden
        if norm is Layout.ROWS:
            self.stream = self.values[Axis.ROWS]
            self._by_rows(lambda m: bank.seconds(Kernel.NORM, m * H))
        else:
            self.stream = None
            self._compute(Axis.FIXED, bank.seconds(Kernel.NORM, self._setting.rows * H))

    def _owners_of(self, have: Floats) -> Blocks:
        own = have is self.values.get(Axis.ROWS)

        def owners(values: Values, active: Mask) -> Floats:
            rows = values.get(Axis.ROWS, have) if own else have
            return np.asarray((rows > 0).sum(-1, keepdims=True))

        return owners

    def _blocks(self, count: Blocks) -> tuple[Blocks, Any]:
        """Return how to count blocks, and their number; in a table, every number there may be, [blocks + 1, 1, 1]."""
        if self._active is not None:
            return count, np.maximum(count(self.values, self._active), 1)
        return count, np.maximum(np.arange(most_blocks(self._setting) + 1.0), 1)[:, None, None]


def _without_keys(s: Setting, rows: Floats) -> Floats:
    """Return the seconds from Q to the context of own rows without K and V."""
    H, A, bank = s.spec.hidden, s.spec.heads, s.machine.bank
    # A head's queries are as wide as the stream, and meet all rows of it twice.
    wide = bank.seconds(Kernel.PROJECT, A * rows, H * s.rows)
    return np.asarray(2 * wide + 2 * bank.seconds(Kernel.CONTRACT, rows, H * H) + bank.attend(rows, s.rows, A, 0))


def avoiding(s: Setting, rows: Any, devices: int) -> Mask:
    """Return for whom, with so many rows of its own, it is less time to avoid K and V than to compute them of all.

    They are computed while the input arrives, from so many devices, but for its last block; without them all of it has
    to be there.
    """
    bank, own = s.machine.bank, np.asarray(rows, float)
    block = bank.seconds(Kernel.PROJECT, s.rows * (own > 0) / devices, 2 * s.spec.hidden**2)
    arriving = s.row_bytes(s.spec.hidden) * (s.rows - own) / s.machine.network.bandwidth
    left = np.maximum(devices * block - arriving, block)
    return np.asarray(_without_keys(s, own) < left + bank.attend(own, s.rows, s.spec.heads, s.spec.head_dim))


def most_blocks(s: Setting) -> int:
    """Return the most blocks of rows in which a product runs: a tile is no smaller than two thirds of `tile_rows`."""
    return s.devices + (3 * s.rows // (2 * s.tile_rows) if s.tile_rows else 0)
