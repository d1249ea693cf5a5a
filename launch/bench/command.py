"""`python -m launch bench …`: suites of measurements as tables, JSON and pictures."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launch.base.tables import show
from launch.base.titles import heading
from launch.bench import paper_command
from launch.bench.offload import CONDITIONS, PUBLISHED_LOCAL_MS, WAYS, bench_offload, what, write_picture
from launch.bench.shift import ORACLE, STRATEGIES, bench_shift
from launch.bench.shift import write_picture as write_shift
from launch.compare import command as compare_command
from launch.compare.model import model_of
from launch.compare.results_folder import can_draw, make_folder, write_text
from launch.compare.stage import lab_of
from launch.lab.up import require_tools
from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` and its suites."""
    bench = subparsers.add_parser(
        "bench", help="measure", epilog="example, as root: python -m launch bench offload --out results"
    )
    suites = bench.add_subparsers(required=True, metavar="SUITE")
    compare_command.add_parser(suites)
    paper_command.add_parser(suites)
    text = "what two devices gain over one, beside the published figures"
    example = "example, as root: python -m launch bench offload --out results"
    parser = suites.add_parser("offload", help=text, description=text, epilog=example)
    parser.set_defaults(function=_offload)
    parser.add_argument(
        "--cluster", default="paper2", help="two devices: a lab that is up, or a cluster file (default: paper2)"
    )
    parser.add_argument("--runs", type=int, default=9, help="runs of every point (default: 9)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write offload.json and offload.png there")
    parser.add_argument("--json", action="store_true", help="print JSON")
    text = "latency while devices and links change, for plans that stay or follow"
    example = "example, as root: python -m launch bench shift --model bert-large-8.h5 --out results"
    parser = suites.add_parser("shift", help=text, description=text, epilog=example)
    parser.set_defaults(function=_shift)
    parser.add_argument("--cluster", default="mixed4", help="a lab that is up, or its cluster file (default: mixed4)")
    parser.add_argument("--model", type=Path, required=True, metavar="MODEL.h5", help="from python -m weights")
    parser.add_argument("--rows", type=int, default=128, help="of every request (default: 128)")
    parser.add_argument("--requests", type=int, default=30, help="in every state of the lab (default: 30)")
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="default: %(default)s")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write shift.json and shift.png there")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _shift(options: argparse.Namespace) -> int:
    strategies = options.strategies.split(",")
    for name in strategies:
        if name not in STRATEGIES:
            raise HeptiError(f"unknown strategy {name!r}{did_you_mean(name, STRATEGIES)}")
    for option in ("rows", "requests"):
        if getattr(options, option) < 1:
            raise HeptiError(f"--{option} is {getattr(options, option)}, must be at least 1")
    model = model_of(options.model)
    require_tools()
    make_folder(options.out)
    with lab_of(options.cluster) as lab:
        report = bench_shift(lab, model, options.rows, options.requests, strategies)
    _tell(report, options, _show_shift, write_shift)
    return 0


def _show_shift(report: dict[str, Any]) -> None:
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


def _tell(
    report: dict[str, Any],
    options: argparse.Namespace,
    tables: Callable[[dict[str, Any]], None],
    picture: Callable[[dict[str, Any], Path], None],
) -> None:
    """Print a suite's tables, or its JSON, and only then write JSON and picture: the disk may be full by now."""
    if options.json:
        print(json.dumps(report))
    else:
        tables(report)
    if options.out is not None:
        write_text(options.out / f"{report['suite']}.json", json.dumps(report, indent=1))
        if can_draw():
            picture(report, options.out / f"{report['suite']}.png")


def _offload(options: argparse.Namespace) -> int:
    if options.runs < 2:  # quartiles need two
        raise HeptiError(f"--runs is {options.runs}, must be at least 2")
    require_tools()
    make_folder(options.out)
    report = bench_offload(options.cluster, options.runs)
    _tell(report, options, _show_offload, write_picture)
    return 0


def _show_offload(report: dict[str, Any]) -> None:
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
