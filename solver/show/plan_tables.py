"""A plan as tables that a person reads, and as JSON that a program does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from solver.base.phrases import counted, ms, percent
from solver.base.spans import Span
from solver.base.tables import new_table
from solver.cluster.cluster import MIB, Cluster, Device
from solver.live.turns import ERROR
from solver.model.blocks import Cut
from solver.model.precision import FLOAT32
from solver.plan.plan import BlockPlan, LayerPlan, Plan, Wire
from solver.plan.routes import Route
from solver.plan.segments import SegmentPlan
from solver.plan.writing import plan_table
from solver.programs.planner import Solution
from solver.schedule.price import Price
from solver.show.advice import WORTH, Bounds, Limit, Upgrade, saved_at_most
from solver.show.comparison import ComparedSystem
from solver.show.system_tables import print_notes
from solver.systems.named import ALONE

MOST_LISTED = 16  # devices; of more, only those that take part
SURE_GAIN = 1.4  # of estimates: 1.21 was predicted and 0.95 measured, 1.38 and 1.26, 2.5 and 2.8 (docs/planning.md)

# What is shared out within a block, in words short enough that seven columns are not cut at 80.
UNITS = {"attention": "heads", "mlp": "ffn\ncolumns"}


def print_plan(console: Console, cluster: Cluster, plan: Plan, priced: Price) -> None:
    """Print who gets what, and what every device does with its time."""
    active = plan.stages[0].active
    listed = range(len(plan.devices)) if len(plan.devices) <= MOST_LISTED else active
    spans: dict[LayerPlan, list[Span]] = {}  # of a decoupled model, layers that are cut alike stand apart
    for span, layer in plan.stages[0].layers:
        spans.setdefault(layer, []).append(span)
    for layer, alike in spans.items():
        console.print(_shares(plan, alike, layer, listed))
    console.print(_devices(cluster, priced, listed))
    if len(listed) < len(plan.devices):
        rest = len(plan.devices) - len(listed)
        console.print(f"{counted(rest, 'other device')} hold{'s' * (rest == 1)} nothing.")
    if len(active) == 1 and len(plan.devices) > 1:
        only = plan.devices[active[0]]
        if plan.system == "hepti":
            console.print(f"One device alone is fastest: {only}. The others would cost more than they do.")
        else:
            console.print(f"By {plan.system} all is on {only}. Whether others are faster stands below.")
    elif plan.system == "hepti" and (idle := [plan.devices[rank] for rank in listed if rank not in active]):
        console.print(f"{', '.join(idle)}: no share, since any would cost more than it saves (--explain has figures).")
    facts, routes = priced.prediction, _routes(plan)
    console.print(
        f"[bold]{_ms(facts.seconds)}[/] for a request of {counted(plan.rows, 'row')} by {plan.system or 'this plan'}: "
        f"the busiest device computes {_ms(facts.compute_s)} and waits {_ms(facts.exchange_s)}; "
        f"{facts.bytes_on_wire / MIB:.1f} MiB are sent."
    )
    if plan.tile_rows or routes or plan.wire is not Wire.FLOAT32:
        tiles = f"in tiles of about {counted(plan.tile_rows, 'row')}" if plan.tile_rows else "all rows at once"
        console.print(f"Exchanges are sent as {plan.wire}, {tiles}{routes and ', by '}{routes}.")


def _routes(plan: Plan) -> str:
    """Return the routes that are not direct."""
    blocks = [block for _, layer in plan.stages[0].layers for block in layer]
    return " and ".join(sorted({str(block.route) for block in blocks} - {Route.DIRECT}))


def print_comparison(
    console: Console, plan: Plan | SegmentPlan, others: Sequence[ComparedSystem], bound: Bounds
) -> None:
    """Print the plan beside what else there is, and what it cannot beat."""
    assert plan.predicted is not None
    table = new_table("predicted", "system", "ms", "this plan is")
    rows = [
        (plan.system, plan.predicted.seconds, ""),
        *((other.system, other.seconds, other.lacks) for other in others if other.system != plan.system),
    ]
    for system, seconds, lacks in sorted(rows, key=lambda row: row[1]):
        planned = np.isfinite(seconds)
        compared = planned and system != plan.system
        ratio = f"{seconds / plan.predicted.seconds:.2f} times as fast" if compared else ""
        shown = ms(seconds) if planned else "-"
        marked = system + " †" * bool(lacks)
        table.add_row(marked, shown, ratio, style="bold" if system == plan.system else "dim" if lacks else "")
    console.print(table)
    print_notes(console, others)
    console.print(
        f"No plan beats {_ms(bound.compute_s)}, all the work by all devices, each at its best: "
        f"{saved_at_most(plan.predicted.seconds, bound.compute_s)}. The busiest link carries this plan's bytes for "
        f"{_ms(bound.exchange_s)}; boards wait for what computing does not hide."
    )


def print_limits(console: Console, solution: Solution, limits: Sequence[Limit]) -> None:
    """Print what a request's time is spent on, the most first; what whole heads and rows cost is for `--explain`.

    Nothing where memory is scarce: the program is of layers that are alike.
    """
    if solution.mix_bound_s:
        return
    parts = [
        (seconds, f"{_ms(seconds)} {what} of {limit.device}")
        for limit in limits
        for what, seconds in (("compute", limit.compute_s), ("link", limit.link_s))
        if seconds > WORTH * solution.relaxed.seconds
    ]
    spent = ", ".join(words for _, words in sorted(parts, reverse=True))
    console.print(
        f"What limits a request, of {_ms(solution.relaxed.seconds)} could heads and rows be parted: {spent}. "
        "What is not named has time to spare; the rest is latency."
    )


def print_upgrades(console: Console, seconds: float, upgrades: Sequence[Upgrade], of: str = "") -> None:
    """Print what upgrades save of these seconds; `of` says what they are, where it is no request."""
    for upgrade in upgrades:
        part = upgrade.saved_s / seconds
        console.print(f"{upgrade.change} would save {_ms(upgrade.saved_s)}{of} ({100 * part:.0f} %).")


def print_estimated(
    console: Console,
    cluster: Cluster,
    measured: Callable[[Device], bool],
    seconds: float,
    others: Sequence[ComparedSystem],
) -> None:
    """Say what times are worth, those of a plan and of one device: estimates, where GFLOP/s are all that is known."""
    guessed = [device.name for device in cluster.devices if not measured(device)]
    alone = [other.seconds for other in others if other.system.startswith(ALONE)]
    gain = min(alone, default=np.inf) / seconds
    sure_gain = SURE_GAIN if guessed else 1 + 2 * ERROR
    small = f"So small a gain as {gain:.2f} times may come to nothing"
    is_small = gain > 1.005 and round(gain, 2) < sure_gain  # as it is said
    if not guessed:
        if is_small:
            console.print(
                f"Predictions for boards that were measured are off by {percent(ERROR)} in the mean. {small}: "
                "a run with `--plan-by measure` tries others, too.",
                highlight=False,
            )
        return
    of = "" if len(guessed) == len(cluster.devices) else f" of {', '.join(guessed)}"
    small = f" {small}: {SURE_GAIN:g} and more were real." * is_small
    console.print(
        f"Times{of} are estimates from GFLOP/s; lab boards took 0.7 to 1.1 times as long.{small} "
        "`hepti profile` measures boards that are there.",
        highlight=False,
    )


def to_json(
    cluster: Cluster, plan: Plan, priced: Price, others: Sequence[ComparedSystem], bound: Bounds,
    solution: Solution | None, upgrades: Sequence[Upgrade],
) -> str:  # fmt: skip
    """Return the plan's table as JSON, with all that is printed of it."""
    table = _with_devices(cluster, plan, priced)
    table["alternatives"] = [
        {"system": other.system, "seconds": other.seconds if np.isfinite(other.seconds) else None, "lacks": other.lacks}
        for other in others
    ]
    table["bounds"] = {"compute_bound_s": bound.compute_s, "exchange_bound_s": bound.exchange_s}
    table["upgrades"] = [asdict(upgrade) for upgrade in upgrades]
    if solution is not None:
        table["gap"] = solution.gap
    return json.dumps(table, indent=1) + "\n"


def priced_to_json(cluster: Cluster, plan: Plan, priced: Price) -> str:
    """Return the plan's table as JSON, with what every device does."""
    return json.dumps(_with_devices(cluster, plan, priced), indent=1) + "\n"


def _with_devices(cluster: Cluster, plan: Plan, priced: Price) -> dict[str, Any]:
    table = plan_table(plan)
    table["per_device"] = [
        {
            "device": name,
            "weights_bytes": held,
            "compute_s": float(compute),
            "exchange_s": float(exchange),
            "idle_s": float(idle),
        }
        for name, held, compute, exchange, idle in zip(
            cluster.names, priced.weights_bytes, priced.compute_s, priced.exchange_s, priced.idle_s, strict=True
        )
    ]
    return table


def _shares(plan: Plan, spans: Sequence[Span], layer: LayerPlan, listed: Sequence[int]) -> Table:
    """Return layers that are cut alike: who has which rows, heads and columns."""
    numbers = ", ".join(f"{span.start}" + (f"-{span.stop - 1}" if span.size > 1 else "") for span in spans)
    several = "s" * (sum(span.size for span in spans) > 1)
    columns = ["device"]
    # Lines of a heading are short enough that seven columns are not cut at 80.
    for block in layer:
        shared = block.cut in (Cut.BLOCK, Cut.TO_ROWS, Cut.COLUMNS, Cut.GRID)
        headings = [f"by {block.cut}:\n{UNITS.get(block.block, 'inner')}" if shared else block.cut.replace("_", "-")]
        headings += ["output\ncolumns"] * (block.columns is not None)
        headings += ["norm\non rows"] * (block.inner is not None and block.rows is not None)
        columns += [f"{block.block}\n{heading}" for heading in headings]
    table = new_table(f"{plan.model_name}, layer{several} {numbers}", *columns)
    for rank in listed:
        table.add_row(plan.devices[rank], *(cell for block in layer for cell in _cells(block, plan, rank)))
    return table


def _cells(block: BlockPlan, plan: Plan, rank: int) -> list[str]:
    if block.cut is Cut.WHOLE:
        return ["all" if rank in plan.stages[0].active else "0"]
    partitions = (block.inner, block.columns, block.row_partition(plan.rows))
    # In a grid there is one span of columns a row, and rank r is in row r mod rows.
    return [str(partition[rank % len(partition)].size) for partition in partitions if partition is not None]


def _devices(cluster: Cluster, priced: Price, listed: Sequence[int]) -> Table:
    """Return what every device holds and does."""
    weights = "MiB of weights" + ("" if cluster.precision == FLOAT32 else f" in {cluster.precision.name}")
    headings = ("device", "GFLOP/s", "MiB free", weights, "compute ms", "exchange ms", "idle ms")
    table = new_table("devices", *headings)
    for rank in listed:
        device, held = cluster.devices[rank], priced.weights_bytes[rank]
        times = (priced.compute_s[rank], priced.exchange_s[rank], priced.idle_s[rank])
        table.add_row(
            device.name,
            f"{device.compute_flop_per_s / 1e9:.1f}",
            f"{device.memory_bytes / MIB:.0f}",
            f"{held / MIB:.0f}",
            *map(ms, times),
            style="bold red" if held > device.memory_bytes else "",
        )
    return table


def _ms(seconds: float) -> str:
    return f"{ms(seconds)} ms"
