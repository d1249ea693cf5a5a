"""The timeline of a plan as a picture. The only module of `solver` that imports matplotlib, and only when it draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from solver.cluster import Cluster
from solver.cost import Price
from solver.errors import HeptiError

KINDS = (".svg", ".png", ".pdf")
MOST_DRAWN = 32  # devices
COLORS = {"compute": "#4477aa", "exchange": "#ee6677"}


def plot_timeline(cluster: Cluster, price: Price, path: Path, title: str) -> None:
    """Draw what every device does over time: the start, one layer of every run, the end.

    Raises
    ------
    HeptiError
        If matplotlib is not installed, the name's ending is unknown, or the file cannot be written.
    """
    if path.suffix not in KINDS:
        raise HeptiError(f"--plot {path}: the name must end in {', '.join(KINDS)}")
    try:
        from matplotlib.figure import Figure  # takes half a second: only for who asks for a picture
    except ImportError as error:
        raise HeptiError("--plot needs matplotlib: pip install 'hepti[plot]'") from error
    busy = np.flatnonzero(price.compute_s > 0)[:MOST_DRAWN]
    figure = Figure(figsize=(12, 1.5 + 0.4 * len(busy)), layout="constrained")
    axes = figure.subplots()
    _draw(axes, price, busy)
    axes.set_yticks(range(len(busy)), [cluster.names[rank] for rank in busy])
    axes.invert_yaxis()
    axes.set_xlabel("ms; of layers that follow each other alike, one is drawn")
    figure.suptitle(title, x=0.01, ha="left")
    figure.legend(loc="outside upper right", ncols=2)
    try:
        figure.savefig(path)
    except OSError as error:
        raise HeptiError(f"cannot write {path}: {error.strerror}") from error


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
