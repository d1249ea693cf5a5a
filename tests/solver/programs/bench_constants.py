"""What the planner's constants are worth: python tests/solver/programs/bench_constants.py FAMILY [CLUSTERS [NAME …]].

FAMILY is encoder, network or decoder. Of every number that says how much is tried, half and twice as much: the seconds
of plans for random clusters (`many_clusters.py`) over those of plans as they are, and the CPU time, of a core whose
speed varies by a third. What changes no plan by half as much may be smaller; what changes none by twice as much is
large enough.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[3]))

from solver.base.errors import HeptiError
from solver.model.named_decoders import named_decoder
from solver.plan.plan import Wire
from solver.programs import candidates, planner, polish, search, shares, tiles_and_routes
from solver.programs.convnets import every_plan, segment_polish, segments
from solver.programs.convnets import planner as networks
from solver.programs.decoders import shares as decoder_shares
from solver.schedule.decoders.asked import token_request
from solver.schedule.decoders.cost import answer_seconds, setting_of
from solver.systems.decoders import hepti as stages
from tests.solver.programs.many_clusters import instance
from weights.networks_zoo import zoo_graph

FIRST = 1000  # seed
NETWORKS, DECODERS = ("resnet18", "mobilenetv2", "resnet50", "googlenet"), ("llama-3.2-1b", "qwen3-0.6b")
CONSTANTS: dict[str, list[tuple[ModuleType, str]]] = {
    "encoder": [
        (candidates, "LIKELIEST NEARBY AGAIN FEW LARGEST HOPELESS"),
        (planner, "ROUNDS NEIGHBOURS SENT KEPT"),
        (search, "ALL_WAYS SLACK"),
        (polish, "TURNS GAINED WORTH FEW_UNITS FEW"),
        (shares, "PROBE GAP MOST_NODES"),
        (tiles_and_routes, "ROUTED"),
    ],
    "network": [
        (networks, "PRICED LOOKS"),
        (segment_polish, "CHANNEL_PARTS PRICE"),
        (segments, "FEW FUSED FEW_ROWS LABELS"),
        (every_plan, "PAIRS WAYS"),
    ],
    "decoder": [
        (decoder_shares, "MOST_UNITS MOST_MOVED WORDS WIDE NEAR PROGRAMS"),
        (stages, "MOST MOST_SHARING EXCHANGES"),
        (polish, "TURNS FEW_UNITS FEW"),
    ],
}


def encoder_s(seed: int) -> float:
    """Return the seconds of a request by the plan for a random cluster."""
    spec, cluster, rows = instance(seed)
    return planner.solve(spec, cluster, rows).plan.predicted_s


def network_s(seed: int) -> float:
    """Return the seconds of an image."""
    _, cluster, _ = instance(seed)
    predicted = networks.solve_network(zoo_graph(NETWORKS[seed % len(NETWORKS)]), cluster).predicted
    assert predicted is not None
    return predicted.seconds


def decoder_s(seed: int) -> float:
    """Return the seconds of an answer."""
    _, cluster, _ = instance(seed)
    model = named_decoder(DECODERS[seed % len(DECODERS)])
    asked = token_request(
        model, None, "int4", Wire.FLOAT32, prompt=64, tokens=64, context=512, sequences=1, cache=None
    )  # fmt: skip
    return answer_seconds(setting_of(model, cluster, asked), stages.plan_hepti(model, cluster, asked), asked)


def planned(plan: Callable[[int], float], clusters: int) -> tuple[dict[int, float], float]:
    """Return the seconds of the plans that there are, by seed, and the CPU time of planning."""
    found, started = dict[int, float](), time.process_time()
    for seed in range(FIRST, FIRST + clusters):
        with suppress(HeptiError):  # the model fits nowhere
            found[seed] = plan(seed)
    return found, time.process_time() - started


def changed(family: str, wanted: list[str]) -> Iterator[tuple[ModuleType, str, float]]:
    """Yield constants with half and twice their values."""
    for module, names in CONSTANTS[family]:
        for name in names.split():
            if not wanted or name in wanted:
                now = getattr(module, name)
                yield from (
                    (module, name, type(now)(max(now * times, 1) if now > 1 else now * times)) for times in (0.5, 2)
                )


def main() -> None:
    """Print the table."""
    family, clusters, wanted = sys.argv[1], int((*sys.argv, "20")[2]), sys.argv[3:]
    plan = {"encoder": encoder_s, "network": network_s, "decoder": decoder_s}[family]
    usual, cpu_s = planned(plan, clusters)
    table = Table(title=f"{family}s on {len(usual)} random clusters: plans by other constants, over those as they are")
    for heading in ("constant", "is", "other", "mean", "least", "most", "CPU time"):
        table.add_column(heading, justify="left" if heading == "constant" else "right")
    for module, name, other in changed(family, wanted):
        now = getattr(module, name)
        setattr(module, name, other)
        found, taken_s = planned(plan, clusters)
        setattr(module, name, now)
        parts = np.array([found[seed] / usual[seed] for seed in usual.keys() & found.keys()])
        facts = (f"{value:.4f}" for value in (parts.mean(), parts.min(), parts.max()))
        short = module.__name__.removeprefix("solver.")
        table.add_row(f"{short}.{name}", f"{now:g}", f"{other:g}", *facts, f"{taken_s / cpu_s:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
