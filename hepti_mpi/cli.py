"""The command lines of `python -m hepti_mpi`, as design section 5 has it, and of `rerank`, which is the same job."""

from __future__ import annotations

import argparse
from pathlib import Path

from hepti_mpi.kernels.backends import NAMES, check_precision
from solver.base.command import Parser, check_measured, check_one_planner, check_plan_by
from solver.base.errors import HeptiError
from solver.base.front import program
from solver.model.precision import PRECISIONS
from solver.plan.plan import Wire
from solver.systems import DEFAULT, SYSTEMS

EXAMPLE = """examples:
  hepti run --np 4
  hepti run --hostfile pis --model bert-large.h5 --input questions.txt --output answers.jsonl
  hepti run --hostfile pis --model resnet50.h5 --input photos/ --output answers.jsonl
or by mpirun itself:
  mpirun -np 4 --hostfile pis python -m hepti_mpi --model bert-large.h5 --input questions.txt --output answers.jsonl
"""
RERANK_EXAMPLE = """examples:
  hepti rerank --np 3 --model reranker.h5 --query "what runs on a Pi?" notes/*.txt
  grep -rh Pi notes | hepti rerank --model reranker.h5 --query "what runs on a Pi?" --top 5
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line of the main job.

    Raises
    ------
    HeptiError
        If an option is unknown, malformed, or contradicts another.
    """
    return checked(parser().parse_args(arguments))


def checked(options: argparse.Namespace) -> argparse.Namespace:
    """Return the options of a job as it reads them.

    Raises
    ------
    HeptiError
        If one contradicts another.
    """
    for name, least in (("repeat", 1), ("warmup", 0)):
        if getattr(options, name) < least:
            raise HeptiError(f"--{name} is {getattr(options, name)}, must be at least {least}")
    if options.input == "-" and (options.repeat, options.warmup) != (1, 0):
        raise HeptiError("--repeat and --warmup compute a file again: what standard input asks is answered once")
    if options.wire is not None or options.plan is None:
        options.wire = Wire(options.wire or Wire.FLOAT32)
    check_precision(options.precision, options.backend)
    check_one_planner(options.plan, options.system)
    check_measured(options.cluster, options.plan, measure=options.measure)
    options.system = options.system or DEFAULT
    planner = "--plan" if options.plan is not None else f"--system {options.system}" * (options.system != DEFAULT)
    if options.replan != "off" and options.system != DEFAULT:
        made_by = f"--system {options.system}"
        raise HeptiError(f"--replan {options.replan} changes plans of one stage that hepti makes: leave out {made_by}")
    if options.replan != "off" and options.plan is not None and options.cluster is None:
        raise HeptiError(f"--replan {options.replan} compares boards with what they were planned for: add --cluster")
    check_plan_by(options.plan_by, planner, options.replan)
    if options.watch and options.replan == "off":
        raise HeptiError("--watch shows what is measured for planning: add --replan dry-run, or auto")
    sources = [name for name in ("text", "input", "random") if getattr(options, name) is not None]
    if options.images is not None and options.input is None:
        raise HeptiError("--images says where lines of --input may name images: add --input")
    if len(sources) > 1:
        raise HeptiError(f"--{sources[0]} and --{sources[1]} both say what to compute: give one")
    return options


def parser() -> Parser:
    """Return the parser of the main job."""
    parser = Parser(
        prog=program("python -m hepti_mpi"),
        description="Run one transformer or convolutional network, split over unequal ranks.\n"
        "Without arguments: a sentence encoder on examples.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what to compute")
    what.add_argument(
        "--model",
        type=Path,
        metavar="MODEL.h5",
        help="weights file, from hepti convert; or a checkpoint directory, or .onnx",
    )
    what.add_argument("--text", nargs="+", metavar="T", help="texts")
    what.add_argument(
        "--input", metavar="FILE|-",
        help=".txt, .jsonl, an image, or a folder of these; - answers lines as they come: JSON, texts, paths",
    )  # fmt: skip
    what.add_argument("--images", type=Path, metavar="FOLDER", help="below which lines may name images")
    what.add_argument(
        "--random", type=int, metavar="ROWS", help="one request of random tokens or pixels; for networks any number"
    )
    what.add_argument(
        "--output", type=Path, metavar="FILE", help=".jsonl: answers; .npz: last hidden states, or a network's outputs"
    )
    parser.set_defaults(query=None)  # that of `rerank`
    add_split(parser)
    add_measuring(parser)
    return parser


def add_split(parser: Parser) -> None:
    """Add the options that say how a model is split."""
    how = parser.add_argument_group("how to split it")
    how.add_argument(
        "--cluster", metavar="CLUSTER.toml|NAME", help="what to plan for: a file, or a ready one: mixed4, …"
    )
    how.add_argument(
        "--measure", action="store_true", help="measure the boards again, though there is a profile of them"
    )
    how.add_argument("--plan", type=Path, metavar="PLAN.json", help="a plan, instead of planning one")
    networks = "for networks those that python -m solver --help has"
    how.add_argument("--system", metavar="NAME", help=f"{SYSTEMS}; {networks} (default: {DEFAULT})")
    how.add_argument("--backend", choices=NAMES, default="auto", help="kernels (default: %(default)s)")
    how.add_argument("--precision", choices=PRECISIONS, default="float32", help="of products (default: %(default)s)")
    how.add_argument(
        "--wire", choices=[*map(str, Wire)], help=f"how numbers travel (default: the plan's, or {Wire.FLOAT32})"
    )
    how.add_argument(
        "--plan-by", choices=("estimate", "measure"),
        help="run the plan that is predicted to be fastest, or try a few and keep the fastest (default: measure where "
        "enough requests come to make up for reading more weights)",
    )  # fmt: skip
    how.add_argument(
        "--replan", choices=("off", "auto", "dry-run"), default="off",
        help="change the shares when devices or links change, dry-run: only say so (default: %(default)s)",
    )  # fmt: skip


def add_measuring(parser: Parser) -> None:
    """Add the options that say what is measured and shown."""
    measure = parser.add_argument_group("measuring")
    measure.add_argument("--repeat", type=int, default=1, metavar="N", help="compute everything N times")
    measure.add_argument("--warmup", type=int, default=0, metavar="N", help="and N times before, untimed")
    measure.add_argument("--report", type=Path, metavar="FILE.json", help="write plan, times and bytes of every rank")
    measure.add_argument("--trace", type=Path, metavar="FILE.json", help="write the last request as a Chrome trace")
    measure.add_argument(
        "--watch", action="store_true", help="show every device's share, speed and waiting, live (goes with --replan)"
    )
    measure.add_argument("--debug", action="store_true", help="show the traceback of an error")


def parse_rerank(arguments: list[str]) -> argparse.Namespace:
    """Read the command line of `rerank`.

    Raises
    ------
    HeptiError
        If an option is unknown, malformed, or contradicts another.
    """
    options = checked(rerank_parser().parse_args(arguments))
    if not options.query.strip():
        raise HeptiError("--query is empty")
    if options.top is not None and options.top < 1:
        raise HeptiError(f"--top is {options.top}, must be at least 1")
    if options.output is not None and options.output.suffix != ".jsonl":
        raise HeptiError(f"--output {options.output}: a ranking is written as .jsonl")
    return options


def rerank_parser() -> Parser:
    """Return the parser of `rerank`."""
    parser = Parser(
        prog=program("python -m hepti_mpi rerank"),
        description="Show which documents answer a query best, by a cross-encoder.",
        epilog=RERANK_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what to compare")
    what.add_argument("--model", type=Path, required=True, metavar="MODEL.h5", help="a classifier of one label")
    what.add_argument("--query", required=True, metavar="TEXT", help="what the documents should answer")
    what.add_argument(
        "files", nargs="*", type=Path, metavar="FILE",
        help="a text, a .jsonl of lines with a text, or a folder of .txt (default: each line of standard input)",
    )  # fmt: skip
    what.add_argument("--top", type=int, metavar="N", help="show so many (default: all)")
    what.add_argument("--output", type=Path, metavar="FILE.jsonl", help="write them there, the best first")
    parser.set_defaults(text=None, input=None, images=None, random=None)
    add_split(parser)
    add_measuring(parser)
    return parser
