"""What planners of language models share: what a layer takes on every device, room for it, and plans of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from solver.base.errors import InfeasiblePlanError
from solver.base.phrases import counted
from solver.base.spans import Partition, Span
from solver.cluster.cluster import MIB, Cluster
from solver.cluster.curves import Floats
from solver.model.blocks import total_of
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan, DecoderStage, all_on, stage_on
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import DecoderSetting, answer_passes, predicted, setting_of, two_steps_from
from solver.schedule.decoders.memory import (
    HELD,
    block_bytes,
    cache_bytes,
    check_memory,
    embedding_bytes,
    whole_units,
    words_bytes,
    work_bytes,
)


@dataclass(frozen=True, slots=True, eq=False)
class WholeLayers:
    """What whole layers take.

    Parameters
    ----------
    seconds : [p]
        Of a mean layer on every device, of all passes of an answer.
    room : [p] bytes
        For layers and their cache, beside all else: work, rank 0's embedding, and the head, which the last device of
        a chain has; below zero where there is none.
    size : bytes
        Of the largest layer, with its cache.
    """

    seconds: Floats
    room: Floats
    size: int

    def holds(self, layers: int) -> list[int]:
        """Return how many of so many layers every device holds."""
        return [int(count) for count in np.clip(self.room // self.size, 0, layers)]


def whole_layers(s: DecoderSetting, cluster: Cluster, asked: TokenRequest) -> WholeLayers:
    """Return what whole layers take on every device."""
    model, seconds = s.model, np.zeros(s.devices)
    for layer in model.layers:
        for often, rows, behind, _ in answer_passes(asked):
            for kind in layer:
                seconds += often * s.kind_s(kind, total_of(kind, model.stream), rows, behind)
    tokens, held = asked.context * asked.sequences, HELD[asked.precision]
    whole = {kind: whole_units(model, kind) for layer in set(model.layers) for kind in layer}
    size = max(
        sum(
            block_bytes(model, kind, whole[kind], held) + cache_bytes(kind, whole[kind], asked.cache, tokens)
            for kind in layer
        )
        for layer in set(model.layers)
    )
    width = max(kind.made_columns(units) for kind, units in whole.items())
    taken = work_bytes(model, asked, width, model.vocab, shared=0) + words_bytes(model, model.vocab, held)
    room = memory_room(model, cluster) - taken
    return WholeLayers(seconds / len(model.layers), room, size)


def memory_room(model: Decoder, cluster: Cluster) -> Floats:
    """Return the bytes that every device has beside rank 0's embedding, [p]."""
    room = np.array([float(device.memory_bytes) for device in cluster.devices])
    room[0] -= embedding_bytes(model)
    return room


def plan_of(
    asked: TokenRequest, devices: tuple[str, ...], stages: Iterable[DecoderStage], words: Partition, system: str
) -> DecoderPlan:
    """Return a plan as it is asked for."""
    return DecoderPlan(
        system, devices, tuple(stages), words,
        wire=asked.wire, precision=asked.precision, cache=asked.cache,
        context=asked.context, sequences=asked.sequences,
    )  # fmt: skip


def chain(
    model: Decoder, cluster: Cluster, asked: TokenRequest, parts: Sequence[tuple[int, int]], system: str
) -> DecoderPlan:
    """Return the plan of stages of one device each, (rank, number of layers) in turn; checked and predicted."""
    ranks = len(cluster.devices)
    stops = accumulate((count for _, count in parts), initial=0)
    stages = [
        stage_on(model, Span(start, stop), rank, ranks)
        for (rank, _), (start, stop) in zip(parts, pairwise(stops), strict=True)
    ]
    words = all_on(parts[-1][0], ranks, model.vocab)
    plan = plan_of(asked, cluster.names, stages, words, system)
    return finished(setting_of(model, cluster, asked), cluster, asked, plan)


def finished(s: DecoderSetting, cluster: Cluster, asked: TokenRequest, plan: DecoderPlan) -> DecoderPlan:
    """Return a plan with how its summands go, and what is predicted for it.

    Raises
    ------
    InfeasiblePlanError
        If devices lack memory for it.
    """
    plan.check(s.model, s.devices)
    memory = check_memory(s.model, cluster, plan)
    plan = replace(plan, two_steps_from=two_steps_from(s, plan.stages))
    return predicted(s, plan, memory, asked.prompt, asked.behind)


def layers_do_not_fit(
    model: Decoder, cluster: Cluster, system: str, whole: WholeLayers, holds: Sequence[int]
) -> InfeasiblePlanError:
    """Return the error of a system of whole layers, of which devices would hold so many."""
    missing = len(model.layers) - sum(holds)
    least = (missing + np.array(holds)) * whole.size - whole.room
    rank = int(least.argmin())
    return InfeasiblePlanError(
        f"{model.name} by {system}: the devices hold {sum(holds)} of {counted(len(model.layers), 'layer')} with their "
        f"cache, {whole.size / MIB:.0f} MiB each: it would fit with {least[rank] / MIB:.0f} MiB more on "
        f"{cluster.names[rank]} (has {cluster.devices[rank].memory_bytes / MIB:.0f}), or with less context"
    )
