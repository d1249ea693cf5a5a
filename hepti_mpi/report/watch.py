"""`--watch`: the plan as it lives: every device's share, compute, wait and speed, and the last decisions.

Of a network or a language model every device tells what it computed of an image or a token, and nothing of its links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hepti_mpi.engine.stack import Stack
from hepti_mpi.live.conductor import Conductor
from hepti_mpi.report.tables import shares
from solver.base.tables import new_table
from solver.cluster.cluster import GIB

if TYPE_CHECKING:
    from solver.live.follower import DeviceFollower

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
        self._live.console.line()  # or the next line stands after the table's

    def show(self, drawn: Group) -> None:
        """Draw what was measured last."""
        self._live.update(drawn, refresh=True)


def picture(conductor: Conductor, stack: Stack) -> Group:
    """Return the table of devices and the last decisions, on the stack of rank 0."""
    drift = conductor.drift
    seconds = stack.last.compute_s + stack.last.wait_s
    table = _table(seconds, "batch", "attention", "MLP", links=True)
    for rank, (device, measured) in enumerate(zip(drift.cluster.devices, conductor.latest, strict=False)):
        table.add_row(
            device.name,
            *shares(stack.plan, rank),
            *_speed(measured.compute_s, measured.wait_s, device.compute_flop_per_s, drift.compute[rank].factor),
            Text.assemble(f"{drift.cluster.bandwidth(rank) * 8 / 1e6:.0f}, ", _percent(drift.links[rank].factor)),
            f"{device.memory_bytes / GIB:.1f}",
        )
    return Group(table, *_lines(conductor.lines))


def follower_picture(
    follower: DeviceFollower[Any], compute_s: Sequence[float], seconds: float, lines: Sequence[str],
    columns: Sequence[str], shares_of: Callable[[int], Iterable[str]],
) -> Group:  # fmt: skip
    """Return the same of an image or a token, of its seconds and what every rank computed of them.

    `shares_of` a rank is what it has of each of the `columns`.
    """
    table = _table(seconds, follower.unit.removeprefix("a ").removeprefix("an "), *columns, links=False)
    for rank, device in enumerate(follower.devices):
        own_s, factor = compute_s[rank], 1 / follower.slower(rank)
        table.add_row(
            device.name,
            *shares_of(rank),
            *_speed(own_s, max(seconds - own_s, 0.0), factor * device.compute_flop_per_s, factor),
            f"{device.memory_bytes / GIB:.1f}",
        )
    return Group(table, *_lines(lines))


def _table(seconds: float, unit: str, *columns: str, links: bool) -> Table:
    measures = ("compute ms", "wait ms", "GFLOP/s, of profile", *(("Mbps, of profile",) if links else ()), "GiB")
    return new_table(f"{1e3 * seconds:.0f} ms for the last {unit}", "device", *columns, *measures)


def _speed(compute_s: float, wait_s: float, flop_per_s: float, factor: float) -> tuple[str, str, Text]:
    speed = Text.assemble(f"{flop_per_s / 1e9:.1f}, ", _percent(factor))
    return f"{1e3 * compute_s:.0f}", f"{1e3 * wait_s:.0f}", speed


def _lines(lines: Sequence[str]) -> list[Text]:
    return [Text(line, style="bold" if line is lines[-1] else "") for line in lines[-DECISIONS:]]


def _percent(factor: float) -> Text:
    # A tenth is noise.
    style = "red" if factor < 0.9 else "green" if factor > 1.1 else ""
    return Text(f"{100 * factor:.0f}%", style=style)  # one word: it stays in one line
