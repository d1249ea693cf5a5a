"""`python -m launch bench faults …`: what a person types and sees."""

from __future__ import annotations

import argparse
import random
import socket
import sys
from pathlib import Path

from launch.base.plot import PlottedCurve, draw
from launch.base.tables import show
from launch.bench.faults import Bench, bench_faults, questions_of, seconds_by_fault
from launch.compare.model import bench_decoder, bench_model
from launch.compare.suite import Keep, Report, Suite, at_least
from launch.lab import down as lab_down
from launch.lab import up as lab_up
from launch.lab.lab import lab_name, plan_lab
from launch.lab.up import require_tools
from solver.base.errors import HeptiError
from solver.cluster.named import find_cluster
from solver.model.spec import TextInput


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", default="pi4x4", help="file of a lab, or a ready one (default: %(default)s)")
    text = "a language model, float32: nothing is nearly equal there (default: %(default)s, 4 layers)"
    parser.add_argument("--model", default="smollm2-135m", metavar="NAME|FILE", help=text)
    parser.add_argument("--encoder", default="bert-base", metavar="NAME|FILE", help="(default: %(default)s, 2 layers)")
    parser.add_argument("--faults", type=int, default=20, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--requests", type=int, default=1000, metavar="N", help="at least (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of requests and faults (default: %(default)s)")


def _measure(options: argparse.Namespace, files: Path, keep: Keep) -> Report:
    at_least(options, faults=1, requests=2, seed=0)
    require_tools()
    model = bench_decoder(options.model, None if options.model.endswith(".h5") else 4, "float32")
    encoder = bench_model(options.encoder, None if options.encoder.endswith(".h5") else 2)
    if not isinstance(encoder.spec.input, TextInput):
        raise HeptiError(f"--encoder {options.encoder} reads images, here one of texts is needed")
    rng = random.Random(options.seed)
    questions = questions_of(
        model.path.stem, model.model.vocab, encoder.path.stem, encoder.spec.input.vocab, options.requests, rng
    )
    name = f"{lab_name(options.cluster)}-faults"
    lab, _, notes = lab_up.up(plan_lab(name, find_cluster(options.cluster), ssh=True))
    try:
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        bench = Bench(lab, (model.path, encoder.path), port, files / "service.log")
        try:
            report = bench_faults(bench, questions, options.faults, rng)
        finally:
            code = bench.end()
        report["exit_code"] = code
        keep(report)
        return report
    finally:
        lab_down.down(name)


def print_tables(report: Report) -> None:
    """Print what came of the requests, and how long nothing came behind every sort of fault."""
    rows = [
        [name, str(count), f"{median:.1f}", f"{worst:.1f}"] for name, count, median, worst in seconds_by_fault(report)
    ]
    title = (
        f"{report['requests']} requests, {len(report['faults'])} faults: {len(report['lost'])} lost, "
        f"{report['different']} different from the calm run, {report['again']} asked again"
    )
    show(title, ["fault", "times", "median s", "worst s"], rows)
    for line in report["lost"][:10]:
        print(line)


def draw_picture(report: Report, _: Path, out: Path) -> None:
    """Draw the tokens and embeddings of every second."""
    curves = [PlottedCurve(name, list(range(len(counts))), counts) for name, counts in report["a_second"].items()]
    title = f"{report['lab']}: a service while {len(report['faults'])} things fail, one after the other"
    draw(title, [("tokens, and embeddings", "s", curves)], "a second", out / "faults.png")


SUITE = Suite(
    name="faults",
    text="a service while ranks, boards and links fail: what is lost, and for how long nothing comes",
    example="example, as root: python -m launch bench faults --out results",
    add_options=_add_options,
    measure=_measure,
    show=print_tables,
    draw=draw_picture,
)
