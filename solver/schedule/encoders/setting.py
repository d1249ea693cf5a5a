"""What a cost is of, besides a plan: model, work, cluster, wire."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from solver.model.blocks import Axis
from solver.model.precision import FLOAT32, Precision
from solver.model.spec import ModelSpec
from solver.model.work import Work
from solver.plan.plan import Wire
from solver.schedule.timing import Machine


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """A model, work for it, a cluster, and how it is run: all that a cost depends on besides shares and routes."""

    spec: ModelSpec
    machine: Machine
    work: Work
    wire: Wire = Wire.FLOAT32
    tile_rows: int = 0
    precision: Precision = FLOAT32  # of weights

    @property
    def rows(self) -> int:
        """Rows to compute, S."""
        return self.work.new

    @property
    def devices(self) -> int:
        """Number of devices, p."""
        return self.machine.devices

    def only(self, devices: NDArray[np.intp]) -> Setting:
        """Return the same model on some of the devices."""
        if devices.size == self.devices:
            return self
        return replace(self, machine=self.machine.only(devices))

    def length(self, axis: Axis) -> int:
        """Return how much of an axis there is to share out."""
        counts = {b.inner.axis: b.inner.count for b in self.spec.blocks if b.inner is not None} | {Axis.ROWS: self.rows}
        return counts.get(axis, self.spec.hidden)

    def row_bytes(self, width: int, tensors: int = 1) -> int:
        """Return the bytes on the wire of a row of so many numbers of so many tensors."""
        return self.wire.row_bytes(width, tensors)
