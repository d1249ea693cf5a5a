"""A convolutional network's plan follows its devices: the same segments shared out anew, as far as memory has room.

That takes some milliseconds, on rank 0 itself.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from solver.cluster.cluster import Cluster, Device
from solver.cluster.curves import Floats
from solver.live.follower import DeviceFollower
from solver.model.convnet import ConvNet
from solver.plan.segments import SegmentPlan
from solver.programs.convnets.segment_polish import shared_out
from solver.schedule.networks.memory import lacking
from solver.schedule.networks.segment_steps import net_setting, plan_seconds, price_segments


class NetworkFollower(DeviceFollower[SegmentPlan]):
    """Decides whether the plan changes; on rank 0 only.

    Parameters
    ----------
    net, cluster, plan, changes
        The network, and as of `DeviceFollower`.
    """

    unit, shares = "an image", "rows"

    def __init__(self, net: ConvNet, cluster: Cluster, plan: SegmentPlan, *, changes: bool = True) -> None:
        super().__init__(cluster, plan, changes=changes)
        self._net, self._first = net, plan

    def at_work(self, rank: int) -> bool:  # noqa: D102
        return any(segment.shares[rank] for segment in self.plan.segments)

    def slowed(self, device: Device, by: float) -> Device:  # noqa: D102
        return replace(device, nodes=device.node_speeds.slowed(by), curves=device.kernels.slowed(by))

    def priced(self, cluster: Cluster, plan: SegmentPlan, place: int) -> Floats:  # noqa: D102
        price = price_segments(net_setting(self._net, cluster), plan)
        return np.array([*price.compute_s, price.seconds])

    def sought(self, cluster: Cluster) -> Future[SegmentPlan]:  # noqa: D102
        found = Future[SegmentPlan]()
        found.set_result(self._shared_out(cluster))
        return found

    def _shared_out(self, cluster: Cluster) -> SegmentPlan:
        """Return the first plan's segments, shared out as is best for devices as they are."""
        s = net_setting(self._net, cluster)
        slow = [rank for rank in np.flatnonzero(self._factor > 1).tolist() if rank]
        others = [shared_out(s, self._first), shared_out(s, self._first, channels=False)]
        others += [shared_out(s, self._first, without=slow)] if slow else []
        plans = [self._first, *(plan for plan in others if not lacking(self._net, cluster, plan))]
        return min(plans, key=lambda plan: plan_seconds(s, plan))
