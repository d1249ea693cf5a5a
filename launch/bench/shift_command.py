"""`python -m launch bench shift …`: what a person types and sees."""

from __future__ import annotations

import argparse
import statistics
from itertools import accumulate, pairwise
from pathlib import Path

from launch.base.plot import PlottedCurve, ShadedSpan, draw
from launch.base.tables import show
from launch.base.titles import heading
from launch.bench.shift import ORACLE, STRATEGIES, WARMUP, bench_shift
from launch.compare.model import model_of
from launch.compare.stage import lab_of
from launch.compare.suite import Report, Suite, add_list, at_least
from launch.lab.up import require_tools


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", default="mixed4", help="a lab that is up, or its cluster file (default: mixed4)")
    parser.add_argument("--model", type=Path, required=True, metavar="MODEL.h5", help="from hepti convert")
    parser.add_argument("--rows", type=int, default=128, help="of every request (default: 128)")
    parser.add_argument("--requests", type=int, default=30, help="in every state of the lab (default: 30)")
    add_list(parser, "--strategies", STRATEGIES)


def _measure(options: argparse.Namespace, *_: object) -> Report:
    at_least(options, rows=1, requests=1)
    model = model_of(options.model)
    require_tools()
    with lab_of(options.cluster) as lab:
        return bench_shift(lab, model, options.rows, options.requests, options.strategies)


def print_tables(report: Report) -> None:
    """Print what every strategy took for all requests, and in every state of the lab."""
    total_s = {entry["system"]: entry["total_s"] for entry in report["results"]}
    stays_s = min((seconds for name, seconds in total_s.items() if name.startswith("static")), default=None)
    oracle_s = total_s.get(ORACLE)
    columns = ["strategy", "total s", "beside best static", "beside oracle", "median ms", "longest ms", "plan changes"]
    rows = [
        [
            entry["system"],
            f"{entry['total_s']:.2f}",
            f"{entry['total_s'] / stays_s:.2f}" if stays_s else "",
            f"{entry['total_s'] / oracle_s:.2f}" if oracle_s else "",
            f"{1e3 * statistics.median(entry['latency_s']):.0f}",
            f"{1e3 * max(entry['latency_s']):.0f}",
            f"{sum(replan['taken'] for replan in entry['replans'])}",
        ]
        for entry in report["results"]
    ]
    of, count = heading(report), len(report["results"][0]["latency_s"])
    show(f"{of}; {count} requests while the lab changes, one run of every strategy", columns, rows)
    rows, begin = [], 0
    for phase in report["phases"]:
        end = begin + phase["requests"]
        taken_ms = [[1e3 * seconds for seconds in entry["latency_s"][begin:end]] for entry in report["results"]]
        cells = [[*(f"{ms:.0f}" for ms in some[:3:2]), f"{statistics.median(some):.0f}"] for some in taken_ms]
        rows.append([phase["name"], *("  ".join(cell) for cell in cells)])
        begin = end
    columns = ["state", *(entry["system"] for entry in report["results"])]
    show(f"{of}; ms in every state of the lab: its first request, its third, the median of all", columns, rows)


def draw_picture(report: Report, _: Path, out: Path) -> None:
    """Draw the latency of every request under every strategy, the lab's states, and where plans changed."""
    curves = [
        PlottedCurve(
            entry["system"],
            range(len(entry["latency_s"])),
            [1e3 * seconds for seconds in entry["latency_s"]],
            changes=[replan["after_requests"] - WARMUP for replan in entry["replans"] if replan["taken"]],
        )
        for entry in report["results"]
    ]
    ends = [*accumulate((phase["requests"] for phase in report["phases"]), initial=0)]
    states = [
        ShadedSpan(phase["name"], start - 0.5, end - 0.5)
        for phase, (start, end) in zip(report["phases"], pairwise(ends), strict=True)
    ]
    title = f"{heading(report)}\none run of every strategy; grey: states of the lab other than calm"
    draw(title, [("", "request", curves)], "ms", out / "shift.png", states)


SUITE = Suite(
    name="shift",
    text="latency while devices and links change, for plans that stay or follow",
    example="example, as root: hepti bench shift --model bert-large-8.h5 --out results",
    add_options=_add_options,
    measure=_measure,
    show=print_tables,
    draw=draw_picture,
)
