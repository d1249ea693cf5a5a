"""What a person wants to know beside the plan: what else there is, what bounds it, what limits it, what to buy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from solver.base.progress import progress
from solver.cluster.cluster import GIB, MIB, Cluster
from solver.cluster.curves import Floats
from solver.model.spec import ModelSpec
from solver.plan.plan import Plan, Wire
from solver.programs.planner import Solution
from solver.programs.shares import FoundShares
from solver.schedule.encoders.bound import bound_s
from solver.schedule.encoders.cost import setting
from solver.schedule.encoders.memory import holds_all
from solver.schedule.encoders.stages import PricedPlan
from solver.schedule.price import Price
from solver.show.comparison import ComparedSystem
from solver.systems import DEFAULT, plans_for
from solver.systems.hepti import solve_hepti
from solver.systems.named import ALONE

LINKS_MBPS = (94, 940, 2350, 9400)  # what Ethernet of 0.1 to 10 Gbit/s carries of TCP
WORTH = 0.005  # of the seconds: what an upgrade has to save to be told

Planned = TypeVar("Planned")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What no plan can beat, all work by all devices at their best; and this plan's bytes at the devices' bandwidth."""

    compute_s: float
    exchange_s: float


@dataclass(frozen=True, slots=True)
class Limit:
    """What of a request a device's speed and its link bind, and what the next MiB of it would save."""

    device: str
    compute_s: float
    link_s: float
    saved_s_per_mib: float


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A change of the cluster, in words, and the seconds that it saves."""

    change: str
    saved_s: float


def other_systems(spec: ModelSpec) -> tuple[str, ...]:
    """Return the systems beside our own that plan for a model."""
    return tuple(system for system in plans_for(spec) if not system.startswith(DEFAULT))


def bounds(spec: ModelSpec, cluster: Cluster, rows: int, priced: Price | PricedPlan) -> Bounds:
    """Return the lower bounds of a plan."""
    return bounds_of(cluster, bound_s(setting(spec, cluster, rows)), priced)


def bounds_of(cluster: Cluster, compute_s: float, priced: Price | PricedPlan) -> Bounds:
    """Return the lower bounds of a plan, of a model of which no plan takes less than `compute_s`."""
    bandwidth = np.array([cluster.bandwidth(rank) for rank in range(len(cluster.devices))])
    return Bounds(compute_s, float((priced.moved_bytes / bandwidth).max()))


def saved_at_most(seconds: float, bound_s: float) -> str:
    """Return how much less than these seconds another plan can take, in words."""
    return f"another plan saves {100 * max(0.0, 1 - bound_s / seconds):.0f} % at the most"


def proved(
    find: Callable[[bool], Planned], gap: Callable[[Planned], float], percent: float
) -> tuple[Planned, str]:  # fmt: skip
    """Look for a plan than which no other is faster by more than so many per cent; say whether it is one.

    Parameters
    ----------
    find
        Makes a plan; thoroughly, if so told.
    gap
        By which part of a plan's seconds another may be faster at the most.
    """
    found = find(False)
    thorough = gap(found) > percent / 100
    if thorough:
        found = min(found, find(True), key=gap)
    left = gap(found)
    if left <= percent / 100:
        return found, f"proved: no plan saves more than {percent:g} %"
    return found, (
        f"not proved that no plan saves more than {percent:g} %: all that Hepti knows was tried, "
        f"and by the bound another plan saves {100 * left:.1f} % at the most"
    )


def proved_encoder(
    spec: ModelSpec, cluster: Cluster, rows: int, wire: Wire, percent: float
) -> tuple[tuple[Plan, Solution | None], str]:
    """Look for an encoder's plan as `proved` does."""
    least_s = bound_s(setting(spec, cluster, rows))
    return proved(
        lambda thorough: solve_hepti(spec, cluster, rows, wire, thorough=thorough),
        lambda found: 1 - least_s / found[0].predicted_s,
        percent,
    )


def limits(cluster: Cluster, solution: Solution) -> list[Limit]:
    """Return what limits a request of the best layer's like, by the program's duals; who limits nothing is left out."""
    return limits_of(cluster.names, solution.relaxed, solution.prices)


def limits_of(names: Sequence[str], found: FoundShares, prices: Floats) -> list[Limit]:
    """Return what limits a request or an answer, by the program's duals and seconds that a byte is worth, [p]."""
    values = zip(names, found.by_speed, found.by_link, prices, strict=True)
    return [
        Limit(name, float(speed), float(link), float(price * MIB))
        for name, speed, link, price in values
        if max(speed, link) > WORTH * found.seconds or price > 0
    ]


def changes(spec: ModelSpec, cluster: Cluster, rows: int, solution: Solution | None) -> list[tuple[str, Cluster]]:
    """Return the changes of the cluster that may save time, in words, and the cluster with each.

    The solution says which to try; where stages were faster there is none, but memory was scarce.
    """
    if solution is None:
        return scarce_changes(cluster, np.flatnonzero(~holds_all(spec, cluster, rows)).tolist())
    return [*_limiting(cluster, solution)]


def usual_changes(cluster: Cluster, others: Sequence[ComparedSystem]) -> list[tuple[str, Cluster]]:
    """Return the changes that may help a model that single devices, among `others`, hold alone or not."""
    short = {other.system for other in others if other.lacks}
    return scarce_changes(cluster, [rank for rank, name in enumerate(cluster.names) if f"{ALONE}{name}" in short])


def scarce_changes(cluster: Cluster, lacking: Sequence[int]) -> list[tuple[str, Cluster]]:
    """Return what may help whatever the model: memory on the fastest two that lack it, wider links, another board."""
    fastest = sorted(lacking, key=lambda rank: -cluster.devices[rank].compute_flop_per_s)[:2]
    more = [(f"1 GiB more on {cluster.devices[rank].name}", _with_more_memory(cluster, rank)) for rank in fastest]
    return [*more, *_of_all(cluster)]


def upgrades(
    seconds: float, planned_s: Callable[[Cluster], float], tried: Sequence[tuple[str, Cluster]]
) -> list[Upgrade]:
    """Return what changes save of these seconds, each with a plan of its own, the most first; a person sees how far."""
    found = []
    with progress("trying other clusters", len(tried), unit="clusters") as advance:
        for change, better in tried:
            saved_s = seconds - planned_s(better)
            if saved_s > WORTH * seconds:
                found.append(Upgrade(change, saved_s))
            advance(1)
    return sorted(found, key=lambda upgrade: -upgrade.saved_s)


def _limiting(cluster: Cluster, solution: Solution) -> Iterator[tuple[str, Cluster]]:
    """Yield the changes that the duals point at: memory that has a price, the dearest link, the dearest speed."""
    by_link = solution.relaxed.by_link
    for rank in np.argsort(-solution.prices)[:2].tolist():
        if solution.prices[rank] > 0:
            name = cluster.devices[rank].name
            yield f"{name}'s memory is the limit: 1 GiB more", _with_more_memory(cluster, rank)
    for rank in (rank for rank in np.argsort(-by_link)[:2].tolist() if by_link[rank] > 0):
        now_mbps = cluster.bandwidth(rank) * 8 / 1e6
        mbps = next((link for link in LINKS_MBPS if link > 1.1 * now_mbps), None)
        if mbps is not None:
            wider = cluster.with_device(rank, bandwidth_bytes_per_s=mbps * 1e6 / 8)
            yield f"a link of {mbps} Mbps to {cluster.names[rank]}", wider
    yield from _of_all(cluster, links=len(solution.crew) > 1)


def _of_all(cluster: Cluster, links: bool = True) -> Iterator[tuple[str, Cluster]]:
    """Yield faster links to all, and one more of the fastest devices."""
    if links:
        mbps = next((link for link in LINKS_MBPS if link > 1.1 * cluster.network.bandwidth_bytes_per_s * 8 / 1e6), None)
        if mbps is not None:
            network = replace(cluster.network, bandwidth_bytes_per_s=mbps * 1e6 / 8)
            everyone = tuple(replace(device, bandwidth_bytes_per_s=mbps * 1e6 / 8) for device in cluster.devices)
            yield f"links of {mbps} Mbps to all", replace(cluster, devices=everyone, network=network, links={})
    fastest = max(cluster.devices, key=lambda device: device.compute_flop_per_s)
    another = replace(fastest, name=f"{fastest.name}-too")
    yield f"one more like {fastest.name}", replace(cluster, devices=(*cluster.devices, another))


def _with_more_memory(cluster: Cluster, rank: int) -> Cluster:
    return cluster.with_device(rank, memory_bytes=cluster.devices[rank].memory_bytes + GIB)
