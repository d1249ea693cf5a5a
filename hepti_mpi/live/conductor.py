"""Rank 0's side of a plan that lives: it hears what was measured, decides, and tells all ranks when to change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hepti_mpi.comm.tcp import between_ranks
from hepti_mpi.engine.layers import LayerKernels
from hepti_mpi.live.batch_reports import BatchReports, Begun
from hepti_mpi.live.change_over import Adopt, Prepare
from hepti_mpi.live.member import Member
from hepti_mpi.live.monitor import PROBE_ROWS, PROBE_S, Measured, PartialReport, Probe
from hepti_mpi.live.within_request import HEARD, HOLDS, done_before, looks
from solver.base import clock
from solver.cluster.curves import Bank, Kernel
from solver.live.drift import Drift
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan

if TYPE_CHECKING:
    from solver.live.decision import Decision
    from solver.live.replan import Replanner  # only rank 0 plans

# Telling, hearing and following takes rank 0 about a millisecond: not more often than this.
LISTEN_EVERY_S = 0.1
# What others say of a batch is here within milliseconds after it. Where a device seems to have changed, rank 0 waits
# for it this part of the batch's time: a word that comes too late makes the change a request later.
HEARING = 0.1
# Requests wait for rank 0's own probe, where it has no share: half a percent of the time.
OWN_PROBE_EVERY_S = 10.0
DECISIONS = 1000  # that are kept for the report: about a MiB
HIDDEN = 2.0  # probes: requests that take longer do not wait for one


class Conductor:
    """Rank 0's side: hears what was measured, decides, and tells all ranks when to change.

    Parameters
    ----------
    spec
        The model.
    member
        Rank 0's own part.
    replanner
        Decides.
    acts
        Whether decisions are carried out; else they are only said.
    say
        Takes every decision's line.
    """

    def __init__(
        self, spec: ModelSpec, member: Member, replanner: Replanner, acts: bool, say: Callable[[str], object]
    ) -> None:
        self._spec, self._member, self._replanner, self._acts, self._say = spec, member, replanner, acts, say
        self.show: Callable[[Conductor], object] = lambda _: None  # after every batch
        self._started = clock.now()
        self._ranks = member.group.size
        self._reports = BatchReports(self._ranks)
        self._batches = 0  # begun so far
        self._listens = True  # whether the ranks tell what they measure of the batch that runs
        self._listened_at = -LISTEN_EVERY_S
        self._waited_s = 0.0  # of rank 0 in the last batch
        self._rows, self._row_s = 0, 0.0  # of the last batch, and how long each took
        self.looks: tuple[int, ...] = ()  # before which layers of the batch that runs the ranks look up
        self._shifted = False  # whether a part of it showed that a device's speed has changed
        self._decided: Decision | None = None  # within it
        self._holds: Plan | None = None  # from the last look on
        self._flows = (np.zeros((self._ranks, self._ranks)), np.zeros((self._ranks, self._ranks)))
        self._first_room: list[int | None] = [None] * self._ranks  # bytes
        self._ready = [spec.layers] * self._ranks
        self._short = [False] * self._ranks
        self._adopted = 0
        self.latest: Sequence[Measured] = ()
        self.decisions: deque[dict[str, Any]] = deque(maxlen=DECISIONS)  # the last ones
        self.decided = 0  # how many there were
        self.replanned = 0  # how many of them were carried out

    @property
    def drift(self) -> Drift:
        """What is known of the devices now."""
        return self._replanner.drift

    @property
    def lines(self) -> list[str]:
        """The last decisions, as a person reads them."""
        return [entry["line"] for entry in self.decisions]

    def begin(self, rows: int) -> int | None:
        """Begin a batch of `rows` rows; return the number under which the ranks tell what they measure; None: not.

        After very short ones nobody tells anything: it would take longer than 1 % of their time.
        """
        self._batches += 1
        now = clock.now()
        self._listens = now - self._listened_at >= LISTEN_EVERY_S
        self.looks, self._shifted, self._rows = (), False, rows
        if not self._listens:
            return None
        self._listened_at = now
        plan = self._member.stack.plan
        self._reports.begin(self._batches, plan, rows)
        active = plan.stages[0].active
        # Rank 0 has to compute, or else it is not there to look up; and a rank alone has nobody to share work with.
        if not self._member.mover.busy and active[0] == 0 and len(active) > 1:
            # Short by either: the profile may be far off, and what a short batch took says little of a long one.
            self.looks = looks(self._spec.layers, rows * min(plan.predicted_s / plan.rows, self._row_s))
        return self._batches

    def look(self, layer: int) -> tuple[Plan, Sequence[LayerKernels]] | None:
        """Do rank 0's part in looks before a layer, as `StageShare.run` asks."""
        if layer - HEARD in self.looks:
            started = clock.now()
            self._give_word(layer - HEARD + HOLDS)
            self._member.group.traffic.waited(started)  # it is no time in which rank 0 computes
        if layer - HOLDS in self.looks and self._holds is not None:
            return self._holds, self._member.mover.kernels(self._holds)
        if layer in self.looks:
            self._hear(0, PartialReport(self._batches, layer, *self._member.stack.so_far))
        return None

    def _give_word(self, at_layer: int) -> None:
        """Decide upon what the ranks have told of the last look, and tell them what holds from a layer on."""
        member = self._member
        self._listen()
        if self._shifted and self._decided is None:
            self._shifted = False
            self._replanner.take(member.stack.plan, member.mover.holdings)
            self._decided = self._decide(at_layer)
        member.group.decisions.send(self._holds, member.stack.plan.stages[0].active)

    def _fits(self, decision: Decision) -> bool:
        """Return whether a plan can take over within a batch: among the ranks that run it, with what they have."""
        plan, active = decision.plan, self._member.stack.plan.stages[0].active
        return {*plan.stages[0].active} <= {*active} and not decision.frees and not self._moves(plan, decision.frees)

    def meanwhile(self) -> None:
        """Probe rank 0, where it has no share, while the others compute; seldom, where requests would wait for it."""
        if not self._member.stack.active:
            every_s = None if self._waited_s > HIDDEN * PROBE_S else OWN_PROBE_EVERY_S
            if (probe := self._member.monitor.probe(every_s)) is not None:
                self._hear(0, probe)

    def ran(self) -> None:
        """Take note of the batch that has just run, and do what can be done between two."""
        mover = self._member.mover
        last = self._member.stack.last
        self._waited_s, self._row_s = last.wait_s, (last.compute_s + last.wait_s) / self._rows
        self._holds = None
        if self._listens:
            self._take_in()
        decision, self._decided = self._decided, None
        if decision is None and self._listens and (not mover.busy or mover.turns):
            # In the middle of a move, too: where the devices have changed again, it may be for nothing.
            self._replanner.take(self._member.stack.plan, mover.holdings)
            decision = self._decide()
        if decision is not None:
            self._act(decision)
        elif mover.busy:
            self._go_on()
        while self._member.group.orders.leaving():  # while rank 0 waits for the next request, MPI moves nothing
            self._member.group.pause()
        self.show(self)

    def _take_in(self) -> None:
        """Hear what others say, and hand on what all have spoken of."""
        own = self._member.measured(self._batches)
        self._hear(0, own)
        self._listen()
        until = clock.now() + HEARING * (own.compute_s + own.wait_s)
        while self.drift.doubtful and self._reports.waits(own.batch) and clock.now() < until:
            self._member.group.pause()
            self._listen()

    def _listen(self) -> None:
        """Hear what is here, and hand on, in order, what all ranks have spoken of."""
        while (found := self._member.group.reports.poll()) is not None:
            self._hear(*found)
        for begun, parts in self._reports.complete():
            if parts is None:
                self._observe(begun)
            else:
                self._observe_part(begun, parts)

    def _hear(self, rank: int, word: Measured | PartialReport | Probe) -> None:
        if isinstance(word, Probe):
            H = self._spec.hidden
            curves = Bank([self.drift.profile.devices[rank].kernels])
            due_s = float(curves.seconds(Kernel.CONTRACT, PROBE_ROWS, H * H)[0])
            self.drift.probed(rank, due_s / word.product_s)
            return
        self._reports.take(rank, word)
        if isinstance(word, Measured) and word.change == self._member.change:
            self._ready[rank], self._short[rank] = word.ready, word.short

    def _observe_part(self, begun: Begun, parts: Mapping[int, PartialReport]) -> None:
        """Hand on what those that compute measured of a batch up to a layer."""
        compute_s, wait_s = np.zeros((2, self._ranks))
        for rank, part in parts.items():
            compute_s[rank], wait_s[rank] = part.compute_s, part.wait_s
        done = done_before(self._spec, begun.plan, begun.rows, parts[0].layer)
        self._shifted |= self._replanner.observe_part(begun.plan, begun.rows, compute_s.tolist(), wait_s.tolist(), done)

    def _observe(self, begun: Begun) -> None:
        """Hand on what all ranks measured of one batch."""
        plan, by_rank = begun.plan, begun.words
        self.latest = [by_rank[rank] for rank in range(self._ranks)]
        totals = between_ranks({rank: measured.flows for rank, measured in by_rank.items()}, self._ranks)
        since = [np.maximum(now - before, 0.0) for now, before in zip(totals, self._flows, strict=True)]
        self._flows = totals
        compute_s, wait_s = zip(*((measured.compute_s, measured.wait_s) for measured in self.latest), strict=True)
        if begun.torn:  # under which plan they computed how much of it, nobody knows
            compute_s = (0.0,) * self._ranks
        self._replanner.observe(plan, begun.rows, compute_s, wait_s, *since)
        drift = self.drift
        for rank, measured in enumerate(self.latest):
            first = self._first_room[rank]
            if first is None:
                self._first_room[rank] = measured.room_bytes
            else:
                drift.free_memory(rank, drift.profile.devices[rank].memory_bytes - (first - measured.room_bytes))

    def _decide(self, at_layer: int | None = None) -> Decision | None:
        """Decide, and say so; return what is to be done, if anything: where it fits, from a layer of this batch on."""
        started = clock.now()
        decision = self._replanner.decide(self._member.mover.aim, now_only=at_layer is not None)
        if decision is None:
            return None
        now = clock.now()
        acts = self._acts and decision.taken
        line = decision.line
        if at_layer is not None and acts and self._fits(decision):
            self._holds = decision.plan
            self._reports.tear(self._batches)
            line += f"; from layer {at_layer} of the request that runs"
        if not self._acts:
            self._say(f"dry run: {line}")
        elif decision.taken:
            self._say(line)
        entry = decision.to_table(self._batches, now - self._started)
        facts = {"line": line, "at_layer": at_layer if self._holds else None}
        self.decided += 1
        self.replanned += acts
        self.decisions.append(entry | facts | {"solve_s": now - started, "acted": acts})
        return decision if acts else None

    def _moves(self, plan: Plan, frees: tuple[int, ...]) -> bool:
        """Return whether any rank has other weights under a plan."""
        holdings = self._member.mover.holdings
        return any(holdings.lacking(self._spec, plan, rank, frees) for rank in range(self._ranks))

    def _act(self, decision: Decision) -> None:
        """Begin to change over between two batches."""
        moves = self._moves(decision.plan, decision.frees) or decision.spare is not None
        word = Prepare(decision.plan, decision.before_s / self._spec.layers, decision.frees, decision.spare)
        self._member.group.orders.send(word, range(self._ranks))
        self._member.prepare(word)
        self._ready = [0 if moves else self._spec.layers] * self._ranks
        self._adopted = 0
        self._go_on()

    def _go_on(self) -> None:
        """Prepare some more, and adopt what all ranks have prepared: all of it, or what frees memory."""
        self._member.mover.work()
        if self._ready[0] < self._spec.layers:
            self._ready[0], self._short[0] = self._member.mover.ready, self._member.mover.short
        layers = min(self._ready)
        if layers == self._spec.layers or (any(self._short) and layers > self._adopted):
            self._adopted = layers
            self._member.group.orders.send(Adopt(layers), range(self._ranks))
            self._member.mover.adopt(layers)
