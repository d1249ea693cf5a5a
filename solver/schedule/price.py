"""`Price`: what a plan costs, step by step: seconds, and bytes on the wire."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solver.cluster.curves import Floats
from solver.plan.plan import Prediction
from solver.schedule.timing import Times


@dataclass(frozen=True, slots=True, eq=False)
class PricedStep:
    """A step of the plan; `repeats` times in a row of layers, `layers` says which, `block` the kind of block."""

    layers: str
    name: str
    computes: tuple[str, ...]  # what is computed before the exchange, and what meanwhile
    meanwhile: tuple[str, ...]
    repeats: int
    times: Times
    sent: Floats  # [p] bytes
    received: Floats  # [p] bytes
    block: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Price:
    """What a request costs, step by step."""

    steps: tuple[PricedStep, ...]
    weights_bytes: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Seconds of the whole request."""
        return math.fsum(step.repeats * float(step.times.end.max()) for step in self.steps)

    @property
    def compute_s(self) -> Floats:
        """Seconds that every device computes, [p]."""
        return np.asarray(sum(step.repeats * step.times.compute for step in self.steps))

    @property
    def handled_s(self) -> Floats:
        """Seconds of these in which every device codes, handles and adds up messages, [p]."""
        return np.asarray(sum(step.repeats * step.times.handled for step in self.steps))

    @property
    def exchange_s(self) -> Floats:
        """Seconds that every device waits for an exchange that its compute does not hide, [p]."""
        waits = (
            step.repeats * np.minimum(np.maximum(step.times.end - step.times.compute, 0.0), step.times.exchange)
            for step in self.steps
        )
        # Where ranks begin steps at different times, some compute meanwhile.
        return np.asarray(np.minimum(sum(waits), np.maximum(self.seconds - self.compute_s, 0.0)))

    @property
    def idle_s(self) -> Floats:
        """Seconds that every device waits for slower ones, [p]."""
        return np.asarray(self.seconds - self.compute_s - self.exchange_s)

    @property
    def moved_bytes(self) -> Floats:
        """Bytes that every device sends, or receives where that is more, [p]."""
        sent = sum(step.repeats * step.sent for step in self.steps)
        return np.maximum(sent, sum(step.repeats * step.received for step in self.steps))

    @property
    def prediction(self) -> Prediction:
        """What the plan file carries: the seconds in which the busiest device computes, and the rest."""
        compute_s = min(float(self.compute_s.max()), self.seconds)
        on_wire = sum(step.repeats * round(float(step.sent.sum())) for step in self.steps)
        return Prediction(self.seconds, compute_s, self.seconds - compute_s, self.weights_bytes, on_wire)
