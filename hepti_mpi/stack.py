"""The layers of one model, split over the ranks as a plan says: what a batch passes through."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from hepti_mpi.arrays import Array
from hepti_mpi.batch import Batch
from hepti_mpi.comm import Group
from hepti_mpi.exchange import Tiles, gather_rows, whole
from hepti_mpi.layers import LayerKernels, Pass, Stream, run_layers
from hepti_mpi.products import Backend
from hepti_mpi.trace import Trace
from hepti_mpi.wires import EXACT, Coding
from solver.model import ModelSpec
from solver.plan import LayerPlan, Plan
from solver.spans import Partition, Span


@dataclass(slots=True)
class Meter:
    """What a rank did in the batches that count."""

    compute_s: float = 0.0
    wait_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0


class Stack:
    """The rank's part of the layers, and the ranks that share them.

    Parameters
    ----------
    spec
        The model.
    plan
        Who computes what, checked against model and ranks.
    layers
        This rank's share of every layer.
    world
        All ranks; those without a share take no part in the layers.
    backend
        What made the layers' products, and attends.
    coding
        How numbers travel.
    """

    def __init__(
        self,
        spec: ModelSpec,
        plan: Plan,
        layers: tuple[LayerKernels, ...],
        world: Group,
        backend: Backend,
        coding: Coding = EXACT,
    ) -> None:
        stage = plan.stages[0]
        self.meter = Meter()
        self.trace: Trace | None = None  # records the last batch that counts, where one is asked for
        self._spec = spec
        self._layers = layers
        self._world = world
        self._backend = backend
        self._active = stage.active
        self._tile_rows = plan.tile_rows
        self._coding = coding
        self._cuts = [
            LayerPlan(layer.attention.only(self._active), layer.mlp.only(self._active))
            for span, layer in stage.layers
            for _ in range(span.size)
        ]
        self._group = world.subgroup(self._active)

    def run(self, batch: Batch, x: Array | None, *, count: bool, exact: bool = False) -> Array:
        """Carry a batch through all layers; every rank calls this.

        Parameters
        ----------
        batch
            The requests' row counts.
        x : [S, H]
            The embedded rows, on rank 0; None on the others.
        count
            Whether the meter counts this batch.
        exact
            Whether numbers travel as they are, whatever the coding.

        Returns
        -------
        [S, H] on rank 0, [0, H] on the others
        """
        started = time.perf_counter()
        traffic = self._world.traffic
        traffic.reset()
        trace = traffic.trace = self.trace if count else None
        if trace is not None:
            trace.begin()
        for group in filter(None, (self._world, self._group)):
            group.coding = EXACT if exact else self._coding
        stream = self._enter(batch, x)
        if self._group is not None:
            run = Pass(self._spec, batch, self._group, self._tile_rows, self._backend)
            stream = run_layers(stream, self._layers, self._cuts, run)
        hidden = self._leave(batch, stream)
        self._world.finish_sending()
        if trace is not None:
            trace.end()
        if count:
            self.meter.compute_s += time.perf_counter() - started - traffic.wait_s
            self.meter.wait_s += traffic.wait_s
            self.meter.sent_bytes += traffic.sent_bytes
            self.meter.received_bytes += traffic.received_bytes
        return hidden

    def _enter(self, batch: Batch, x: Array | None) -> Stream:
        """Give every active rank its rows of the first block, or all where that has no rows.

        A block that needs all rows gathers them: rank 0 does not send everything to everyone.
        """
        rows = self._cuts[0].attention.row_partition(batch.rows)
        want = self._spread([Span(0, batch.rows)] * len(self._active) if rows is None else list(rows))
        rows_here = gather_rows(self._world, Tiles.here(self._or_nothing(x)), self._on_root(batch), want)
        return Stream(Tiles.here(whole(rows_here)), rows)

    def _leave(self, batch: Batch, stream: Stream) -> Array:
        """Gather what the last block left, on rank 0."""
        rows = self._cuts[-1].mlp.row_partition(batch.rows)
        if rows is None:
            # All active ranks have it; it comes from the first, rank 0 itself where that is active.
            rows = Partition.of_counts([batch.rows] + [0] * (len(self._active) - 1))
        have = self._spread(list(rows))
        mine = have[self._world.rank]
        x_rows = whole(stream.blocks)
        x_rows = x_rows if mine.size else self._or_nothing(None)
        return whole(gather_rows(self._world, Tiles.here(x_rows), Partition(tuple(have)), self._on_root(batch).spans))

    def _on_root(self, batch: Batch) -> Partition:
        return Partition.of_counts([batch.rows] + [0] * (self._world.size - 1))

    def _spread(self, spans: list[Span]) -> list[Span]:
        """Turn spans of the active ranks into spans of all ranks, empty ones between them."""
        given = dict(zip(self._active, spans, strict=True))
        spread: list[Span] = []
        for rank in range(self._world.size):
            stop = spread[-1].stop if spread else 0
            spread.append(given.get(rank, Span(stop, stop)))
        return spread

    def _or_nothing(self, x: Array | None) -> Array:
        return np.empty((0, self._spec.hidden), np.float32) if x is None else x
