"""`bench paper` for people: a table and a picture of every figure, and the published ratios beside what was found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.base.plot import Curve, draw
from launch.base.titles import heading
from launch.bench.paper import DIMENSION, MANY
from solver.base.phrases import counted

# Without spaces: a table begins a line at each.
NAMES = {"mbps": "Mbps", "hosts": "devices", "fits": "of\u00a0the\u00a0layers"}
UNITS = {"latency": "ms a request", "throughput": "requests/s", "memory": "ms a request"}


def cells(report: Mapping[str, Any], figure: str) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield a table for every cluster and model of a figure: systems by rows, what varies by columns."""
    rows = [row for row in report["results"] if row["figure"] == figure]
    key = DIMENSION[figure]
    for cluster, model in dict.fromkeys((row["cluster"], row["model"]) for row in rows):
        own = [row for row in rows if (row["cluster"], row["model"]) == (cluster, model)]
        places = sorted({row[key] for row in own}, reverse=key != "hosts")
        table = [
            [name, *(_value(own, name, key, place, figure) for place in places)]
            for name in dict.fromkeys(map(_name, own))
        ]
        title = f"{figure}: {_of(report, own)}; {_rounds(report, figure)}: {UNITS[figure]}"
        yield title, ["system", *(f"{place:g} {NAMES[key]}" for place in places)], table


def claim_cells(report: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the published figures beside what was found."""
    rows = [
        [
            claim["system"], ", ".join(claim["beside"]), claim["key"], f"{claim['published']:.2f}",
            f"{claim['found']:.2f}" if claim["found"] else "-", _where(claim["where"]), claim["source"],
        ]
        for claim in report["claims"]
    ]  # fmt: skip
    return ["system", "beside", "of", "published", "most here", "where", "source"], rows


def _where(point: Mapping[str, Any] | None) -> str:
    if point is None:
        return "-"
    return f"{point['model']} on {counted(point['hosts'], 'device')} of {point['cluster']}, {point['mbps']:g} Mbps"


def write_pictures(report: Mapping[str, Any], folder: Path) -> None:
    """Draw a picture of every figure that was measured."""
    for figure, key in DIMENSION.items():
        rows = [row for row in report["results"] if row["figure"] == figure]
        panels = []
        for cluster, model in dict.fromkeys((row["cluster"], row["model"]) for row in rows):
            own = [row for row in rows if (row["cluster"], row["model"]) == (cluster, model)]
            curves = []
            for name in dict.fromkeys(map(_name, own)):
                line = sorted((row[key], _shown(row)) for row in own if _name(row) == name)
                curves.append(Curve(name, [x for x, _ in line], [y for _, y in line]))
            panels.append((_of(report, own).replace(" on ", "\non "), NAMES[key], curves))
        if panels:
            draw(
                f"{figure}: medians of {_rounds(report, figure)}", panels, UNITS[figure], folder / f"paper-{figure}.png"
            )


def _of(report: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what the results of one model on one cluster are of; the links where they are the same at all points."""
    row = rows[0]
    mbps = [] if row["figure"] == "latency" else [row["mbps"]]
    facts = {key: row[key] for key in ("model", "cluster", "lab_scale")}
    return heading({**report["models"][row["model"]], **facts, "mbps": mbps})


def _rounds(report: Mapping[str, Any], figure: str) -> str:
    asked = f"{MANY} requests at once" if figure == "throughput" else counted(report["repeat"], "request")
    return f"{counted(report['runs'], 'round')} of {asked}"


def claim_title(report: Mapping[str, Any]) -> str:
    """Return what the table of published figures is of."""
    return f"times as good as the best of those beside it, the most at any of {counted(report['points'], 'point')}"


def _name(row: Mapping[str, Any]) -> str:
    """Return what a curve is called; runtimes of others by their kernels."""
    kernels = "" if row["wire"] else f" {row['backend']} {row['precision']}"
    return f"{row['system']}{kernels}" + (f" over {row['wire']}" if row["wire"] not in ("", "float32") else "")


def _shown(row: Mapping[str, Any]) -> float:
    median_s = float(row["median_s"])
    return 1 / median_s if row["figure"] == "throughput" else 1e3 * median_s


def _value(rows: Sequence[Mapping[str, Any]], name: str, key: str, place: float, figure: str) -> str:
    found = [_shown(row) for row in rows if _name(row) == name and row[key] == place]
    return f"{found[0]:.{2 if figure == 'throughput' else 0}f}" if found else "-"
