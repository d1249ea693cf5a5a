"""`--watch`: the plan as it lives: every device's share, compute, wait and speed, and the last decisions."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hepti_mpi.engine.stack import Stack
from hepti_mpi.live.conductor import Conductor
from hepti_mpi.report.tables import shares
from solver.base.tables import new_table
from solver.cluster.cluster import GIB
from solver.plan.plan import Plan

DECISIONS = 4


class Watch:
    """A picture that is redrawn after every batch.

    Parameters
    ----------
    console
        The person's terminal; without one, the last picture is printed at the end.
    """

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def show(self, stack: Stack, conductor: Conductor) -> None:
        """Draw what was measured last, on the stack of rank 0."""
        seconds = stack.last.compute_s + stack.last.wait_s
        self._live.update(picture(conductor, stack.plan, seconds), refresh=True)


def picture(conductor: Conductor, plan: Plan, seconds: float) -> Group:
    """Return the table of devices and the last decisions."""
    drift = conductor.drift
    measures = ("compute ms", "wait ms", "GFLOP/s, of profile", "Mbps, of profile", "GiB")
    table = new_table(f"{1e3 * seconds:.0f} ms for the last batch", "device", "attention", "MLP", *measures)
    for rank, (device, measured) in enumerate(zip(drift.cluster.devices, conductor.latest, strict=False)):
        table.add_row(
            device.name,
            *shares(plan, rank),
            f"{1e3 * measured.compute_s:.0f}",
            f"{1e3 * measured.wait_s:.0f}",
            Text.assemble(f"{device.compute_flop_per_s / 1e9:.1f}, ", _percent(drift.compute[rank].factor)),
            Text.assemble(f"{drift.cluster.bandwidth(rank) * 8 / 1e6:.0f}, ", _percent(drift.links[rank].factor)),
            f"{device.memory_bytes / GIB:.1f}",
        )
    return Group(table, *_lines(conductor.lines))


def _lines(lines: Sequence[str]) -> list[Text]:
    return [Text(line, style="bold" if line is lines[-1] else "") for line in lines[-DECISIONS:]]


def _percent(factor: float) -> Text:
    # A tenth is noise.
    style = "red" if factor < 0.9 else "green" if factor > 1.1 else ""
    return Text(f"{100 * factor:.0f}%", style=style)  # one word: it stays in one line
