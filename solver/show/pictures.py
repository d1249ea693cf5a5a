"""Pictures: the timeline of a plan, and the one place that imports matplotlib (extra `plot`), when it draws."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from solver.base.command import whole_file
from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster
from solver.schedule.cost import Price
from solver.systems import PLANNERS

MOST_DRAWN = 32  # devices
SUFFIXES = (".svg", ".png", ".pdf")
COLORS = {"compute": "#4477aa", "exchange": "#ee6677"}
# Light, for words on them; kindred systems are near to each other.
_LIGHT = (
    "#9ecae1", "#6baed6", "#c6dbef", "#d9d9d9", "#fdae6b", "#fdd0a2", "#a1d99b", "#c7e9c0",
    "#ffe680", "#f4b6c2", "#e6c8a0", "#bcbddc", "#9e9ac8", "#dadaeb", "#b2dfdb", "#f0b0e0",
)  # fmt: skip
SYSTEM_COLORS = dict(zip(PLANNERS, _LIGHT, strict=True))


def check_pictures() -> None:
    """Refuse to draw, before there is anything to be drawn.

    Raises
    ------
    HeptiError
        If matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise HeptiError("pictures need matplotlib: pip install 'hepti[plot]'")


def new_figure(width: float, height: float) -> Any:
    """Return an empty matplotlib figure of this size, in inches; errors as `check_pictures`."""
    check_pictures()
    from matplotlib.figure import Figure  # takes half a second: only for who asks for a picture

    return Figure(figsize=(width, height), layout="constrained", dpi=150)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure; the name's ending says how.

    Raises
    ------
    HeptiError
        If the file cannot be written.
    """
    with whole_file(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix("."))


def plot_timeline(cluster: Cluster, price: Price, path: Path, title: str) -> None:
    """Draw what every device does over time: the start, one layer of every run, the end."""
    busy = np.flatnonzero(price.compute_s > 0)[:MOST_DRAWN]
    figure = new_figure(12, 1.5 + 0.4 * len(busy))
    axes = figure.subplots()
    _draw(axes, price, busy)
    axes.set_yticks(range(len(busy)), [cluster.names[rank] for rank in busy])
    axes.invert_yaxis()
    axes.set_xlabel("ms; of layers that follow each other alike, one is drawn")
    figure.suptitle(title, x=0.01, ha="left")
    figure.legend(loc="outside upper right", ncols=2)
    save_figure(figure, path)


def plot_winners(
    found: Sequence[Sequence[tuple[str, float]]], bandwidths_mbps: Sequence[float], memories: Sequence[str],
    path: Path, title: str,
) -> None:  # fmt: skip
    """Draw who wins where, and by how much: `found` are [memory][bandwidth], as `comparison.winners` has them."""
    figure = new_figure(2 + 1.5 * len(bandwidths_mbps), 1.8 + 0.7 * len(memories))
    axes = figure.subplots()
    from matplotlib.colors import to_rgb

    shades = [[to_rgb(SYSTEM_COLORS.get(name.partition(":")[0], "white")) for name, _ in line] for line in found]
    axes.imshow(shades, aspect="auto", origin="lower")
    for row, line in enumerate(found):
        for column, (name, lead) in enumerate(line):
            words = f"{name}\n{_lead(lead)}" if name else "nothing fits"
            axes.text(column, row, words, ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(bandwidths_mbps)), [f"{mbps:g}" for mbps in bandwidths_mbps])
    axes.set_yticks(range(len(memories)), memories)
    axes.set_xlabel("Mbps of every link; %: by how much the best other system is beaten")
    axes.set_ylabel("memory of every device")
    figure.suptitle(title, x=0.01, ha="left")
    save_figure(figure, path)


def _lead(lead: float) -> str:
    """Return by how much a system wins, in words."""
    if np.isinf(lead):
        return "alone fits"
    return f"{100 * lead:.0f} %" if lead >= 0.005 else "a tie"


def _draw(axes: Any, price: Price, busy: Any) -> None:
    start, rows = 0.0, np.arange(len(busy))
    repeated = {step.layers for step in price.steps if step.repeats > 1}
    for step in price.steps:
        if step.layers in repeated and step.repeats == 1:
            continue
        compute, end = 1e3 * step.times.compute[busy], 1e3 * step.times.end[busy]
        wait = np.minimum(end - compute, 1e3 * step.times.exchange[busy])
        first = start == 0
        axes.barh(rows, compute, left=start, color=COLORS["compute"], label="compute" if first else None)
        axes.barh(rows, wait, left=start + compute, color=COLORS["exchange"], label="exchange" if first else None)
        seconds = 1e3 * float(step.times.end.max())
        axes.axvline(start + seconds, color="black", linewidth=0.5)
        label = f"{step.repeats + 1} times: {step.name}" if step.layers in repeated else step.name
        axes.text(start + seconds / 2, -0.6, label, rotation=30, fontsize=7, ha="left", va="bottom")
        start += seconds
