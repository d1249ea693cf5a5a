"""The sum of what some ranks each computed a part of, on all ranks of a stage: twice a layer, many times a token.

In one step every rank sends its summand to all, and all add in rank order. In two each rank adds up its part of the
numbers, and sends the sums to all: fewer bytes for more messages. All ranks have equal sums, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.mpi import MPI, Tag
from hepti_mpi.comm.wires import EXACT, Coding, Message
from solver.base.arrays import Array
from solver.base.spans import Partition
from solver.plan.decoder_plan import ROWS_BY_MPI
from solver.schedule.decoders.cost import block_width

Coded = Sequence[tuple[Message, Array]]  # messages, and the blocks that they are of


@dataclass(frozen=True, slots=True, eq=False)
class Leg:
    """An exchange of blocks, always the same arrays.

    Parameters
    ----------
    coding
        How blocks travel.
    leaving, arriving
        What is encoded before, and decoded behind; nothing where arrays travel as they are.
    exchange
        Sends and receives.
    """

    coding: Coding
    leaving: Coded
    arriving: Coded
    exchange: Callable[[], None]

    def run(self) -> None:
        """Exchange the blocks as they are now."""
        for message, blocks in self.leaving:
            message[...] = self.coding.encode(blocks)
        self.exchange()
        for message, blocks in self.arriving:
            self.coding.decode(message, blocks)


class Summands:
    """The exchange of the summands of one half layer, for so many rows; its buffers serve every layer in turn.

    Parameters
    ----------
    group
        All ranks of the job.
    direct
        Its connections, by which fewer rows than `ROWS_BY_MPI` go.
    stage
        The ranks that need the sum; this one is among them.
    senders
        Those of them that have a summand, in ascending order.
    rows, width
        Of a summand.
    coding
        How numbers travel: by blocks of 32 of them.
    two_steps_from
        From how many rows on they go in two steps.

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
        two_steps_from: int = ROWS_BY_MPI,
    ) -> None:
        self._group, self._direct, self._coding, self._senders = group, direct, coding, senders
        self._others = [peer for peer in group.others() if peer in stage]
        self._slots = np.zeros((len(senders), rows, width), np.float32)
        self.part = self._slots[senders.index(group.rank)] if group.rank in senders else None
        self.total = self._slots[0] if len(senders) == 1 else np.empty((rows, width), np.float32)
        in_stage = [float(peer in stage) for peer in range(group.size)]
        if rows >= ROWS_BY_MPI and self._others:
            self._own = Partition.of_shares(in_stage, rows)
            self._steps = [self._by_mpi]
        elif rows >= two_steps_from and self._others:
            self._steps = self._two_steps(Partition.of_shares(in_stage, _blocks(self.total).shape[0]))
        else:
            self._steps = self._one_step()

    def run(self) -> None:
        """Make `total` of all ranks' `part`."""
        for step in self._steps:
            step()

    def _one_step(self) -> list[Callable[[], None]]:
        arriving = {
            peer: _blocks(self._slots[self._senders.index(peer)]) for peer in self._others if peer in self._senders
        }
        leaving = [] if self.part is None else [(_blocks(self.part), self._others)]
        leg = self._leg(leaving, arriving)
        # All ranks add what travelled.
        own = [partial(self._coding.decode, *coded) for coded in leg.leaving]
        return [leg.run, *own, partial(_add, self._slots, self.total)]

    def _two_steps(self, own: Partition) -> list[Callable[[], None]]:
        """Return the steps where each rank adds up its part of the blocks."""
        total, mine = _blocks(self.total), own[self._group.rank].slice
        slots = self._slots.reshape(len(self._senders), *total.shape, copy=False)[:, mine]
        others = [peer for peer in self._others if own[peer].size]
        leaving = [] if self.part is None else [(_blocks(self.part)[own[peer].slice], [peer]) for peer in others]
        summands = self._leg(leaving, {peer: slots[n] for n, peer in enumerate(self._senders) if peer in self._others})
        sums = self._leg([(total[mine], self._others)], {peer: total[own[peer].slice] for peer in others})
        # All ranks go on with what travelled.
        as_sent = [partial(self._coding.decode, *coded) for coded in sums.leaving]
        return [summands.run, partial(_add, slots, total[mine]), sums.run, *as_sent]

    def _leg(self, leaving: Sequence[tuple[Array, Sequence[int]]], arriving: Mapping[int, Array]) -> Leg:
        """Return the exchange of blocks that go to some peers each, and of those that come."""
        sent = [(self._coding.encode(blocks), blocks, peers) for blocks, peers in leaving if blocks.size]
        coming = {peer: (self._coding.message(place), place) for peer, place in arriving.items() if place.size}
        exchange = self._direct.exchange(
            {peer: message for message, _, peers in sent for peer in peers},
            {peer: message for peer, (message, _) in coming.items()},
        )
        coded = self._coding is not EXACT
        return Leg(
            self._coding, [(message, blocks) for message, blocks, _ in sent] * coded, [*coming.values()] * coded,
            exchange.run,
        )  # fmt: skip

    def _by_mpi(self) -> None:
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
