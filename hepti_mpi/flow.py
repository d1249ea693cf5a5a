"""Many batches at once: rank 0 deals them out to the replicas, keeps every stage busy, and answers in order.

A batch goes to the replica that should be done with it first, by the seconds a row that the replica has taken so far;
so a rank that becomes slow gets less from then on. No replica has more batches in hand than its stages and one, and
what it takes to bridge the time in which rank 0, which computes too, cannot deal. What is done waits for what was
dealt out before it: there are never more than `SPREAD` times as many batches under way as the replicas can have in
hand, and where nobody takes the answers, no further batch is dealt out. Rank 0 waits for nothing while something else
can go on; the other ranks do one batch after the other, and none of their messages waits for rank 0.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from hepti_mpi.arrays import Array
from hepti_mpi.batch import Batch
from hepti_mpi.comm import Group
from hepti_mpi.lane import Lane
from hepti_mpi.stack import Carrying, Stack

SPREAD = 4
MOST = 32  # batches in the hands of one replica
NEWEST = 0.5  # how much the last batch counts in what is known of a replica's speed


@dataclass(frozen=True, slots=True)
class Step:
    """Rank 0's word to the others: run a batch of these row counts."""

    lengths: tuple[int, ...]
    count: bool  # whether it counts in the report
    exact: bool = False  # whether numbers travel as they are, whatever the wire
    tell: int | None = None  # the number under which all ranks tell what they measured; None: they do not


@dataclass(slots=True, eq=False)
class Job:
    """A batch under way: before which hop it stands, for whose rows it waits there (if any), and what came of it."""

    rows: int
    count: bool
    carrying: Carrying
    started: float
    hop: int = 0
    waits_for: int | None = None
    result: Array | None = None


@dataclass(slots=True, eq=False)
class Replica:
    """What rank 0 knows of a replica: the batches in its hands, and its seconds for a row, once it has done one."""

    lane: Lane
    leads: bool  # rank 0 is in it
    jobs: deque[Job] = field(default_factory=deque)
    row_s: float | None = None
    ended: float = 0.0

    def seconds(self, more: int = 0) -> float:
        """Return how long what it has, and so many rows more, should take; nothing as long as nobody knows: try it."""
        return (sum(job.rows for job in self.jobs) + more) * (self.row_s or 0.0)


class Flow:
    """Deals batches out; on rank 0 only.

    Parameters
    ----------
    stack
        Rank 0's.
    group
        All ranks.
    """

    def __init__(self, stack: Stack, group: Group) -> None:
        self._stack, self._group = stack, group
        self._replicas: list[Replica] = []

    def run(self, batches: Iterable[tuple[Step, Callable[[], Array]]]) -> Iterator[Array]:
        """Run batches and yield what rank 0 gets of each [S, H], in order.

        Parameters
        ----------
        batches
            What is announced, and what embeds it [S, H]; taken as they can be dealt out.
        """
        if [replica.lane for replica in self._replicas] != [*self._stack.lanes]:  # another plan was adopted
            self._replicas = [Replica(lane, lane.stage_of(0) is not None) for lane in self._stack.lanes]
        coming = iter(batches)
        following = next(coming, None)
        order: deque[Job] = deque()
        while order or following is not None:
            moved = False
            if following is not None and (replica := self._choose(following[0], order)) is not None:
                order.append(self._deal(replica, *following))
                following, moved = next(coming, None), True
            moved = self._collect() or moved
            while order and (result := order[0].result) is not None:
                order.popleft()
                yield result
                moved = True
            if not moved:
                with self._stack.metered(order[0].count, begins=False):
                    self._group.pause()
        self._group.finish_sending()

    def _choose(self, step: Step, order: deque[Job]) -> Replica | None:
        """Return the replica that should be done with a batch first; None where it has enough already."""
        rows = sum(step.lengths)
        if len(order) >= SPREAD * sum(map(self._depth, self._replicas)):
            return None
        free = [replica for replica in self._replicas if len(replica.jobs) < self._depth(replica)]
        best = min(free, key=lambda replica: (replica.seconds(rows), len(replica.jobs)), default=None)
        if best is not None and best.leads and order:
            # While rank 0 computes nobody deals: the others should have enough until it is done.
            short = [other for other in free if not other.leads and other.seconds() < best.seconds(rows)]
            best = min(short, key=lambda replica: replica.seconds(rows), default=best)
        return best

    def _depth(self, replica: Replica) -> int:
        """Return how many batches a replica may have in its hands."""
        stages = len(replica.lane.stages)
        if replica.leads:
            return stages + 1 if stages > 1 else 1
        leader = next((other for other in self._replicas if other.leads), None)
        if leader is None or leader.row_s is None or replica.row_s is None:
            return stages + 1
        return min(MOST, stages + 1 + math.ceil(leader.row_s / replica.row_s))

    def _deal(self, replica: Replica, step: Step, embed: Callable[[], Array]) -> Job:
        self._group.announce(step, replica.lane.ranks if step.tell is None else range(self._group.size))
        batch, started = Batch.of_lengths(step.lengths), time.perf_counter()
        carrying = self._stack.carry(replica.lane, batch, embed(), exact=step.exact)
        job = Job(batch.rows, step.count, carrying, started)
        replica.jobs.append(job)
        self._advance(job)
        return job

    def _collect(self) -> bool:
        """Carry on what can go on; return whether anything could."""
        moved = False
        for replica in self._replicas:
            free = replica.lane.hops  # those before it have passed all hops below
            for job in list(replica.jobs):
                if job.result is None and job.hop < free:
                    if job.waits_for is None or self._group.has_message(job.waits_for):
                        self._advance(job)
                        moved = True
                    if job.result is None:
                        free = job.hop
            while replica.jobs and replica.jobs[0].result is not None:
                self._learn(replica, replica.jobs.popleft())
                moved = True
        return moved

    def _advance(self, job: Job) -> None:
        with self._stack.metered(job.count, begins=not job.hop):
            try:
                job.hop, job.waits_for = next(job.carrying)
            except StopIteration as end:
                job.waits_for, job.result = None, end.value

    def _learn(self, replica: Replica, job: Job) -> None:
        """Take a batch's seconds from the end of the one before it, or from its own beginning where it came later."""
        now = time.perf_counter()
        row_s = (now - max(job.started, replica.ended)) / max(job.rows, 1)
        known = row_s if replica.row_s is None else replica.row_s
        replica.row_s = NEWEST * row_s + (1 - NEWEST) * known
        replica.ended = now
