"""What a plan does, step by step, as a table and as JSON: `python -m solver … --schedule [DEVICE]`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean
from solver.base.tables import new_table
from solver.cluster.cluster import MIB, Cluster
from solver.schedule.cost import PricedStep
from solver.schedule.stages import PricedPlan


@dataclass(frozen=True, slots=True)
class Line:
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


def lines(cluster: Cluster, priced: PricedPlan, device: str = "") -> list[Line]:
    """Return the steps of a request on the fastest replica; `device` names one, "" takes all together.

    Raises
    ------
    HeptiError
        If there is no such device.
    """
    if device and device not in cluster.names:
        raise HeptiError(f"--schedule: there is no device {device}{did_you_mean(device, cluster.names)}")
    rank = cluster.names.index(device) if device else None
    found = list(_lines(priced, rank))
    return [line for line in found if rank is None or line.compute_s or line.exchange_s or line.sent_bytes]


def _lines(priced: PricedPlan, rank: int | None) -> Iterator[Line]:
    for stage in priced.fastest.stages:
        if stage.enter.sent.any():
            yield _line(stage.enter, rank)
        within = None if rank is None else stage.ranks.index(rank) if rank in stage.ranks else -1
        if within != -1:
            yield from (_line(step, within) for step in stage.layers.steps)
    if priced.fastest.leave.sent.any():
        yield _line(priced.fastest.leave, rank)


def _line(step: PricedStep, rank: int | None) -> Line:
    times, own = step.times, slice(None) if rank is None else rank
    return Line(
        step.layers, step.repeats, step.computes, step.name, step.meanwhile,
        float(times.compute[own].max()), float(times.exchange[own].max()), float(times.end.max()),
        round(float(step.sent[own].sum())),
    )  # fmt: skip


def print_schedule(console: Console, found: list[Line], device: str) -> None:
    """Print the steps, one a row; times and bytes are those of a device, or the slowest's and all bytes."""
    table = new_table(
        f"step by step on {device}" if device else "step by step: the slowest device's times, all bytes",
        *("layers", "step", "compute\nms", "wire\nms", "ms", "MiB", "times"),
        words=2,
    )
    for line in found:
        step = [*line.computes, f"[bold]{line.moves}[/]" + f" while {', '.join(line.meanwhile)}" * bool(line.meanwhile)]
        ms = (f"{1e3 * seconds:.2f}" for seconds in (line.compute_s, line.exchange_s, line.seconds))
        layers = line.layers.removeprefix("layers ").removeprefix("layer ")
        table.add_row(layers, ", ".join(step), *ms, f"{line.sent_bytes / MIB:.2f}", str(line.repeats))
    console.print(table)
    console.print(f"{1e3 * sum(line.repeats * line.seconds for line in found):.1f} ms in all.")


def schedule_to_json(found: list[Line]) -> str:
    """Return the same as JSON."""
    table: list[dict[str, Any]] = [{name: getattr(line, name) for name in Line.__slots__} for line in found]
    return json.dumps({"steps": table}, indent=1) + "\n"
