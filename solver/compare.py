"""All systems side by side for one model and cluster, and which one wins where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.cluster import Cluster
from solver.errors import HeptiError
from solver.memory import lacks
from solver.model import ModelSpec, decoupled
from solver.pipeline import price_plan
from solver.plan import Wire
from solver.systems import DECOUPLED, PLANNERS, make_plan, plans_for


@dataclass(frozen=True, slots=True)
class Entry:
    """A system's plan, predicted.

    Parameters
    ----------
    system
        Its name; with the device's where that alone computes.
    seconds, requests_per_s, bytes_on_wire
        Of one request, of many, of one; infinite, 0 and 0 where there is no plan.
    weights_bytes
        Of every device; () where there is no plan.
    lacks
        Why it cannot be run, "" if it can.
    model
        Where it is for another model than was asked for, that model.
    """

    system: str
    seconds: float
    requests_per_s: float
    bytes_on_wire: int
    weights_bytes: tuple[int, ...]
    lacks: str = ""
    model: str = ""

    @property
    def label(self) -> str:
        """The system, with a mark where it is for another model."""
        return f"{self.system} *" if self.model else self.system


def compare(
    spec: ModelSpec,
    cluster: Cluster,
    rows: int,
    wire: Wire = Wire.FLOAT32,
    systems: Iterable[str] | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> list[Entry]:
    """Plan by each of the systems, `compared` if none are named, and predict what comes of it.

    Where no layer of the model is decoupled, block parallelism is predicted for the model beside it that has such.
    `advance` is called with 1 after each.
    """
    found = []
    for system in compared(spec) if systems is None else systems:
        found.append(_entry(system, spec, cluster, rows, wire))
        advance(1)
    return found


def compared(spec: ModelSpec) -> tuple[str, ...]:
    """Return the systems that stand side by side for a model: all that there are."""
    return plans_for(spec) if spec.groups else tuple(PLANNERS)


def winner(entries: Sequence[Entry], objective: str) -> Entry | None:
    """Return the best of those that can be run, by `latency` or `throughput`; None where there is none.

    What runs another model has no part in it.
    """
    able = [entry for entry in entries if not entry.lacks and not entry.model]
    if objective == "throughput":
        return max(able, key=lambda entry: entry.requests_per_s, default=None)
    return min(able, key=lambda entry: entry.seconds, default=None)


def winners(
    spec: ModelSpec,
    cluster: Cluster,
    rows: int,
    bandwidths: Sequence[float],
    memories: Sequence[float],
    systems: Iterable[str],
    objective: str,
    wire: Wire = Wire.FLOAT32,
    advance: Callable[[int], None] = lambda _: None,
) -> list[list[str]]:
    """Return who wins where, [memory][bandwidth]; "" where nothing can be run.

    Parameters
    ----------
    bandwidths
        Bytes a second of every device's link.
    memories
        What every device has, in times of what it has in the cluster.
    advance
        Called with 1 after each system of each place.
    """
    systems = tuple(systems)

    def best(bandwidth: float, memory: float) -> str:
        changed = _changed(cluster, bandwidth, memory)
        found = winner(compare(spec, changed, rows, wire, systems, advance), objective)
        return found.system if found else ""

    return [[best(bandwidth, memory) for bandwidth in bandwidths] for memory in memories]


def _entry(system: str, spec: ModelSpec, cluster: Cluster, rows: int, wire: Wire) -> Entry:
    model = ""
    try:
        if system == DECOUPLED and not spec.groups:
            spec = decoupled(spec)
            model = spec.name
        plan = make_plan(system, spec, cluster, rows, wire)
    except HeptiError as error:
        return Entry(system, np.inf, 0.0, 0, (), str(error), model)
    priced = price_plan(spec, cluster, plan, rows)
    facts = priced.prediction
    name = f"single:{plan.devices[plan.stages[0].active[0]]}" if system == "single" else system
    missing = lacks(spec, cluster, plan, facts.weights_bytes)
    return Entry(name, facts.seconds, priced.requests_per_s, facts.bytes_on_wire, facts.weights_bytes, missing, model)


def _changed(cluster: Cluster, bandwidth: float, memory: float) -> Cluster:
    devices = tuple(
        replace(device, bandwidth_bytes_per_s=None, memory_bytes=int(memory * device.memory_bytes))
        for device in cluster.devices
    )
    network = replace(cluster.network, bandwidth_bytes_per_s=bandwidth)
    return replace(cluster, devices=devices, network=network, links={})
