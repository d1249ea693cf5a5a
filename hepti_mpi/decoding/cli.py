"""The command line of `python -m hepti_mpi generate`."""

from __future__ import annotations

import argparse
from pathlib import Path

from hepti_mpi.kernels.backends import NAMES
from hepti_mpi.requests.answer_text import Ending
from hepti_mpi.requests.sampling import Sampling
from solver.base.command import Parser, check_measured, check_one_planner, check_plan_by
from solver.base.errors import HeptiError
from solver.base.front import program
from solver.model.kinds.attention import CACHES
from solver.plan.plan import WIRES, Wire
from solver.schedule.decoders.asked import CONTEXT, TOKENS

SYSTEM = "hepti"
CACHE = "float32"
EXAMPLE = """examples:
  hepti generate --chat
  hepti generate --hostfile pis --model llama.h5 --prompt "Once upon a time" --tokens 50
  hepti generate --hostfile pis --model llama.h5 --chat
  hepti generate --hostfile pis --model llama.h5 --input asked.jsonl --output answers.jsonl
  echo '{"tokens": [1, 15043]}' | hepti generate --hostfile pis --model llama.h5 --input -
or by mpirun itself:
  mpirun -np 4 --hostfile pis python -m hepti_mpi generate --model llama.h5 --chat
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line of `generate`.

    Raises
    ------
    HeptiError
        If an option is unknown, malformed, out of range, or contradicts another.
    """
    options = parser().parse_args(arguments)
    sources = [name for name in ("prompt", "input", "chat") if getattr(options, name)]
    if not sources:
        raise HeptiError("nothing is asked: give --prompt, --input or --chat")
    if len(sources) > 1:
        raise HeptiError(f"--{sources[0]} and --{sources[1]} both say what to answer: give one")
    if options.output is not None and options.chat:
        raise HeptiError("--output is for answers to --prompt and --input, a chat is on the terminal")
    if options.chat and options.sequences not in (None, 1):
        raise HeptiError(f"--sequences {options.sequences} is for several prompts, a chat is one: leave it out")
    check_one_planner(options.plan, options.system)
    check_measured(options.cluster, options.plan, measure=options.measure)
    other = options.system not in (None, SYSTEM)
    planner = "--plan" if options.plan is not None else f"--system {options.system}" * other
    if options.replan != "off" and planner:
        raise HeptiError(f"--replan {options.replan} changes plans that hepti makes: leave out {planner}")
    if options.plan_by == "measure":
        check_plan_by(options.plan_by, planner, options.replan)
        if options.sequences not in (None, 1):
            alone = f"--sequences {options.sequences}"
            raise HeptiError(f"--plan-by measure times tokens of one answer at a time: leave out {alone}")
    options.wire = None if options.wire is None else Wire(options.wire)
    Ending(answer_tokens(options), (), options.stop)
    # Without these options the model's own defaults hold, which are checked when it is read.
    Sampling(options.temperature or 0.0, 1.0 if options.top_p is None else options.top_p, 0, options.seed)
    for name in ("context", "sequences"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise HeptiError(f"--{name} is {getattr(options, name)}, must be at least 1")
    return options


def answer_tokens(options: argparse.Namespace) -> int:
    """Return the most tokens of an answer."""
    return TOKENS if options.tokens is None else int(options.tokens)


def parser() -> Parser:
    """Return the parser of `generate`."""
    parser = Parser(
        prog=program("python -m hepti_mpi generate"),
        description="Let a language model, split over unequal ranks, answer prompts or chat.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what to answer")
    what.add_argument(
        "--model",
        type=Path,
        metavar="MODEL.h5",
        help="weights file, from hepti convert; or a checkpoint directory, or .gguf (default: SmolLM2-135M-Instruct, "
        "of hepti get smollm2)",
    )
    what.add_argument("--prompt", nargs="+", metavar="T", help="texts to continue")
    what.add_argument(
        "--input", metavar="FILE|-", help=".jsonl of prompts, tokens or messages; - answers lines as they come"
    )
    what.add_argument("--chat", action="store_true", help="a conversation, in the model's chat template")
    what.add_argument("--output", type=Path, metavar="FILE.jsonl", help="write the answers, one a line")
    how = parser.add_argument_group("how to answer")
    how.add_argument("--tokens", type=int, metavar="N", help=f"the most new ones (default: {TOKENS})")
    how.add_argument(
        "--temperature", type=float, metavar="T", help="0: always the likeliest token (default: the model's, or 0)"
    )
    how.add_argument("--top-p", type=float, metavar="P", help="draw among the likeliest that reach P together")
    how.add_argument("--seed", type=int, metavar="N", help="of what is drawn")
    how.add_argument(
        "--stop", action="append", default=[], metavar="S", help="a text that ends an answer; may be repeated"
    )
    how.add_argument("--ignore-eos", action="store_true", help="go on after the token that ends an answer")
    how.add_argument(
        "--lookup", choices=("auto", "off"), default="auto",
        help="try tokens together that followed the same ones before, where it pays (default: %(default)s)",
    )  # fmt: skip
    split = parser.add_argument_group("how to split it")
    split.add_argument(
        "--context",
        type=int,
        metavar="C",
        help=f"tokens of a prompt and its answer (default: the plan's, or {CONTEXT}, or the model's if fewer)",
    )
    split.add_argument(
        "--sequences", type=int, metavar="B", help="answer so many prompts at a time (default: the plan's, or 1)"
    )
    split.add_argument(
        "--cache", choices=CACHES, help=f"what keys and values are kept in (default: the plan's, or {CACHE})"
    )
    split.add_argument(
        "--cluster", metavar="CLUSTER.toml|NAME", help="what to plan for: a file, or a ready one: mixed4, …"
    )
    split.add_argument(
        "--measure", action="store_true", help="measure the boards again, though there is a profile of them"
    )
    split.add_argument("--plan", type=Path, metavar="PLAN.json", help="a plan, instead of planning one")
    split.add_argument("--system", metavar="NAME", help=f"who plans: hepti, single, megatron, … (default: {SYSTEM})")
    split.add_argument("--backend", choices=NAMES, default="auto", help="kernels (default: %(default)s)")
    split.add_argument(
        "--plan-by", choices=("estimate", "measure"), default="estimate",
        help="run the plan that is predicted to be fastest, or make the first tokens by a few and keep the fastest "
        "(default: %(default)s)",
    )  # fmt: skip
    split.add_argument(
        "--replan", choices=("off", "auto", "dry-run"), default="off",
        help="change the shares when devices change, dry-run: only say so (default: %(default)s)",
    )  # fmt: skip
    split.add_argument(
        "--wire", choices=[*map(str, WIRES)], help=f"how numbers travel (default: the plan's, or {Wire.FLOAT32})"
    )
    measure = parser.add_argument_group("measuring")
    measure.add_argument("--report", type=Path, metavar="FILE.json", help="write plan, times and bytes of every rank")
    measure.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser
