"""`python -m launch bench faults …`: what a person types and sees."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from launch.base.json_output import written
from launch.base.plot import PlottedCurve, ShadedSpan, draw
from launch.base.tables import show, tell
from launch.compare.suite import Keep, Report, Suite, at_least, one_of_each, say
from launch.lab.up import require_tools
from launch.trials.asking import serving
from launch.trials.faults import bench_faults, in_turn, seconds_by_fault
from launch.trials.models import add_models, read_models
from launch.trials.sorts import CLOCK, FAULTS

CLIENTS = 2  # of each model
TOKENS = 24  # of an answer
MOST_TOKENS = 60  # of a prompt or a text
EXAMPLE = f"""\
example, as root, for a quarter of an hour:
  hepti bench faults --out results     # goes on after the faults that it has
{CLOCK!r} sets the clock of this machine, for all programs on it, for ten
seconds: only where it is asked for.
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_models(parser, decoder_layers=4, encoder_layers=2)
    parser.add_argument("--faults", type=int, default=20, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--requests", type=int, default=1000, metavar="N", help="at least (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of requests and faults (default: %(default)s)")
    usual = ",".join(name for name in FAULTS if name != CLOCK)
    text = f"of {', '.join(FAULTS)} (default: all but the last)".replace("%", "%%")
    parser.add_argument("--sorts", type=one_of_each([*FAULTS]), default=usual, metavar="A,B,…", help=text)


def _measure(options: argparse.Namespace, files: Path, keep: Keep) -> Report:
    at_least(options, faults=1, requests=2, seed=0)
    require_tools()
    options.sorts = [*options.sorts]  # as JSON has it
    settings = {name: getattr(options, name) for name in ("cluster", "model", "encoder", "requests", "seed", "sorts")}
    before = _before(options.out, settings)
    models = read_models(options)
    questions = models.questions(options.requests, random.Random(options.seed), most=MOST_TOKENS, tokens=TOKENS)
    names = in_turn(options.sorts, options.faults, random.Random(options.seed))
    with serving(options.cluster, "faults", models.paths, CLIENTS, files) as bench:
        report = bench_faults(
            bench, questions, names, options.seed, lambda report: keep(report | {"settings": settings}), before
        )
        return report | {"settings": settings, "left": bench.end()}


def _before(out: Path | None, settings: Report) -> Report | None:
    """Return the report of a run of the same settings, as far as it came."""
    if out is None or not (out / "faults.json").exists():
        return None
    found: Report = written(out / "faults.json", "the run before")
    if found.get("settings") != settings:
        return None
    say(f"{len(found['faults'])} faults are in {out / 'faults.json'} already")
    return found


def print_tables(report: Report) -> None:
    """Print what came of the requests, and how long nothing came after every sort of fault."""
    rows = [
        [name, str(count), f"{median:.1f}", f"{worst:.1f}"] for name, count, median, worst in seconds_by_fault(report)
    ]
    title = (
        f"{report['requests']} requests, {len(report['faults'])} faults: {len(report['lost'])} lost, "
        f"{report['different']} different from the calm run, {report['again']} asked again, "
        f"{report['left']} processes left"
    )
    show(title, ["fault", "times", "median s", "worst s"], rows)
    for line in report["lost"][:10]:
        tell(line)


def draw_picture(report: Report, _: Path, out: Path) -> None:
    """Draw the tokens and embeddings of every second, and how long nothing came after every fault."""
    curves = [PlottedCurve(name, range(len(counts)), counts) for name, counts in report["a_second"].items()]
    title = f"{report['lab']}: a service while {len(report['faults'])} things fail, one after the other"
    silent = [ShadedSpan(entry["fault"], entry["at"], entry["at"] + entry["silent_s"]) for entry in report["faults"]]
    title += "\ngrey: as long as the longest silence after each"
    draw(title, [("", "s", curves)], "tokens, embeddings a second", out / "faults.png", silent)


SUITE = Suite(
    name="faults",
    text="a service while ranks, boards and links fail: what is lost, and for how long",
    example=EXAMPLE,
    add_options=_add_options,
    measure=_measure,
    show=print_tables,
    draw=draw_picture,
)
