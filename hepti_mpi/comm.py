"""All of MPI: `Group` and the few verbs that communicate.

Every exchange runs over nonblocking point-to-point calls with true, nonuniform counts; an empty span sends nothing.
An array that has been handed to a verb is not changed afterwards: it may still be on its way.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, cast

import numpy as np

from hepti_mpi.arrays import Array
from solver.errors import HeptiError
from solver.spans import Partition, Span

# Open MPI reads these when it starts; what the user or mpirun has set stays. Up to 8 MiB a message goes to the kernel
# at once and travels while we compute: of 1 MiB at 240 Mbps behind 41 ms of compute, 0.3 ms are left to wait, not 35.
for _name, _value in (
    ("btl_tcp_eager_limit", "8388608"),
    ("btl_tcp_sndbuf", "4194304"),
    ("btl_tcp_rcvbuf", "4194304"),
    # A waiting rank gives its core away; ranks that share a core otherwise wait for each other's time slice.
    ("mpi_yield_when_idle", "1"),
    # Looking for a fabric that boards do not have takes a second: MPI_Init 1.1 s with it, 0.2 s without.
    ("btl", "^ofi"),
):
    os.environ.setdefault(f"OMPI_MCA_{_name}", _value)

from mpi4py import MPI  # noqa: E402

Value = TypeVar("Value")

# Waiting polls without a pause this often, then sleeps: spinning would eat the time that a neighbour on the same core,
# or a CPU quota, needs for computing.
SPINS = 20
PAUSE_S = 1e-4
IDLE_PAUSE_S = 5e-3  # the longest pause between requests

# mpirun brings stderr and its own block about the abort by two ways: without a pause the block overtook our line, and
# spoiled its beginning, in 15 of 40 runs.
LAST_WORDS_S = 0.2

DATA, CONTROL = 0, 1  # message tags


@dataclass(slots=True)
class Traffic:
    """What a rank's exchanges cost since the last reset."""

    wait_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0

    def reset(self) -> None:
        """Count from zero."""
        self.wait_s, self.sent_bytes, self.received_bytes = 0.0, 0, 0


class Incoming:
    """Rows on their way: `array` [rows, width] fills as blocks arrive.

    Iterate to compute on each block as it comes (spans counted within `array`, own rows first), or `wait` for all.
    """

    def __init__(self, array: Array, blocks: Iterator[Span]) -> None:
        self.array = array
        self._blocks = blocks

    @classmethod
    def here(cls, array: Array) -> Incoming:
        """Return rows that have all arrived."""
        return cls(array, iter([Span(0, array.shape[0])]))

    def __iter__(self) -> Iterator[Span]:
        return self._blocks

    def wait(self) -> Array:
        """Return the whole array once all of it is here."""
        for _ in self:
            pass
        return self.array


class Group:
    """The ranks that run together: the verbs of the layer loop, and what they cost."""

    def __init__(self, comm: MPI.Comm, parent: Group | None = None) -> None:
        self._comm = comm
        self.rank = comm.rank
        self.size = comm.size
        # A subgroup's traffic is its parent's too.
        self.traffic: Traffic = parent.traffic if parent else Traffic()
        self._sending: list[tuple[MPI.Request, Array]] = parent._sending if parent else []

    # Verbs of the layer loop: buffers only.

    def gather_rows(self, x_rows: Array, have: Partition, want: Sequence[Span]) -> Incoming:
        """Give every rank the rows that it wants; where all want all, this is the all-gather.

        Parameters
        ----------
        x_rows : [own rows, width]
            This rank's rows.
        have
            Who has which rows.
        want
            For every rank the rows that it needs; they may be empty and may overlap.

        Returns
        -------
        Incoming
            The rows ``want[rank]``, in ``x_rows`` itself where this rank has all of them.
        """
        mine, wanted = have[self.rank], want[self.rank]
        for peer in self._others():
            self._send(x_rows[mine.intersect(want[peer]).within(mine).slice], peer)
        own = mine.intersect(wanted)
        if own.size == wanted.size:
            return Incoming.here(x_rows[own.within(mine).slice])
        array = np.empty((wanted.size, x_rows.shape[1]), np.float32)
        array[own.within(wanted).slice] = x_rows[own.within(mine).slice]
        blocks = ((peer, have[peer].intersect(wanted).within(wanted)) for peer in self._others())
        arriving = [(self._receive(array[span.slice], peer), span) for peer, span in blocks if span.size]
        return Incoming(array, self._arrivals(own.within(wanted), arriving))

    def gather_columns(self, x_cols: Array, have: Partition, wanted_by: Sequence[bool]) -> Array:
        """Give every rank that wants them all columns: [S, own columns] -> [S, all columns], else [S, 0]."""
        rows, mine = x_cols.shape[0], have[self.rank]
        for peer in self._others():
            if wanted_by[peer]:
                self._send(x_cols, peer)
        if not wanted_by[self.rank]:
            return np.empty((rows, 0), np.float32)
        if mine.size == have.total:
            return x_cols
        peers = [peer for peer in self._others() if have[peer].size]
        blocks = [np.empty((rows, have[peer].size), np.float32) for peer in peers]
        requests = [self._receive(block, peer) for block, peer in zip(blocks, peers, strict=True)]
        x_full = np.empty((rows, have.total), np.float32)
        x_full[:, mine.slice] = x_cols
        for _ in requests:
            arrived = self.wait_any(requests)
            x_full[:, have[peers[arrived]].slice] = blocks[arrived]
        return x_full

    def reduce_rows(self, x_part: Array, want: Sequence[Span], parts: Partition) -> Array:
        """Add the ranks' summands on the rows that each rank wants; disjoint spans make it the reduce-scatter.

        Parameters
        ----------
        x_part : [S, H], or [0, H] where this rank's part is empty
            This rank's summand.
        want
            For every rank the rows whose sum it needs.
        parts
            What the summands were computed from: a rank with an empty part sends nothing.

        Returns
        -------
        [own rows, H]
            A new array, summed in rank order: the result does not depend on who was first.
        """
        mine, width = want[self.rank], x_part.shape[1]
        if parts[self.rank].size:
            for peer in self._others():
                self._send(x_part[want[peer].slice], peer)
        summing = [peer for peer in range(self.size) if parts[peer].size and mine.size]
        received = {peer: np.empty((mine.size, width), np.float32) for peer in summing if peer != self.rank}
        requests = [self._receive(block, peer) for peer, block in received.items()]
        for _ in requests:
            self.wait_any(requests)
        total = np.zeros((mine.size, width), np.float32)
        for peer in summing:
            total += x_part[mine.slice] if peer == self.rank else received[peer]
        return total

    def all_reduce(self, x_part: Array, rows: int, parts: Partition) -> Array:
        """Add the ranks' summands [S, H] on all ranks; arguments as in `reduce_rows`, `rows` is S."""
        everything = Span(0, rows)
        if self.size <= 2:
            # One swap moves what reduce-scatter and all-gather would move, in one message instead of two.
            return self.reduce_rows(x_part, [everything] * self.size, parts)
        own = Partition.of_shares([1.0] * self.size, rows)
        x_rows = self.reduce_rows(x_part, own.spans, parts)
        return self.gather_rows(x_rows, own, [everything] * self.size).wait()

    def wait_any(self, requests: list[MPI.Request]) -> int:
        """Wait for one of the receives and return its index."""
        started = time.perf_counter()
        polls = 0
        while True:
            index, arrived = MPI.Request.Testany(requests)
            if arrived:
                self.traffic.wait_s += time.perf_counter() - started
                return index
            polls += 1
            if polls > SPINS:
                time.sleep(PAUSE_S)

    def finish_sending(self) -> None:
        """Wait until everything that this rank sent has left it."""
        started = time.perf_counter()
        MPI.Request.Waitall([request for request, _ in self._sending])
        self._sending.clear()
        self.traffic.wait_s += time.perf_counter() - started

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self._comm.Barrier()

    def slowest(self, seconds: float) -> float:
        """Return the largest of all ranks' times."""
        return float(self._comm.allreduce(seconds, MPI.MAX))

    def send(self, array: Array, peer: int) -> None:
        """Send an array to one rank, as set-up does; `receive` is the other end."""
        self._send(array, peer)
        self.finish_sending()

    def receive(self, array: Array, peer: int) -> None:
        """Fill a C-contiguous array with what one rank sends, in however many pieces."""
        flat = array.reshape(-1, copy=False)
        status = MPI.Status()
        while flat.size:
            self._comm.Recv(flat, peer, DATA, status)
            flat = flat[status.Get_count(MPI.FLOAT) :]

    def _arrivals(self, own: Span, arriving: Sequence[tuple[MPI.Request, Span]]) -> Iterator[Span]:
        if own.size:
            yield own
        requests = [request for request, _ in arriving]
        for _ in requests:
            yield arriving[self.wait_any(requests)][1]

    def _others(self) -> Iterator[int]:
        """Yield the other ranks, beginning behind this one, so that not all send to the same rank first."""
        return ((self.rank + step) % self.size for step in range(1, self.size))

    def _send(self, array: Array, peer: int) -> None:
        self._sending[:] = [entry for entry in self._sending if not entry[0].Test()]
        if array.size:
            self._sending.append((self._comm.Isend(array, peer, DATA), array))
            self.traffic.sent_bytes += array.nbytes

    def _receive(self, array: Array, peer: int) -> MPI.Request:
        self.traffic.received_bytes += array.nbytes
        return self._comm.Irecv(array, peer, DATA)

    # Set-up, control and reports: small pickled objects.

    def announce(self, message: Any) -> None:
        """Send a message from rank 0 to all others; they take it by `next_message`."""
        for peer in range(1, self.size):
            self._comm.send(message, peer, CONTROL)

    def next_message(self) -> Any:
        """Wait for rank 0's next message, ever more asleep, since it may take hours."""
        pause = PAUSE_S
        while not self._comm.Iprobe(0, CONTROL):
            time.sleep(pause)
            pause = min(pause * 1.2, IDLE_PAUSE_S)
        return self._comm.recv(source=0, tag=CONTROL)

    def from_root(self, step: Callable[[], Value] | None) -> Value:
        """Run rank 0's step and give its result to all, or raise its complaint on all."""
        result, complaint = self._comm.bcast(_attempt(step) if step else None)
        if complaint is not None:
            raise HeptiError(complaint)
        return cast(Value, result)

    def on_all(self, step: Callable[[], Value]) -> list[Value]:
        """Run a step on every rank and give all results to all; one rank's complaint is raised on all, with its name.

        Raises
        ------
        HeptiError
            The first complaint in rank order.
        """
        outcomes = self._comm.allgather(_attempt(step))
        for rank, (_, complaint) in enumerate(outcomes):
            if complaint is not None:
                raise HeptiError(complaint if rank == 0 else f"{complaint} (rank {rank})")
        return [result for result, _ in outcomes]

    def subgroup(self, ranks: Sequence[int]) -> Group | None:
        """Return the group of these ranks, in ascending order; None on the others."""
        if list(ranks) == list(range(self.size)):
            return self
        color = 0 if self.rank in ranks else MPI.UNDEFINED
        comm = self._comm.Split(color, self.rank)
        return None if comm == MPI.COMM_NULL else Group(comm, parent=self)

    def abort(self, message: str, code: int) -> NoReturn:
        """End the job on all ranks at once, naming this one."""
        print(f"python -m hepti_mpi: rank {self.rank} on {host_name()}: {message}", file=sys.stderr, flush=True)
        time.sleep(LAST_WORDS_S)
        self._comm.Abort(code)
        raise SystemExit(code)


def world() -> Group:
    """Return all ranks of the job; called once."""
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
