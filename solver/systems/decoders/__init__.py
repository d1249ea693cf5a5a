"""Ways to split a language model over devices: one small file each, and the table of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from solver.cluster.cluster import Cluster
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.decoders.asked import TokenRequest
from solver.systems import PLANNERS
from solver.systems.decoders.edgeshard import plan_edgeshard
from solver.systems.decoders.galaxy import plan_galaxy
from solver.systems.decoders.hepti import plan_hepti
from solver.systems.decoders.megatron import plan_megatron
from solver.systems.decoders.pipeedge import plan_pipeedge
from solver.systems.decoders.prima import plan_prima
from solver.systems.decoders.single import plan_named, plan_single
from solver.systems.named import planner_named

DecoderPlanner = Callable[[Decoder, Cluster, TokenRequest], DecoderPlan]

SYSTEMS: Mapping[str, DecoderPlanner] = {
    "hepti": plan_hepti,
    "single": plan_single,
    "megatron": plan_megatron,
    "galaxy": plan_galaxy,
    "prima": plan_prima,
    "edgeshard": plan_edgeshard,
    "pipeedge": plan_pipeedge,
}


def plan_decoder(system: str, model: Decoder, cluster: Cluster, asked: TokenRequest) -> DecoderPlan:
    """Plan by the named system, and predict what that costs.

    Raises
    ------
    HeptiError
        If there is no such system, what is asked for does not fit the model, or devices lack memory.
    """
    asked.check(model)
    return planner_of(system)(model, cluster, asked)


def planner_of(system: str) -> DecoderPlanner:
    """Return what plans by the named system.

    Raises
    ------
    HeptiError
        If there is none of that name.
    """
    return planner_named(system, SYSTEMS, plan_named, "language models", PLANNERS)
