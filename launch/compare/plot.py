"""Pictures of a comparison: bars of all entrants, and one timeline of a request's ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from launch.base.titles import heading, rounds
from launch.compare.show import variant
from solver.base.errors import HeptiError, explained
from solver.show.pictures import PALETTE, in_ms, new_figure, save_figure
from solver.systems.named import ALONE

HATCHES = ("", "//", "..", "xx", "\\\\", "++")  # one a colour, for who sees them as grey
ROOM = 1.12  # times the longest whisker: for the number after it
LABEL = {"textcoords": "offset points", "va": "center", "fontsize": 8}
BOUND = {"color": "black", "linewidth": 2}
MOST_NUMBERS = 20  # of layers, side by side above a timeline
OUTSIDE = "outside the layers"  # as traces say
BLOCKS: dict[str, dict[str, Any]] = {
    "attention": {"color": "#4477aa"},
    "mlp": {"color": "#66ccee"},
    OUTSIDE: {"color": "#bbbbbb"},
    "wait": {"color": "#ee6677", "hatch": "////", "edgecolor": "white"},
}


def plot_bars(report: dict[str, Any], path: Path) -> None:
    """Draw medians as bars with quartiles as whiskers: a group a system, splits before single devices, fastest first.

    A colour stands for a variant: kernels and wire. A mark across a bar is the compute bound of its own kernels, on all
    devices or on the one that is alone: int8 has another than float32.
    """
    rows = sorted(report["results"], key=_is_single)
    systems = list(dict.fromkeys(row["system"] for row in rows))
    fills = dict(zip(sorted({variant(row) for row in rows}), cycle(zip(PALETTE, HATCHES, strict=True)), strict=False))
    figure = new_figure(9, 1.5 + 0.27 * len(rows) + 0.1 * len(systems))
    axes = figure.subplots()
    y, middles = 0.0, []
    for system in systems:
        group = [row for row in rows if row["system"] == system]
        for place, row in enumerate(group):
            _bar(axes, y + place, row, _style(*fills[variant(row)]))
        middles.append(y + (len(group) - 1) / 2)
        y += len(group) + 0.4
    limit = ROOM * 1e3 * max(row["high_s"] for row in rows)
    axes.set(xlim=(0, limit), ylim=(y - 0.7, -0.7), xlabel="ms a request: median, whiskers at the quartiles")
    axes.set_yticks(middles, systems)
    axes.tick_params("y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    handles = [axes.barh(0, 0, **_style(*fill)) for fill in fills.values()]
    handles.append(axes.vlines([], 0, 0, **BOUND))
    names = [*fills, "compute bound of a bar's own kernels and devices"]
    figure.legend(handles, names, loc="outside lower center", ncols=min(3, len(names)), frameon=False)
    figure.suptitle(f"{heading(report)}\n{rounds(report)}", x=0.01, ha="left", fontsize="medium")
    save_figure(figure, path)


def _is_single(row: Mapping[str, Any]) -> bool:
    """Return whether a device is alone: on a runtime of others, or, of networks, by its name on our own."""
    return not row["per_rank"] or row["system"].startswith(ALONE)


def _style(color: str, hatch: str) -> dict[str, Any]:
    return {"color": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0, "height": 0.85}


def _bar(axes: Any, y: float, row: dict[str, Any], style: Mapping[str, Any]) -> None:
    median, low, high = (1e3 * row[key] for key in ("median_s", "low_s", "high_s"))
    axes.barh(y, median, xerr=[[median - low], [high - median]], capsize=2, ecolor="#333333", **style)
    axes.annotate(in_ms(median), (high, y), xytext=(4, 0), ha="left", **LABEL)
    if row["compute_bound_s"] is not None:
        axes.vlines(1e3 * row["compute_bound_s"], y - 0.43, y + 0.43, **BOUND)


def plot_trace(trace: Path, path: Path, title: str) -> None:
    """Draw a trace of `hepti_mpi --trace` as a timeline: a row a rank, waits over what they interrupt.

    Raises
    ------
    HeptiError
        If the trace cannot be read.
    """
    ranks, slices = read_trace(trace)
    figure = new_figure(12, 1.3 + 0.55 * len(ranks))
    axes = figure.subplots()
    for name, style in BLOCKS.items():
        mine = [entry for entry in slices if _kind(entry) == name]
        axes.barh(
            [list(ranks).index(entry["tid"]) for entry in mine],
            [entry["dur"] / 1e3 for entry in mine],
            left=[entry["ts"] / 1e3 for entry in mine],
            height=0.8, label=name, linewidth=0, **style,
        )  # fmt: skip
    axes.set_yticks(range(len(ranks)), list(ranks.values()))
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.set_xlim(0, max((entry["ts"] + entry["dur"]) / 1e3 for entry in slices))
    _layers(axes, slices)
    axes.set_xlabel("ms since the request began")
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontsize="medium")
    figure.legend(loc="outside lower right", ncols=len(BLOCKS), frameon=False)
    save_figure(figure, path)


def read_trace(trace: Path) -> tuple[dict[int, str], list[dict[str, Any]]]:
    """Return the ranks' names by their number, and all slices of a Chrome trace."""
    with explained(f"{trace} is no trace", (OSError, ValueError, KeyError, TypeError)):
        events = json.loads(trace.read_text())["traceEvents"]
        names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        slices = [event for event in events if event["ph"] == "X"]
    if not names or not slices:
        raise HeptiError(f"{trace} holds no request")
    return dict(sorted(names.items())), slices


def _kind(entry: dict[str, Any]) -> str:
    return next((name for name in ("wait", "attention", "mlp") if name in entry["name"]), OUTSIDE)


def _layers(axes: Any, slices: Sequence[dict[str, Any]]) -> None:
    """Draw a line for every layer, where the first of the ranks begins it, and its number where there is room."""
    starts: dict[str, float] = {}
    for entry in slices:
        if _kind(entry) == "attention":
            layer = entry["name"].split()[1]
            starts[layer] = min(starts.get(layer, entry["ts"]), entry["ts"])
    room, free = axes.get_xlim()[1] / MOST_NUMBERS, 0.0
    for layer, start in starts.items():
        axes.axvline(start / 1e3, color="black", linewidth=0.5)
        if start / 1e3 < free:
            continue
        free = start / 1e3 + room
        axes.annotate(
            f"layer {layer}", (start / 1e3, 1), xycoords=("data", "axes fraction"), xytext=(2, 2),
            textcoords="offset points", fontsize=7, annotation_clip=True,
        )  # fmt: skip
