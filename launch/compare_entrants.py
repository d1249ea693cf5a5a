"""Who takes part in `bench compare`: systems × kernels × wires that fit, and single devices on common runtimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from launch.single import RUNTIMES
from solver.advice import Bounds, bounds, lacks
from solver.cluster import Cluster
from solver.cost import price, setting
from solver.errors import HeptiError
from solver.model import ModelSpec
from solver.plan import Plan
from solver.systems import make_plan


@dataclass(frozen=True, slots=True)
class Kernels:
    """What computes: a backend and its precision."""

    backend: str
    precision: str


@dataclass(frozen=True, slots=True)
class Entrant:
    """One row of the table.

    Parameters
    ----------
    system
        A planner's name, or `single:DEVICE`.
    kernels, wire
        What computes, and what exchanges send ("" where nothing is sent).
    plan
        Who computes what; None for a device on a runtime of others.
    host
        Number of the device, where there is no plan.
    predicted_s
        None where nothing was measured to predict from.
    bounds
        What it cannot beat.
    """

    system: str
    kernels: Kernels
    wire: str
    bounds: Bounds
    predicted_s: float | None
    plan: Plan | None = None
    host: int | None = None

    @property
    def label(self) -> str:
        """All that tells it from others, in words."""
        words = [self.system, self.kernels.backend, self.kernels.precision]
        return " ".join([*words, f"over {self.wire}"] if self.wire else words)

    @property
    def devices(self) -> int:
        """How many devices have a share."""
        if self.plan is None:
            return 1
        return len({stage.devices[rank] for stage in self.plan.stages for rank in stage.active})


@dataclass(frozen=True, slots=True)
class Absent:
    """Who does not take part, and why not."""

    system: str
    kernels: Kernels
    wire: str
    why: str

    def to_json(self) -> dict[str, str]:
        """Return what the JSON says of it."""
        return {
            "system": self.system,
            "backend": self.kernels.backend,
            "precision": self.kernels.precision,
            "wire": self.wire,
            "why": self.why,
        }


def planned(
    spec: ModelSpec, clusters: Mapping[Kernels, Cluster], rows: int, systems: Sequence[str], wires: Sequence[str]
) -> tuple[list[Entrant], list[Absent]]:
    """Return every system on all kernels over all wires, and those that find no plan or lack memory."""
    found: list[Entrant] = []
    absent: list[Absent] = []
    for system, (kernels, cluster), wire in product(systems, clusters.items(), wires):
        try:
            plan = make_plan(system, spec, cluster, rows)
        except HeptiError as error:
            absent.append(Absent(system, kernels, wire, str(error)))
            continue
        priced = price(setting(spec, cluster, rows), plan)
        if missing := lacks(spec, cluster, plan, priced):
            absent.append(Absent(system, kernels, wire, missing))
            continue
        found.append(Entrant(system, kernels, wire, bounds(spec, cluster, rows, priced), priced.seconds, plan))
    return found, absent


def alone(spec: ModelSpec, clusters: Mapping[Kernels, Cluster], rows: int, runtimes: Sequence[str]) -> list[Entrant]:
    """Return the fastest and the slowest device, each on these runtimes."""
    any_cluster = next(iter(clusters.values()))
    speeds = [device.compute_flop_per_s for device in any_cluster.devices]
    found = []
    for host in dict.fromkeys((int(np.argmax(speeds)), int(np.argmin(speeds)))):
        for backend, precision in (RUNTIMES[name] for name in runtimes):
            kernels = Kernels(backend, precision)
            one = _only(clusters.get(kernels, any_cluster), host)
            plan = make_plan("single", spec, one, rows)
            assert plan.predicted is not None
            found.append(
                Entrant(
                    f"single:{one.names[0]}", kernels, "",
                    bounds(spec, one, rows, price(setting(spec, one, rows), plan)),
                    plan.predicted.seconds if kernels in clusters else None,
                    host=host,
                )
            )  # fmt: skip
    return found


def _only(cluster: Cluster, rank: int) -> Cluster:
    return replace(cluster, devices=(cluster.devices[rank],), links={})
