"""What steps cost: the seconds of their computation and their exchanges, added up as they overlap.

Where the norm is on full, a stream that lies in rows is gathered first, and summands come to all active devices: by
one swap between two, else by a reduce-scatter of equal rows and an all-gather. A stream enters a block as the block
before left it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from solver.base.spans import Span
from solver.cluster.curves import Floats
from solver.model.blocks import Axis, Block, Cut
from solver.plan.plan import StreamLayout
from solver.plan.routes import Route
from solver.schedule.encoders import steps
from solver.schedule.encoders.setting import Setting
from solver.schedule.encoders.turn_costs import without_keys
from solver.schedule.exchange import Exchange, Mask, cross, gather, of_matrix, scatter, tile_counts
from solver.schedule.timing import BlockCount, Load, TimedStep, Transfer, Values, plus


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """Compute that no exchange follows yet: all of it, and what of it stands before the first tile is done."""

    all: Load = field(default_factory=dict)
    first: Load = field(default_factory=dict)
    names: tuple[str, ...] = ()

    def then(self, load: Load, first: Load, *names: str) -> Pending:
        """Return this compute and what follows it."""
        return Pending(plus(self.all, load), plus(self.first, first), (*self.names, *names))

    def before(self, steps: Sequence[TimedStep]) -> list[TimedStep]:
        """Return the steps, this compute before the first of them; where there are none, one step without exchange."""
        own, *others = steps or [TimedStep("go on")]
        every = self.then(own.before, own.first, *own.computes)
        return [replace(own, before=every.all, first=every.first, computes=every.names), *others]


class Pricer:
    """Adds up the cost of steps, block by block.

    Parameters
    ----------
    setting
        The model and the cluster.
    values
        Shares, [..., p].
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
        self.groups = 1  # that it sends its contexts in
        self._block = ""  # the name of its kind
        self.avoids: Mask | None = None  # who avoids K and V, where the block's input is gathered
        self._active = active
        self._steps: list[TimedStep] = []
        self._pending = Pending()
        self._bank = setting.machine.bank
        self._adders: Mapping[type, Callable[[Any], None]] = {
            steps.Lay: self._lay,
            steps.ByTiles: self._by_tiles,
            steps.AtOnce: self._at_once,
            steps.GatherKeys: self._gather_keys,
            steps.GatherInput: self._gather_input,
            steps.GatherRows: self._gather_rows,
            steps.SendInner: self._send_inner,
            steps.GatherColumns: self._gather_columns,
            steps.Reduce: self._reduce,
            steps.Close: self._close,
        }

    def taken(self) -> tuple[list[TimedStep], Pending]:
        """Return the steps since the last call, and the compute that no exchange follows yet."""
        steps, self._steps = self._steps, []
        pending, self._pending = self._pending, Pending()
        return steps, pending

    def add(self, block: Block, own: Iterable[steps.Step]) -> None:
        """Add the steps of a block, or of a half of one, whose shares `values` has."""
        self._block = block.name
        for step in own:
            self._adders[type(step)](step)

    def _lay(self, step: steps.Lay) -> None:
        self._lay_by_rows()

    def _by_tiles(self, step: steps.ByTiles) -> None:
        for call in step.calls:
            self._by_rows(call)

    def _at_once(self, step: steps.AtOnce) -> None:
        work, units = self._setting.work, self.values[step.axis]
        for call in step.calls:
            self._compute(step.axis, call.seconds(self._bank, work.new, units, keys=work.keys), call.name)

    def _gather_keys(self, step: steps.GatherKeys) -> None:
        rows = self._lay_by_rows()
        self._by_rows(step.keys)
        counted, blocks = self._blocks(self._owners_of(rows))
        attend = step.attend.seconds(self._bank, rows, keys=self._setting.work.keys / blocks)
        self._exchange(
            TimedStep(
                "gather K, V",
                meanwhile=(step.query.name, step.attend.name),
                during={Axis.ROWS: step.query.seconds(self._bank, rows) + blocks * attend},
                edge={Axis.ROWS: attend},
                transfer=self._gather(rows, Axis.ROWS, 2 * self._setting.spec.hidden, tensors=2, peers=Axis.ROWS),
                blocks=counted,
            )
        )

    def _gather_input(self, step: steps.GatherInput) -> None:
        """Gather the block's input, and compute the context of own rows from it; who avoids them without K and V."""
        keys, rows, avoids = self._setting.work.keys, self.values[Axis.ROWS], self.avoids
        assert avoids is not None
        every = keys * ((rows > 0) & ~avoids)  # of K and V
        if self.stream is None:
            self._compute(Axis.ROWS, step.keys.seconds(self._bank, every), step.keys.name)
        else:
            counted, blocks = self._blocks(self._owners_of(self.stream))
            transfer = self._gather(self.stream, Axis.ROWS, self._setting.spec.hidden, peers=Axis.ROWS)
            piece = step.keys.seconds(self._bank, every / blocks)
            self._in_blocks("gather rows", (step.keys.name,), Axis.ROWS, blocks, piece, transfer, counted=counted)
        self.stream = rows
        projected = step.attend.seconds(self._bank, rows, keys=keys)
        context = np.where(avoids, _without_keys(self._setting, step, rows), projected)
        self._compute(Axis.ROWS, step.query.seconds(self._bank, rows) + context, step.query.name, step.attend.name)

    def _gather_rows(self, step: steps.GatherRows) -> None:
        S, H = self._setting.rows, self._setting.spec.hidden
        units, names = self.values[step.axis], tuple(call.name for call in step.calls)

        def seconds(rows: Any) -> Floats:
            return np.asarray(sum(call.seconds(self._bank, rows, units) for call in step.calls))

        if step.norm is StreamLayout.FULL and self.stream is not None:
            transfer = self._gather(self.stream, Axis.ROWS, H, routed=False)
            self._exchange(TimedStep("gather rows", transfer=transfer))
            self.stream = None
        if self.stream is None:
            self._compute(step.axis, seconds(S), *names)
            return
        # A product for every block of rows that arrives.
        counted, blocks = self._blocks(self._owners_of(self.stream))
        transfer = self._gather(self.stream, Axis.ROWS, H, peers=step.axis)
        self._in_blocks("gather rows", names, step.axis, blocks, seconds(S / blocks), transfer, counted=counted)

    def _send_inner(self, step: steps.SendInner) -> None:
        """Send the owners of rows what own units make of these, group by group: one is on its way beside the next."""
        s, rows, units, most = self._setting, self.values[Axis.ROWS], self.values[step.axis], self.groups
        groups = np.maximum(np.minimum(units, most), 1)
        for call in step.calls:
            group = call.seconds(self._bank, s.rows, units / groups, keys=s.work.keys)
            self._pending = self._pending.then({step.axis: groups * group}, {step.axis: group}, call.name)
        unit_bytes, scale_bytes = s.row_bytes(step.columns, 0), s.wire.scale_bytes

        def exchange(values: Values, active: Mask) -> Exchange:
            have, want = values.get(step.axis, units), values.get(Axis.ROWS, rows)
            return cross(unit_bytes * have, want, np.minimum(have, most), scale_bytes)

        what = "contexts" if step.calls else "columns"
        self._exchange(TimedStep(f"{what} to rows", transfer=Transfer(exchange, wire=s.wire)))
        self.stream = rows

    def _gather_columns(self, step: steps.GatherColumns) -> None:
        width = self._setting.rows * step.columns
        transfer = self._gather(self.values[step.axis], step.axis, width, peers=step.to)
        inner = step.to is not Axis.FIXED
        self._exchange(TimedStep("gather inner columns" if inner else "gather columns", transfer=transfer))

    def _reduce(self, step: steps.Reduce) -> None:
        if step.norm is StreamLayout.ROWS:
            self._reduce_to_rows(step)
        else:
            self._reduce_to_all(step)

    def _close(self, step: steps.Close) -> None:
        if step.norm is StreamLayout.ROWS:
            self.stream = self.values[Axis.ROWS]
            self._by_rows(step.call)
        else:
            self.stream = None
            self._compute(Axis.FIXED, step.call.seconds(self._bank, self._setting.rows), step.call.name)

    def _reduce_to_rows(self, step: steps.Reduce) -> None:
        """Add the summands where their rows belong, computing them tile by tile of the owner's."""
        s, rows, units = self._setting, self.values[Axis.ROWS], self.values[step.axis]
        unit_bytes = s.row_bytes(s.spec.hidden)

        def exchange(values: Values, active: Mask) -> Exchange:
            have = values.get(Axis.ROWS, rows)
            return scatter(unit_bytes * have, values.get(step.axis, units) > 0, tile_counts(have, s.tile_rows))

        counted, blocks = self._blocks(
            lambda values, active: tile_counts(values.get(Axis.ROWS, rows), s.tile_rows).sum(-1, keepdims=True)
        )
        piece = step.call.seconds(self._bank, s.rows / blocks, units)
        transfer = Transfer(
            exchange, scatters=True, axis=Axis.ROWS, unit_bytes=unit_bytes, peers=step.axis,
            wire=s.wire, tile_rows=s.tile_rows,
        )  # fmt: skip
        self._in_blocks("reduce", (step.call.name,), step.axis, blocks, piece, transfer, reduces=True, counted=counted)

    def _reduce_to_all(self, step: steps.Reduce) -> None:
        """Add the summands on all active devices: a swap between two, else a reduce-scatter and an all-gather."""
        s, units = self._setting, self.values[step.axis]
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
            return scatter(row_bytes * owned(active, s.rows), values.get(step.axis, units) > 0, tiles(active))

        def spread(values: Values, active: Mask) -> Exchange:
            return gather(row_bytes * owned(active, 0), active)

        def count(values: Values, active: Mask) -> Floats:
            by_two = active.sum(-1, keepdims=True) <= 2
            return np.where(by_two, 1, tiles(active).sum(-1, keepdims=True))

        counted, blocks = self._blocks(count)
        piece = step.call.seconds(self._bank, s.rows / blocks, units)
        summing = Transfer(reduce, wire=s.wire)
        self._in_blocks("reduce", (step.call.name,), step.axis, blocks, piece, summing, reduces=True, counted=counted)
        self._exchange(TimedStep("gather sums", transfer=Transfer(spread, wire=s.wire)))

    def _gather(
        self, have: Floats, axis: Axis, width: int, tensors: int = 1, peers: Axis = Axis.FIXED, *, routed: bool = True
    ) -> Transfer:
        """Give blocks to every peer; a unit of `axis` is `width` numbers."""
        s = self._setting
        wanted = self.values.get(peers)
        if axis is Axis.ROWS:
            unit_bytes, scale_bytes, tile_rows = s.row_bytes(width, tensors), 0, s.tile_rows
            route = self.route if routed else Route.DIRECT
        else:
            unit_bytes, scale_bytes, tile_rows = s.row_bytes(width, 0), s.rows * s.wire.scale_bytes, 0
            route = Route.DIRECT

        def exchange(values: Values, active: Mask) -> Exchange:
            counts = values.get(axis, have)
            receivers = active if wanted is None else values.get(peers, wanted) > 0
            blocks = unit_bytes * counts + scale_bytes * (counts > 0)
            return gather(blocks, receivers, tile_counts(counts, tile_rows), route)

        return Transfer(
            exchange, axis=axis, unit_bytes=unit_bytes, scale_bytes=scale_bytes, peers=peers,
            wire=s.wire, tile_rows=tile_rows, route=route,
        )  # fmt: skip

    def _in_blocks(
        self, name: str, meanwhile: tuple[str, ...], axis: Axis, blocks: Any, piece: Floats, transfer: Transfer,
        *, reduces: bool = False, counted: BlockCount | None = None,
    ) -> None:  # fmt: skip
        """Add an exchange beside so many blocks of rows, each computed `meanwhile` in `piece` seconds.

        `counted` counts the blocks, where their number matters in a table.
        """
        during, edge = {axis: blocks * piece}, {axis: piece}
        self._exchange(
            TimedStep(
                name, meanwhile=meanwhile, during=during, edge=edge, transfer=transfer, reduces=reduces, blocks=counted
            )
        )

    def send(self, name: str, exchange: Exchange) -> None:
        """Add an exchange that is known."""
        self._exchange(TimedStep(name, transfer=self._known(exchange)))

    def hand_in(self, transfer: Transfer) -> None:
        """Add the last exchange of a request."""
        counted = None if self.stream is None else self._owners_of(self.stream)
        self._block = ""
        self._exchange(TimedStep("hand in", transfer=transfer, blocks=counted))

    def _known(self, exchange: Exchange) -> Transfer:
        return Transfer(lambda values, active: exchange, wire=self._setting.wire)

    def _exchange(self, step: TimedStep) -> None:
        """Add an exchange; the compute since the last one stands before it."""
        self._steps += self._pending.before([replace(step, block=self._block)])
        self._pending = Pending()

    def _compute(self, axis: Axis, seconds: Floats, *names: str) -> None:
        """Add compute that is not done by tiles of rows."""
        self._pending = self._pending.then({axis: seconds}, {axis: seconds}, *names)

    def _by_rows(self, call: steps.Call) -> None:
        """Add compute on the stream's rows, tile by tile."""
        assert self.stream is not None
        tiles = np.maximum(tile_counts(self.stream, self._setting.tile_rows), 1)
        tile = call.seconds(self._bank, self.stream / tiles)
        self._pending = self._pending.then({Axis.ROWS: tiles * tile}, {Axis.ROWS: tile}, call.name)

    def _lay_by_rows(self) -> Floats:
        """Let the stream lie by rows: it lies so already, or in full."""
        self.stream = rows = self.values[Axis.ROWS]
        return rows

    def _owners_of(self, have: Floats) -> BlockCount:
        def owners(values: Values, active: Mask) -> Floats:
            rows = values.get(Axis.ROWS, have)
            return np.asarray((rows > 0).sum(-1, keepdims=True))

        return owners

    def _blocks(self, count: BlockCount) -> tuple[BlockCount, Any]:
        """Return how to count blocks, and their number; in a table, every number there may be, [blocks + 1, 1, 1]."""
        if self._active is not None:
            return count, np.maximum(count(self.values, self._active), 1)
        return count, any_blocks(self._setting)


def seconds_alone(
    s: Setting, rows: Floats, blocks: Iterable[tuple[Block, Iterable[steps.Step]]], avoids: Mask | None = None
) -> Floats:
    """Return what blocks' steps by rows take on every device alone, [..., p], of so many rows, [..., 1].

    `avoids` says who computes the context without K and V, [p].
    """
    pricer = Pricer(s, {Axis.ROWS: rows}, rows, np.ones(1, bool))
    pricer.avoids = avoids
    for block, own in blocks:
        pricer.add(block, own)
    pricer.send("hand on", of_matrix(np.zeros((s.devices, s.devices))))
    found = np.zeros((*rows.shape[:-1], s.devices))
    for step in pricer.taken()[0]:
        for load in (step.before, step.during):
            for seconds in load.values():
                found += seconds
    return found


@lru_cache(maxsize=64)
def block_seconds(s: Setting, block: Block, halves: Span = steps.BOTH_HALVES) -> Floats:
    """Return the seconds in which every device computes a block, or a half of it, of all rows alone, [p]; kept."""
    own = steps.cut_steps(block, Cut.ROWS, StreamLayout.ROWS, halves)
    return np.asarray(seconds_alone(replace(s, tile_rows=0), np.full((1, 1), float(s.rows)), [(block, own)])[0])


def _without_keys(s: Setting, step: steps.GatherInput, rows: Floats) -> Floats:
    """Return the seconds from Q to the context of own rows without K and V."""
    return without_keys(s.machine.bank, rows, s.work.keys, step.attend.size, s.spec.hidden)


def avoiding(s: Setting, block: Block, rows: Any, devices: Any) -> Mask:
    """Return for whom, with so many rows of its own, it is less time to avoid K and V than to compute them of all.

    They are computed while the input arrives, from so many devices, but for its last block; without them all of it has
    to be there.
    """
    bank, own = s.machine.bank, np.asarray(rows, float)
    step = steps.cut_steps(block, Cut.ROWS, StreamLayout.ROWS, input_gathered=True)[0]
    assert isinstance(step, steps.GatherInput)
    piece = step.keys.seconds(bank, s.work.keys * (own > 0) / devices)
    arriving = s.row_bytes(s.spec.hidden) * (s.rows - own) / s.machine.network.bandwidth
    left = np.maximum(devices * piece - arriving, piece)
    return np.asarray(_without_keys(s, step, own) < left + step.attend.seconds(bank, own, keys=s.work.keys))


def any_blocks(s: Setting) -> Floats:
    """Return every number of blocks of rows that there may be, in a table, [blocks + 1, 1, 1]."""
    return np.asarray(np.maximum(np.arange(most_blocks(s) + 1.0), 1)[:, None, None])


def most_blocks(s: Setting) -> int:
    """Return the most blocks of rows in which a product runs: a tile is no smaller than two thirds of `tile_rows`."""
    return s.devices + (3 * s.rows // (2 * s.tile_rows) if s.tile_rows else 0)
