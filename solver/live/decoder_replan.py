"""A language model's plan follows its devices between tokens: other heads, columns and words, and caches that move.

Tokens take longer as the context grows, of smollm2-135m on one board half as long again behind 1000; that is no device
that has slowed. So what a token took is divided by how much longer the price says that it takes behind so many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.live.follower import IDLE_S, DeviceFollower, PlanChange
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import DecoderSetting, price_pass, setting_of, token_seconds
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
    """

    # The first ones behind a prompt come from boards that have rested: in a lab all seemed 1.5 times as slow after 5.
    first = 20
    unit, shares = "a token", "heads and columns"

    def __init__(
        self, model: Decoder, cluster: Cluster, asked: TokenRequest, plan: DecoderPlan, change_s: float,
        *, changes: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(cluster, plan, changes=changes)
        self._model, self._asked, self._change_s = model, asked, change_s
        self._to_come = 0
        self._prices: dict[int, Floats] = {}  # by the tokens before: as of `_price`, of the plan that runs

    def came(
        self, compute_s: Sequence[float], seconds: float, behind: int, to_come: int
    ) -> PlanChange[DecoderPlan] | None:
        """Take what every rank computed of a token, its seconds, and how many stand before it and are still asked for.

        As `took`.
        """
        self._to_come = to_come
        longer = self._price(behind) / self._price(self._asked.behind)
        change = self.took((np.asarray(compute_s) / longer[:-1]).tolist(), seconds / float(longer[-1]))
        if change is not None:
            self._prices.clear()
        return change

    def at_work(self, rank: int) -> bool:  # noqa: D102
        return any(rank in stage.ranks for stage in self.plan.stages)

    def solved(self, factor: Floats) -> tuple[DecoderPlan, float, float]:  # noqa: D102
        found = plan_hepti(self._model, self._slower(factor), self._asked)
        return found, self._token_s(self.plan, factor), self._token_s(found, factor)

    def pays(self, saved_s: float) -> bool:
        """Return whether the tokens to come make up for loading other shares."""
        return saved_s * self._to_come > self._change_s

    def _slower(self, factor: Floats) -> Cluster:
        precision = self._asked.precision
        devices = tuple(
            replace(device, decoder=device.decoder_speeds(precision).slowed(by), curves=device.kernels.slowed(by))
            for device, by in zip(self._cluster.devices, factor.tolist(), strict=True)
        )
        return replace(self._cluster, devices=devices)

    def _price(self, behind: int) -> Floats:
        """Return the seconds that every device computes of a token behind so many, and those of all."""
        behind = behind // STEP * STEP
        if behind not in self._prices:
            price = price_pass(self._setting(self.plan, self._factor), self.plan, 1, behind)
            # A device that has nothing to do takes nothing longer.
            self._prices[behind] = np.maximum([*price.compute_s, price.seconds], IDLE_S)
        return self._prices[behind]

    def _setting(self, plan: DecoderPlan, factor: Floats) -> DecoderSetting:
        return setting_of(self._model, self._slower(factor), plan)

    def _token_s(self, plan: DecoderPlan, factor: Floats) -> float:
        return token_seconds(self._setting(plan, factor), plan, self._asked.behind)
