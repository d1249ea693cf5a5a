"""Who takes part in `bench compare` with a convolutional network: systems × wires, and devices alone on our engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from launch.compare.entrants import SINGLE, Absent, Entrant, Kernels, RowName
from launch.compare.results import of_rounds, quartiles
from solver.base.errors import HeptiError
from solver.base.spans import Span
from solver.cluster.cluster import Cluster
from solver.model.convnet import ConvNet
from solver.plan.plan import Wire
from solver.plan.segments import SegmentPlan
from solver.plan.writing import plan_to_json
from solver.schedule.networks.segment_steps import net_setting
from solver.show.comparison import MOST_ALONE
from solver.show.network_facts import network_bounds, priced_network
from solver.systems.convnets import SYSTEMS, plan_network
from solver.systems.named import ALONE

SPLITS = tuple(name for name in SYSTEMS if name != SINGLE)


def planned_networks(
    net: ConvNet, clusters: Mapping[Kernels, Cluster], systems: Sequence[str], wires: Sequence[str]
) -> tuple[list[Entrant], list[Absent]]:
    """Return every system over all wires, and those that find no plan; devices alone over the first wire only."""
    found: list[Entrant] = []
    absent: list[Absent] = []
    for kernels, cluster in clusters.items():
        for system, wire in product(_named(systems, cluster), wires):
            entry = RowName(system, kernels, wire)
            if is_single(system) and wire != wires[0]:
                continue
            try:
                plan = plan_network(system, net, cluster, Wire(wire))
            except HeptiError as error:
                absent.append(Absent(entry, str(error)))
            else:
                found.append(network_entrant(entry, net, cluster, plan))
    return found, absent


def _named(systems: Sequence[str], cluster: Cluster) -> list[str]:
    """Return the systems with `single:` replaced by every device; of many devices by the fastest."""
    each = [f"{ALONE}{name}" for name in cluster.names] if len(cluster.names) <= MOST_ALONE else [SINGLE]
    names = (name for system in systems for name in (each if system == ALONE else [system]))
    return list(dict.fromkeys(names))


def is_single(system: str) -> bool:
    """Return whether a system of networks is one device alone."""
    return system == SINGLE or system.startswith(ALONE)


def network_entrant(entry: RowName, net: ConvNet, cluster: Cluster, plan: SegmentPlan) -> Entrant:
    """Return who runs a plan; bounds are by this version's prices, of a device alone by its own speed."""
    priced = priced_network(net, cluster, replace(plan, devices=cluster.names))
    bound = network_bounds(priced)
    first, *others = plan.active
    compute_s = bound.compute_s if others or not is_single(entry.system) else whole_s(net, cluster)[first]
    predicted_s = None if plan.predicted is None else plan.predicted.seconds
    text = plan_to_json(plan, net)
    return Entrant(entry, predicted_s, compute_s, bound.exchange_s, plan, plan_json=text)


def whole_s(net: ConvNet, cluster: Cluster) -> list[float]:
    """Return what every device takes to compute the whole network, [p]."""
    seconds: list[float] = net_setting(net, cluster).whole_s(Span(0, len(net.nodes))).tolist()
    return seconds


def beside_best_single(results: Sequence[dict[str, Any]], rounds: int) -> dict[str, Any]:
    """Return the results with how many times as fast as the best device alone each is, and which that is.

    Of the medians of every round, in which all ran minutes apart at most: their median and quartiles. Neither where
    no device ran alone.
    """
    singles = [row for row in results if is_single(row["system"])]
    if not singles:
        return {"results": list(results), "best_single": None}
    best = min(singles, key=lambda row: float(row["median_s"]))
    best_s, rows = of_rounds(best, rounds), []
    for row in results:
        low, median, high = quartiles(best_s / of_rounds(row, rounds))
        rows.append({**row, "times_single": median, "times_single_low": low, "times_single_high": high})
    return {"results": rows, "best_single": f"{ALONE}{best['active'][0]}"}
