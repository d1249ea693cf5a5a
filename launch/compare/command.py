"""`python -m launch bench compare …`: what a person types, and the files that come out."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from pathlib import Path

from launch.base.titles import heading
from launch.compare.checkout import checkout
from launch.compare.compare import Contest, compare
from launch.compare.entrants import Kernels
from launch.compare.model import bench_model, check_model, decoupled_model
from launch.compare.plot import plot_bars, plot_trace
from launch.compare.show import comparison_markdown, print_comparison, variant
from launch.compare.stage import BenchHosts, hosts_stage, lab_stage
from launch.compare.suite import Keep, Report, Suite, add_list, add_rounds, at_least, say, write_text
from launch.lab.up import require_tools
from launch.single.command import RUNTIMES
from solver.cluster.named import find_cluster
from solver.model.precision import PRECISIONS
from solver.model.spec import request_rows
from solver.plan.plan import Wire
from solver.systems import DECOUPLED, PLANNERS

NONE = "none"


def _add_options(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--cluster", default="mixed4", help="file of a lab, or a ready one (default: %(default)s)")
    where.add_argument("--hostfile", type=Path, metavar="F", help="real hosts, of which this machine is the first")
    parser.add_argument("--model", default="bert-large", metavar="NAME|FILE", help="(default: %(default)s)")
    parser.add_argument("--layers", type=int, metavar="N", help="another layer count, for a named architecture")
    parser.add_argument("--rows", type=int, metavar="S", help="length of a request (default: 256)")
    add_list(parser, "--systems", PLANNERS)
    add_list(parser, "--backends", ("auto", "numpy", "onnxruntime"), "auto")
    add_list(parser, "--precisions", tuple(PRECISIONS), "float32")
    add_list(parser, "--wires", Wire, "float32")
    add_list(parser, "--singles", (*RUNTIMES, NONE), ",".join(RUNTIMES))
    text = "another checkout of Hepti: every system runs in both versions, planned by each, in the same rounds"
    parser.add_argument("--against", type=checkout, metavar="PATH", help=text)
    add_rounds(parser, runs=5, repeat=5, warmup=2)


def _measure(options: argparse.Namespace, files: Path, keep: Keep) -> Report:
    at_least(options, rows=1, runs=1, repeat=1, warmup=0)
    check_model(options.model, options.layers)
    with _stage(options) as stage:
        model = bench_model(options.model, options.layers)
        contest = Contest(
            systems=options.systems,
            kernels=[Kernels(*pair) for pair in product(options.backends, options.precisions)],
            wires=options.wires,
            runtimes=[name for name in options.singles if name != NONE],
            rows=request_rows(model.spec, options.rows),
            runs=options.runs,
            repeat=options.repeat,
            warmup=options.warmup,
            against=options.against,
        )
        beside = decoupled_model(options.model, options.layers) if DECOUPLED in contest.systems else None
        return compare(stage, model, contest, files, say, beside, keep)


def write_numbers(report: Report, files: Path, out: Path) -> None:
    """Write table and JSON, and profiles and traces as the runs left them."""
    write_text(out / "results.json", json.dumps(report, indent=1))
    write_text(out / "table.md", comparison_markdown(report))
    for file in files.glob("cluster-*.toml"):
        shutil.copy(file, out)
    for _, label, trace in _traces(report, files):
        shutil.copy(trace, out / f"trace-{label}.json")


def draw_pictures(report: Report, files: Path, out: Path) -> None:
    """Draw bars, and timelines of the traces."""
    plot_bars(report, out / "bars.png")
    for name, label, trace in _traces(report, files):
        plot_trace(trace, out / f"timeline-{label}.png", f"{name}: the last request\n{heading(report)}")


def _traces(report: Report, files: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield who left a trace, the same as a part of a file's name, and the trace."""
    for row in report["results"]:
        if (trace := files / f"{row['files']}.trace.json").exists():
            name = f"{row['system']} {variant(row)}"
            yield name, name.replace(" ", "-").replace(":", "-"), trace


def _stage(options: argparse.Namespace) -> AbstractContextManager[BenchHosts]:
    if options.hostfile is not None:
        return nullcontext(hosts_stage(options.hostfile))
    find_cluster(options.cluster)
    require_tools()
    return lab_stage(options.cluster)


SUITE = Suite(
    name="compare",
    text="systems, kernels, wires and single devices side by side",
    example="""examples:
  python -m launch bench compare --cluster mixed4 --layers 4 --out results       # as root
  python -m launch bench compare --hostfile pis --model bert-large.h5 --systems hepti,megatron
  git worktree add /tmp/before HEAD~20; python -m launch bench compare --systems hepti --against /tmp/before
""",
    add_options=_add_options,
    measure=_measure,
    show=print_comparison,
    draw=draw_pictures,
    write=write_numbers,
)
