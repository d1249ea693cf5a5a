"""Galaxy's shares (Ye et al., INFOCOM 2024, arXiv 2405.17245; `solver.systems.galaxy`) of a language model.

Groups of heads, columns and words in proportion to V_d = 1 / (t_MHA,d + t_MLP,d), a layer's time on device d; what
overflows a device's memory goes to devices with room, in proportion to V_d: words first, then columns, then heads.
Memory counts the cache with its heads, which Galaxy, for encoders, does not have.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solver.base.arrays import FLOAT_BYTES
from solver.base.errors import InfeasiblePlanError
from solver.base.spans import Partition, Span
from solver.cluster.cluster import MIB, Cluster
from solver.model.decoder import Decoder
from solver.model.kinds.part import WORD
from solver.plan.decoder_plan import DecoderPlan, DecoderStage
from solver.schedule.decoders.asked import CHUNK_ROWS, TokenRequest
from solver.schedule.decoders.cost import setting_of
from solver.schedule.decoders.memory import (
    HELD,
    block_bytes,
    cache_bytes,
    words_bytes,
    work_bytes,
)
from solver.systems.decoders.common import finished, memory_room, plan_of, whole_layers
from solver.systems.decoders.megatron import WholeAxis, axes
from solver.systems.galaxy import allocate

BLOCK_OF_WORDS = 256


def plan_galaxy(model: Decoder, cluster: Cluster, asked: TokenRequest) -> DecoderPlan:
    """Share heads, columns and words by capacity, then repair what memory does not hold."""
    s = setting_of(model, cluster, asked)
    whole = whole_layers(s, cluster, asked)
    *of_blocks, words = axes(model, asked)
    units = [replace(words, size=BLOCK_OF_WORDS), *reversed(of_blocks)]
    totals = [-(-axis.total // axis.size) for axis in units]
    room = np.maximum(memory_room(model, cluster) - _beside(model, cluster, asked), 0.0)
    sizes = [_unit_bytes(model, asked, axis) for axis in units]
    counts, short = allocate(1 / whole.seconds, totals, sizes, room)
    if short.any():
        missing, rank = short.sum() / MIB, int(room.argmax())
        raise InfeasiblePlanError(
            f"{model.name} by galaxy does not fit: {missing:.0f} MiB are missing in all, {cluster.names[rank]} has "
            f"{cluster.devices[rank].memory_bytes / MIB:.0f}"
        )
    shares = {
        axis.name: Partition.of_counts(_clipped(own.tolist(), axis.size, axis.total))
        for axis, own in zip(units, counts, strict=True)
    }
    stage = DecoderStage(Span(0, len(model.layers)), {axis.name: shares[axis.name] for axis in of_blocks})
    return finished(s, cluster, asked, plan_of(asked, cluster.names, [stage], shares[WORD], "galaxy"))


def _clipped(units: list[int], size: int, total: int) -> list[int]:
    stops = np.minimum(np.cumsum(units) * size, total)
    return [int(count) for count in np.diff(stops, prepend=0)]


def _unit_bytes(model: Decoder, asked: TokenRequest, axis: WholeAxis) -> int:
    """Return the bytes of a block of words, or of a unit of an axis in all layers, with its cache."""
    tokens, rows = asked.context * asked.sequences, min(CHUNK_ROWS, asked.context)
    held = HELD[asked.precision]
    if axis.name == WORD:
        one, two = (words_bytes(model, blocks * axis.size, held) for blocks in (1, 2))
        return two - one  # without the norm, which a share has once
    kinds = [kind for layer in model.layers for kind in layer if kind.axis == axis.name]
    taken = FLOAT_BYTES * rows * kinds[0].made_columns(kinds[0].units(Span(0, axis.size)))
    for kind in kinds:
        units = kind.units(Span(0, axis.size))
        taken += block_bytes(model, kind, units, held) + cache_bytes(kind, units, asked.cache, tokens)
    return taken


def _beside(model: Decoder, cluster: Cluster, asked: TokenRequest) -> int:
    """Return what a device needs beside its share, at the most, with all logits."""
    return work_bytes(model, asked, 0, model.vocab, shared=int(len(cluster.devices) > 1))
