"""A convolutional network's plan follows its devices: the same segments shared out anew; no weights move.

That takes some milliseconds, on rank 0 itself.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.live.follower import DeviceFollower
from solver.model.convnet import ConvNet
from solver.plan.segments import SegmentPlan
from solver.programs.segment_polish import shared_out
from solver.schedule.segment_steps import net_setting, plan_seconds


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

    def solved(self, factor: Floats) -> tuple[SegmentPlan, float, float]:  # noqa: D102
        devices = tuple(
            replace(device, nodes=device.node_speeds.slowed(by), curves=device.kernels.slowed(by))
            for device, by in zip(self._cluster.devices, factor.tolist(), strict=True)
        )
        s = net_setting(self._net, replace(self._cluster, devices=devices))
        slow = [rank for rank in np.flatnonzero(factor > 1).tolist() if rank]
        plans = [shared_out(s, self._first), *([shared_out(s, self._first, without=slow)] if slow else [])]
        found = min(plans, key=lambda plan: plan_seconds(s, plan))
        return found, plan_seconds(s, self.plan), plan_seconds(s, found)
