"""How long one device takes for a node of a convolutional network: measured by the node, or by its kind of work.

A profile measures every node of the network on slabs of some rows, within a graph between two exchanges, and keeps
seconds over rows by what a node's speed depends on (`solver.model.operators.signature`). A graph of several such runs
of nodes is faster than these: its numbers keep the layout that convolutions like. So what enters a graph has a price
of its own, by which the graph of the whole network takes what was measured of it. A node that was not measured, or a
device of which only a speed is known, goes by FLOP and kind: depthwise convolutions run at a sixth of the speed of
dense ones, so that FLOP alone would be wrong by as much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from solver.base.errors import HeptiError, explained
from solver.cluster.curves import Floats
from solver.model.operators import WorkKind

# What a kind of work does of the FLOP that a MatMul of 256 rows does in the same time. A Pi 4 of 24.6 GFLOP/s computes
# ResNet-18 and ResNet-50 at 33 to 35, as is published. On one x86 core of 97 GFLOP/s depthwise convolutions did a sixth
# of what dense ones do. A matrix times a vector waits for the memory: 4 bytes a weight at 4 GB/s, on a board of
# 24.6 GFLOP/s. Activations run within the node before them.
RELATIVE: Mapping[WorkKind, float] = {
    WorkKind.CONVOLUTION: 1.4, WorkKind.POINTWISE: 1.4, WorkKind.DEPTHWISE: 1.4 / 6, WorkKind.POOL: 0.1,
    WorkKind.ELEMENTWISE: 0.1, WorkKind.CONNECTED: 1 / 12,
}  # fmt: skip
SESSION_FLOP = 4e6  # of a call: 40 us
MOST_ENTERING_S = 1e-6  # of a board of 0.1 GFLOP/s; more is noise
ENTERING_FLOP = 100  # of a number that enters a graph and gets another layout: 1.2 to 1.5 ns at 70 to 97 GFLOP/s
# A slab takes as long as so many rows more, for weights and calls. Measured with onnxruntime: 2 rows of 7 reach 0.83 of
# the speed of all, one 0.65, a quarter of 56 rows 0.95 and more.
SLAB_ROWS = 0.7


@dataclass(frozen=True, slots=True)
class NodeCurve:
    """Seconds over rows of a node's whole width and all channels, linear between the points and along the last."""

    rows: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.seconds) or not self.rows:
            raise HeptiError(f"{len(self.rows)} rows, {len(self.seconds)} times: a node needs as many, one at least")
        if not all(before < after for before, after in pairwise(self.rows)) or self.rows[0] <= 0:
            raise HeptiError(f"rows {list(self.rows)} do not ascend from above 0")
        if not all(0 <= value < 1e6 for value in self.seconds):
            raise HeptiError("a node's time is below 0 s or not below 1e6 s")

    def at(self, rows: Any) -> Floats:
        """Return the seconds of so many rows, [...]; of none, none."""
        x, y = (np.concatenate([[0.0], values]) for values in (self.rows, self.seconds))
        y[0] = max(0.0, self._intercept())
        seconds = np.interp(rows, x, np.maximum.accumulate(y))
        slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
        return np.asarray(
            (seconds + np.maximum(np.asarray(rows) - x[-1], 0) * max(slope, 0.0)) * (np.asarray(rows) > 0)
        )

    def _intercept(self) -> float:
        if len(self.rows) < 2:
            return 0.0
        slope = (self.seconds[1] - self.seconds[0]) / (self.rows[1] - self.rows[0])
        return self.seconds[0] - slope * self.rows[0]


@dataclass(frozen=True, slots=True)
class NodeSpeeds:
    """What one device takes for nodes.

    Parameters
    ----------
    flop_per_s
        Of every kind of work.
    session_s
        Of the call of a graph, beside its nodes.
    curves
        By a node's signature, as measured.
    entering_s
        Of every number that enters a graph.
    """

    flop_per_s: Mapping[WorkKind, float]
    session_s: float
    curves: Mapping[str, NodeCurve] = field(default_factory=dict)
    entering_s: float = 0.0

    def table(self, curve: str, kind: WorkKind, work: int, rows: int) -> Floats:
        """Return the seconds of a node for every number of its rows, from none to all of these, [rows + 1].

        Parameters
        ----------
        curve
            What its speed depends on.
        kind, work
            Of what it computes, in FLOP: where that is not measured.
        """
        every = np.arange(rows + 1)
        if (measured := self.curves.get(curve)) is not None:
            return measured.at(every)
        whole_s = work / self.flop_per_s[kind]
        return np.asarray(whole_s * (every + SLAB_ROWS) / (rows + SLAB_ROWS) * (every > 0))

    def slowed(self, factor: float) -> NodeSpeeds:
        """Return those of a device that takes `factor` times as long."""
        return NodeSpeeds(
            {kind: speed / factor for kind, speed in self.flop_per_s.items()},
            factor * self.session_s,
            {
                key: NodeCurve(curve.rows, tuple(factor * t for t in curve.seconds))
                for key, curve in self.curves.items()
            },
            factor * self.entering_s,
        )


@lru_cache(maxsize=64)
def derived_speeds(flop_per_s: float) -> NodeSpeeds:
    """Return the speeds of a device of which only that of a MatMul is known."""
    kinds = {kind: share * flop_per_s for kind, share in RELATIVE.items()}
    return NodeSpeeds(kinds, SESSION_FLOP / flop_per_s, entering_s=ENTERING_FLOP / flop_per_s)


def speeds_from_table(entry: Any) -> NodeSpeeds:
    """Read what a device takes for nodes as the cluster file has it.

    Raises
    ------
    HeptiError
        Naming what is missing, unknown or absurd.
    """
    problem = "nodes: needs session_us, gflops of every kind of work, and tables of rows and us"
    with explained(problem, (TypeError, ValueError, KeyError, AttributeError)):
        kinds = {WorkKind(kind): 1e9 * float(value) for kind, value in entry["gflops"].items()}
        if missing := [kind for kind in WorkKind if not kinds.get(kind, 0) > 0]:
            raise HeptiError(f"nodes: there is no speed above 0 of {missing[0]}")
        curves = {}
        for key, curve in entry.get("curves", {}).items():
            with explained(f"node {key}", HeptiError):
                seconds = tuple(float(value) / 1e6 for value in curve["us"])
                curves[key] = NodeCurve(tuple(map(float, curve["rows"])), seconds)
        entering_s = float(entry.get("entering_ns", 0.0)) / 1e9
        if not 0 <= entering_s <= MOST_ENTERING_S:
            raise HeptiError(f"nodes: entering_ns is {1e9 * entering_s:g}, must be 0 to {1e9 * MOST_ENTERING_S:g}")
        return NodeSpeeds(kinds, float(entry["session_us"]) / 1e6, curves, entering_s)


def speeds_to_table(speeds: NodeSpeeds) -> dict[str, Any]:
    """Write speeds so that `speeds_from_table` reads them back."""
    return {
        "session_us": twelve_digits(1e6 * speeds.session_s),
        "entering_ns": twelve_digits(1e9 * speeds.entering_s),
        "gflops": {str(kind): twelve_digits(speed / 1e9) for kind, speed in speeds.flop_per_s.items()},
        "curves": {
            key: {"rows": list(curve.rows), "us": [twelve_digits(1e6 * value) for value in curve.seconds]}
            for key, curve in speeds.curves.items()
        },
    }


def mean_speeds(several: Sequence[NodeSpeeds]) -> NodeSpeeds:
    """Return the mean of several devices' speeds, of FLOP a second the geometric one; all were measured on one grid."""
    kinds = {kind: math.exp(np.mean([math.log(own.flop_per_s[kind]) for own in several])) for kind in WorkKind}
    curves = {
        key: NodeCurve(curve.rows, tuple(np.mean([own.curves[key].seconds for own in several], axis=0).tolist()))
        for key, curve in several[0].curves.items()
    }
    session_s, entering_s = (
        float(np.mean(own)) for own in zip(*((s.session_s, s.entering_s) for s in several), strict=True)
    )
    return NodeSpeeds(kinds, session_s, curves, entering_s)


def twelve_digits(value: float) -> float:
    """Drop the rounding of a change of units, so that a file read and written again has the same fingerprint."""
    return float(f"{value:.12g}")
