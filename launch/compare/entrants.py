"""Who takes part in `bench compare`: systems × kernels × wires that fit, and single devices on common runtimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from launch.single.command import RUNTIMES
from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan, Wire
from solver.plan.segments import SegmentPlan
from solver.schedule.encoders.cost import price, setting
from solver.schedule.encoders.memory import lacks
from solver.schedule.encoders.stages import price_plan
from solver.show.advice import bounds
from solver.systems import DECOUPLED, make_plan

SINGLE = "single"  # on the device that is predicted to be fastest


@dataclass(frozen=True, slots=True)
class Kernels:
    """What computes."""

    backend: str
    precision: str


@dataclass(frozen=True, slots=True)
class RowName:
    """What a row is called: a planner's name or `single:DEVICE`, its kernels, its wire ("" where nothing is sent).

    Where it runs another model than the others, that model stands after the planner's name, and in `model`. Where two
    checkouts take part, `version` says whose code it is.
    """

    system: str
    kernels: Kernels
    wire: str
    model: str = ""
    version: str = ""

    @property
    def facts(self) -> dict[str, str]:
        """The entry as the JSON has it."""
        return {
            "system": self.system,
            "backend": self.kernels.backend,
            "precision": self.kernels.precision,
            "wire": self.wire,
            **({"model": self.model} if self.model else {}),
            **({"version": self.version} if self.version else {}),
        }


@dataclass(frozen=True, slots=True)
class Entrant:
    """One row of the table, and how to run it.

    Parameters
    ----------
    entry
        What it is called.
    predicted_s, compute_bound_s
        Seconds of a request; None where these kernels were not measured.
    exchange_bound_s
        Of the plan's bytes.
    plan
        Who computes what; None for a device alone on a runtime of others.
    host
        The number of that device.
    checkout
        The folder whose code runs it; None: as everything else here.
    plan_json
        The plan file as another version wrote it, or a network's; "" where it is still to be written.
    """

    entry: RowName
    predicted_s: float | None
    compute_bound_s: float | None
    exchange_bound_s: float
    plan: Plan | SegmentPlan | None = None
    host: int = 0
    checkout: Path | None = None
    plan_json: str = ""

    @property
    def devices(self) -> int:
        """How many devices have a share."""
        if self.plan is None:
            return 1
        if isinstance(self.plan, SegmentPlan):
            return len(self.plan.active)
        return len({stage.devices[rank] for stage in self.plan.stages for rank in stage.active})


@dataclass(frozen=True, slots=True)
class Absent:
    """Who does not take part, and why not."""

    entry: RowName
    why: str


def planned(
    spec: ModelSpec,
    clusters: Mapping[Kernels, Cluster],
    rows: int,
    systems: Sequence[str],
    wires: Sequence[str],
    many: bool = False,
    beside: ModelSpec | None = None,
) -> tuple[list[Entrant], list[Absent]]:
    """Return every system on all kernels over all wires, and those that find no plan or lack memory.

    Of `many` requests what is predicted is a request's part of the time. `beside` is the model with decoupled layers,
    for the system that plans no other.
    """
    asked = spec
    found: list[Entrant] = []
    absent: list[Absent] = []
    for system, (kernels, cluster), wire in product(systems, clusters.items(), wires):
        if system == SINGLE and wire != wires[0]:  # it sends nothing
            continue
        entry, spec = RowName(system, kernels, wire), asked
        if system == DECOUPLED and beside is not None:
            entry, spec = RowName(f"{system}:{beside.name}", kernels, wire, beside.name), beside
        try:
            plan = make_plan(system, spec, cluster, rows, Wire(wire))
            priced = price_plan(spec, cluster, plan, rows)
        except HeptiError as error:
            absent.append(Absent(entry, str(error)))
            continue
        if missing := lacks(spec, cluster, plan, priced.weights_bytes):
            absent.append(Absent(entry, missing))
            continue
        bound = bounds(spec, cluster, rows, priced)
        seconds = 1 / priced.requests_per_s if many else priced.prediction.seconds
        found.append(Entrant(entry, seconds, bound.compute_s, bound.exchange_s, plan))
    return found, absent


def alone(spec: ModelSpec, clusters: Mapping[Kernels, Cluster], rows: int, runtimes: Sequence[str]) -> list[Entrant]:
    """Return the fastest device on each of these runtimes; they compute no decoupled layers."""
    if spec.groups:
        return []
    measured = {kernels.precision: cluster for kernels, cluster in clusters.items()}
    devices = next(iter(clusters.values())).devices
    host = int(np.argmax([device.compute_flop_per_s for device in devices]))
    found = []
    for kernels in (Kernels(*RUNTIMES[name]) for name in runtimes):
        # What another backend reaches in the same precision bounds this one, but does not predict it.
        cluster = clusters.get(kernels) or measured.get(kernels.precision)
        seconds, bound_s = _alone(spec, cluster, rows, host) if cluster else (None, None)
        entry = RowName(f"single:{devices[host].name}", kernels, "")
        found.append(Entrant(entry, seconds if kernels in clusters else None, bound_s, 0.0, host=host))
    return found


def _alone(spec: ModelSpec, cluster: Cluster, rows: int, rank: int) -> tuple[float, float]:
    """Return what one device alone is predicted to take, and the seconds of the work at its speed."""
    cluster = replace(cluster, devices=(cluster.devices[rank],), links={})
    priced = price(setting(spec, cluster, rows), make_plan("single", spec, cluster, rows))
    return priced.seconds, bounds(spec, cluster, rows, priced).compute_s
