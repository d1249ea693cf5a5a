"""Every rank's part in what rank 0 says: batches, other plans, and changes of a plan that is alive.

Rank 0 decides, in `hepti_mpi.engine.engine` and `hepti_mpi.live.conductor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from hepti_mpi.comm.group import Group
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.flow import BatchOrder
from hepti_mpi.engine.layers import LayerKernels
from hepti_mpi.engine.stack import PlanOrder, Stack
from hepti_mpi.live.change_over import Adopt, Mover, Prepare
from hepti_mpi.live.monitor import Measured, Monitor, PartialReport
from hepti_mpi.live.sums import SumsOrder
from hepti_mpi.live.within_request import HOLDS
from solver.plan.plan import Plan

# From one batch to the next: rank 0 listens only after batches, and hours may pass between two.
MOST_PROBES = 8


@dataclass(slots=True)
class Member:
    """One rank's part: its layers, its changes, its measurements."""

    group: Group
    stack: Stack
    mover: Mover
    monitor: Monitor
    change: int = 0
    probes: int = 0  # since the last batch

    def measured(self, batch: int) -> Measured:
        """Return what the last batch showed, under the number that rank 0 gave it."""
        stack, mover = self.stack, self.mover
        return Measured(
            batch, stack.last.compute_s if stack.active else 0.0, stack.last.wait_s, self.monitor.flows(),
            self.monitor.room(), self.change, mover.ready, mover.short,
        )  # fmt: skip

    def look(self, step: BatchOrder, layer: int) -> tuple[Plan, Sequence[LayerKernels]] | None:
        """Do this rank's part in looks before a layer, as `StageShare.run` asks."""
        if layer - HOLDS in step.looks and (word := self.group.decisions.take()) is not None:
            plan = cast(Plan, word)
            return plan, self.mover.kernels(plan)
        if layer in step.looks:
            assert step.tell is not None
            self.group.reports.send(PartialReport(step.tell, layer, *self.stack.so_far), [0])
        return None

    def prepare(self, word: Prepare) -> None:
        """Begin a change of plan."""
        self.change += 1
        self.mover.prepare(word.plan, word.frees, word.spare, word.budget_s)

    def change_plan(self, word: Prepare | Adopt) -> None:
        """Do what rank 0 says of a change of plan."""
        if isinstance(word, Prepare):
            self.prepare(word)
        else:
            self.mover.adopt(word.layers)

    def ran(self, tell: int | None) -> None:
        """Tell rank 0 what the batch that just ran showed, if it wants to know, and work on a change."""
        self.probes = 0
        if tell is not None:
            self.group.reports.send(self.measured(tell), [0])
        if self.mover.busy:
            self.mover.work()

    def idle(self) -> bool:
        """Do a bounded piece of what can be done while nothing is asked; return whether there was any."""
        if self.mover.busy and self.mover.step():
            return True
        if self.stack.active or self.probes == MOST_PROBES or (probe := self.monitor.probe()) is None:
            return False
        self.probes += 1
        self.group.reports.send(probe, [0])
        return True


def follow(group: Group, stack: Stack, member: Member | None = None) -> None:
    """Do what rank 0 says until it says that all is done; where the plan lives, prepare changes meanwhile."""
    while (word := group.orders.take(member.idle if member else None)) is not None:
        if isinstance(word, BatchOrder):
            look = partial(member.look, word) if member and word.looks else None
            stack.run(Batch.of_lengths(word.lengths), None, count=word.count, exact=word.exact, look=look)
            if member:
                member.ran(word.tell)
        elif isinstance(word, SumsOrder):
            group.sums.send(stack.meter, [0])
        elif isinstance(word, PlanOrder):
            stack.follow(word)
        else:
            assert member is not None
            member.change_plan(word)
