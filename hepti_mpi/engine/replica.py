"""A replica's way through the ranks, and where a batch's rows lie before, between and after its stages."""

from __future__ import annotations

from collections.abc import Sequence

from solver.base.spans import Partition, Span
from solver.model.spec import ModelSpec
from solver.model.sublayers import widths
from solver.plan.plan import Plan, Stage, StreamLayout


class ReplicaPath:
    """A replica: its stages, and who has which rows at every hop.

    Hop 0 brings the rows from rank 0 to the first stage, hop k from stage k - 1 to stage k, the last one to rank 0.

    Parameters
    ----------
    plan
        Checked against the ranks.
    stages
        Those of the replica, in order.
    """

    def __init__(self, plan: Plan, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)
        self.active = [tuple(plan.ranks(stage)[within] for within in stage.active) for stage in stages]
        self.ranks = sorted({rank for ranks in self.active for rank in ranks})
        self._size = len(plan.devices)

    @property
    def hops(self) -> int:
        """How many hops there are."""
        return len(self.stages) + 1

    def stage_of(self, rank: int) -> int | None:
        """Return the number of the stage in which a rank has a share; None where it has none."""
        return next((number for number, ranks in enumerate(self.active) if rank in ranks), None)

    def hops_of(self, rank: int) -> list[int]:
        """Return the hops in which a rank sends or receives, in order."""
        stage = self.stage_of(rank)
        own = set() if stage is None else {stage, stage + 1}
        return sorted(own | ({0, self.hops - 1} if rank == 0 else set()))

    def receivers(self, rank: int) -> set[int]:
        """Return the other ranks to which a rank may send rows."""
        stage, stages = self.stage_of(rank), [*self.active, (0,)]
        found = set() if stage is None else {*stages[stage + 1]}
        return (found | {*stages[0]} if rank == 0 else found) - {rank}

    def rows_into(self, stage: int, rows: int) -> Partition | None:
        """Return which rows the ranks with a share in a stage begin with; None: all have all."""
        return self._within(stage, 0, rows)

    def have(self, hop: int, rows: int) -> Partition:
        """Return who has which of the rows before a hop."""
        if hop == 0:
            return Partition(tuple(self._spread((0,), [Span(0, rows)])))
        partition = self._within(hop - 1, -1, rows)
        if partition is None:
            # All have all: the first of them sends it, rank 0 itself where it is one of them.
            return Partition(tuple(self._spread(self.active[hop - 1][:1], [Span(0, rows)])))
        return Partition(tuple(self._spread(self.active[hop - 1], partition.spans)))

    def want(self, hop: int, rows: int) -> list[Span]:
        """Return which rows every rank needs after a hop."""
        if hop == self.hops - 1:
            return self._spread((0,), [Span(0, rows)])
        partition = self.rows_into(hop, rows)
        everything = [Span(0, rows)] * len(self.active[hop])
        return self._spread(self.active[hop], everything if partition is None else partition.spans)

    def widths(self, spec: ModelSpec, hop: int) -> tuple[int, ...]:
        """Return the width of every tensor that a hop brings."""
        if hop == self.hops - 1:
            return (spec.hidden,)
        return widths(spec, self.stages[hop].span.start, self.stages[hop].begins)

    def source(self, hop: int, rows: int, rank: int) -> int | None:
        """Return the first rank from which a rank receives rows in a hop; None where it waits for nobody."""
        wanted = self.want(hop, rows)[rank]
        given = enumerate(self.have(hop, rows))
        return next((peer for peer, span in given if peer != rank and span.intersect(wanted).size), None)

    def _within(self, stage: int, end: int, rows: int) -> Partition | None:
        """Return how the rows lie on a stage's ranks with a share, at its beginning (0) or end (-1)."""
        block = self.stages[stage].first if end == 0 else self.stages[stage].last
        active = self.stages[stage].active
        if block.norm is StreamLayout.COLS:  # the first of them has all rows, and deals the columns out
            return Partition.of_counts([rows] + [0] * (len(active) - 1))
        return block.only(active).row_partition(rows)

    def _spread(self, ranks: Sequence[int], spans: Sequence[Span]) -> list[Span]:
        """Turn spans of some ranks into spans of all, empty ones between them."""
        given = dict(zip(ranks, spans, strict=True))
        spread: list[Span] = []
        for rank in range(self._size):
            stop = spread[-1].stop if spread else 0
            spread.append(given.get(rank, Span(stop, stop)))
        return spread
