"""A picture of a convolutional network's plan: which rows of every segment every board has, and what it needs."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from solver.base.spans import Partition
from solver.model.kinds.operator import IMAGE_ROW
from solver.model.kinds.part import there
from solver.plan.segments import SegmentCut, whole_parts
from solver.schedule.networks.steps import SegmentShares
from solver.show.network_facts import PricedNetwork
from solver.show.network_tables import first_node, shared_out, wire_s
from solver.show.pictures import MOST_DRAWN, PALETTE, left_out, new_figure, save_figure

_LIGHT = 0.3  # opacity of what a board needs, beside what it has
_HATCH = "///"
LONGEST = 60  # letters of a list of boards
MOST_NAMED = 24  # segments of which each has a name below it


def plot_segments(found: PricedNetwork, path: Path, title: str) -> None:
    """Draw for every segment, from left to right, every board's rows of what it leaves, and of what it needs for them.

    Lengths are parts of the image's height, or of the channels where these are cut, which is hatched.
    """
    plan = found.plan
    ranks = plan.active[:MOST_DRAWN]
    count = len(plan.segments)
    figure = new_figure(max(10.0, 1.5 + count * (0.95 if count <= MOST_NAMED else 0.4)), 6)
    axes = figure.subplots()
    width = 0.84 / len(ranks)
    for number, shares in enumerate(found.shares):
        for lane, rank in enumerate(ranks):
            _draw_lane(axes, found, shares, rank, number - 0.42 + (lane + 0.5) * width, width)
    for edge in range(1, count):
        axes.axvline(edge - 0.5, color="black", linewidth=0.4)
    for rank in ranks:
        axes.bar(0, 0, color=_colour(rank), label=plan.devices[rank])
    if idle := [name for rank, name in enumerate(plan.devices) if rank not in plan.active]:
        axes.bar(0, 0, color="none", label=f"no share: {textwrap.shorten(', '.join(idle), LONGEST)}")
    axes.bar(0, 0, color="grey", alpha=_LIGHT, label="needs of what was before")
    if any(segment.cut is not SegmentCut.ROWS for segment in plan.segments):
        axes.bar(0, 0, color="grey", hatch=_HATCH, edgecolor="white", label="of channels")
    if count <= MOST_NAMED:
        axes.set_xticks(range(count), [_label(found, number) for number in range(count)], fontsize=7)
        of = "its first node; what is shared out; ms of the slowest board's compute + of the wire after it"
    else:
        of = "segment"
    axes.set_xlabel(of + left_out(len(ranks), len(plan.active)))
    axes.set(xlim=(-0.5, len(plan.segments) - 0.5), ylim=(1, 0), ylabel="part of the rows, from the first")
    figure.suptitle(title, x=0.01, ha="left", fontsize="medium")
    figure.legend(loc="outside lower right", ncols=6, fontsize="small")
    save_figure(figure, path)


def _draw_lane(axes: Any, found: PricedNetwork, shares: SegmentShares, rank: int, x: float, width: float) -> None:
    segment, net = shares.segment, found.net
    counts = whole_parts(net, segment)
    own = Partition.of_counts(counts)[rank]
    if not own.size:
        return
    by_rows = segment.cut is SegmentCut.ROWS
    if by_rows and (needed := _needed_rows(found, shares, rank)):
        _bar(axes, *needed, x, width, color=_colour(rank), alpha=_LIGHT, linewidth=0)
    ends = (own.start / sum(counts), own.stop / sum(counts))
    style: dict[str, Any] = {} if by_rows else {"hatch": _HATCH, "edgecolor": "white", "linewidth": 0}
    _bar(axes, *ends, x, width * 0.55, color=_colour(rank), **style)


def _needed_rows(found: PricedNetwork, shares: SegmentShares, rank: int) -> tuple[float, float] | None:
    """Return from which part of the height to which a rank needs what was before a segment; None where it has none."""
    ends = []
    for value, region in shares.needs.items():
        height = found.net.extent(value).rows.stop
        if there(region)[0, rank] and height > 1:
            ends.append((region[IMAGE_ROW][0, rank] / height).tolist())
    return (min(start for start, _ in ends), max(stop for _, stop in ends)) if ends else None


def _bar(axes: Any, start: float, stop: float, x: float, width: float, **style: Any) -> None:
    axes.bar(x, stop - start, width, bottom=start, **style)


def _label(found: PricedNetwork, number: int) -> str:
    segment, step = found.plan.segments[number], found.steps[number]
    name = textwrap.fill(first_node(found.net, segment), 14, max_lines=3)
    times = f"{1e3 * float(step.times.compute.max()):.1f} + {1e3 * wire_s(step):.1f} ms"
    return f"{name}\n{shared_out(segment, whole_parts(found.net, segment))}\n{times}"


def _colour(rank: int) -> str:
    return PALETTE[rank % len(PALETTE)]
