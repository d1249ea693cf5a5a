"""Curves as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from solver.plot import new_figure, save_figure


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a panel; `mark` is where others found its lowest point."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    mark: float | None = None


def draw(panels: Sequence[tuple[str, str, Sequence[Curve]]], unit: str, path: Path) -> None:
    """Draw panels side by side, each with a title, the name of its x axis and its curves, into a file."""
    figure = new_figure(4.5 * len(panels), 4.0)
    for axes, (title, x_name, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for curve in curves:
            (line,) = axes.plot(curve.x, curve.y, marker="o", markersize=3, label=curve.label)
            if curve.mark is not None:
                axes.axvline(curve.mark, color=line.get_color(), linestyle=":", linewidth=0.8)
        axes.set(title=title, xlabel=x_name, ylabel=unit)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize="small")
    save_figure(figure, path)
