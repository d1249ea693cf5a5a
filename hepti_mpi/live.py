"""The plan is alive: every rank's part in it. Rank 0 decides, in `hepti_mpi.conductor`."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hepti_mpi.batch import Batch
from hepti_mpi.comm import Group
from hepti_mpi.monitor import Measured, Monitor
from hepti_mpi.move import Adopt, Mover, Prepare
from hepti_mpi.stack import Stack


@dataclass(slots=True)
class Member:
    """One rank's part: its layers, its changes, its measurements."""

    group: Group
    stack: Stack
    mover: Mover
    monitor: Monitor
    change: int = 0
    budget_s: float = 0.0

    def measured(self, batch: int) -> Measured:
        """Return what the last batch showed, under the number that rank 0 gave it."""
        stack, mover = self.stack, self.mover
        return Measured(
            batch, stack.last.compute_s if stack.active else 0.0, stack.last.wait_s, self.monitor.flows(),
            self.monitor.free(), self.monitor.take_probe(), self.change, mover.ready, mover.short,
        )  # fmt: skip

    def prepare(self, word: Prepare) -> None:
        """Begin a change of plan."""
        self.change += 1
        self.budget_s = word.budget_s
        self.mover.prepare(word.plan)

    def work(self) -> None:
        """Work on a change, for as long as requests may wait for it."""
        until = time.perf_counter() + self.budget_s
        while self.mover.busy and self.mover.step() and time.perf_counter() < until:
            pass

    def idle(self) -> bool:
        """Do a bounded piece of what can be done while nothing is asked; return whether there was any."""
        if self.mover.busy and self.mover.step():
            return True
        return not self.stack.active and self.monitor.probe()


def follow(member: Member, lives: bool) -> None:
    """Do what rank 0 says until it says that all is done; where the plan `lives`, prepare changes meanwhile."""
    while (word := member.group.next_message(member.idle if lives else None)) is not None:
        if isinstance(word, Prepare):
            member.prepare(word)
        elif isinstance(word, Adopt):
            member.mover.adopt(word.layers)
        else:
            member.stack.run(Batch.of_lengths(word.lengths), None, count=word.count, exact=word.exact)
            if word.tell is not None:
                member.group.tell_root(member.measured(word.tell))
            if member.mover.busy:
                member.work()
