"""Mailboxes of orders, reports, weights, clocks: what is no exchange of values. And how a rank waits for messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from hepti_mpi.comm.mpi import MPI, Tag
from hepti_mpi.comm.trace import Trace
from solver.base import clock
from solver.base.arrays import Numbers

Value = TypeVar("Value")
Meanwhile = Callable[[], bool]

# Waiting looks without a pause this often, then sleeps: spinning would eat the time that a neighbour on the same core,
# or a CPU quota, needs for computing.
SPINS, PAUSE_S = 20, 1e-4
# The longer it has waited, the longer it sleeps: a rank at a tenth of a core looked 600 times a request, and spent 15
# of its 42 ms of CPU time on looking and receiving.
PAUSE_SHARE, LONGEST_PAUSE_S = 0.1, 1e-3


@dataclass(slots=True)
class Traffic:
    """What a rank's messages cost since the last reset, and its kernels beside them."""

    wait_s: float = 0.0
    kernel_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    trace: Trace | None = None  # of the waits, where one is recorded
    dropped: list[str] = field(default_factory=list)  # rows that others need and this rank will not send

    def reset(self) -> None:
        """Count from zero."""
        self.wait_s, self.kernel_s, self.sent_bytes, self.received_bytes = 0.0, 0.0, 0, 0

    def waited(self, started: float) -> None:
        """Count a wait that ends now."""
        now = clock.now()
        self.wait_s += now - started
        if self.trace is not None:
            self.trace.waits.append((started, now))

    def compute(self, call: Callable[[], object]) -> None:
        """Run what computes, and count its seconds, without those in which it waited for what arrives meanwhile."""
        started, waited_s = clock.now(), self.wait_s
        call()
        self.kernel_s += clock.now() - started - (self.wait_s - waited_s)

    @contextmanager
    def waiting(self) -> Iterator[float]:
        """Count what is done within as a wait; gives when it began. A RuntimeError says which rows were dropped."""
        if self.dropped:
            raise RuntimeError(f"rows that others need were dropped: {self.dropped.pop()}")
        started = clock.now()
        yield started
        self.waited(started)

    def wait(self, look: Callable[[], Value | None], pause_s: float, meanwhile: Meanwhile | None = None) -> Value:
        """Look until something is there, with ever longer pauses of at most `pause_s` seconds, and return it.

        `meanwhile` does a bounded piece of other work instead of a pause, and returns False where there is none.
        """
        with self.waiting() as started:
            looks = 0
            while not (found := look()):
                looks += 1
                if not (meanwhile is not None and meanwhile()) and looks > SPINS:
                    clock.sleep(min(max(PAUSE_S, PAUSE_SHARE * (clock.now() - started)), pause_s))
        return found


class Mailbox:
    """Messages of one kind, objects or arrays; each lies there until its receiver takes it.

    Who waits for one looks every `pause_s` seconds at least; `traffic` counts the wait.
    """

    def __init__(self, comm: MPI.Comm, tag: Tag, traffic: Traffic, pause_s: float = LONGEST_PAUSE_S) -> None:
        self._comm, self._tag, self._traffic, self._pause_s = comm, tag, traffic, pause_s
        self._leaving: list[tuple[MPI.Request, Any]] = []  # MPI reads arrays where they lie

    def send(self, message: Any, to: Iterable[int]) -> None:
        """Begin to send a message to ranks, without waiting; this rank, where it is among them, gets none."""
        self.leaving()
        begin = self._comm.Isend if isinstance(message, np.ndarray) else self._comm.isend
        self._leaving += [(begin(message, peer, self._tag), message) for peer in to if peer != self._comm.rank]

    def leaving(self) -> int:
        """Forget the messages that have left this rank; return how many have not."""
        self._leaving = [entry for entry in self._leaving if not entry[0].Test()]
        return len(self._leaving)

    def poll(self) -> tuple[int, Any] | None:
        """Return the sender of a message and what it says, if one is here."""
        status = MPI.Status()
        if not self._comm.Iprobe(MPI.ANY_SOURCE, self._tag, status):
            return None
        return status.source, self._comm.recv(source=status.source, tag=self._tag)

    def take(self, meanwhile: Meanwhile | None = None) -> Any:
        """Wait for a message and return what it says; `meanwhile` as in `Traffic.wait`."""
        return self._traffic.wait(self.poll, self._pause_s, meanwhile)[1]

    def fill(self, out: Numbers) -> Iterator[bool]:
        """Fill an array with the bytes that come, one message after the other; yield whether the next was here."""
        flat, status = out.reshape(-1, copy=False).view(np.uint8), MPI.Status()
        while flat.size:
            if here := self._comm.Iprobe(MPI.ANY_SOURCE, self._tag, status):
                count = status.Get_count(MPI.BYTE)
                self._comm.Recv(flat[:count], status.source, self._tag)
                flat = flat[count:]
            yield here
