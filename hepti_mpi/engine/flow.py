"""Many batches at once: rank 0 deals them out to the replicas, keeps every stage busy, and answers in order.

A batch goes to the replica that should be done with it first, by the seconds a row that the replica has taken lately;
so a rank that becomes slow gets less from then on. It goes to none, and waits, where the others should be done with all
that is left sooner: a slow replica begins nothing for which everybody would wait in the end. No replica has more
batches in hand than its stages, in a pipeline as many again, since some are on the wire between them, and what bridges
the time in which rank 0, which computes too, cannot deal; alone in its stage that is one layer. What is done waits for
what was dealt out before it: there are never more than `SPREAD` times as many batches under way as the replicas can
have in hand, and where nobody takes the answers, no further batch is dealt out. Rank 0 waits for nothing while
something else can go on; the other ranks do one batch after the other, and none of their messages waits for rank 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from hepti_mpi.comm.group import Group
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.encoder import Look
from hepti_mpi.engine.stack import Carrying
from solver.base import clock
from solver.base.arrays import Array

SPREAD = 8  # of four equal replicas one may take 9 times as long from one batch to the next, and nobody waits for it
MOST = 32  # batches in the hands of one replica
FORGET = 0.5  # what is left of how much a replica's earlier batches count, whenever some more are done


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """Rank 0's word to the others: run a batch of these row counts."""

    lengths: tuple[int, ...]
    count: bool  # whether it counts in the report
    exact: bool = False  # whether numbers travel as they are, whatever the wire
    tell: int | None = None  # the number under which all ranks tell what they measured; None: they do not
    looks: tuple[int, ...] = ()  # before which layers those that compute look up (`hepti_mpi.live.within_request`)


@dataclass(slots=True, eq=False)
class Job:
    """A batch under way: before which hop it stands, what says that it can go on there, and what came of it."""

    rows: int
    count: bool
    carrying: Carrying
    dealt: float
    hop: int = 0
    can_go_on: Callable[[], bool] | None = None
    begun: bool = False
    longest_s: float = 0.0  # for which rank 0 was at it and could not deal
    result: Array | None = None


class ReplicaWay(Protocol):
    """A replica's way through the ranks."""

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks that take part."""

    @property
    def stages(self) -> Sequence[object]:
        """Its stages."""

    @property
    def hops(self) -> int:
        """How many hops there are."""

    def stage_of(self, rank: int) -> int | None:
        """Return the number of the stage in which a rank has a share; None where it has none."""


@dataclass(slots=True, eq=False)
class Replica:
    """What rank 0 knows of a replica: the batches in its hands, and lately done rows and the seconds that they took."""

    path: ReplicaWay
    leads: bool  # rank 0 is in it
    jobs: deque[Job] = field(default_factory=deque)
    rows: float = 0.0
    busy_s: float = 0.0
    ended: float = 0.0

    @property
    def row_s(self) -> float | None:
        """Seconds for a row; None as long as nobody knows."""
        return self.busy_s / self.rows if self.rows else None

    def seconds(self, now: float, more: int = 0) -> float:
        """Return in how many seconds what it has, and so many rows more, should be done; 0 where nobody knows."""
        if self.row_s is None:
            return 0.0
        seconds = [job.rows * self.row_s for job in self.jobs]
        if seconds:
            seconds[0] = max(seconds[0] - (now - self.since), 0.0)
        return sum(seconds) + more * self.row_s

    @property
    def since(self) -> float:
        """When it began the first batch in its hands: at the end of the one before, or when it got it."""
        return max(self.jobs[0].dealt, self.ended)

    def learn(self, done: Sequence[Job], seconds: float, now: float) -> None:
        """Take note of the seconds of all batches that rank 0 finds done at once."""
        self.rows = FORGET * self.rows + max(sum(job.rows for job in done), 1)
        self.busy_s = FORGET * self.busy_s + seconds
        self.ended = now


class Carrier(Protocol):
    """Rank 0's part of the replicas: a transformer's `Stack`, or a network's `NetworkReplicas`."""

    @property
    def paths(self) -> Sequence[ReplicaWay]:
        """The replicas; others only while nothing is under way."""

    def carry(
        self, path: Any, batch: Batch, x: Array | None, *, exact: bool = False, look: Look | None = None
    ) -> Carrying:
        """Carry a batch through a replica as far as rank 0 takes part in it."""

    def metered(self, count: bool, *, begins: bool = True) -> AbstractContextManager[None]:
        """Count what is done within, if it counts."""


class Flow:
    """Deals batches out; on rank 0 only.

    Parameters
    ----------
    stack
        Rank 0's part. Another plan is adopted only while nothing is under way.
    group
        All ranks.
    """

    def __init__(self, stack: Carrier, group: Group) -> None:
        self._stack, self._group = stack, group
        self._replicas: list[Replica] = []
        self._coming: deque[tuple[BatchOrder, Callable[[], Array], Look | None]] = deque()
        self._left = 0  # rows of those
        self._order: deque[Job] = deque()  # under way, as they were submitted
        self._away_s = 0.0  # how long at once rank 0 computed, in its last batch

    @property
    def idle(self) -> bool:
        """Whether no batch is under way, nor waits to be dealt out."""
        return not (self._coming or self._order)

    def submit(self, step: BatchOrder, embed: Callable[[], Array], look: Look | None = None) -> None:
        """Take a batch: what is announced, what embeds it [S, H] as it is dealt out, and rank 0's part in its looks."""
        if self.idle and [replica.path for replica in self._replicas] != [*self._stack.paths]:  # another plan runs
            self._replicas = [Replica(path, path.stage_of(0) is not None) for path in self._stack.paths]
        self._coming.append((step, embed, look))
        self._left += sum(step.lengths)

    def step(self, meanwhile: Callable[[], object] | None = None) -> list[Array]:
        """Deal out and carry on what can go on, or pause a little.

        Return what rank 0 gets of each batch that is done [S, H], in the order of submission. `meanwhile` is called
        whenever a batch has been dealt out, while the others are at it.
        """
        # Before rank 0 computes, all others have something.
        while self._coming and (replica := self._choose(sum(self._coming[0][0].lengths))) is not None:
            self._order.append(self._deal(replica, *self._coming.popleft()))
            self._left -= self._order[-1].rows
            if meanwhile is not None:
                meanwhile()
        moved, done = self._collect(), list[Array]()
        while self._order and (result := self._order[0].result) is not None:
            self._order.popleft()
            done.append(result)
        if done and self.idle:
            self._group.finish_sending()
        elif self._order and not (moved or done):
            with self._stack.metered(self._order[0].count, begins=False):
                self._group.pause()
        return done

    def _choose(self, rows: int) -> Replica | None:
        """Return who gets the next batch, of so many rows; None where it should wait."""
        now, left, under_way = clock.now(), self._left, len(self._order)
        room = SPREAD * sum(self._depth(replica, rows) for replica in self._replicas) - under_way
        free = [replica for replica in self._replicas if len(replica.jobs) < self._depth(replica, rows)]
        if room <= 0 or not free:
            return None
        # While no speed is known rank 0 gets the last batch to be tried; of a batch alone the plan's order decides.
        best = min(free, key=lambda replica: (replica.seconds(now, rows), replica.leads and left > rows))
        others = [(other, 1 / other.row_s) for other in self._replicas if other is not best and other.row_s]
        if others and under_way:
            first_s = min(other.seconds(now, rows) for other, _ in others)
            in_hand = sum(other.seconds(now) * speed for other, speed in others)
            all_s = (in_hand + min(left, room * rows)) / sum(speed for _, speed in others)
            if best.seconds(now, rows) > max(first_s, all_s):
                return None
        return best

    def _depth(self, replica: Replica, rows: int) -> int:
        """Return how many batches of so many rows a replica may have in its hands."""
        stages = len(replica.path.stages)
        # Of a pipeline those on the wire are in no stage: at most one after each.
        held = stages if stages == 1 else 2 * stages
        if not replica.row_s or (replica.leads and stages == 1):
            return held
        return min(held + 1 + round(self._away_s / (replica.row_s * rows)), MOST)

    def _deal(self, replica: Replica, step: BatchOrder, embed: Callable[[], Array], look: Look | None) -> Job:
        self._group.orders.send(step, replica.path.ranks if step.tell is None else self._group.others())
        batch, dealt = Batch.of_lengths(step.lengths), clock.now()
        carrying = self._stack.carry(replica.path, batch, embed(), exact=step.exact, look=look if step.looks else None)
        job = Job(batch.rows, step.count, carrying, dealt)
        replica.jobs.append(job)
        if not replica.leads:
            self._advance(replica, job)
        return job

    def _collect(self) -> bool:
        """Carry on what can go on; return whether anything could."""
        moved = False
        # Rank 0 computes, and then sees what the others have done meanwhile, and deals.
        for replica in sorted(self._replicas, key=lambda replica: not replica.leads):
            free = replica.path.hops  # those before it have passed all hops below
            for job in list(replica.jobs):
                if job.result is None and job.hop < free:
                    if job.can_go_on is None or job.can_go_on():
                        self._advance(replica, job)
                        moved = True
                    if job.result is None:
                        free = job.hop
            done: list[Job] = []
            since = replica.since if replica.jobs else 0.0
            while replica.jobs and replica.jobs[0].result is not None:
                done.append(replica.jobs.popleft())
            if done:
                now = clock.now()
                seconds = now - since
                if replica.leads:
                    self._away_s = max(job.longest_s for job in done)
                elif not replica.jobs:  # it had nothing more to do, from some time on in which rank 0 was away
                    seconds = max(seconds - self._away_s / 2, seconds / 2)
                replica.learn(done, seconds, now)
        return moved

    def _advance(self, replica: Replica, job: Job) -> None:
        started = clock.now()
        with self._stack.metered(job.count, begins=not job.begun):
            job.begun = True
            try:
                job.hop, job.can_go_on = next(job.carrying)
            except StopIteration as end:
                job.can_go_on, job.result = None, end.value
        if replica.leads:
            job.longest_s = max(job.longest_s, clock.now() - started)
            self._away_s = max(self._away_s, job.longest_s)
