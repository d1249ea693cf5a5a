"""How a plan was found, for a person and for a program: `python -m solver … --explain`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np
from rich.console import Console

from solver.base.phrases import counted, ms
from solver.base.tables import new_table
from solver.cluster.cluster import Cluster
from solver.programs.explain import KindTried, kinds_tried, least_shares
from solver.programs.planner import Solution
from solver.schedule.price import Price
from solver.show.advice import Limit, limits
from solver.show.decoder_facts import ExplainedDecoder, PricedDecoder


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """Every kind of layer that was tried, the best first, and for who has no share what the best for it would cost."""

    kinds: tuple[KindTried, ...]
    least_shares: dict[int, float]


def explain(solution: Solution, advance: Callable[[int], None]) -> Explanation:
    """Search all kinds once more, which takes seconds; `advance` is called with 1 after each."""
    kinds = sorted(kinds_tried(solution, advance), key=lambda kind: kind.best_s)
    return Explanation(tuple(kinds), least_shares(solution))


@dataclass(frozen=True, slots=True)
class DeviceSeconds:
    """What a device does with the seconds of a request or a token; together they are all of it.

    Parameters
    ----------
    kernels_s, messages_s
        Computes; codes, handles and adds up messages, which is what running in several parts adds to the kernels.
    exchange_s, idle_s
        Waits for the wire, as far as computing does not hide it, and for others.
    """

    device: str
    kernels_s: float
    messages_s: float
    exchange_s: float
    idle_s: float


def seconds_spent(names: Sequence[str], price: Price) -> list[DeviceSeconds]:
    """Return what each device that computes or handles anything does with the time."""
    spent = (price.compute_s - price.handled_s, price.handled_s, price.exchange_s, np.maximum(price.idle_s, 0.0))
    every = zip(names, *(own.tolist() for own in spent), strict=True)
    return [DeviceSeconds(*own) for own in every if own[1] + own[2] > 0]


def _print_spent(console: Console, spent: Sequence[DeviceSeconds], what: str) -> None:
    table = new_table(
        f"where the milliseconds of {what} go", "device", "kernels", "messages", "exchange", "idle", "all"
    )
    for own in spent:
        name, *seconds = astuple(own)
        table.add_row(name, *map(ms, seconds), ms(sum(seconds)))
    console.print(table)
    console.print(
        "Messages: coding, handling and adding up. Exchange: the wire, as far as computing does not hide it. Idle: "
        "waiting for others."
    )


def print_explanation(
    console: Console, cluster: Cluster, solution: Solution, found: Explanation, price: Price
) -> None:  # fmt: skip
    """Print the kinds, what limits the best of them, what shares cost for being whole, and why some have nothing.

    And where the time of the plan goes, by its price.
    """
    headings = ("cuts, norms", "on ranks", "first\nshares ms", "best\nms", "parted\nms", "whole\n%", "CPU\nms")
    table = new_table("layers that were tried, for a request of their like", *headings, words=2)
    for kind in _once_alone(found.kinds):
        table.add_row(
            kind.kind,
            " ".join(map(str, kind.ranks)),
            ms(kind.start_s) if np.isfinite(kind.start_s) else "-",
            ms(kind.best_s),
            ms(kind.fractions_s),
            f"{100 * (1 - kind.fractions_s / kind.best_s):.1f}",
            f"{1e3 * kind.cpu_s:.0f}",
        )
    console.print(table)
    console.print(
        "Norms: r on rows, f on full. Parted: what the program of shares finds around the best, could heads, rows and "
        "tiles be parted; whole: what it costs that they cannot. All layers of one rank alone are one line."
    )
    if solution.prices.any():
        console.print(
            "Memory is scarce: to the milliseconds of a layer is added what the memory that it takes would save others."
        )
    _print_plan(console, solution)
    _print_spent(console, seconds_spent(cluster.names, price), "a request")
    alike = f" of layers like {solution.best.kind} alone" * bool(solution.mix_bound_s)
    _print_limits(console, limits(cluster, solution), "a request", alike)
    _print_gap(console, solution)
    for name, added_s in _idle(cluster, solution, found).items():
        console.print(f"{name} has nothing: the best share for it makes a request {ms(added_s)} ms longer.")


def explanation_to_json(
    cluster: Cluster, solution: Solution, found: Explanation, price: Price
) -> dict[str, Any]:  # fmt: skip
    """Return what is printed, for a program; seconds, ranks, and names of devices."""
    return {
        "spent": [asdict(own) for own in seconds_spent(cluster.names, price)],
        "kinds": [
            asdict(kind) | {"start_s": kind.start_s if np.isfinite(kind.start_s) else None} for kind in found.kinds
        ],
        "limits": [asdict(limit) for limit in limits(cluster, solution)],
        "gap": solution.gap,
        "fractions_s": solution.mix_bound_s or solution.relaxed.seconds,
        "runs": [{"kind": str(layer.kind), "layers": layers} for layer, layers in solution.runs],
        "idle": [{"device": name, "added_s": added_s} for name, added_s in _idle(cluster, solution, found).items()],
    }


def _idle(cluster: Cluster, solution: Solution, found: Explanation) -> dict[str, float]:
    """Return what the best share would cost the devices that have none in any layer of the plan, by name."""
    (stage,) = solution.plan.stages
    return {cluster.names[rank]: added_s for rank, added_s in found.least_shares.items() if rank not in stage.active}


def _once_alone(kinds: Sequence[KindTried]) -> list[KindTried]:
    """Return the kinds; of those on one rank alone, which are all the same, the best."""
    first = {kind.ranks: kind for kind in reversed(kinds)}
    return [kind for kind in kinds if len(kind.ranks) > 1 or first[kind.ranks] is kind]


def _print_limits(console: Console, found: Sequence[Limit], what: str, alike: str = "") -> None:
    table = new_table(f"what limits {what}{alike}", "device", "its speed\nbinds ms", "its link\nbinds ms")
    for limit in found:
        table.add_row(limit.device, ms(limit.compute_s), ms(limit.link_s))
    console.print(table)
    for limit in found:
        if limit.saved_s_per_mib > 0:
            console.print(
                f"The next MiB of memory on {limit.device} saves {1e3 * limit.saved_s_per_mib:.3g} ms of {what}."
            )


def _print_gap(console: Console, solution: Solution) -> None:
    if solution.mix_bound_s:
        said = "If layers could be mixed in fractions, without tiles and routes, a request would take"
        console.print(f"{said} {ms(solution.mix_bound_s)} ms.")
        return
    console.print(
        f"Could heads, rows and tiles be parted between its devices, it would take {ms(solution.relaxed.seconds)} ms: "
        f"that they are whole costs {100 * solution.gap:.1f} %."
    )


def _print_plan(console: Console, solution: Solution) -> None:
    plan = solution.plan
    runs = ", ".join(f"{counted(layers, 'layer')} of {layer.kind}" for layer, layers in solution.runs)
    tiles = f", in tiles of about {counted(plan.tile_rows, 'row')}" if plan.tile_rows else ""
    console.print(f"The plan takes {ms(plan.predicted_s)} ms: {runs}{tiles}.")


def print_decoder_explanation(console: Console, priced: PricedDecoder, found: ExplainedDecoder) -> None:
    """Print the crews, where time goes, what limits an answer, what shares cost for being whole, who has nothing."""
    table = new_table("crews that were tried", "on ranks", "first\nshares ms", "best\nms")
    for crew in found.crews:
        first = ms(crew.first_s) if np.isfinite(crew.first_s) else "-"
        table.add_row(" ".join(map(str, crew.ranks)), first, ms(crew.best_s) if np.isfinite(crew.best_s) else "-")
    console.print(table)
    console.print("Best: by the program of shares; a descent then moves units, also within groups of heads.")
    console.print(f"The plan's answer takes {ms(found.answer_s)} ms.")
    _print_spent(console, seconds_spent(priced.cluster.names, priced.token), "a token in the middle of the answer")
    _print_limits(console, found.limits, "an answer")
    console.print(
        f"Could units be parted between its devices, it would take {ms(found.parted_s)} ms: that they are whole costs "
        f"{100 * (1 - found.parted_s / found.answer_s):.1f} %."
    )
    for name, added_s in found.idle.items():
        console.print(f"{name} has nothing: the best of the least shares makes an answer {ms(added_s)} ms longer.")


def decoder_explanation_to_json(priced: PricedDecoder, found: ExplainedDecoder) -> dict[str, Any]:
    """Return what is printed, for a program; seconds, ranks, and names of devices."""
    return {
        "crews": [
            {name: value if name == "ranks" or np.isfinite(value) else None for name, value in asdict(crew).items()}
            for crew in found.crews
        ],
        "spent": [asdict(own) for own in seconds_spent(priced.cluster.names, priced.token)],
        "answer_s": found.answer_s,
        "fractions_s": found.parted_s,
        "limits": [asdict(limit) for limit in found.limits],
        "idle": [{"device": name, "added_s": added_s} for name, added_s in found.idle.items()],
    }
