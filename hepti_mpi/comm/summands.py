"""The sum of what some ranks each computed a part of, on all ranks of a stage: twice a layer, many times a token.

Few rows go in one step: every rank sends its summand to all, and all add in rank order. Many rows go in two: each rank
adds up its part of the rows, and sends the sums to all. All ranks have equal sums, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.mpi import MPI, Tag
from hepti_mpi.comm.wires import EXACT, Coding, Message
from solver.base.arrays import Array
from solver.base.spans import Partition
from solver.schedule.decoders.cost import block_width, in_two_steps


class Summands:
    """The exchange of the summands of one half layer, for so many rows; its buffers serve every layer in turn.

    Parameters
    ----------
    group
        All ranks of the job.
    direct
        Its connections, by which few rows go.
    stage
        The ranks that need the sum; this one is among them.
    senders
        Those of them that have a summand, in ascending order.
    rows, width
        Of a summand.
    coding
        How numbers travel: by blocks of 32 of them.

    Attributes
    ----------
    part : [rows, width]
        This rank's summand, to be written before `run`; None where it has none.
    total : [rows, width]
        The sum.
    """

    def __init__(
        self,
        group: Group,
        direct: Direct,
        stage: Sequence[int],
        senders: Sequence[int],
        rows: int,
        width: int,
        coding: Coding = EXACT,
    ) -> None:
        self._group, self._coding, self._senders = group, coding, senders
        self._others = [peer for peer in group.others() if peer in stage]
        self._slots = np.zeros((len(senders), rows, width), np.float32)
        self.part = self._slots[senders.index(group.rank)] if group.rank in senders else None
        self.total = self._slots[0] if len(senders) == 1 else np.empty((rows, width), np.float32)
        self._own = Partition.of_shares([float(peer in stage) for peer in range(group.size)], rows)
        self._two = in_two_steps(rows, len(stage))
        if self._two:
            return
        places = {peer: _blocks(self._slots[senders.index(peer)]) for peer in self._others if peer in senders}
        arriving = {peer: coding.message(place) for peer, place in places.items()}
        message = None if self.part is None else coding.encode(_blocks(self.part))
        exchange = direct.exchange({} if message is None else dict.fromkeys(self._others, message), arriving)
        # What is done of a run, in lists that are empty where numbers travel as they are.
        coded = coding is not EXACT
        self._leaving = [] if self.part is None or message is None else [(message, _blocks(self.part))] * coded
        self._arriving = [(arriving[peer], place) for peer, place in places.items()] * coded
        self._exchange = exchange.run

    def run(self) -> None:
        """Make `total` of all ranks' `part`."""
        if self._two:
            self._in_two_steps()
            return
        for message, part in self._leaving:
            message[...] = self._coding.encode(part)
            self._coding.decode(message, part)  # all ranks add what travelled
        self._exchange()
        for message, place in self._arriving:
            self._coding.decode(message, place)
        _add(self._slots, self.total)

    def _in_two_steps(self) -> None:
        group, coding, own, rank = self._group, self._coding, self._own, self._group.rank
        with_rows = [peer for peer in self._others if own[peer].size]
        slots = self._slots[:, own[rank].slice]
        parts = [slots[number] for number, peer in enumerate(self._senders) if peer != rank and own[rank].size]
        peers = [peer for peer in self._senders if peer != rank and own[rank].size]
        sums = [self.total[own[peer].slice] for peer in with_rows]
        parts_in, first = self._receiving(parts, peers, Tag.SUMMAND)
        sums_in, second = self._receiving(sums, with_rows, Tag.SUMMED)
        if self.part is not None:
            for peer in with_rows:
                group.post_send(coding.encode(_blocks(self.part[own[peer].slice])), peer, Tag.SUMMAND)
        group.wait_all(first)
        for message, place in parts_in:
            coding.decode(message, place)
        if own[rank].size:
            total = self.total[own[rank].slice]
            _add(slots, total)
            message = coding.encode(_blocks(total))
            if coding is not EXACT:
                coding.decode(message, _blocks(total))  # all ranks go on with what travelled
            for peer in self._others:
                group.post_send(message, peer, Tag.SUMMED)
        group.wait_all(second)
        for message, place in sums_in:
            coding.decode(message, place)
        group.finish_sending()

    def _receiving(
        self, places: Sequence[Array], peers: Sequence[int], tag: int
    ) -> tuple[list[tuple[Message, Array]], list[MPI.Request]]:
        """Begin to receive from ranks; return what arrives with where it goes, and the receives."""
        arriving = [(self._coding.message(_blocks(place)), _blocks(place)) for place in places]
        pairs = zip(arriving, peers, strict=True)
        return arriving, [self._group.post_receive(message, peer, tag) for (message, _), peer in pairs]


def _blocks(x: Array) -> Array:
    """Return an array as blocks that have a scale each where they travel in few bits."""
    return x.reshape(-1, block_width(x.shape[-1]), copy=False)


def _add(slots: Array, total: Array) -> None:
    """Add up in rank order: all ranks must, or their streams drift apart."""
    if len(slots) == 1:  # it is the sum already
        return
    np.add.reduce(slots, 0, out=total)
