"""The steps of a whole request: rank 0 hands it out, the layers follow one another, rank 0 gathers what they leave.

A layer that follows one of its like finds the stream as it leaves it, so that layers of a run repeat; the first finds
it as it was handed out. What a layer computes last stands before the next exchange, be that the next layer's or the
last of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from solver.cluster.curves import Floats, Kernel
from solver.model.blocks import Axis, Block
from solver.model.spec import ImageInput
from solver.plan.routes import Route
from solver.schedule.encoders.pricing import Pending, Pricer
from solver.schedule.encoders.setting import Setting
from solver.schedule.encoders.steps import Step
from solver.schedule.exchange import Exchange, Mask, gather, scatter, tile_counts
from solver.schedule.timing import TimedStep, Transfer, Values


@dataclass(frozen=True, slots=True, eq=False)
class BlockSteps:
    """A block as it is run: its steps, and what they are priced with (`solver.schedule.encoders.pricing.Pricer`)."""

    block: Block
    steps: tuple[Step, ...]
    route: Route
    groups: int
    avoids: Mask | None


def request_steps(s: Setting, pricer: Pricer, blocks: Sequence[BlockSteps]) -> Iterator[tuple[int, TimedStep]]:
    """Yield all steps of a request all of whose layers are alike, and how often each comes in a row.

    The pricer has the stream as it is handed out.
    """
    layers = s.spec.layers
    yield 1, _hand_out(s, pricer.stream)
    # The first layer finds the stream as it was handed out, all others as the one before leaves it.
    lay = pricer.stream
    steps, last = _of_layer(pricer, blocks)
    waiting = Pending()  # compute that no exchange follows yet
    if steps:
        yield from ((1, step) for step in steps)
        if layers > 1 and pricer.stream is not lay:
            steps, last = _of_layer(pricer, blocks)
        if layers > 1:
            yield from ((layers - 1, step) for step in last.before(steps))
        waiting = last
    else:  # nothing is exchanged: all belongs to the exchange after the layers
        for _ in range(layers):
            waiting = waiting.then(last.all, last.first, *last.names)
    pricer.hand_in(_hand_in(s, pricer.stream))
    steps, _ = pricer.taken()
    yield from ((1, step) for step in waiting.before(steps))


def _of_layer(pricer: Pricer, blocks: Iterable[BlockSteps]) -> tuple[list[TimedStep], Pending]:
    """Return the steps of a layer, and the compute that it ends with."""
    for cut in blocks:
        pricer.route, pricer.groups, pricer.avoids = cut.route, cut.groups, cut.avoids
        pricer.add(cut.block, cut.steps)
    return pricer.taken()


def _hand_out(s: Setting, stream: Floats | None) -> TimedStep:
    """Rank 0 embeds the request and sends every active device its rows of the first block, or all rows."""
    H, source, every = s.spec.hidden, s.spec.input, np.ones(s.devices)
    root, row_bytes = np.arange(s.devices) == 0, s.row_bytes(H)
    if isinstance(source, ImageInput):
        embedding = s.machine.bank.seconds(Kernel.PROJECT, s.rows * every, H * source.channels * source.patch**2)
    else:
        # Looked up, added and normalised: about as long as two norms of a layer.
        embedding = 2 * s.machine.bank.seconds(Kernel.NORM, s.rows * H * every)

    def exchange(values: Values, active: Mask) -> Exchange:
        wanted = s.rows * active.astype(float) if stream is None else values.get(Axis.ROWS, stream)
        return scatter(row_bytes * wanted, root)

    # Rank 0 embeds also where it takes no part in the layers.
    embed = {Axis.ROWS: embedding * root}
    axis = Axis.FIXED if stream is None else Axis.ROWS
    transfer = Transfer(exchange, scatters=True, axis=axis, unit_bytes=row_bytes, peers=Axis.ROOT, wire=s.wire)
    return TimedStep("hand out", computes=("embed",), before=embed, first=embed, transfer=transfer)


def _hand_in(s: Setting, stream: Floats | None) -> Transfer:
    """Rank 0 gathers the last hidden state; where all have it, from the first active device."""
    root, row_bytes = np.arange(s.devices) == 0, s.row_bytes(s.spec.hidden)

    def exchange(values: Values, active: Mask) -> Exchange:
        if stream is None:
            return gather(row_bytes * s.rows * (active & (np.cumsum(active, -1) == 1)), root)
        have = values.get(Axis.ROWS, stream)
        return gather(row_bytes * have, root, tile_counts(have, s.tile_rows))

    axis, tile_rows = (Axis.FIXED, 0) if stream is None else (Axis.ROWS, s.tile_rows)
    return Transfer(exchange, axis=axis, unit_bytes=row_bytes, peers=Axis.ROOT, wire=s.wire, tile_rows=tile_rows)
