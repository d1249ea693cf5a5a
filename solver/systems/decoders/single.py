"""One device does all of a language model: the one that answers soonest."""

from __future__ import annotations

from solver.base.errors import HeptiError, InfeasiblePlanError
from solver.base.phrases import did_you_mean
from solver.cluster.cluster import Cluster
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import answer_seconds, setting_of
from solver.systems.decoders.common import chain


def plan_single(model: Decoder, cluster: Cluster, asked: TokenRequest) -> DecoderPlan:
    """Choose the device that answers soonest of those that hold the model."""
    s, plans, errors = setting_of(model, cluster, asked), [], []
    for rank in range(len(cluster.devices)):
        try:
            plans.append(_alone(model, cluster, asked, rank))
        except InfeasiblePlanError as error:
            errors.append(error)
    if not plans:
        # Where more memory would help most: the device that has most of it.
        most = max(range(len(errors)), key=lambda rank: cluster.devices[rank].memory_bytes)
        raise errors[most]
    return min(plans, key=lambda plan: answer_seconds(s, plan, asked))


def plan_named(model: Decoder, cluster: Cluster, asked: TokenRequest, *, name: str) -> DecoderPlan:
    """Put all on the device of this name."""
    if name not in cluster.names:
        raise HeptiError(f"there is no device {name}{did_you_mean(name, cluster.names)}")
    return _alone(model, cluster, asked, cluster.names.index(name))


def _alone(model: Decoder, cluster: Cluster, asked: TokenRequest, rank: int) -> DecoderPlan:
    return chain(model, cluster, asked, [(rank, len(model.layers))], "single")
