"""`Group`: the ranks that run together. What they exchange in layers: `comm.exchange`."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn, TypeVar, cast

from hepti_mpi.comm.mailbox import LONGEST_PAUSE_S, PAUSE_S, Mailbox, Traffic
from hepti_mpi.comm.mpi import MPI, Tag, check_tags, start
from hepti_mpi.comm.wires import EXACT, Coding, Message
from solver.base import clock
from solver.base.errors import HeptiError
from solver.base.front import program

Value = TypeVar("Value")

ROUND_TRIPS = 10
IDLE_PAUSE_S = 5e-3  # the longest between requests, which may be hours apart
# So often MPI moves on what is under way beside a stage's computing: a system that allows sockets 200 KiB each has sent
# them at 940 Mbps in this time.
MOVE_S = 2e-3
# mpirun brings stderr and its own block about the abort by two ways: without a pause the block overtook our line, and
# spoiled its beginning, in 15 of 40 runs.
LAST_WORDS_S = 0.2


class SharedError(HeptiError):
    """A complaint that all ranks have: one of them says it, and all end. Any other is one rank's: the others wait."""


class Group:
    """The ranks that run together: how they talk, and what it costs.

    `coding` is how the numbers of exchanges are written; what goes through the mailboxes is said at their tags.
    """

    def __init__(self, comm: MPI.Comm, parent: Group | None = None) -> None:
        self._comm = comm
        self.coding: Coding = parent.coding if parent else EXACT
        self.rank, self.size = comm.rank, comm.size
        # A subgroup's traffic is its parent's too.
        self.traffic: Traffic = parent.traffic if parent else Traffic()
        self._sending: list[tuple[MPI.Request, Message]] = parent._sending if parent else []
        self.orders = Mailbox(comm, Tag.ORDER, self.traffic, IDLE_PAUSE_S)
        self.decisions = Mailbox(comm, Tag.DECISION, self.traffic)
        self.reports = Mailbox(comm, Tag.REPORT, self.traffic)
        self.sums = Mailbox(comm, Tag.SUMS, self.traffic)
        self.weights = Mailbox(comm, Tag.WEIGHTS, self.traffic)
        self._clocks = Mailbox(comm, Tag.CLOCK, self.traffic, pause_s=0.0)  # a pause would be part of a round trip

    def others(self) -> Iterator[int]:
        """Yield the other ranks, beginning after this one, so that not all send to the same rank first."""
        return ((self.rank + step) % self.size for step in range(1, self.size))

    def post_send(self, message: Message, peer: int, tag: int) -> MPI.Request:
        """Begin to send a C-contiguous array."""
        # All that are on their way are tested in one call: each call lets MPI move everything that it can.
        MPI.Request.Testsome([request for request, _ in self._sending])
        self._sending[:] = [own for own in self._sending if own[0]]  # those that have ended are null
        request = self._comm.Isend(message, peer, tag)
        self._sending.append((request, message))
        self.traffic.sent_bytes += message.nbytes
        return request

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Let messages go on while this rank computes, in both directions: MPI moves them only where it is called.

        Not for the exchanges in the layers, which are too small to gain by it. An MPI without threads moves nothing.
        """
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._move, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _move(self, over: threading.Event) -> None:
        while not over.wait(MOVE_S / clock.SCALE):
            self._comm.Iprobe(MPI.ANY_SOURCE, Tag.NOTHING)

    def post_receive(self, message: Message, peer: int, tag: int) -> MPI.Request:
        """Begin to fill a C-contiguous array."""
        self.traffic.received_bytes += message.nbytes
        return self._comm.Irecv(message, peer, tag)

    def drop(self, rows: str) -> None:
        """Take note of rows that nobody iterated over to the end: this rank's next wait raises, and names them.

        The others would wait for this rank, and it for them. Where rows are dropped no error can be raised: Python
        forgets those of `__del__`.
        """
        self.traffic.dropped.append(rows)

    def arrived(self, requests: list[MPI.Request]) -> list[int]:
        """Return the numbers of the receives that have ended since they were asked for last."""
        return MPI.Request.Testsome(requests) or []

    def all_here(self, requests: Sequence[MPI.Request]) -> bool:
        """Return whether all of the receives have ended; `arrived` will still say so."""
        return all(request.Get_status() for request in requests)

    def wait_some(self, requests: list[MPI.Request]) -> list[int]:
        """Wait until one or more of the receives have ended and return their numbers."""
        return self.traffic.wait(lambda: self.arrived(requests), LONGEST_PAUSE_S)

    def wait_all(self, requests: list[MPI.Request]) -> None:
        """Wait until all of the receives have ended."""
        self.traffic.wait(lambda: MPI.Request.Testall(requests), LONGEST_PAUSE_S)

    def has_rows(self, peer: int) -> bool:
        """Return whether rows of a rank, sent by itself, are here, and nobody has asked for them yet."""
        return bool(self._comm.Iprobe(peer, Tag.PARTS + peer))

    def pause(self) -> None:
        """Wait a little for the others, where there is nothing to do."""
        with self.traffic.waiting():
            clock.sleep(PAUSE_S)

    def finish_sending(self) -> None:
        """Wait until everything that this rank sent in exchanges has left it."""
        self.wait_sent([request for request, _ in self._sending])
        self._sending.clear()

    def wait_sent(self, requests: Sequence[MPI.Request]) -> None:
        """Wait until some of that has."""
        with self.traffic.waiting():
            MPI.Request.Waitall([*requests])

    def barrier(self) -> None:
        """Wait until all ranks are here, without a pause: to measure from the same moment on."""
        self._comm.Barrier()

    def _meet(self) -> None:
        """Wait until all ranks are here, as for a message: the core is for those that still load their weights."""
        arrival = self._comm.Ibarrier()
        self.traffic.wait(arrival.Test, LONGEST_PAUSE_S)

    def slowest(self, seconds: float) -> float:
        """Return the largest of all ranks' times."""
        return float(self._comm.allreduce(seconds, MPI.MAX))

    def clock_ahead(self) -> float:
        """Return the seconds by which this rank's clock is ahead of rank 0's, from the fastest of some round trips."""
        if self.rank == 0:
            for _ in range(ROUND_TRIPS * (self.size - 1)):
                asking = self._clocks.take()
                self._clocks.send(clock.now(), [asking])
            return 0.0
        trips: list[tuple[float, float]] = []
        for _ in range(ROUND_TRIPS):
            started = clock.now()
            self._clocks.send(self.rank, [0])
            theirs, ended = self._clocks.take(), clock.now()
            trips.append((ended - started, (started + ended) / 2 - theirs))
        return min(trips)[1]

    def from_root(self, step: Callable[[], Value] | None) -> Value:
        """Run rank 0's step and give its result to all, or raise its complaint on all.

        Raises
        ------
        SharedError
            The complaint.
        """
        outcome = _attempt(step) if step else None
        self._meet()
        result, complaint = self._comm.bcast(outcome)
        if complaint is not None:
            raise SharedError(complaint)
        return cast(Value, result)

    def on_all(self, step: Callable[[], Value]) -> list[Value]:
        """Run a step on every rank and give all results to all; one rank's complaint is raised on all, with its name.

        Raises
        ------
        SharedError
            The first complaint in rank order.
        """
        outcome = _attempt(step)
        self._meet()
        outcomes = self._comm.allgather(outcome)
        for rank, (_, complaint) in enumerate(outcomes):
            if complaint is not None:
                raise SharedError(complaint if rank == 0 else f"{complaint} (rank {rank})")
        return [result for result, _ in outcomes]

    def subgroup(self, ranks: Sequence[int]) -> Group | None:
        """Return the group of these ranks, in ascending order; None on the others."""
        if list(ranks) == list(range(self.size)):
            return self
        color = 0 if self.rank in ranks else MPI.UNDEFINED
        comm = self._comm.Split(color, self.rank)
        return None if comm == MPI.COMM_NULL else Group(comm, parent=self)

    @property
    def alone(self) -> Group:
        """The group of this rank by itself, for what it computes without the others."""
        return Group(MPI.COMM_SELF, parent=self)

    def abort(self, message: str, code: int) -> NoReturn:
        """End the job on all ranks at once, naming this one."""
        print(
            f"{program('python -m hepti_mpi')}: rank {self.rank} on {host_name()}: {message}",
            file=sys.stderr,
            flush=True,
        )
        if MPI.COMM_WORLD.size == 1:
            # Open MPI's abort would write a block of its own, which no mpirun takes away, for nobody else to end.
            with suppress(OSError):
                sys.stdout.flush()
            os._exit(code)
        time.sleep(LAST_WORDS_S)
        self._comm.Abort(code)
        raise SystemExit(code)


def world() -> Group:
    """Return all ranks of the job, for whom MPI is started."""
    start()
    check_tags(MPI.COMM_WORLD.size)
    return Group(MPI.COMM_WORLD.Dup())


def host_name() -> str:
    """Return the name under which mpirun knows this host."""
    return MPI.Get_processor_name()


def library() -> str:
    """Return the MPI library's name and version, in one line."""
    return MPI.Get_library_version().strip().split("\n")[0].split(",")[0]


def _attempt(step: Callable[[], Value]) -> tuple[Value | None, str | None]:
    try:
        return step(), None
    except HeptiError as error:
        return None, str(error)
