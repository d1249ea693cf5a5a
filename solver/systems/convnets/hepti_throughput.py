"""The planner for many images: groups of devices, each of which computes whole images beside the others.

A group's rate is that of `solver.programs.convnets.segments` for one image on its devices alone: the image is there
while it computes the one before. Devices of which each holds the network by itself make no group, since side by side
they answer as many; where memory is scarce, those that do not are put into groups as `solver.systems.hepti_throughput`
does it. Rank 0 sends all others their pixels: more images than its link carries in a second are not answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from solver.base.errors import InfeasiblePlanError
from solver.cluster.cluster import Cluster
from solver.model.convnet import ConvNet
from solver.plan.plan import Wire
from solver.plan.segments import THROUGHPUT, SegmentPlan, among
from solver.programs.candidates import FEW
from solver.programs.convnets.planner import solve_network
from solver.schedule.networks.memory import may_hold
from solver.schedule.networks.segment_steps import net_setting, predicted
from solver.systems.hepti_throughput import DeviceGroup, best_partition


@dataclass(frozen=True, slots=True)
class Replicas:
    """Groups of devices that compute whole images side by side, and how many a second all of them should answer.

    Parameters
    ----------
    plans
        Of all devices, of which each is at work in one plan at most; the fastest group first.
    rates
        Images a second of each, by prediction.
    images_per_s
        Of all together.
    """

    plans: tuple[SegmentPlan, ...]
    rates: tuple[float, ...]
    images_per_s: float


def solve_replicas(net: ConvNet, cluster: Cluster, wire: Wire = Wire.FLOAT32) -> Replicas:
    """Plan for the most images a second.

    Raises
    ------
    InfeasiblePlanError
        If no group of devices holds the network.
    """
    groups = _Rates(net, cluster, wire)
    found = [group for group in _partition(groups, len(cluster.devices)) if groups.rate(group)]
    if not found:
        solve_network(net, cluster, wire)  # says what is missing
        raise InfeasiblePlanError(f"{net.name} fits on no group of devices")
    found.sort(key=groups.rate, reverse=True)
    s = net_setting(net, cluster)
    plans = tuple(
        replace(predicted(s, among(groups.plan(group), cluster.names, group)), system=THROUGHPUT) for group in found
    )
    rates = tuple(map(groups.rate, found))
    beside = sum(rate for group, rate in zip(found, rates, strict=True) if 0 not in group)
    carried = cluster.bandwidth(0) / net.extent(net.input).size
    return Replicas(plans, rates, sum(rates) - max(0.0, beside - carried))


def _partition(groups: _Rates, p: int) -> Sequence[DeviceGroup]:
    """Return the best groups: of few devices of all ways, of many each by itself, and the rest together."""
    if p <= FEW:
        return best_partition(groups.rate, p)
    alone = [(rank,) for rank in range(p) if groups.rate((rank,))]
    rest = tuple(rank for rank in range(p) if (rank,) not in alone)
    return [*alone, rest] if rest else alone


class _Rates:
    """The best plan of every group that is asked for."""

    def __init__(self, net: ConvNet, cluster: Cluster, wire: Wire) -> None:
        self._net, self._cluster, self._wire = net, cluster, wire
        self._known: dict[DeviceGroup, SegmentPlan | None] = {}

    def plan(self, group: DeviceGroup) -> SegmentPlan:
        """Return the plan of a group that holds the network, for its devices."""
        found = self._best(group)
        assert found is not None
        return found

    def rate(self, group: DeviceGroup) -> float:
        """Return the images a second of a group; 0 where it does not hold the network, or needs not be one."""
        found = self._best(group)
        return 0.0 if found is None else 1 / found.predicted_s

    def _best(self, group: DeviceGroup) -> SegmentPlan | None:
        if group not in self._known:
            self._known[group] = self._solved(group)
        return self._known[group]

    def _solved(self, group: DeviceGroup) -> SegmentPlan | None:
        own = self._cluster.only(group)
        if not may_hold(self._net, own) or (len(group) > 1 and all(self.rate((rank,)) for rank in group)):
            return None
        try:
            return solve_network(self._net, own, self._wire)
        except InfeasiblePlanError:
            return None
