"""The whole network on one device: what every split must beat.

Rank 0 sends it the image and gets the result.
"""

from __future__ import annotations

from dataclasses import replace

from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean
from solver.base.spans import Span
from solver.cluster.cluster import Cluster
from solver.model.convnet import ConvNet
from solver.plan.plan import Wire
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, alone_on
from solver.schedule.networks.segment_steps import NetSetting, net_setting
from solver.systems.convnets.common import finished, plan_of, seconds_of


def plan_single(net: ConvNet, cluster: Cluster, wire: Wire = Wire.FLOAT32) -> SegmentPlan:
    """Put all on the device from which rank 0 has the result first."""
    s = net_setting(net, cluster)
    plans = [plan_of(s, cluster, "single", wire, all_on(s, rank)) for rank in range(s.devices)]
    return finished(s, cluster, min(plans, key=lambda plan: seconds_of(s, plan)))


def plan_named(net: ConvNet, cluster: Cluster, wire: Wire = Wire.FLOAT32, *, name: str) -> SegmentPlan:
    """Put all on the device of that name.

    Raises
    ------
    HeptiError
        If there is none.
    """
    if name not in cluster.names:
        raise HeptiError(f"--system single:{name}: there is no device {name!r}{did_you_mean(name, cluster.names)}")
    return replace(alone(net, cluster, cluster.names.index(name), wire), system=f"single:{name}")


def alone(net: ConvNet, cluster: Cluster, rank: int, wire: Wire = Wire.FLOAT32) -> SegmentPlan:
    """Put all on one rank."""
    s = net_setting(net, cluster)
    return finished(s, cluster, plan_of(s, cluster, "single", wire, all_on(s, rank)))


def all_on(s: NetSetting, rank: int) -> list[Segment]:
    """Return the one segment of a network that a rank computes whole."""
    return [Segment(Span(0, len(s.net.nodes)), SegmentCut.ROWS, alone_on(rank, s.devices))]
