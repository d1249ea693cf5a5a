"""The sum of what some ranks each computed a part of, on all ranks of a stage: twice a layer, many times a token.

In one step every rank sends its summand to all, and all add in rank order. In two each rank adds up its part of the
numbers, and sends the sums to all: fewer bytes for more messages. All ranks have equal sums, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.transfer import InBox, Item, RankExchange
from hepti_mpi.comm.wires import EXACT, Coding
from solver.base.spans import Partition
from solver.plan.decoder_plan import ROWS_BY_MPI
from solver.plan.layout import Box, Layout
from solver.schedule.decoders.cost import block_width


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
    run
        Makes `total` of all ranks' `part`.
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
        self.total = np.empty((rows, width), np.float32)
        alone = list(senders) == [group.rank]  # the sum is its summand
        self.part = self.total if alone else np.empty_like(self.total) if group.rank in senders else None
        total = self.total.reshape(-1, block_width(width), copy=False)
        whole = Box.whole(*total.shape)
        have = Layout.of((whole if peer in senders else None for peer in range(group.size)), partial=len(senders) > 1)
        want = Layout.of(whole if peer in stage else None for peer in range(group.size))
        part = [] if self.part is None else [(whole, self.part.reshape(total.shape, copy=False))]
        between: list[tuple[Layout, Sequence[InBox]]] = []
        if rows >= two_steps_from and len(stage) > 1:
            own = Partition.of_shares([float(peer in stage) for peer in range(group.size)], len(total))
            boxes = [Box((span, whole.spans[1])) for span in own]
            between = [(Layout.of(boxes), [(boxes[group.rank], total[own[group.rank].slice])])]
        legs = [(have, part), *between, (want, [(whole, total)])]
        self._calls: list[Callable[[], None]] = []
        for (one, lies), (other, goes) in pairwise(legs):
            transfer = RankExchange(group, [Item(one, other, lies, goes)], coding, equal=other is want)
            self._calls.append(transfer.run if rows >= ROWS_BY_MPI else transfer.over(direct))
        if rows >= ROWS_BY_MPI:
            self._calls.append(group.finish_sending)  # the arrays are written again in the next run

    def run(self) -> None:
        """Make `total` of all ranks' `part`."""
        for call in self._calls:
            call()
