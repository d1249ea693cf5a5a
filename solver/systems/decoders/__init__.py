"""Ways to split a language model over devices: one small file each, and the table of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from solver.base.errors import InfeasiblePlanError
from solver.cluster.cluster import Cluster
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import setting_of, tokens_per_s
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

MANY = (1, 2, 4, 8, 16, 32, 64)  # sequences that are tried where most tokens a second are asked for
# Of the most tokens a second: of llama-3.2-1b on four Pi 4 the last 5 % cost answers half of their speed.
ENOUGH = 0.95

SYSTEMS: Mapping[str, DecoderPlanner] = {
    "hepti": plan_hepti,
    "single": plan_single,
    "megatron": plan_megatron,
    "galaxy": plan_galaxy,
    "prima": plan_prima,
    "edgeshard": plan_edgeshard,
    "pipeedge": plan_pipeedge,
}


def plan_decoder(
    system: str, model: Decoder, cluster: Cluster, asked: TokenRequest, *, any_sequences: bool = False
) -> DecoderPlan:
    """Plan by the named system, and predict what that costs.

    Parameters
    ----------
    any_sequences
        Whether it is not for `asked.sequences`, but for as many as make most tokens a second together, as memory has
        room: for the fewest that make nearly as many.

    Raises
    ------
    HeptiError
        If there is no such system, what is asked for does not fit the model, or devices lack memory.
    """
    asked.check(model)
    planner = planner_of(system)
    if not any_sequences:
        return planner(model, cluster, asked)
    found = list[tuple[float, DecoderPlan]]()
    for sequences in MANY:
        asked = replace(asked, sequences=sequences)
        try:
            plan = planner(model, cluster, asked)
        except InfeasiblePlanError:
            if not found:
                raise
            break
        found.append((tokens_per_s(setting_of(model, cluster, asked), plan, asked), plan))
    most = max(speed for speed, _ in found)
    return next(plan for speed, plan in found if speed >= ENOUGH * most)


def planner_of(system: str) -> DecoderPlanner:
    """Return what plans by the named system.

    Raises
    ------
    HeptiError
        If there is none of that name.
    """
    return planner_named(system, SYSTEMS, plan_named, "language models", PLANNERS)
