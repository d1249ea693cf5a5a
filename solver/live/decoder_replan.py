"""A language model's plan follows its devices between tokens: other heads, columns and words, and caches that move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.live.follower import DeviceFollower, PlanChange
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import setting_of, token_seconds
from solver.systems.decoders.hepti import plan_hepti


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

    def came(self, compute_s: Sequence[float], seconds: float, to_come: int) -> PlanChange[DecoderPlan] | None:
        """Take what every rank computed of a token, its seconds, and how many are still asked for; as `took`."""
        self._to_come = to_come
        return self.took(compute_s, seconds)

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

    def _token_s(self, plan: DecoderPlan, factor: Floats) -> float:
        return token_seconds(setting_of(self._model, self._slower(factor), plan), plan, self._asked.behind)
