"""All of MPI: `Group`, the ranks that run together. What they exchange in the layers stands in `comm.exchange`."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, cast

from hepti_mpi.base.arrays import Array
from hepti_mpi.comm.trace import Trace
from hepti_mpi.comm.wires import EXACT, Coding, Message
from solver.base import clock
from solver.base.errors import HeptiError

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
# The longer it has waited, the longer it sleeps: a rank at a tenth of a core looked 600 times a request, and spent 15
# of its 42 ms of CPU time on looking and receiving.
PAUSE_SHARE, LONGEST_PAUSE_S = 0.1, 1e-3
IDLE_PAUSE_S = 5e-3  # the longest pause between requests
# So often MPI moves on what is under way beside a stage's computing: a system that allows sockets 200 KiB each has sent
# them at 940 Mbps in this time.
MOVE_S = 2e-3

# mpirun brings stderr and its own block about the abort by two ways: without a pause the block overtook our line, and
# spoiled its beginning, in 15 of 40 runs.
LAST_WORDS_S = 0.2

# Message tags. WHOLE: what is exchanged in the layers but for rows in tiles.
DATA, CONTROL, WHOLE = 0, 1, 2
# What ranks measured; weights that rank 0 sends while requests run; rank 0's word within a request.
REPORT, PIECE, WORD = 3, 4, 5
NOTHING = 6  # no message has it
# And rows in tiles, their owner's rank added. MPI has tags up to 32767 or more, and refuses those that it has not.
ROWS = 16

ROUND_TRIPS = 10


class SharedError(HeptiError):
    """A complaint that all ranks have: one of them says it, and all end. Any other is one rank's: the others wait."""


@dataclass(slots=True)
class Traffic:
    """What a rank's exchanges cost since the last reset."""

    wait_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    trace: Trace | None = None  # of the waits, where one is recorded

    def reset(self) -> None:
        """Count from zero."""
        self.wait_s, self.sent_bytes, self.received_bytes = 0.0, 0, 0

    def waited(self, started: float) -> None:
        """Count a wait that ends now."""
        now = clock.now()
        self.wait_s += now - started
        if self.trace is not None:
            self.trace.waits.append((started, now))


class Group:
    """The ranks that run together: how they talk, and what it costs.

    `coding` is how the numbers of exchanges are written.
    """

    def __init__(self, comm: MPI.Comm, parent: Group | None = None) -> None:
        self._comm = comm
        self.coding: Coding = parent.coding if parent else EXACT
        self.rank = comm.rank
        self.size = comm.size
        # A subgroup's traffic is its parent's too.
        self.traffic: Traffic = parent.traffic if parent else Traffic()
        self._sending: list[tuple[MPI.Request, Message]] = parent._sending if parent else []
        self._told: list[tuple[MPI.Request, Array | None]] = []
        self._dropped: list[str] = parent._dropped if parent else []

    # For exchanges: nonblocking messages.

    def others(self) -> Iterator[int]:
        """Yield the other ranks, beginning behind this one, so that not all send to the same rank first."""
        return ((self.rank + step) % self.size for step in range(1, self.size))

    def post_send(self, message: Message, peer: int, tag: int) -> None:
        """Begin to send a C-contiguous array."""
        # One look at all of them: every one of its own would move whatever there is to move.
        for number in sorted(MPI.Request.Testsome([request for request, _ in self._sending]) or [], reverse=True):
            del self._sending[number]
        self._sending.append((self._comm.Isend(message, peer, tag), message))
        self.traffic.sent_bytes += message.nbytes

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
            self._comm.Iprobe(MPI.ANY_SOURCE, NOTHING)

    def post_receive(self, message: Message, peer: int, tag: int) -> MPI.Request:
        """Begin to fill a C-contiguous array."""
        self.traffic.received_bytes += message.nbytes
        return self._comm.Irecv(message, peer, tag)

    def drop(self, rows: str) -> None:
        """Take note of rows that nobody iterated over to the end: this rank's next wait raises, and names them.

        The others would wait for this rank, and it for them. Where rows are dropped no error can be raised: Python
        forgets those of `__del__`.
        """
        self._dropped.append(rows)

    def _check_dropped(self) -> None:
        if self._dropped:
            raise RuntimeError(f"rows that others need were dropped: {self._dropped.pop()}")

    def arrived(self, requests: list[MPI.Request]) -> list[int]:
        """Return the numbers of the receives that have ended since they were asked for last."""
        return MPI.Request.Testsome(requests) or []

    def wait_some(self, requests: list[MPI.Request]) -> list[int]:
        """Wait until one or more of the receives have ended and return their numbers."""
        self._check_dropped()
        started = clock.now()
        polls = 0
        while not (arrived := self.arrived(requests)):
            polls += 1
            if polls > SPINS:
                _doze(started)
        self.traffic.waited(started)
        return arrived

    def has_rows(self, peer: int) -> bool:
        """Return whether rows of a rank, sent by itself, are here, and nobody has asked for them yet."""
        return bool(self._comm.Iprobe(peer, ROWS + peer))

    def pause(self) -> None:
        """Wait a little for the others, where there is nothing to do."""
        self._check_dropped()
        started = clock.now()
        clock.sleep(PAUSE_S)
        self.traffic.waited(started)

    def finish_sending(self) -> None:
        """Wait until everything that this rank sent has left it."""
        self._check_dropped()
        started = clock.now()
        MPI.Request.Waitall([request for request, _ in self._sending])
        self._sending.clear()
        self.traffic.waited(started)

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self._comm.Barrier()

    def slowest(self, seconds: float) -> float:
        """Return the largest of all ranks' times."""
        return float(self._comm.allreduce(seconds, MPI.MAX))

    def send(self, array: Array, peer: int) -> None:
        """Send an array to one rank, as set-up does; `receive` is the other end."""
        if array.size:
            self.post_send(array, peer, DATA)
        self.finish_sending()

    def receive(self, array: Array, peer: int) -> None:
        """Fill a C-contiguous array with what one rank sends, in however many pieces."""
        flat = array.reshape(-1, copy=False)
        status = MPI.Status()
        while flat.size:
            self._comm.Recv(flat, peer, DATA, status)
            flat = flat[status.Get_count(MPI.FLOAT) :]

    # Set-up, control and reports: small pickled objects.

    def clock_ahead(self) -> float:
        """Return the seconds by which this rank's clock is ahead of rank 0's, from the fastest of some round trips."""
        ahead, fastest = 0.0, float("inf")
        for peer in range(1, self.size):
            for _ in range(ROUND_TRIPS):
                if self.rank == 0:
                    self._comm.recv(source=peer, tag=CONTROL)
                    self._comm.send(clock.now(), peer, CONTROL)
                elif self.rank == peer:
                    started = clock.now()
                    self._comm.send(None, 0, CONTROL)
                    theirs = self._comm.recv(source=0, tag=CONTROL)
                    trip = clock.now() - started
                    if trip < fastest:
                        fastest, ahead = trip, started + trip / 2 - theirs
        return ahead

    def announce(self, message: Any, ranks: Iterable[int]) -> None:
        """Send a message from rank 0 to others of these ranks; they take it by `next_message`."""
        for peer in ranks:
            if peer != 0:
                self._comm.send(message, peer, CONTROL)

    def next_message(self, meanwhile: Callable[[], bool] | None = None) -> Any:
        """Wait for rank 0's next message, ever more asleep, since it may take hours.

        `meanwhile` does a bounded piece of other work, and returns False once there is none.
        """
        self._check_dropped()
        pause = PAUSE_S
        while not self._comm.Iprobe(0, CONTROL):
            if meanwhile is not None and meanwhile():
                continue
            clock.sleep(pause)
            pause = min(pause * 1.2, IDLE_PAUSE_S)
        return self._comm.recv(source=0, tag=CONTROL)

    def tell_within(self, message: Any, ranks: Iterable[int]) -> None:
        """Send a small message from rank 0 to others of these ranks without waiting; each waits for it by `word`."""
        self._forget_told()
        self._told += [(self._comm.isend(message, peer, WORD), None) for peer in ranks if peer != 0]

    def word(self) -> Any:
        """Wait for rank 0's word within a request."""
        started = clock.now()
        while not self._comm.Iprobe(0, WORD):
            _doze(started)
        word = self._comm.recv(source=0, tag=WORD)
        self.traffic.waited(started)
        return word

    def tell_root(self, message: Any) -> None:
        """Send a small message to rank 0 without waiting; it takes it by `heard`, when it likes."""
        self._forget_told()
        self._told.append((self._comm.isend(message, 0, REPORT), None))

    def heard(self) -> Iterator[tuple[int, Any]]:
        """Yield what other ranks have told rank 0 and has arrived: the rank, and its message."""
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, REPORT, status):
            yield status.source, self._comm.recv(source=status.source, tag=REPORT)

    @property
    def untold(self) -> int:
        """How many messages and pieces have not yet left this rank."""
        self._forget_told()
        return len(self._told)

    def _forget_told(self) -> None:
        """Forget the messages and pieces that have left this rank."""
        self._told[:] = [entry for entry in self._told if not entry[0].Test()]

    def send_piece(self, array: Array, peer: int) -> None:
        """Send weights to a rank that takes them by `take_piece`, when it likes."""
        self._told.append((self._comm.Isend(array, peer, PIECE), array))

    def take_piece(self, flat: Array) -> int:
        """Fill the front of an array with the next piece from rank 0; return its elements, 0 if none is there."""
        status = MPI.Status()
        if not self._comm.Iprobe(0, PIECE, status):
            return 0
        count = int(status.Get_count(MPI.FLOAT))
        self._comm.Recv(flat[:count], 0, PIECE)
        return count

    def from_root(self, step: Callable[[], Value] | None) -> Value:
        """Run rank 0's step and give its result to all, or raise its complaint on all.

        Raises
        ------
        SharedError
            The complaint.
        """
        result, complaint = self._comm.bcast(_attempt(step) if step else None)
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
        outcomes = self._comm.allgather(_attempt(step))
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


def _doze(started: float) -> None:
    """Wait a little, the longer the more time has passed since the wait started."""
    waited = clock.now() - started
    clock.sleep(min(max(PAUSE_S, PAUSE_SHARE * waited), LONGEST_PAUSE_S))


def _attempt(step: Callable[[], Value]) -> tuple[Value | None, str | None]:
    try:
        return step(), None
    except HeptiError as error:
        return None, str(error)
