"""As many bits as the link carries: QuantPipe's adaptive quantisation between stages (Wang et al., arXiv 2211.04515).

For every window of batches a rank looks how fast it sends, and takes the most bits of 32, 16, 8, 6, 4 and 2 with which
its link keeps up with the slowest stage; where none does, two. QuantPipe is told the rate to keep; here it is measured.
A message says of how many bits it is, and how slow the slowest stage is as far as its sender knows: this goes round
with the batches, and fades, so that it falls where that stage becomes faster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from hepti_mpi.comm.exchange import exchanged
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.tcp import Connection, carried, open_sockets
from hepti_mpi.comm.wires import Cast, Message, coding
from solver.base.arrays import Array
from solver.base.spans import Span
from solver.plan.layout import Box
from solver.plan.plan import STAGE_WIRES

HEADER_BYTES = 8  # bits and seconds a row, float32
WINDOW = 10  # batches, as QuantPipe has it
FADES = 0.95  # what is left of the slowest stage's seconds after a round


class Adaptive:
    """The coding of what a rank sends to the next stage of one replica.

    Parameters
    ----------
    cast
        As in `wires.Half`.
    send_rate
        Returns how many bytes a second this rank's link carries, 0 where nobody knows.
    """

    def __init__(self, cast: Cast, send_rate: Callable[[], float]) -> None:
        self._codings = {wire.bits: coding(wire, cast) for wire in STAGE_WIRES}
        self._send_rate = send_rate
        self.bits = 32  # of what is sent next
        self.spare_bytes = 0  # that receives were posted for and no message filled, since somebody asked
        self._row_s = 0.0  # of the slowest stage
        self._numbers = self._rows = self._batches = 0  # sent in this window

    def encode(self, x: Array) -> Message:  # noqa: D102
        body = self._codings[self.bits].encode(x).reshape(-1).view(np.uint8)
        header = np.array([self.bits, self._row_s], np.float32)
        self._numbers += x.size
        return np.concatenate([header.view(np.uint8), body])

    def message(self, out: Array) -> Message:  # noqa: D102
        return np.empty(HEADER_BYTES + out.nbytes, np.uint8)

    def decode(self, message: Message, out: Array) -> None:  # noqa: D102
        bits, row_s = message[:HEADER_BYTES].view(np.float32)
        self._row_s = float(row_s)
        how = self._codings[int(bits)]
        body = out if bits == 32 else how.message(out)
        body.reshape(-1, copy=False).view(np.uint8)[:] = message[HEADER_BYTES : HEADER_BYTES + body.nbytes]
        how.decode(body, out)
        self.spare_bytes += out.nbytes - body.nbytes

    def worked(self, seconds: float, rows: int) -> None:
        """Take note that this rank's stage took so long over a batch of so many rows."""
        self._row_s = max(self._row_s, seconds / rows)

    def sent(self, rows: int) -> None:
        """Take note that a batch of so many rows is through; after a window of them choose the bits anew."""
        if self._numbers:
            self._rows += rows
            self._batches += 1
        if self._batches == WINDOW:
            rate = self._send_rate()
            if rate and self._row_s:
                self.bits = fitting(self._numbers / self._rows, rate, self._row_s)
            self._numbers = self._rows = self._batches = 0
        self._row_s *= FADES  # counts on rank 0, where rounds begin; others are told the next time


def fitting(numbers: float, rate: float, seconds: float) -> int:
    """Return the most bits, 2 at least, with which so many numbers take no longer at so many bytes a second."""
    return next((wire.bits for wire in STAGE_WIRES if numbers * wire.bits / 8 <= rate * seconds), 2)


class SendRate:
    """How fast this rank's link is: what the kernel saw the busiest of some connections deliver last.

    Parameters
    ----------
    connections
        Those to the ranks that this one sends to: others, to rank 0 or to mpirun, may be busier.
    """

    def __init__(self, connections: Collection[Connection]) -> None:
        self._connections = connections
        self._before: dict[object, int] = {}

    def __call__(self) -> float:
        """Return bytes a second; 0 where nothing was sent over TCP since the last call, or the system does not say."""
        flows = carried(open_sockets()) if self._connections else {}
        now = {ends: flow for ends, flow in flows.items() if ends in self._connections}
        grown = {ends: flow.acknowledged - self._before.get(ends, 0) for ends, flow in now.items()}
        self._before = {ends: flow.acknowledged for ends, flow in now.items()}
        busiest = max(grown, key=lambda ends: grown[ends], default=None)
        return float(now[busiest].delivery_rate) if busiest is not None and grown[busiest] else 0.0


def to_ranks(group: Group) -> dict[Connection, int]:
    """Return this process's TCP connections to other ranks, and to which each goes; every rank calls this.

    Ranks of one host may have none between them: their messages go through memory.
    """
    own = [Box((Span(rank, rank + 1), Span(0, 1))) for rank in range(group.size)]
    everyone = [Box.whole(group.size, 1)] * group.size
    exchanged(group, np.zeros((1, 1), np.float32), own, everyone)  # the first message connects
    told = group.on_all(lambda: [*carried(open_sockets())])
    owners = {ends: rank for rank, own in enumerate(told) for ends in own if rank != group.rank}
    return {(here, there): owners[there, here] for here, there in told[group.rank] if (there, here) in owners}
