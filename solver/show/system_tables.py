"""Systems side by side, and plans of several stages and replicas, as tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from rich.console import Console

from solver.base.phrases import counted, ms
from solver.base.tables import new_table
from solver.cluster.cluster import MIB, Cluster
from solver.model.spec import ModelSpec
from solver.model.sublayers import LEGEND
from solver.plan.plan import Plan, Wire
from solver.plan.writing import plan_table
from solver.schedule.encoders.stages import PricedPlan
from solver.show.advice import Upgrade
from solver.show.comparison import ComparedSystem, ranked, winner


def print_systems(console: Console, entries: Sequence[ComparedSystem], title: str, objective: str) -> None:
    """Print every system's prediction, those that can be run first, the best for the objective first; and who wins."""
    # Short enough for 80 columns.
    weights = (f"weights:\n{which} MiB" for which in ("most", "least"))
    table = new_table(title, "system", "ms", "requests\na second", "MiB\nsent", *weights)
    table.columns[0].no_wrap = True
    best = {objective: winner(entries, objective) for objective in ("latency", "throughput")}
    entries = ranked(entries, objective)
    for entry in entries:
        planned = bool(entry.weights_bytes)
        held = (max(entry.weights_bytes), min(entry.weights_bytes)) if planned else ()
        table.add_row(
            entry.label + (" †" if entry.lacks else ""),
            ms(entry.seconds) if planned else "-",
            f"{entry.requests_per_s:.2f}" if planned else "-",
            f"{entry.bytes_on_wire / MIB:.1f}" if planned else "-",
            *([f"{size / MIB:.0f}" for size in held] or "--"),
            style="dim" if entry.lacks else "bold" if entry in best.values() else "",
        )
    console.print(table)
    print_notes(console, entries)
    for entry in entries:
        if entry.model:
            console.print(f"* {entry.system} runs another model, {entry.model}: as large, and other answers.")
    if not any(best.values()):
        console.print("None of them can be run.")
    if (won := best["latency"]) is not None:
        console.print(f"latency: {won.system} wins with {1e3 * won.seconds:.1f} ms.")
    if (won := best["throughput"]) is not None:
        console.print(f"throughput: {won.system} wins with {won.requests_per_s:.2f} requests a second.")


def print_notes(console: Console, entries: Sequence[ComparedSystem]) -> None:
    """Print which systems cannot be run, and why, and which split nothing: in a column, words would be parted."""
    lacking: dict[str, list[str]] = {}  # many lack the same
    for entry in entries:
        if entry.lacks:
            lacking.setdefault(entry.lacks.replace("does not fit: ", ""), []).append(entry.system)
    for why, alike in lacking.items():
        console.print(f"† {', '.join(alike)} cannot be run: {why}.", style="dim", markup=False)
    if on_one := [entry.system for entry in entries if not entry.lacks and entry.splits_nothing]:
        console.print(f"All on one board: {', '.join(on_one)}.", style="dim", markup=False)


def systems_to_json(spec: ModelSpec, cluster: Cluster, entries: Sequence[ComparedSystem], rows: int, wire: Wire) -> str:
    """Return the same as JSON; the winners by name, null where nothing can be run."""
    best = {objective: winner(entries, objective) for objective in ("latency", "throughput")}
    table = {
        "model": {"name": spec.name, "fingerprint": spec.fingerprint},  # both as in a plan
        "layers": spec.layers,
        "cluster": {"fingerprint": cluster.fingerprint},
        "rows": rows,
        "wire": str(wire),
        "devices": list(cluster.names),
        "systems": [
            {
                "system": entry.system,
                "seconds": entry.seconds if np.isfinite(entry.seconds) else None,
                "requests_per_s": entry.requests_per_s,
                "bytes_on_wire": entry.bytes_on_wire,
                "weights_bytes": list(entry.weights_bytes),
                "lacks": entry.lacks,
                "model": entry.model or None,
            }
            for entry in entries
        ],
        "winners": {objective: entry and entry.system for objective, entry in best.items()},
    }
    return json.dumps(table, indent=1) + "\n"


def print_stages(console: Console, cluster: Cluster, plan: Plan, priced: PricedPlan) -> None:
    """Print who has which layers, and what every stage and replica takes."""
    headings = ("replica", "layers", "devices", "ms", "ms to get there", "results/s")
    table = new_table(f"{plan.model_name} by {plan.system}", *headings, words=0)
    table.columns[2].justify = "left"
    for number, replica in enumerate(priced.replicas):
        for stage in replica.stages:
            table.add_row(
                str(number),
                stage.stage.label,
                ", ".join(stage.stage.devices),
                ms(stage.layers.seconds),
                ms(float(stage.enter.times.end.max())),
                f"{1 / stage.busy_s:.2f}",
            )
    console.print(table)
    if not all(stage.is_whole for stage in plan.stages):
        console.print(LEGEND)
    held = [
        f"{name} {size / MIB:.0f}" + (f" of {device.memory_bytes / MIB:.0f}" if size > device.memory_bytes else "")
        for name, size, device in zip(plan.devices, priced.weights_bytes, cluster.devices, strict=True)
        if size
    ]
    console.print(f"MiB of weights: {', '.join(held)}.")
    facts = priced.prediction
    console.print(
        f"[bold]{1e3 * facts.seconds:.1f} ms[/] for a request of {counted(plan.rows, 'row')} that is alone, "
        f"[bold]{priced.requests_per_s:.2f} requests a second[/] of many; a request sends "
        f"{facts.bytes_on_wire / MIB:.1f} MiB."
    )


def stages_to_json(plan: Plan, priced: PricedPlan, upgrades: Sequence[Upgrade]) -> str:
    """Return the plan's table as JSON, with what is printed of it."""
    table = plan_table(plan)
    table["requests_per_s"] = priced.requests_per_s
    table["replicas"] = [
        {
            "seconds": replica.seconds,
            "period_s": replica.period_s,
            "stages": [
                {"devices": list(stage.stage.devices), "seconds": stage.layers.seconds, "busy_s": stage.busy_s}
                for stage in replica.stages
            ],
        }
        for replica in priced.replicas
    ]
    table["upgrades"] = [asdict(upgrade) for upgrade in upgrades]
    return json.dumps(table, indent=1) + "\n"
