"""A language model's plan follows its devices between tokens: other heads, columns and words, and caches that move.

Tokens take longer as the context grows, of smollm2-135m on one board half as long again after 1000; that is no device
that has slowed. The price knows of it: what a token took is measured beside that of one after so many.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace

import numpy as np

from solver.cluster.cluster import Cluster, Device
from solver.cluster.curves import Floats
from solver.live.follower import DeviceFollower, PlanChange
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import price_pass, setting_of
from solver.systems.decoders.hepti import plan_hepti

STEP = 32  # tokens for which a price holds: it takes rank 0 1.5 ms, while all others wait


class TokenFollower(DeviceFollower[DecoderPlan]):
    """Decides whether the plan changes; on rank 0 only.

    Parameters
    ----------
    model, cluster, asked, plan, changes
        The model and what was asked for, and as of `DeviceFollower`.
    change_s
        Seconds that a change of plan takes: those of loading a whole share, at the most.
    solves
        Runs what takes long: `solver.live.planning.PlanningProcess`. Tokens are made meanwhile.
    """

    # The first ones after a prompt come from boards that have rested: in a lab all seemed 1.5 times as slow after 5.
    first = 20
    # In the lab tokens of 2 ms vary by 3 to 10 %, where others share the machine by half. A board at half of its speed
    # makes a token of a small model on four 1.25 times as long: that is the least change after so many.
    noise, delay = 0.2, 17
    unit, shares = "a token", "heads and columns"

    def __init__(
        self, model: Decoder, cluster: Cluster, asked: TokenRequest, plan: DecoderPlan, change_s: float,
        solves: Executor, *, changes: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(cluster, plan, changes=changes)
        self._model, self._asked, self.change_s = model, asked, change_s
        self._solves = solves
        self.to_come = 0

    def came(
        self, compute_s: Sequence[float], seconds: float, behind: int, to_come: int
    ) -> PlanChange[DecoderPlan] | None:
        """Take what every rank computed of a token, its seconds, and how many stand before it and are still asked for.

        As `took`.
        """
        self.to_come = to_come
        return self.took(compute_s, seconds, behind // STEP * STEP)

    def at_work(self, rank: int) -> bool:  # noqa: D102
        return any(rank in stage.ranks for stage in self.plan.stages)

    def slowed(self, device: Device, by: float) -> Device:  # noqa: D102
        speeds = device.decoder_speeds(self._asked.precision)
        return replace(device, decoder=speeds.slowed(by), curves=device.kernels.slowed(by))

    def priced(self, cluster: Cluster, plan: DecoderPlan, place: int) -> Floats:  # noqa: D102
        price = price_pass(setting_of(self._model, cluster, plan), plan, 1, place)
        return np.array([*price.compute_s, price.seconds])

    def sought(self, cluster: Cluster) -> Future[DecoderPlan]:  # noqa: D102
        return self._solves.submit(plan_hepti, self._model, cluster, self._asked)
