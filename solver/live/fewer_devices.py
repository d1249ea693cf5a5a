"""Which plans of a network or language model are tried in turn: of all devices, of fewer, and of one alone.

What exchanging costs is the least certain part of a prediction, so plans of fewer devices are those that may be faster
all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import numpy as np

from solver.base.errors import InfeasiblePlanError
from solver.base.phrases import counted
from solver.base.spans import Span
from solver.cluster.cluster import PROGRAM_BYTES, Cluster
from solver.live.turns import ERROR
from solver.model.convnet import ConvNet
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan
from solver.plan.segments import SegmentPlan, among
from solver.programs.convnets.planner import solve_network
from solver.programs.decoders.shares import best_shares
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.memory import rank_memory
from solver.schedule.networks.memory import memory_of
from solver.schedule.networks.segment_steps import net_setting, predicted
from solver.systems.convnets.single import alone
from solver.systems.decoders.common import finished
from solver.systems.decoders.hepti import all_shared
from solver.systems.decoders.single import plan_single

NAMED = 4  # devices of a plan; more are counted


AnyPlan = TypeVar("AnyPlan", SegmentPlan, DecoderPlan)


def networks_to_try(net: ConvNet, cluster: Cluster, plan: SegmentPlan) -> list[SegmentPlan]:
    """Return a plan, and the best of fewer devices and of one that may be faster, as far as memory holds all."""
    kinds = (_of_fewer(net, cluster, plan), _alone(net, cluster, plan))
    return _likely(plan, kinds, lambda plans, other: _fits(net, cluster, [*plans, other]))


def decoders_to_try(model: Decoder, cluster: Cluster, asked: TokenRequest, plan: DecoderPlan) -> list[DecoderPlan]:
    """Return a plan, and the best of fewer devices and of one that may be faster.

    As far as memory holds a plan and what the next one needs, which is loaded while the one before runs.
    """
    kinds = (_shares_of_fewer(model, cluster, asked), _whole_on_one(model, cluster, asked))
    plans = _likely(plan, kinds, lambda plans, other: _follows(model, cluster, plans[-1], other))
    return plans if _follows(model, cluster, plans[-1], plan) else [plan]  # which comes again where it is the fastest


def _likely(
    plan: AnyPlan, kinds: Iterable[Iterable[AnyPlan]], has_room: Callable[[list[AnyPlan], AnyPlan], bool]
) -> list[AnyPlan]:
    """Return a plan, and the best of each kind that may be faster, as far as there is room for it beside others."""
    limit_s, plans = (1 + 2 * ERROR) * plan.predicted_s, [plan]
    others = ([other for other in kind if other.active != plan.active] for kind in kinds)
    bests = (min(kind, key=lambda other: other.predicted_s) for kind in others if kind)
    for other in sorted(bests, key=lambda other: other.predicted_s):
        if other.predicted_s <= limit_s and has_room(plans, other):
            plans.append(replace(other, system=plan.system))
    return plans


def words_of(plan: SegmentPlan | DecoderPlan) -> str:
    """Return in words who computes by a plan."""
    names = [plan.devices[rank] for rank in plan.active]
    if len(names) == 1:
        return f"{names[0]} alone"
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) <= NAMED else counted(len(names), "device")


def _sizes(devices: int) -> list[int]:
    """Return of how many devices, fewer than all, plans are tried."""
    return sorted({2, devices // 2, devices - 1} & {*range(2, devices)})


def _of_fewer(net: ConvNet, cluster: Cluster, plan: SegmentPlan) -> Iterator[SegmentPlan]:
    """Yield the best plans of the fastest devices with rank 0."""
    s = net_setting(net, cluster)
    fastest = np.argsort(s.whole_s(Span(0, len(net.nodes)))[1:], kind="stable") + 1
    for size in _sizes(s.devices):
        group = (0, *sorted(fastest[: size - 1].tolist()))
        with suppress(InfeasiblePlanError):
            own = solve_network(net, cluster.only(group), plan.wire)
            if len(own.active) > 1:
                yield predicted(s, among(own, cluster.names, group))


def _alone(net: ConvNet, cluster: Cluster, plan: SegmentPlan) -> Iterator[SegmentPlan]:
    """Yield the plans of one device each."""
    for rank in range(len(cluster.devices)):
        with suppress(InfeasiblePlanError):
            yield alone(net, cluster, rank, plan.wire)


def _fits(net: ConvNet, cluster: Cluster, plans: Sequence[SegmentPlan]) -> bool:
    needed = np.sum([memory_of(net, plan) for plan in plans], axis=0) + PROGRAM_BYTES
    return all(own <= device.memory_bytes for own, device in zip(needed, cluster.devices, strict=True))


def _shares_of_fewer(model: Decoder, cluster: Cluster, asked: TokenRequest) -> Iterator[DecoderPlan]:
    """Yield the best shares of the fastest devices, of all layers in one stage."""
    task, whole = all_shared(model, cluster, asked)
    fastest = np.argsort(whole.seconds, kind="stable")
    for size in _sizes(fastest.size):
        room = np.where(np.isin(np.arange(fastest.size), fastest[:size]), task.room, -1.0)
        shared = best_shares(replace(task, room=room))
        with suppress(InfeasiblePlanError):
            if shared is not None and len(shared.active) > 1:
                yield finished(task.s, cluster, asked, shared)


def _whole_on_one(model: Decoder, cluster: Cluster, asked: TokenRequest) -> Iterator[DecoderPlan]:
    """Yield the plan of the device that answers soonest by itself, if one holds the model."""
    with suppress(InfeasiblePlanError):
        yield plan_single(model, cluster, asked)


def _follows(model: Decoder, cluster: Cluster, plan: DecoderPlan, other: DecoderPlan) -> bool:
    """Return whether devices can load what another plan needs while one runs."""
    now, then = (rank_memory(model, own) for own in (plan, other))
    needed = (own.total + more.weights + more.cache for own, more in zip(now, then, strict=True))
    return all(size <= device.memory_bytes for size, device in zip(needed, cluster.devices, strict=True))
