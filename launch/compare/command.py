"""`python -m launch bench compare …`: what a person types, and the files that come out."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any

from launch.base.titles import heading
from launch.compare.model import bench_model, check_model, decoupled_model
from launch.compare.plot import plot_bars, plot_trace
from launch.compare.results_folder import can_draw, make_folder, write_text
from launch.compare.show import comparison_markdown, print_comparison, variant
from launch.compare.stage import Stage, hosts_stage, lab_stage
from launch.lab.up import require_tools
from launch.single.command import RUNTIMES
from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean
from solver.cluster.named import find_cluster
from solver.model.precision import PRECISIONS
from solver.model.spec import request_rows
from solver.plan.plan import Wire
from solver.systems import DECOUPLED, PLANNERS

BACKENDS = ("auto", "numpy", "onnxruntime")
NONE = "none"
EXAMPLE = """examples:
  python -m launch bench compare --cluster mixed4 --layers 4 --out results       # as root
  python -m launch bench compare --hostfile pis --model bert-large.h5 --systems hepti,megatron
"""


def add_parser(suites: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `compare`."""
    parser = suites.add_parser(
        "compare",
        help="systems, kernels, wires and single devices side by side",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(function=_compare)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--cluster", default="mixed4", help="cluster file of a lab, or a ready one (default: %(default)s)"
    )
    where.add_argument("--hostfile", type=Path, metavar="F", help="real hosts, of which this machine is the first")
    parser.add_argument("--model", default="bert-large", metavar="NAME|FILE", help="(default: %(default)s)")
    parser.add_argument("--layers", type=int, metavar="N", help="another layer count, for a named architecture")
    parser.add_argument("--rows", type=int, metavar="S", help="length of a request (default: 256)")
    for option, known, default in (
        ("--systems", PLANNERS, ",".join(PLANNERS)),
        ("--backends", BACKENDS, "auto"),
        ("--precisions", PRECISIONS, "float32"),
        ("--wires", tuple(Wire), "float32"),
        ("--singles", (*RUNTIMES, NONE), ",".join(RUNTIMES)),
    ):
        text = f"of {', '.join(known)} (default: {'all' if default.count(',') else default})"
        parser.add_argument(option, default=default, metavar="A,B,…", help=text)
    parser.add_argument("--runs", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=5, help="timed requests in a round (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=2, help="untimed ones before them (default: %(default)s)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write table.md and results.json there, behind every round, then pictures and traces",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _compare(options: argparse.Namespace) -> int:
    wanted = _contest_words(options)
    check_model(options.model, options.layers)
    opened = _stage(options)
    make_folder(options.out)
    with opened as stage, tempfile.TemporaryDirectory(prefix="hepti-compare-") as folder:
        # These bring the planner and its solvers: a second, which only a benchmark needs.
        from launch.compare.compare import Contest, compare
        from launch.compare.entrants import Kernels

        model = bench_model(options.model, options.layers)
        contest = Contest(
            systems=wanted["systems"],
            kernels=[Kernels(*pair) for pair in product(wanted["backends"], wanted["precisions"])],
            wires=wanted["wires"],
            runtimes=wanted["singles"],
            rows=request_rows(model.spec, options.rows),
            runs=options.runs,
            repeat=options.repeat,
            warmup=options.warmup,
        )
        beside = decoupled_model(options.model, options.layers) if DECOUPLED in contest.systems else None

        def keep(report: dict[str, Any]) -> None:
            if options.out is not None:
                write_numbers(report, Path(folder), options.out)

        report = compare(stage, model, contest, Path(folder), _say, beside, keep)
        if options.out is not None:
            write_pictures(report, Path(folder), options.out)
    if options.json:
        print(json.dumps(report))
    else:
        print_comparison(report)
    return 0


def write_numbers(report: dict[str, Any], files: Path, out: Path) -> None:
    """Write table, JSON and profiles; `files` is where the runs left theirs."""
    write_text(out / "results.json", json.dumps(report, indent=1))
    write_text(out / "table.md", comparison_markdown(report))
    for file in files.glob("cluster-*.toml"):
        shutil.copy(file, out)


def write_pictures(report: dict[str, Any], files: Path, out: Path) -> None:
    """Write traces, and pictures where they can be drawn."""
    pictures = can_draw()
    if pictures:
        plot_bars(report, out / "bars.png")
    for row in report["results"]:
        trace = files / f"{row['files']}.trace.json"
        if trace.exists():
            name = f"{row['system']} {variant(row)}"
            label = name.replace(" ", "-").replace(":", "-")
            shutil.copy(trace, out / f"trace-{label}.json")
            if pictures:
                plot_trace(trace, out / f"timeline-{label}.png", f"{name}: the last request\n{heading(report)}")


def check_counts(options: argparse.Namespace) -> None:
    """Refuse a contest of no runs or requests."""
    for name, least in (("runs", 1), ("repeat", 1), ("warmup", 0)):
        if getattr(options, name) < least:
            raise HeptiError(f"--{name} is {getattr(options, name)}, must be at least {least}")


def _contest_words(options: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Return the lists of the command line, checked; before anything is started."""
    check_counts(options)
    if options.rows is not None and options.rows < 1:
        raise HeptiError(f"--rows is {options.rows}, must be at least 1")
    return {
        "systems": chosen("--systems", options.systems, tuple(PLANNERS)),
        "backends": chosen("--backends", options.backends, BACKENDS),
        "precisions": chosen("--precisions", options.precisions, tuple(PRECISIONS)),
        "wires": chosen("--wires", options.wires, tuple(Wire)),
        "singles": () if options.singles == NONE else chosen("--singles", options.singles, (*RUNTIMES, NONE)),
    }


def chosen(option: str, words: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a list with commas, each once.

    Raises
    ------
    HeptiError
        If one is not known, or there is none.
    """
    found = tuple(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))
    for word in found:
        if word not in known:
            raise HeptiError(f"{option}: there is no {word!r}{did_you_mean(word, known)}")
    if not found:
        raise HeptiError(f"{option} is empty{did_you_mean('', known)}")
    return found


def _stage(options: argparse.Namespace) -> AbstractContextManager[Stage]:
    if options.hostfile is not None:
        return nullcontext(hosts_stage(options.hostfile))
    find_cluster(options.cluster)
    require_tools()
    return lab_stage(options.cluster)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
