"""`python -m launch bench paper …`: what a person types."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.base.tables import show
from launch.compare.command import check_counts, chosen
from launch.compare.model import bench_model, check_model, decoupled_model
from launch.compare.results_folder import can_draw, make_folder, write_text
from launch.lab.up import require_tools
from solver.base.errors import HeptiError
from solver.cluster.named import find_cluster
from solver.systems import DECOUPLED, PLANNERS

FIGURES = ("latency", "throughput", "memory")
CLUSTERS, MODELS, MBPS = ("pi4x4", "mixed4"), ("bert-large", "vit-large"), ("940", "500", "240", "120")


def add_parser(suites: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `paper`."""
    parser = suites.add_parser(
        "paper",
        help="latency, throughput and memory of all systems, beside published figures",
        epilog="example, as root: python -m launch bench paper --figures latency --layers 4 --out results",
    )
    parser.set_defaults(function=_paper)
    lists = {"--figures": FIGURES, "--clusters": CLUSTERS, "--models": MODELS, "--mbps": MBPS, "--systems": PLANNERS}
    for option, default in lists.items():
        parser.add_argument(option, default=",".join(default), metavar="A,B,…", help="(default: %(default)s)")
    parser.add_argument("--layers", type=int, metavar="N", help="another layer count")
    parser.add_argument("--runs", type=int, default=3, help="rounds at every point (default: %(default)s)")
    parser.add_argument(
        "--repeat",
        type=int,
        default=3,
        help="timed requests in a round, where they come one by one (default: %(default)s)",
    )
    parser.add_argument("--warmup", type=int, default=1, help="untimed ones before them (default: %(default)s)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write paper.json, behind every point, and a picture of every figure there",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _paper(options: argparse.Namespace) -> int:
    figures, systems = chosen("--figures", options.figures, FIGURES), chosen("--systems", options.systems, [*PLANNERS])
    mbps = bandwidths(options.mbps)
    check_counts(options)
    clusters = {name: len(find_cluster(name).devices) for name in options.clusters.split(",")}
    for name in options.models.split(","):
        check_model(name, options.layers)
    require_tools()
    make_folder(options.out)
    # These bring the planner and its solvers: a second, which only a benchmark needs.
    from launch.bench.paper import bench_paper, points
    from launch.bench.paper_show import cells, claim_cells, claim_title, write_pictures
    from launch.compare.compare import Contest
    from launch.compare.entrants import Kernels

    models = {name: bench_model(name, options.layers) for name in options.models.split(",")}
    beside = {name: decoupled_model(name, options.layers) for name in models if DECOUPLED in systems}
    kernels = [Kernels("auto", "float32")]
    contest = Contest(systems, kernels, ["float32"], [], 0, options.runs, options.repeat, options.warmup)
    measured = points(figures, clusters, {name: model.spec for name, model in models.items()}, mbps)

    def keep(report: Mapping[str, Any]) -> None:
        if options.out is not None:
            write_text(options.out / "paper.json", json.dumps(report, indent=1))

    with tempfile.TemporaryDirectory(prefix="hepti-paper-") as folder:
        report = bench_paper(measured, models, beside, contest, Path(folder), _say, keep)
    if options.out is not None and can_draw():
        write_pictures(report, options.out)
    if options.json:
        print(json.dumps(report))
        return 0
    for figure in figures:
        for title, columns, rows in cells(report, figure):
            show(title, columns, rows)
    show(claim_title(report), *claim_cells(report))
    return 0


def bandwidths(words: str) -> list[float]:
    """Return numbers with commas between.

    Raises
    ------
    HeptiError
        If one is none, or not above zero.
    """
    try:
        found = [float(word) for word in words.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < each < 1e6 for each in found):
        raise HeptiError(f"--mbps is {words!r}, must be numbers above 0 with commas between")
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
