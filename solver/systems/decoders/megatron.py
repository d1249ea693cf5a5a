"""Even shares of every layer on all devices: tensor parallelism as Megatron-LM cuts it (arXiv 1909.08053).

Whole groups of query heads, columns and words, as even as their units allow. distributed-llama splits so and asks
besides for 2^n devices, no more than groups; here more have columns and words only.
"""

from __future__ import annotations

import math

from solver.base.errors import HeptiError
from solver.base.spans import Partition, Span, largest_remainder
from solver.cluster.cluster import Cluster
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan, DecoderStage, column_unit, head_unit
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import setting_of
from solver.systems.decoders.common import finished, plan_of


def plan_megatron(model: Decoder, cluster: Cluster, asked: TokenRequest) -> DecoderPlan:
    """Share everything evenly."""
    return in_shares(model, cluster, asked, [1.0] * len(cluster.devices), "megatron")


def in_shares(model: Decoder, cluster: Cluster, asked: TokenRequest, shares: list[float], system: str) -> DecoderPlan:
    """Return the plan of one stage in which all is shared out so, in whole groups and blocks."""
    heads, columns, words = axes(model, asked)
    stage = DecoderStage(Span(0, len(model.layers)), in_units(shares, *heads), in_units(shares, *columns))
    plan = plan_of(asked, cluster.names, [stage], in_units(shares, *words), system)
    return finished(setting_of(model, cluster, asked), cluster, asked, plan)


def axes(model: Decoder, asked: TokenRequest) -> list[tuple[int, int]]:
    """Return of heads, columns and words how many there are, and of how many a unit is; of a model of one width.

    Raises
    ------
    HeptiError
        If its layers differ in width: then no share fits all of them.
    """
    layer = model.layers[0]
    for what, sizes in (
        ("heads", {(own.attention.heads, own.attention.kv_heads) for own in model.layers}),
        ("columns", {own.mlp.ffn for own in model.layers}),
    ):
        if len(sizes) > 1:
            raise HeptiError(f"{model.name}: layers have {sorted(sizes)} {what}: only whole layers can be shared out")
    groups = math.lcm(layer.attention.group, head_unit(layer.attention, asked.precision))
    return [(layer.attention.heads, groups), (layer.mlp.ffn, column_unit(asked.precision)), (model.vocab, 1)]


def in_units(shares: list[float], total: int, size: int) -> Partition:
    """Round shares to whole units; the last unit may not be full."""
    stop, stops = 0, []
    for count in largest_remainder(shares, -(-total // size)):
        stop += count * size
        stops.append(min(stop, total))
    return Partition.of_counts([after - before for before, after in zip([0, *stops], stops, strict=False)])
