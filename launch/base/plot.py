"""Curves as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solver.show.pictures import new_figure, save_figure

# Of matplotlib's twenty, the strong ones first.
COLOURS = [f"C{number}" for number in range(10)] + ["#aec7e8", "#ffbb78", "#98df8a", "#ff9896", "#c5b0d5", "#c49c94"]


@dataclass(frozen=True, slots=True)
class PlottedCurve:
    """One line of a panel; `mark` is where others found its lowest point."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    mark: float | None = None


def draw(title: str, panels: Sequence[tuple[str, str, Sequence[PlottedCurve]]], unit: str, path: Path) -> None:
    """Draw panels side by side under a title, each with its own, the name of its x axis and its curves, into a file.

    Curves with the same label have the same colour in all panels, and one entry beside them.
    """
    figure = new_figure(4.5 * len(panels) + 1.5, 4.0)
    lines: dict[str, Any] = {}
    for axes, (name, x_name, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for curve in curves:
            colour = lines[curve.label].get_color() if curve.label in lines else COLOURS[len(lines) % len(COLOURS)]
            (line,) = axes.plot(curve.x, curve.y, color=colour, marker="o", markersize=3)
            lines.setdefault(curve.label, line)
            if curve.mark is not None:
                axes.axvline(curve.mark, color=colour, linestyle=":", linewidth=0.8)
        axes.set(title=name, xlabel=x_name, ylabel=unit)
        axes.set_ylim(bottom=0)
    figure.suptitle(title, x=0.01, ha="left")
    figure.legend(lines.values(), lines.keys(), loc="outside right center", fontsize="small")
    save_figure(figure, path)
