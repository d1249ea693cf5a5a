"""`python -m launch bench day …`: what a person types and sees."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from launch.base.plot import PlottedCurve, draw
from launch.base.tables import show, tell
from launch.compare.suite import Keep, Report, Suite, at_least
from launch.lab.up import require_tools
from launch.trials.asking import serving
from launch.trials.day import SAMPLE_S, bench_day
from launch.trials.models import add_models, read_models
from solver.base.progress import progress
from solver.cluster.cluster import MIB

TOKENS = 8  # of an answer
MOST_TOKENS = 32  # of a prompt or a text
EXAMPLE = """\
example, as root: hepti bench day --out results
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_models(parser, decoder_layers=1, encoder_layers=1)
    parser.add_argument("--requests", type=int, default=10_000, metavar="N", help="at least (default: %(default)s)")
    parser.add_argument(
        "--clients",
        type=int,
        default=32,
        metavar="N",
        help="at once, half of them of each model (default: %(default)s)",
    )
    text = "seconds between two changes of the lab, each of which the plan follows (default: %(default)s)"
    parser.add_argument("--every", type=int, default=60, metavar="S", help=text)
    parser.add_argument("--seed", type=int, default=0, help="of the requests (default: %(default)s)")


def _measure(options: argparse.Namespace, files: Path, _: Keep) -> Report:
    at_least(options, requests=2, clients=2, every=1, seed=0)
    require_tools()
    models = read_models(options)
    questions = models.questions(options.requests, random.Random(options.seed), most=MOST_TOKENS, tokens=TOKENS)
    with serving(options.cluster, "day", models.paths, options.clients // 2, files) as bench:
        with progress("bench day", options.requests, unit="requests") as advance:
            report = bench_day(bench, questions, options.every, advance)
        return report | {"left": bench.end()}


def print_tables(report: Report) -> None:
    """Print latencies, and what has grown."""
    rows = [
        [
            name,
            str(found["requests"]),
            *(f"{1e3 * found[key]:.0f}" for key in ("median_s", "p99_s", "worst_s")),
            f"{found['p99_by_median']:.1f}",
        ]
        for name, found in report["latency"].items()
    ]
    replans = sum(map(len, report["replans"].values()))
    title = (
        f"{report['requests']} requests in {report['seconds']:.0f} s, {report['changes']} changes of the lab, "
        f"{replans} of plans: {len(report['lost'])} lost, {report['restarts']} restarts"
    )
    show(title, ["model", "requests", "median ms", "99th %", "worst", "99th % / median"], rows)
    rows = [
        [found["process"], str(found["pid"]), "gone", "", "", ""]
        if found.get("gone")
        else [
            found["process"],
            str(found["pid"]),
            f"{found['first_bytes'] / MIB:.0f}",
            f"{found['last_bytes'] / MIB:.0f}",
            f"{100 * found['grown']:+.1f} %",
            f"{found['descriptors']:+d}",
        ]
        for found in report["processes"]
    ]
    title = f"memory after the warm-up; {report['left']} processes left"
    show(title, ["process", "number", "MiB", "at the end", "grown", "descriptors"], rows)
    for line in report["lost"][:10]:
        tell(line)


def draw_picture(report: Report, _: Path, out: Path) -> None:
    """Draw every process's memory."""
    curves = []
    for found in report["processes"]:
        used = [bytes_ / MIB for bytes_ in found.get("samples", ())]
        curves.append(
            PlottedCurve(f"{found['process']} {found['pid']}", [SAMPLE_S * i for i in range(len(used))], used)
        )
    title = f"{report['lab']}: {report['requests']} requests"
    draw(title, [("memory", "s", curves)], "MiB", out / "day.png")


SUITE = Suite(
    name="day",
    text="many short requests to a service, while plans change: latency, and what grows",
    example=EXAMPLE,
    add_options=_add_options,
    measure=_measure,
    show=print_tables,
    draw=draw_picture,
)
