"""What a person wants to know of a convolutional network's plan: its price by segment and device, and what else is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from solver.base.errors import HeptiError
from solver.cluster.cluster import MIB, PROGRAM_BYTES, Cluster
from solver.cluster.curves import Floats
from solver.model.convnet import ConvNet
from solver.model.kinds.operator import IMAGE_ROW
from solver.model.operators import flop
from solver.plan.plan import Wire
from solver.plan.segments import SegmentPlan
from solver.programs.convnets.planner import solve_network
from solver.schedule.networks.memory import memory_of
from solver.schedule.networks.segment_steps import (
    NetSetting,
    compute_s,
    net_setting,
    of_devices,
    part_of,
    plan_seconds,
    price_segments,
)
from solver.schedule.networks.steps import SegmentShares, unrolled
from solver.schedule.price import Price, PricedStep
from solver.schedule.regions import lengths
from solver.show.advice import Bounds, bounds_of, proved
from solver.show.comparison import ComparedSystem, beside_devices, side_by_side
from solver.systems.convnets import SYSTEMS, plan_network


@dataclass(frozen=True, slots=True, eq=False)
class Spent:
    """What devices compute with their time, [p] seconds each.

    Parameters
    ----------
    part
        Their part of the work, at the speed of whole maps.
    twice
        Their part of what several devices compute.
    few_rows
        What boxes take longer than such a part of the map: a graph reads all weights, however few rows it makes.
    graphs
        Calls of graphs, and what enters them and gets another layout.
    messages
        Handling messages, and copying what does not lie where a graph needs it.
    """

    part: Floats
    twice: Floats
    few_rows: Floats
    graphs: Floats
    messages: Floats

    def of(self, rank: int) -> dict[str, float]:
        """Return a device's seconds by what they are spent on."""
        return {field.name: float(getattr(self, field.name)[rank]) for field in fields(self)}


@dataclass(frozen=True, eq=False)
class PricedNetwork:
    """A network's plan with what it takes.

    Parameters
    ----------
    plan
        With what is predicted.
    shares
        Of every segment, what ranks need, compute and leave.
    """

    setting: NetSetting
    cluster: Cluster
    plan: SegmentPlan
    price: Price
    shares: tuple[SegmentShares, ...]

    @property
    def net(self) -> ConvNet:
        """The network."""
        return self.setting.net

    @property
    def steps(self) -> tuple[PricedStep, ...]:
        """Of every segment the exchange that brings what it needs, and its compute."""
        return self.price.steps[:-1]

    @property
    def handed_in(self) -> PricedStep:
        """What brings the outputs to rank 0."""
        return self.price.steps[-1]

    @cached_property
    def flop(self) -> Floats:
        """The work of every device, [p], with what several of them compute."""
        found = np.zeros(self.setting.devices)
        for number, part, _ in self._made():
            node = self.net.nodes[number]
            found += flop(self.net, node) * part
        return found

    def _made(self) -> Iterator[tuple[int, Floats, Floats]]:
        """Yield of every node's number what part of it every device makes, [p], and the seconds that it takes, [p]."""
        s = self.setting
        for shares in self.shares:
            for placed, region, devices in of_devices(shares):
                part, seconds = part_of(placed, placed.part.made(region)), s.part_s(placed, region, devices)
                own = np.zeros((2, s.devices))
                for found, of_all in zip(own, (part, seconds), strict=True):
                    np.add.at(found, devices, of_all.sum(0))
                yield self.net.made_by[placed.part.writes.name], own[0], own[1]

    @property
    def twice(self) -> float:
        """What part of the network's work is computed by one device more."""
        return max(0.0, float(self.flop.sum()) / work(self.net) - 1)

    @cached_property
    def spent(self) -> Spent:
        """What every device's compute of an image consists of; all together is the price's."""
        s = self.setting
        parts, nodes = defaultdict[int, Floats](lambda: np.zeros(s.devices)), np.zeros(s.devices)
        for number, part, seconds in self._made():
            parts[number] = parts[number] + part
            nodes += seconds
        whole, own = np.zeros((2, s.devices))
        for number, part in parts.items():
            whole += s.table(number)[:, -1] * part
            own += s.table(number)[:, -1] * part / max(part.sum(), 1)
        graphs = sum((compute_s(s, shares) for shares in self.shares), np.zeros(s.devices))
        messages = np.array(self.price.compute_s) - graphs
        return Spent(own, whole - own, nodes - whole, graphs - nodes, messages)

    @cached_property
    def memory(self) -> tuple[int, ...]:
        """Bytes that every device needs, the program's among them; of one that takes no part, none."""
        return tuple(needed and needed + PROGRAM_BYTES for needed in memory_of(self.net, self.plan))

    @property
    def image_rows(self) -> tuple[int, ...]:
        """How many rows of the image every device needs."""
        return tuple(lengths(self.shares[0].needs[self.net.input][IMAGE_ROW])[0].tolist())

    @property
    def lacks(self) -> str:
        """What memory the plan lacks, in words, and where; "" where it fits."""
        short = [
            f"{(needed - has.memory_bytes) / MIB:.0f} MiB more on {has.name} (has {has.memory_bytes / MIB:.0f})"
            for has, needed in zip(self.cluster.devices, self.memory, strict=True)
            if needed > has.memory_bytes
        ]
        return f"does not fit: it would with {' and '.join(short)}" if short else ""


def priced_network(net: ConvNet, cluster: Cluster, plan: SegmentPlan) -> PricedNetwork:
    """Price a plan, whether or not memory suffices."""
    s = net_setting(net, cluster)
    price = price_segments(s, plan)
    plan = replace(plan, predicted=price.prediction, cluster_fingerprint=cluster.fingerprint)
    return PricedNetwork(s, cluster, plan, price, tuple(unrolled(net, plan)))


def work(net: ConvNet) -> int:
    """Return the floating-point operations of an image."""
    return sum(flop(net, node) for node in net.nodes)


def network_systems(cluster: Cluster) -> tuple[str, ...]:
    """Return what stands side by side: all systems, and single devices."""
    return beside_devices(SYSTEMS, cluster)


def compare_networks(
    net: ConvNet, cluster: Cluster, wire: Wire, systems: Iterable[str], advance: Callable[[int], None] = lambda _: None
) -> list[ComparedSystem]:
    """Plan by each of the systems, and predict what comes of it; `advance` is called with 1 after each."""
    return side_by_side(systems, lambda system: _entry(system, net, cluster, wire), advance)


def _entry(system: str, net: ConvNet, cluster: Cluster, wire: Wire) -> ComparedSystem:
    try:
        plan = plan_network(system, net, cluster, wire)
    except HeptiError as error:
        return ComparedSystem(system, np.inf, 0.0, 0, (), str(error).removeprefix(f"{net.name} "))
    found = priced_network(net, cluster, plan)
    facts = found.price.prediction
    return ComparedSystem(
        system, facts.seconds, 1 / facts.seconds, facts.bytes_on_wire, facts.weights_bytes, found.lacks,
        taking=len(plan.active),
    )  # fmt: skip


def proved_network(net: ConvNet, cluster: Cluster, wire: Wire, percent: float) -> tuple[SegmentPlan, str]:
    """Look for a network's plan as `proved` does."""
    s = net_setting(net, cluster)
    return proved(
        lambda thorough: solve_network(net, cluster, wire, thorough=thorough),
        lambda plan: 1 - s.bound_s / plan_seconds(s, plan),
        percent,
    )


def network_bounds(found: PricedNetwork) -> Bounds:
    """Return the lower bounds of a plan."""
    return bounds_of(found.cluster, found.setting.bound_s, found.price)
