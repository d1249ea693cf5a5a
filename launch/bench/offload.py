"""`bench offload`: what two devices gain over one on five chained MatMuls, beside the published figures.

The figures of the motivation section: time over m alone and with 90 % of the rows
offloaded, and time over the share offloaded under two bandwidths and two speeds of the secondary device.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.base.json_output import written
from launch.base.plot import PlottedCurve, draw
from launch.base.tables import show
from launch.compare.results import quartiles
from launch.compare.stage import lab_of
from launch.compare.suite import Report, Suite, at_least
from launch.lab import run as lab_run
from launch.lab import up as lab_up
from launch.lab.lab import Lab
from solver.base.clock import at_scale
from solver.base.errors import HeptiError

ROWS = (64, 128, 256, 512, 1024)
PERCENTS = (*range(0, 80, 10), 75, *range(80, 101, 10))  # 75: the fastest by tiles at 940 Mbps lies between tens
FLOP_PER_ROW = 5 * 2 * 1024 * 1024
BYTES_PER_ROW = 4 * 1024


@dataclass(frozen=True, slots=True)
class Condition:
    """One curve of the published figure: the network, the secondary's speed, the best share and its time there."""

    bandwidth_mbps: float
    cpu: float
    published_percent: int
    published_ms: float | None = None


CONDITIONS = (
    Condition(940, 1.00, 90, 55.1),
    Condition(940, 0.25, 50),
    Condition(240, 1.00, 70),
    Condition(240, 0.25, 30),
)
PUBLISHED_LOCAL_MS = 109.3
# The ways of `hepti_mpi.measure.offload`, with what the primary does.
WAYS = {"waits": "waits", "overlaps": "works on", "tiles": "works in tiles"}


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster", default="paper2", help="two devices: a lab that is up, or a cluster file (default: paper2)"
    )
    parser.add_argument("--runs", type=int, default=9, help="runs of every point (default: 9)")


def bench_offload(options: argparse.Namespace, *_: object) -> Report:
    """Run all conditions on a lab of two hosts, started and ended here unless it is up already."""
    at_least(options, runs=2)  # quartiles need two
    lab_up.require_tools()
    results, runs = [], options.runs
    with lab_of(options.cluster) as lab:
        if len(lab.hosts) != 2:
            raise HeptiError(f"lab {lab.name} has {len(lab.hosts)} hosts, offloading is between 2: use paper2")
        results += _measure(lab, CONDITIONS[0], ROWS, (0, 90), runs)
        for condition in CONDITIONS:
            lab = _under(lab, condition)
            results += _measure(lab, condition, (256,), PERCENTS, runs)
        _under(lab, CONDITIONS[0])
    versions = {"python": sys.version.split()[0]}
    return {
        "suite": "offload",
        "cluster": lab.name,
        "lab_scale": lab.scale,
        "model": "matmul-1024",
        "rows": 256,
        "layers": 1,
        "runs": runs,
        "versions": versions,
        "results": results,
        "best": best_shares(results),
    }


def best_shares(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, per condition and way, the share with the shortest median beside the published one."""
    best = []
    for condition in CONDITIONS:
        for way in WAYS:
            curve = curve_of(results, condition, way)
            shortest = min(curve, key=lambda entry: float(entry["median_s"]))
            best.append(
                {
                    "bandwidth_mbps": condition.bandwidth_mbps,
                    "cpu": condition.cpu,
                    "system": shortest["system"],
                    "local_s": curve[0]["median_s"],
                    "percent": shortest["percent"],
                    "median_s": shortest["median_s"],
                    "published_percent": condition.published_percent,
                    "published_ms": condition.published_ms,
                }
            )
    return best


def curve_of(results: Sequence[dict[str, Any]], condition: Condition, way: str) -> list[dict[str, Any]]:
    """Return the results of one condition at 256 rows, by rising share."""
    found = [
        entry
        for entry in results
        if entry["figure"] == "share"
        and (entry["bandwidth_mbps"], entry["cpu"]) == (condition.bandwidth_mbps, condition.cpu)
        and entry["system"] == _system(way)
    ]
    return sorted(found, key=lambda entry: int(entry["percent"]))


def _measure(
    lab: Lab, condition: Condition, rows: Sequence[int], percents: Sequence[int], runs: int
) -> list[dict[str, Any]]:
    out = lab.directory / "offload.json"
    program = [sys.executable, "-m", "hepti_mpi.measure.offload", "--out", str(out), "--runs", str(runs)]
    program += ["--rows", ",".join(map(str, rows)), "--percent", ",".join(map(str, percents))]
    if code := lab_run.run(lab, 2, program):
        raise HeptiError(f"hepti_mpi.measure.offload ended with exit code {code}: its own message stands above")
    figure = "rows" if len(rows) > 1 else "share"
    return [{"figure": figure, **_result(lab, condition, entry)} for entry in written(out, "hepti_mpi.measure.offload")]


def _result(lab: Lab, condition: Condition, entry: dict[str, Any]) -> dict[str, Any]:
    away = round(entry["rows"] * entry["percent"] / 100)
    compute_s = [
        count * FLOP_PER_ROW / host.compute_flop_per_s
        for count, host in zip((entry["rows"] - away, away), lab.hosts, strict=True)
    ]
    way_s = away * BYTES_PER_ROW / lab.hosts[1].bandwidth_bytes_per_s + (lab.latency_s if away else 0.0)
    predicted_s = {
        "waits": max(compute_s) + 2 * way_s,
        "overlaps": max(compute_s[0], compute_s[1] + 2 * way_s),
        # The first tile in, the last one out.
        "tiles": max(compute_s[0], compute_s[1] + 2 * way_s * min(1.0, entry["tile_rows"] / max(1, away))),
    }[entry["way"]]
    low_s, median_s, high_s = quartiles(entry["seconds"])
    return {
        "system": _system(entry["way"]),
        "backend": entry["backend"],
        "precision": "float32",
        "wire": "float32",
        "devices": 1 + (away > 0) - (away == entry["rows"]),
        "rows": entry["rows"],
        "percent": entry["percent"],
        "bandwidth_mbps": condition.bandwidth_mbps,
        "cpu": condition.cpu,
        "median_s": median_s,
        "low_s": low_s,
        "high_s": high_s,
        "compute_s": statistics.median(entry["compute_s"]),
        "predicted_s": predicted_s,
        "compute_bound_s": max(compute_s),
        "exchange_bound_s": 2 * way_s,
        "bytes_on_wire": 2 * away * BYTES_PER_ROW,
    }


def _system(way: str) -> str:
    return f"offload:{way}"


def _under(lab: Lab, condition: Condition) -> Lab:
    for host in lab.hosts:
        cpu = 1.0 if host is lab.hosts[0] else condition.cpu
        lab = lab_up.change(lab, replace(host, cpu=cpu, bandwidth_bytes_per_s=condition.bandwidth_mbps * 1e6 / 8))
    return lab


def what(report: dict[str, Any]) -> str:
    """Return what was measured, in words."""
    where = f"{report['cluster']}{at_scale(report['lab_scale'])}"
    return f"five MatMuls [m, 1024] @ [1024, 1024] on {where}, medians of {report['runs']} runs"


def print_tables(report: Report) -> None:
    """Print both figures."""
    columns = ["m", "one device ms", "90 % offloaded ms", "gain"]
    entries = {
        (entry["rows"], entry["percent"]): entry["median_s"]
        for entry in report["results"]
        if entry["figure"] == "rows" and entry["system"] == "offload:waits"
    }
    rows = []
    for count in sorted({count for count, _ in entries}):
        alone_s, shared_s = entries[count, 0], entries[count, 90]
        rows.append([str(count), f"{alone_s * 1e3:.1f}", f"{shared_s * 1e3:.1f}", f"{1 - shared_s / alone_s:.0%}"])
    published = CONDITIONS[0]
    figures = f"published at 256: {PUBLISHED_LOCAL_MS}, {published.published_ms}"
    show(f"{what(report)}, {published.bandwidth_mbps:g} Mbps ({figures})", columns, rows)
    columns = ["Mbps", "secondary", "primary", "local ms", "best share", "ms", "published share", "ms"]
    rows = [
        [
            f"{entry['bandwidth_mbps']:g}",
            f"{entry['cpu']:.0%}",
            WAYS[entry["system"].removeprefix("offload:")],
            f"{entry['local_s'] * 1e3:.1f}",
            f"{entry['percent']} %",
            f"{entry['median_s'] * 1e3:.1f}",
            f"{entry['published_percent']} %" if entry["system"] == "offload:waits" else "",
            f"{entry['published_ms']}" if entry["published_ms"] and entry["system"] == "offload:waits" else "",
        ]
        for entry in report["best"]
    ]
    show(f"{what(report)}; the best share of the rows to offload, m = 256", columns, rows)


def draw_picture(report: Report, _: Path, out: Path) -> None:
    """Draw both figures."""
    results = report["results"]
    panels: list[tuple[str, str, list[PlottedCurve]]] = []
    by_rows = [entry for entry in results if entry["figure"] == "rows" and entry["system"] == _system("waits")]
    panels.append(
        (
            f"{CONDITIONS[0].bandwidth_mbps:g} Mbps, 90 % offloaded",
            "m",
            [
                PlottedCurve(label, *_points([entry for entry in by_rows if entry["percent"] == percent], "rows"))
                for percent, label in ((0, "one device"), (90, "two devices"))
            ],
        )
    )
    for way, title in zip(
        WAYS, ("waiting for the exchange, as published", "working meanwhile", "in tiles"), strict=True
    ):
        curves = [
            PlottedCurve(
                f"{condition.bandwidth_mbps:g} Mbps, secondary at {condition.cpu:.0%}",
                *_points(curve_of(results, condition, way), "percent"),
                mark=condition.published_percent,
            )
            for condition in CONDITIONS
        ]
        panels.append((f"the primary {title}", "offloaded, % of 256 rows; dotted: published best", curves))
    draw(what(report), panels, "ms", out / "offload.png")


def _points(entries: Sequence[dict[str, Any]], key: str) -> tuple[list[float], list[float]]:
    return [float(entry[key]) for entry in entries], [entry["median_s"] * 1e3 for entry in entries]


SUITE = Suite(
    name="offload",
    text="what two devices gain over one, beside the published figures",
    example="example, as root: hepti bench offload --out results",
    add_options=_add_options,
    measure=bench_offload,
    show=print_tables,
    draw=draw_picture,
)
