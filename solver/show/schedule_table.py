"""What a plan does, step by step, as a table and as JSON: `python -m solver … --schedule [DEVICE]`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from solver.base.tables import new_table
from solver.cluster.cluster import MIB, Cluster
from solver.schedule.encoders.stages import PricedPlan
from solver.schedule.price import Price, PricedStep


@dataclass(frozen=True, slots=True)
class Row:
    """A step as one device takes it, or, of all, the slowest in every number; seconds and bytes of one time."""

    layers: str
    repeats: int
    computes: tuple[str, ...]
    moves: str
    meanwhile: tuple[str, ...]
    compute_s: float
    exchange_s: float
    seconds: float
    sent_bytes: int


def schedule_rows(cluster: Cluster, priced: PricedPlan | Price, device: str = "") -> list[Row]:
    """Return the steps of a request, of replicas on the fastest; `device` names one, "" takes all together."""
    rank = cluster.names.index(device) if device else None
    found = [_row(step, rank) for step in priced.steps] if isinstance(priced, Price) else list(_rows(priced, rank))
    return [row for row in found if rank is None or row.compute_s or row.exchange_s or row.sent_bytes]


def _rows(priced: PricedPlan, rank: int | None) -> Iterator[Row]:
    if priced.embed_s and not rank:
        yield Row("start", 1, ("embed",), "", (), priced.embed_s, 0.0, priced.embed_s, 0)
    for ranks, step in priced.fastest.steps:
        if rank is None or rank in ranks:
            yield _row(step, None if rank is None else ranks.index(rank))


def _row(step: PricedStep, rank: int | None) -> Row:
    times, own = step.times, slice(None) if rank is None else rank
    return Row(
        step.layers, step.repeats, step.computes, step.name, step.meanwhile,
        float(times.compute[own].max()), float(times.exchange[own].max()), float(times.end.max()),
        round(float(step.sent[own].sum())),
    )  # fmt: skip


def print_schedule(console: Console, found: list[Row], device: str, parts: str = "layers") -> None:
    """Print the steps, one a row; times and bytes are those of a device, or the slowest's and all bytes.

    `parts` is what a model consists of.
    """
    if not found:
        console.print(f"{device} has nothing to do.")
        return
    table = new_table(
        f"step by step on {device}" if device else "step by step: the slowest device's times, all bytes",
        *(parts, "step", "compute\nms", "wire\nms", "all\nms", "MiB\nsent", "times"),
        words=2,
    )
    for row in found:
        moves = f"[bold]{row.moves}[/]" + f" while {', '.join(row.meanwhile)}" * bool(row.meanwhile)
        step = [*row.computes, *([moves] if row.moves else [])]
        ms = (f"{1e3 * seconds:.2f}" for seconds in (row.compute_s, row.exchange_s, row.seconds))
        layers = row.layers.removeprefix("layers ").removeprefix("layer ")
        table.add_row(layers, ", ".join(step), *ms, f"{row.sent_bytes / MIB:.2f}", str(row.repeats))
    console.print(table)
    console.print(f"{1e3 * sum(row.repeats * row.seconds for row in found):.1f} ms in all.")
    if any(row.seconds < row.compute_s for row in found):
        console.print("Devices do not wait for all others: a step may add less than one of them computes.")


def schedule_to_json(found: list[Row]) -> str:
    """Return the same as JSON."""
    table: list[dict[str, Any]] = [{name: getattr(row, name) for name in Row.__slots__} for row in found]
    return json.dumps({"steps": table}, indent=1) + "\n"
