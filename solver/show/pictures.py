"""Pictures: the timeline of a plan, and the one place that imports matplotlib (extra `plot`), when it draws."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from solver.base.command import check_path, whole_file
from solver.base.environment import install
from solver.base.errors import HeptiError
from solver.base.progress import progress
from solver.cluster.cluster import GIB, Cluster
from solver.schedule.encoders.stages import PricedPlan
from solver.schedule.price import Price, PricedStep
from solver.schedule.timing import Times
from solver.show.comparison import ComparedSystem, Won, winners

MOST_DRAWN = 32  # devices
SUFFIXES = (".svg", ".png", ".pdf")
RankedStep = tuple[tuple[int, ...], PricedStep]  # and whose times it has
# Paul Tol's bright colours, which the colour-blind can tell apart.
PALETTE = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
# What a board does; in grey dark, hatched, and light.
DONE: dict[str, dict[str, Any]] = {
    "computes": {"color": "#4477aa", "zorder": 2},
    "waits for the wire": {"color": "#ee6677", "hatch": "////", "edgecolor": "white", "linewidth": 0, "zorder": 2},
    "idle": {"color": "#e4e4e4", "zorder": 1},
}
WIDTH = 12  # inches of a timeline
LETTERS = WIDTH * 72 / 5  # of 5 points, side by side in it
SHORT_LINE = {"arrowstyle": "-", "linewidth": 0.4, "shrinkA": 0, "shrinkB": 0}
SLANTED = 0.022  # of the width: between names that stand beside each other
NO_SCALE = "#fff2cc"  # behind what is beside no board alone
BLACK_UP_TO = 0.71  # of the scale: on darker ground white letters stand out more
SAID = 0.005  # of a plan's seconds: less is not said to be left out of a picture
LEAST_SCALE = 1.5  # times: of a map on which nobody is much faster than a board alone
# Where the map says who wins: links from slow radio to beyond a gigabit, and times the memory that the devices have.
MAP_MBPS = (10, 30, 100, 240, 500, 940, 2350)
MAP_MEMORY = (0.125, 0.25, 0.5, 1, 2)
PRINTED = Path("-")  # the file of --map where none is named


def check_pictures() -> None:
    """Refuse to draw, before there is anything to be drawn.

    Raises
    ------
    HeptiError
        If matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise HeptiError(f"pictures need matplotlib: {install('plot')}")


def check_picture(path: Path) -> None:
    """Refuse, before anything is planned, a file that cannot be drawn; errors as `check_path` and `check_pictures`."""
    check_path(path, SUFFIXES)
    check_pictures()


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


def plot_timeline(cluster: Cluster, steps: Sequence[RankedStep], seconds: float, path: Path, title: str) -> None:
    """Draw what every device does over time in these steps, which take so many seconds; of layers that are alike, one.

    Parameters
    ----------
    steps
        As of `request_drawn` or `pass_drawn`.
    """
    drawn = _each_once(steps)
    ranks = _ranks_to_draw(drawn, len(cluster.names))
    figure = new_figure(WIDTH, 2.6 + 0.34 * len(ranks))
    axes = figure.subplots()
    ends = _draw_steps(axes, drawn, ranks)
    busy = {rank for own, step in drawn for rank, compute_s in zip(own, step.times.compute, strict=True) if compute_s}
    names = [cluster.names[rank] + ": no share" * (rank not in busy) for rank in ranks]
    axes.set_yticks(range(len(ranks)), names)
    axes.set(xlim=(0, ends[-1]), ylim=(len(ranks) - 0.5, -1.5))
    total, counted = 1e3 * seconds, sum(1e3 * step.repeats * _end_s(step) for _, step in drawn)
    ms = f"ms: {in_ms(ends[-1])} of the {in_ms(total)} are drawn, of layers that are alike one"
    if total - counted > SAID * total:
        ms += f", without {in_ms(total - counted)} of the first"
    several = any(step.repeats > 1 for _, step in drawn)
    axes.set_xlabel((ms if several else "ms") + left_out(len(ranks), len(cluster.names)))
    axes.spines[["top", "right"]].set_visible(False)
    _name_steps(axes, drawn, ends)
    _name_runs(axes, drawn, ends)
    figure.suptitle(title, x=0.01, ha="left", fontsize="medium")
    handles = [axes.barh(0, 0, label=name, **style) for name, style in DONE.items()]
    figure.legend(handles=handles, loc="outside lower right", ncols=len(DONE), frameon=False)
    save_figure(figure, path)


def plot_winners(
    found: Sequence[Sequence[Won]], bandwidths_mbps: Sequence[float], memories: Sequence[str], path: Path, title: str
) -> None:
    """Draw who wins where, the darker the faster it is than the best board alone: `found` are [memory][bandwidth]."""
    figure = new_figure(3.2 + 1.3 * len(bandwidths_mbps), 1.8 + 0.7 * len(memories))
    axes = figure.subplots()
    times = np.array([[won.times_alone for won in line] for line in found])
    known = np.where(np.isfinite(times) & (times > 0), times, np.nan)
    most = max(LEAST_SCALE, float(np.nanmax(known, initial=1.0)))
    image = axes.imshow(known, aspect="auto", origin="lower", cmap="Blues", vmin=1, vmax=most)
    for row, line in enumerate(found):
        for column, won in enumerate(line):
            light = not BLACK_UP_TO < (won.times_alone - 1) / (most - 1) < np.inf
            words = "\n".join(_words(won))
            axes.text(column, row, words, ha="center", va="center", fontsize=8, color="black" if light else "white")
    axes.set_xticks(range(len(bandwidths_mbps)), [f"{mbps:g}" for mbps in bandwidths_mbps])
    axes.set_yticks(range(len(memories)), memories)
    axes.set_facecolor(NO_SCALE)
    axes.set_xticks(np.arange(0.5, len(bandwidths_mbps) - 1), minor=True)
    axes.set_yticks(np.arange(0.5, len(memories) - 1), minor=True)
    axes.grid(which="minor", color="white")
    axes.tick_params(which="minor", length=0)
    axes.set_xlabel("Mbps of every link; %: by how much the best other system is beaten")
    axes.set_ylabel("memory of every device")
    figure.colorbar(image, ax=axes, label="times as fast as the best board alone")
    figure.suptitle(title, x=0.01, ha="left", fontsize="medium")
    save_figure(figure, path)


def draws_map(options: argparse.Namespace) -> bool:
    """Return whether --map draws who wins where; without a file it prints who has what."""
    return options.map not in (None, PRINTED)


def check_map(options: argparse.Namespace) -> None:
    """Refuse, before anything is planned, what says nothing beside a map that is drawn, and a file that cannot be.

    Raises
    ------
    HeptiError
        Naming the option.
    """
    for name in ("system", "out", "plot", "schedule", "explain", "prove", "price", "deadline_ms"):
        if getattr(options, name) not in (None, False):
            option = name.replace("_", "-")
            raise HeptiError(f"--{option} is for one plan, --map is about all systems: leave one of the two out")
    if options.json and not options.compare:
        raise HeptiError("--json prints, --map only draws: leave --json out, or add --compare")
    for setting in options.set:
        if setting.partition("=")[0].endswith(".bandwidth_mbps"):
            raise HeptiError(
                f"--set {setting}: --map draws links of {MAP_MBPS[0]} to {MAP_MBPS[-1]} Mbps, whatever they are: "
                f"leave one of the two out"
            )
    check_picture(options.map)


def draw_winners(
    path: Path, title: str, cluster: Cluster, systems: Sequence[str],
    compare: Callable[[Cluster, Callable[[int], None]], Sequence[ComparedSystem]], objective: str = "latency",
) -> None:  # fmt: skip
    """Draw who wins where, over what links carry and what memory devices have.

    Parameters
    ----------
    compare
        Compares the systems on a cluster, and calls its second argument with 1 after each.
    """
    bandwidths = [mbps * 1e6 / 8 for mbps in MAP_MBPS]
    with progress("mapping", len(MAP_MBPS) * len(MAP_MEMORY) * len(systems), unit="plans") as advance:
        found = winners(lambda other: compare(other, advance), cluster, bandwidths, MAP_MEMORY, objective)
    gib = sorted(device.memory_bytes / GIB for device in cluster.devices)
    memories = [
        f"\N{MULTIPLICATION SIGN}{times:g}\n{_range(times * gib[0], times * gib[-1])} GiB" for times in MAP_MEMORY
    ]
    plot_winners(found, MAP_MBPS, memories, path, title)


def _range(least: float, most: float) -> str:
    return " to ".join(dict.fromkeys(f"{float(f'{gib:.3g}'):g}" for gib in (least, most)))


def _words(won: Won) -> tuple[str, ...]:
    """Return what stands at a place of the map."""
    if not won.system:
        return ("nothing fits",)
    if np.isinf(won.times_alone):
        return won.system, "no board alone", _lead(won.lead)
    return won.system, f"{won.times_alone:.2f} \N{MULTIPLICATION SIGN}", _lead(won.lead)


def _lead(lead: float) -> str:
    """Return by how much a system wins, in words."""
    if np.isinf(lead):
        return "no other fits"
    return f"{100 * lead:.0f} %" if lead >= 0.005 else "a tie"


def left_out(drawn: int, boards: int) -> str:
    """Return the end of an axis' name where there is no room for all boards."""
    return f"; {drawn} of {boards} boards are drawn" * (drawn < boards)


def request_drawn(priced: PricedPlan) -> list[RankedStep]:
    """Return the steps of a request on the fastest replica of an encoder."""
    found: list[RankedStep] = []
    if priced.embed_s:
        own, nothing = np.array([priced.embed_s]), np.zeros(1)
        times = Times(own, nothing, own, nothing)
        found.append(((0,), PricedStep("start", "embed", (), (), 1, times, nothing, nothing)))
    return [*found, *priced.fastest.steps]


def pass_drawn(price: Price, devices: int) -> list[RankedStep]:
    """Return the steps of a language model's pass."""
    every = tuple(range(devices))

    def layers(step: PricedStep) -> str:
        return f"layer{'s' * ('-' in step.layers)} {step.layers}" if step.layers else ""

    return [(every, replace(step, layers=layers(step))) for step in price.steps]


def _each_once(found: Sequence[RankedStep]) -> list[RankedStep]:
    """Return the steps that are drawn, each once.

    The first of layers that are alike finds the rows as they were handed out: of several it is left out.
    """
    often = {step.layers for _, step in found if step.repeats > 1}
    again = {(step.name, f"layer {_first(step.layers) - 1}") for _, step in found if step.repeats > 1}
    return [
        (ranks, step)
        for ranks, step in found
        if step.repeats > 1 or (step.layers not in often and (step.name, step.layers) not in again)
    ]


def _end_s(step: PricedStep) -> float:
    """Return the seconds of a step, until all have ended it."""
    return float(step.times.end.max())


def _first(layers: str) -> int:
    """Return the first of some layers."""
    return int(layers.split()[-1].partition("-")[0])


def _ranks_to_draw(drawn: Sequence[RankedStep], devices: int) -> list[int]:
    """Return whom there is room for: of too many those who compute longest."""
    compute_s = np.zeros(devices)
    for ranks, step in drawn:
        compute_s[list(ranks)] += step.repeats * step.times.compute
    return sorted(np.argsort(-compute_s, kind="stable")[:MOST_DRAWN].tolist())


def _draw_steps(axes: Any, drawn: Sequence[RankedStep], ranks: Sequence[int]) -> list[float]:
    """Draw what is done between the beginning and the end of every step; return where they end, in ms, from 0 on.

    An exchange ends when its device has ended the step, what lies before it and after it is waiting for others.
    """
    ends = [0.0]
    for own, step in drawn:
        start, seconds = ends[-1], _end_s(step)
        for row, rank in ((row, rank) for row, rank in enumerate(ranks) if rank in own):
            place = own.index(rank)
            compute_s, end_s = float(step.times.compute[place]), float(step.times.end[place])
            wire_s = min(max(end_s - compute_s, 0.0), float(step.times.exchange[place]))
            axes.barh(row, 1e3 * compute_s, left=start, **DONE["computes"])
            axes.barh(row, 1e3 * wire_s, left=start + 1e3 * (end_s - wire_s), **DONE["waits for the wire"])
        ends.append(start + 1e3 * seconds)
    for row in range(len(ranks)):
        axes.barh(row, ends[-1], **DONE["idle"])
    for end in ends[1:]:
        axes.axvline(end, color="black", linewidth=0.5, ymax=len(ranks) / (len(ranks) + 1))
    return ends


def _name_steps(axes: Any, drawn: Sequence[RankedStep], ends: Sequence[float]) -> None:
    """Write above every step what it is."""
    names = [f"{step.block}: {step.name}" if step.block else step.name or "compute" for _, step in drawn]
    name_above(axes, names, [(start + end) / 2 / ends[-1] for start, end in pairwise(ends)])


def name_above(axes: Any, names: Sequence[str], middles: Sequence[float]) -> None:
    """Write names above places of an axis, in parts of its width; beside each other where `WIDTH` is the picture's."""
    for name, middle, place in zip(names, middles, apart(middles, SLANTED), strict=True):
        axes.annotate(
            name, (middle, 1), (place, 10), "axes fraction", ("axes fraction", "offset points"), SHORT_LINE,
            rotation=30, fontsize=7, ha="left", va="bottom", rotation_mode="anchor", annotation_clip=False,
        )  # fmt: skip


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Return ascending places, in parts of a width, moved until each is `gap` after the one before; few stay within 1.

    Examples
    --------
    >>> apart([0.1, 0.2, 0.21, 0.9], 0.05)
    [0.1, 0.2, 0.25, 0.9]
    """
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + gap) if found else place)
    limit = 1.0
    for number in reversed(range(len(found))):
        found[number] = min(found[number], limit)
        limit = found[number] - gap
    return [round(place, 9) for place in found]


def _name_runs(axes: Any, drawn: Sequence[RankedStep], ends: Sequence[float]) -> None:
    """Write over the layers that are drawn which ones they are, and for how many they stand."""
    spans = [(step, start, end) for (_, step), (start, end) in zip(drawn, pairwise(ends), strict=True)]
    for layers, own in groupby(spans, key=lambda span: span[0].layers):
        if not layers.startswith("layer"):
            continue
        (step, start, end), *others = own
        end = others[-1][2] if others else end
        times = f"\N{MULTIPLICATION SIGN} {step.repeats}" * (step.repeats > 1)
        axes.barh(-1, end - start, left=start, height=0.7, color="#f4f4f4", edgecolor="black", linewidth=0.5)
        room, most = (end - start) / ends[-1] * LETTERS, f"{layers}: {in_ms(end - start)} ms {times}"
        words = next(word for word in (most, times or layers, "") if len(word) <= room)
        axes.text((start + end) / 2, -1, words, ha="center", va="center", fontsize=8)


def in_ms(ms: float) -> str:
    """Return milliseconds with two digits at least."""
    return f"{ms:.0f}" if ms >= 10 else f"{ms:.2g}"
