"""Curves as pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from solver.show.pictures import PALETTE, SLANTED, WIDTH, name_above, new_figure, save_figure

LINES = ("-", "--", ":")
MARKERS = "os^D<>"
# Full lines first; colour and marker say the same, for who sees colours as grey.
STYLES = [
    {"linestyle": line, "color": colour, "marker": marker}
    for line, (colour, marker) in product(LINES, zip(PALETTE, MARKERS, strict=True))
]
MOST_BESIDE = 3  # panels; of more the words would be too small on a page
CALM = "calm"  # a stretch that is not shaded


@dataclass(frozen=True, slots=True)
class PlottedCurve:
    """One line of a panel; `mark` is where others found its lowest point, `changes` at which x its plan changed."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    mark: float | None = None
    changes: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class ShadedSpan:
    """A part of the x axis in which something was as its name says."""

    name: str
    start: float
    stop: float


Panel = tuple[str, str, Sequence[PlottedCurve]]


def draw(title: str, panels: Sequence[Panel], unit: str, path: Path, stretches: Sequence[ShadedSpan] = ()) -> None:
    """Draw panels, each with its title, the name of its x axis and its curves, side by side or in rows, into a file.

    Curves with the same label have the same style in all panels, and one entry beside them. Stretches are of the only
    panel's x axis; it is then wide.
    """
    columns = len(panels) if len(panels) <= MOST_BESIDE else math.ceil(math.sqrt(len(panels)))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(WIDTH if stretches else 4.5 * columns + 1.5, 4.5 if stretches else 4.0 * rows)
    lines: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    for place, (name, x_name, curves) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, place)
        for curve in curves:
            number = [*lines].index(curve.label) if curve.label in lines else len(lines)
            style = STYLES[number % len(STYLES)]
            (line,) = axes.plot(curve.x, curve.y, **style, markersize=3)
            lines.setdefault(curve.label, line)
            if curve.mark is not None:
                axes.axvline(curve.mark, color=style["color"], linestyle=":", linewidth=0.8)
            if curve.changes:
                changes[f"{curve.label} changes its plan"] = _draw_changes(axes, curve, style["color"])
        axes.set(xlabel=x_name, ylabel=unit)
        axes.set_title(name, fontsize="medium")
        axes.set_ylim(bottom=0)
        axes.margins(x=0.01)
        if all(float(x).is_integer() for curve in curves for x in curve.x):  # there is no half a board
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.spines[["top", "right"]].set_visible(False)
        _draw_stretches(axes, stretches)
    figure.suptitle(title, x=0.01, ha="left", fontsize="medium")
    entries = lines | changes
    figure.legend(entries.values(), entries.keys(), loc="outside right center", fontsize="small", frameon=False)
    save_figure(figure, path)


def _draw_changes(axes: Any, curve: PlottedCurve, colour: str) -> Any:
    """Draw a mark on the curve wherever its plan changed; return the marks."""
    values = dict(zip(curve.x, curve.y, strict=True))
    at = [x for x in curve.changes if x in values]
    style = {"linestyle": "", "marker": "v", "markersize": 8, "color": colour, "markeredgecolor": "black"}
    (marks,) = axes.plot(at, [values[x] for x in at], **style, zorder=3)
    return marks


def _draw_stretches(axes: Any, stretches: Sequence[ShadedSpan]) -> None:
    """Shade the stretches in which something was, and name them, if there is room for all names."""
    shown = [stretch for stretch in stretches if stretch.name != CALM]
    low, high = axes.get_xlim()
    for stretch in shown:
        axes.axvspan(stretch.start, stretch.stop, color="#e4e4e4", linewidth=0, zorder=0)
        axes.axvline(stretch.start, color="black", linewidth=0.5)
    if len(shown) <= 1 / SLANTED:
        middles = [((stretch.start + stretch.stop) / 2 - low) / (high - low) for stretch in shown]
        name_above(axes, [stretch.name for stretch in shown], middles)
