"""The engine: takes batches of requests at any time, runs them on all ranks, several at once, and answers in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from hepti_mpi.comm.group import Group
from hepti_mpi.engine.batch import Batch
from hepti_mpi.engine.flow import BatchOrder, Flow
from hepti_mpi.engine.layers import LayerKernels
from hepti_mpi.engine.stack import PlanOrder, Stack
from hepti_mpi.kernels import embeddings
from hepti_mpi.requests.answers import Answer, entry_of
from hepti_mpi.requests.inputs import Request
from solver.base import clock
from solver.base.arrays import Array
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan


class LivePlan(Protocol):
    """What lets the plan follow the ranks' measurements, batch by batch: `hepti_mpi.live.conductor`."""

    looks: tuple[int, ...]

    def begin(self, rows: int) -> int | None:
        """Begin a batch; return what `BatchOrder.tell` is."""

    def meanwhile(self) -> object:
        """Do what can be done while the others compute."""

    def look(self, layer: int) -> tuple[Plan, Sequence[LayerKernels]] | None:
        """Do rank 0's part in looks before a layer."""

    def ran(self) -> object:
        """Change the plan, if it should be another, after a batch that is answered."""


class PlanSource(Protocol):
    """Says under which plan the next batch runs: `solver.live.trials`."""

    @property
    def several(self) -> bool:
        """Whether there is more than one plan."""

    @property
    def settled(self) -> bool:
        """Whether one stays; until then batches run one by one, each followed by `ran`."""

    @property
    def number(self) -> int:
        """Which of the plans that were loaded the next batch runs under."""

    def of(self, rows: int) -> Plan:
        """Return that plan, with shares for so many rows."""

    def ran(self, rows: int, seconds: float) -> object:
        """Take how long a batch of so many rows took."""


@dataclass(slots=True, eq=False)
class Submitted:
    """A batch of requests, arguments of `Engine.submit`, and when it began."""

    requests: Sequence[Request]
    count: bool
    exact: bool
    began: float = 0.0


class Engine:
    """Runs batches under the plan for their rows; holds no more than what is not answered. On rank 0 only.

    `live`, if set, changes the plan between batches, which then run one by one.

    Parameters
    ----------
    spec
        The model.
    tensors
        Those before and after the layers.
    stack
        Rank 0's.
    group
        All ranks.
    plans
        Says under which plan batches run; None: that of the stack.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tensors: embeddings.EndTensors,
        stack: Stack,
        group: Group,
        plans: PlanSource | None = None,
    ) -> None:
        self.live: LivePlan | None = None
        self._spec, self._tensors, self._stack, self._group = spec, tensors, stack, group
        self._plans, self._order = plans, PlanOrder(stack.plan)
        self._flow = Flow(stack, group)
        self._waiting: deque[Submitted] = deque()
        self._under_way: deque[Submitted] = deque()
        self._follows = False  # whether the plan has yet to follow the batch that was answered last

    @property
    def idle(self) -> bool:
        """Whether nothing is under way and nothing waits."""
        return not (self._waiting or self._under_way or self._follows)

    def submit(self, requests: Sequence[Request], *, count: bool = True, exact: bool = False) -> None:
        """Take a batch of requests; whether it counts in the report, and travels exactly, whatever the wire."""
        self._waiting.append(Submitted(requests, count, exact))

    def step(self) -> list[Answer]:
        """Carry on what can go on, or pause a little; return the answers that are done, in the order of submission."""
        if self.live and self._follows:
            self.live.ran()  # now, since nobody should wait for an answer while the plan changes
            self._follows = False
        self._admit()
        answers: list[Answer] = []
        for hidden in self._flow.step(self.live.meanwhile if self.live else None):
            submitted = self._under_way.popleft()
            if self._plans and not submitted.exact:
                self._plans.ran(len(hidden), clock.now() - submitted.began)
            answers += self._answers(submitted, hidden)
            self._follows = self.live is not None
        return answers

    def run_by(self, order: PlanOrder) -> None:
        """Let all ranks go on under a plan; those without a share hear of it, too."""
        self._group.orders.send(order, self._group.others())
        self._stack.follow(order)
        self._order = order

    def serve(
        self, source: Iterable[Iterable[Sequence[Request]]], *, count: bool = True, exact: bool = False
    ) -> Iterator[Answer]:
        """Yield the answers to what a source gives: the batches that it has; it is asked again after every step."""
        for batches in source:
            for requests in batches:
                self.submit(requests, count=count, exact=exact)
            yield from self.step()
        while not self.idle:
            yield from self.step()

    def _admit(self) -> None:
        """Let batches begin, in order, that may run beside what is under way: those of the same plan, if it stays."""
        live = self.live
        while self._waiting:
            submitted = self._waiting[0]
            lengths = tuple(request.rows for request in submitted.requests)
            order = self._order_for(sum(lengths))
            if self._under_way and (live or order != self._order or (self._plans and not self._plans.settled)):
                return
            if order != self._order:
                self.run_by(order)
            tell, looks, look = (live.begin(sum(lengths)), live.looks, live.look) if live else (None, (), None)
            step = BatchOrder(lengths, submitted.count, submitted.exact, tell, looks)
            self._flow.submit(step, partial(self._embed, submitted), look)
            self._under_way.append(self._waiting.popleft())

    def _order_for(self, rows: int) -> PlanOrder:
        """Return under which plan a batch of so many rows runs."""
        if (plans := self._plans) is None:
            return self._order
        return PlanOrder(plans.of(rows), plans.number, plans.several and plans.settled)

    def _embed(self, submitted: Submitted) -> Array:
        submitted.began = clock.now()
        asked = [(request.content, request.types) for request in submitted.requests]
        return np.concatenate([embeddings.embed(self._spec, self._tensors, *one) for one in asked])

    def _answers(self, submitted: Submitted, hidden: Array) -> Iterator[Answer]:
        """Yield a batch's answers, given what the last layer gives [S, H]."""
        requests = submitted.requests
        hidden = embeddings.last_hidden(self._spec, self._tensors, hidden)
        spans = Batch.of_lengths([request.rows for request in requests]).requests
        states = [hidden[span.slice] for span in spans]
        results = [
            embeddings.result(self._spec, self._tensors, state, pair=request.pair)
            for request, state in zip(requests, states, strict=True)
        ]
        seconds = clock.now() - submitted.began
        for request, state, result in zip(requests, states, results, strict=True):
            entry = entry_of(request, seconds, result)
            yield Answer(entry, state, len(hidden), submitted.count, request.line)
