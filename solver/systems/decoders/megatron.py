"""Even shares of every layer on all devices: tensor parallelism as Megatron-LM cuts it (arXiv 1909.08053).

Whole groups of query heads, columns and words, as even as their units allow. distributed-llama splits so and asks
besides for 2^n devices, no more than groups; here more have columns and words only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from solver.base.errors import HeptiError
from solver.base.spans import Partition, Span, largest_remainder
from solver.cluster.cluster import Cluster
from solver.model.decoder import Decoder
from solver.model.kinds.part import WORD
from solver.plan.decoder_plan import DecoderPlan, DecoderStage, cut_unit, totals_of
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import setting_of
from solver.schedule.decoders.memory import whole_units
from solver.systems.decoders.common import finished, plan_of


def plan_megatron(model: Decoder, cluster: Cluster, asked: TokenRequest) -> DecoderPlan:
    """Share everything evenly."""
    return in_shares(model, cluster, asked, [1.0] * len(cluster.devices), "megatron")


def in_shares(model: Decoder, cluster: Cluster, asked: TokenRequest, shares: list[float], system: str) -> DecoderPlan:
    """Return the plan of one stage in which all is shared out so, in whole groups and blocks."""
    *of_blocks, words = axes(model, asked)
    stage = DecoderStage(Span(0, len(model.layers)), {axis.name: in_units(shares, axis) for axis in of_blocks})
    plan = plan_of(asked, cluster.names, [stage], in_units(shares, words), system)
    return finished(setting_of(model, cluster, asked), cluster, asked, plan)


@dataclass(frozen=True, slots=True)
class WholeAxis:
    """What is shared out of a model of one width: of an axis how many units, and of how many a share is made up."""

    name: str
    total: int
    size: int


def axes(model: Decoder, asked: TokenRequest) -> list[WholeAxis]:
    """Return what is shared out of a model of one width, words at last.

    Raises
    ------
    HeptiError
        If its layers differ in width: then no share fits all of them.
    """
    found = []
    for name, total in totals_of(model, Span(0, len(model.layers))).items():
        kinds = {kind for layer in model.layers for kind in layer if kind.axis == name}
        sizes = {tuple(whole_units(model, kind).values()) for kind in kinds}
        if len(sizes) > 1:
            has = sorted(size if len(size) > 1 else size[0] for size in sizes)
            raise HeptiError(f"{model.name}: layers have {has} {name}: only whole layers can be shared out")
        size = math.lcm(*(math.lcm(kind.group or 1, cut_unit(kind, model.stream, asked.precision)) for kind in kinds))
        found.append(WholeAxis(name, total, size))
    return [*found, WholeAxis(WORD, model.vocab, 1)]


def in_units(shares: list[float], axis: WholeAxis) -> Partition:
    """Round shares to whole units; the last unit may not be full."""
    stop, stops = 0, []
    for count in largest_remainder(shares, -(-axis.total // axis.size)):
        stop += count * axis.size
        stops.append(min(stop, axis.total))
    return Partition.of_counts([after - before for before, after in zip([0, *stops], stops, strict=False)])
