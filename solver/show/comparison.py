"""All systems side by side for one model and cluster, and which one wins where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster
from solver.model.named import decoupled
from solver.model.spec import ModelSpec
from solver.plan.plan import Wire
from solver.schedule.encoders.memory import lacks
from solver.schedule.encoders.stages import price_plan
from solver.systems import DECOUPLED, DEFAULT, PLANNERS, THROUGHPUT, make_plan, plans_for
from solver.systems.named import ALONE

Entry = TypeVar("Entry", bound="ComparedSystem")
MOST_ALONE = 8  # devices of which each is compared alone; of more, only the best
TIE = 1e-3  # of the best: plans that are alike differ by less, where seconds are summed in another order


@dataclass(frozen=True, slots=True)
class ComparedSystem:
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
    taking
        How many devices compute; 0 where there is no plan.
    """

    system: str
    seconds: float
    requests_per_s: float
    bytes_on_wire: int
    weights_bytes: tuple[int, ...]
    lacks: str = ""
    model: str = ""
    taking: int = 0

    @property
    def label(self) -> str:
        """The system, with a mark where it is for another model."""
        return f"{self.system} *" if self.model else self.system

    @property
    def planner(self) -> str:
        """The system without a device, as in `PLANNERS`."""
        return self.system.partition(":")[0]

    @property
    def splits_nothing(self) -> bool:
        """Whether it puts all on one of several devices, though it is none of those that are compared alone."""
        return self.taking == 1 and len(self.weights_bytes) > 1 and not self.system.startswith(ALONE)

    @property
    def takes_part(self) -> bool:
        """Whether it may win: it can be run, and answers as the model does that was asked for."""
        return not self.lacks and not self.model

    def cost_s(self, objective: str) -> float:
        """Return its seconds for a request, or for one of many; infinite where there is no plan."""
        if objective == "throughput":
            return 1 / self.requests_per_s if self.requests_per_s else np.inf
        return self.seconds


@dataclass(frozen=True, slots=True)
class Won:
    """Who wins at a place, and by how much.

    Parameters
    ----------
    system
        Its name; "" where nothing can be run.
    lead
        What part of its seconds, for one request or one of many, the best other system takes longer; infinite where no
        other can be run.
    times_alone
        How many times as fast as the best board alone it is; infinite where no board can run the model alone.
    """

    system: str
    lead: float
    times_alone: float


def compare(
    spec: ModelSpec,
    cluster: Cluster,
    rows: int,
    wire: Wire = Wire.FLOAT32,
    systems: Iterable[str] | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> list[ComparedSystem]:
    """Plan by each of the systems, `compared` if none are named, and predict what comes of it.

    Where no layer of the model is decoupled, block parallelism is predicted for the model beside it that has such.
    `advance` is called with 1 after each.
    """
    systems = compared(spec) if systems is None else systems
    return side_by_side(systems, lambda system: _entry(system, spec, cluster, rows, wire), advance)


def side_by_side(systems: Iterable[str], entry: Callable[[str], Entry], advance: Callable[[int], None]) -> list[Entry]:
    """Return every system's entry; `advance` is called with 1 after each."""
    found = []
    for system in systems:
        found.append(entry(system))
        advance(1)
    return found


def beside_devices(systems: Iterable[str], cluster: Cluster) -> tuple[str, ...]:
    """Return what stands side by side: all systems, and where devices are few each of them instead of `single`."""
    names = dict.fromkeys(systems)
    if len(cluster.devices) <= MOST_ALONE:
        names |= {f"{ALONE}{name}": None for name in cluster.names}
        names.pop("single", None)
    return tuple(names)


def compared(spec: ModelSpec) -> tuple[str, ...]:
    """Return the systems that stand side by side for a model: all that there are."""
    return plans_for(spec) if spec.groups else tuple(PLANNERS)


def ranked(entries: Sequence[Entry], objective: str) -> list[Entry]:
    """Return those that can be run before those that cannot, each the best by `latency` or `throughput` first.

    Within 0.1 % of the best all are equal: they stand in a fixed order, `hepti` first, for throughput
    `hepti-throughput`, then as in `PLANNERS`, then as given. What runs another model has no part in that.
    """
    best = min((entry.cost_s(objective) for entry in entries if entry.takes_part), default=np.inf)
    order = (THROUGHPUT if objective == "throughput" else DEFAULT, *PLANNERS)

    def key(entry: Entry) -> tuple[bool, float, int]:
        cost = entry.cost_s(objective)
        tied = entry.takes_part and cost <= best * (1 + TIE)
        place = order.index(entry.planner) if entry.planner in order else len(order)
        return bool(entry.lacks), best if tied else cost, place

    return sorted(entries, key=key)


def winner(entries: Sequence[ComparedSystem], objective: str) -> ComparedSystem | None:
    """Return the best of those that can be run, as `ranked` says it; None where there is none.

    What runs another model has no part in it.
    """
    return next((entry for entry in ranked(entries, objective) if entry.takes_part), None)


def winners(
    entries: Callable[[Cluster], Sequence[ComparedSystem]],
    cluster: Cluster,
    bandwidths: Sequence[float],
    memories: Sequence[float],
    objective: str,
) -> list[list[Won]]:
    """Return who wins where, [memory][bandwidth].

    Parameters
    ----------
    entries
        Compares those who take part on a cluster; `single`, the best board alone, is among them.
    bandwidths
        Bytes a second of every device's link.
    memories
        What every device has, in times of what it has in the cluster.
    """

    def best(bandwidth: float, memory: float) -> Won:
        found = entries(_changed(cluster, bandwidth, memory))
        able = [entry for entry in ranked(found, objective) if entry.takes_part]
        if not able:
            return Won("", 0.0, 0.0)
        own = able[0].cost_s(objective)
        other = min((entry.cost_s(objective) for entry in able[1:]), default=np.inf)
        alone = next((entry.cost_s(objective) for entry in able if entry.planner == "single"), np.inf)
        return Won(able[0].system, max(0.0, other / own - 1), max(1.0, alone / own))

    return [[best(bandwidth, memory) for bandwidth in bandwidths] for memory in memories]


def _entry(system: str, spec: ModelSpec, cluster: Cluster, rows: int, wire: Wire) -> ComparedSystem:
    model = ""
    try:
        if system == DECOUPLED and not spec.groups:
            spec = decoupled(spec)
            model = spec.name
        plan = make_plan(system, spec, cluster, rows, wire)
    except HeptiError as error:
        # Beside others' what is the same for all is left out, so that those who lack the same say the same.
        why = str(error).removeprefix(spec.name).removeprefix(f" by {system}").lstrip(" ,")
        return ComparedSystem(system, np.inf, 0.0, 0, (), why, model)
    priced = price_plan(spec, cluster, plan, rows)
    facts = priced.prediction
    name = f"single:{plan.devices[plan.stages[0].active[0]]}" if system == "single" else system
    missing = lacks(spec, cluster, plan, facts.weights_bytes)
    taking = len({stage.devices[rank] for stage in plan.stages for rank in stage.active})
    return ComparedSystem(
        name, facts.seconds, priced.requests_per_s, facts.bytes_on_wire, facts.weights_bytes, missing, model, taking
    )


def _changed(cluster: Cluster, bandwidth: float, memory: float) -> Cluster:
    devices = tuple(
        replace(device, bandwidth_bytes_per_s=None, memory_bytes=int(memory * device.memory_bytes))
        for device in cluster.devices
    )
    network = replace(cluster.network, bandwidth_bytes_per_s=bandwidth)
    return replace(cluster, devices=devices, network=network, links={})
