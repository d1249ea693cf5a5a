"""Galaxy's shares (Ye et al., INFOCOM 2024, arXiv 2405.17245; `solver.systems.galaxy`) of a language model.

Groups of heads, columns and words in proportion to V_d = 1 / (t_MHA,d + t_MLP,d), a layer's time on device d; what
overflows a device's memory goes to devices with room, in proportion to V_d: words first, then columns, then heads.
Memory counts the cache with its heads, which Galaxy, for encoders, does not have.
"""

from __future__ import annotations

import numpy as np

from solver.base.errors import InfeasiblePlanError
from solver.base.spans import Partition, Span
from solver.cluster.cluster import MIB, Cluster
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan, DecoderStage
from solver.schedule.decoders.asked import CHUNK_ROWS, TokenRequest
from solver.schedule.decoders.cost import setting_of
from solver.schedule.decoders.memory import (
    FLOAT_BYTES,
    HELD,
    attention_bytes,
    cache_bytes,
    mlp_bytes,
    words_bytes,
    work_bytes,
)
from solver.systems.decoders.common import finished, memory_room, plan_of, whole_layers
from solver.systems.decoders.megatron import axes
from solver.systems.galaxy import allocate

BLOCK_OF_WORDS = 256


def plan_galaxy(model: Decoder, cluster: Cluster, asked: TokenRequest) -> DecoderPlan:
    """Share heads, columns and words by capacity, then repair what memory does not hold."""
    s = setting_of(model, cluster, asked)
    whole = whole_layers(s, cluster, asked)
    heads, columns, (vocab, _) = axes(model, asked)
    units = [(vocab, BLOCK_OF_WORDS), columns, heads]
    totals = [-(-total // size) for total, size in units]
    room = np.maximum(memory_room(model, cluster) - _beside(model, cluster, asked), 0.0)
    sizes = _unit_bytes(model, asked, heads[1], columns[1])
    counts, short = allocate(1 / whole.seconds, totals, sizes, room)
    if short.any():
        missing, rank = short.sum() / MIB, int(room.argmax())
        raise InfeasiblePlanError(
            f"{model.name} by galaxy does not fit: {missing:.0f} MiB are missing in all, {cluster.names[rank]} has "
            f"{cluster.devices[rank].memory_bytes / MIB:.0f}"
        )
    words, its_columns, its_heads = (
        Partition.of_counts(_clipped(own.tolist(), size, total))
        for own, (total, size) in zip(counts, units, strict=True)
    )
    stage = DecoderStage(Span(0, len(model.layers)), its_heads, its_columns)
    return finished(s, cluster, asked, plan_of(asked, cluster.names, [stage], words, "galaxy"))


def _clipped(units: list[int], size: int, total: int) -> list[int]:
    stops = np.minimum(np.cumsum(units) * size, total)
    return [int(count) for count in np.diff(stops, prepend=0)]


def _unit_bytes(model: Decoder, asked: TokenRequest, heads: int, columns: int) -> list[int]:
    """Return the bytes of a block of words, of columns and of heads in all layers, with their cache."""
    tokens, rows = asked.context * asked.sequences, min(CHUNK_ROWS, asked.context)
    held = HELD[asked.precision]
    one, two = (words_bytes(model, blocks * BLOCK_OF_WORDS, held) for blocks in (1, 2))
    taken = [two - one, 0, 0]  # without the norm, which a share has once
    for layer in model.layers:
        kv = -(-heads // layer.attention.group)
        taken[1] += mlp_bytes(model, layer.mlp, columns, held)
        taken[2] += attention_bytes(model, layer.attention, heads, kv, held)
        taken[2] += cache_bytes(layer.attention, kv, asked.cache, tokens)
    taken[1] += 2 * FLOAT_BYTES * rows * columns
    taken[2] += FLOAT_BYTES * rows * 3 * heads * model.layers[0].attention.head_dim
    return taken


def _beside(model: Decoder, cluster: Cluster, asked: TokenRequest) -> int:
    """Return what a device needs beside its share, at the most: all logits, and the summands of all."""
    return work_bytes(model, len(cluster.devices), 0, model.vocab, asked.context)
