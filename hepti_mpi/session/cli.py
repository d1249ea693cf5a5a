"""The command lines of `python -m hepti_mpi`, `generate`, which is the same with another usual model, and `rerank`.

Which options say something to a model is known when its file is open: `check_kind`.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path

from hepti_mpi.kernels.backends import NAMES, check_precision
from hepti_mpi.requests.answer_text import Ending
from hepti_mpi.requests.sampling import Sampling
from solver.base.command import Parser, check_measured, check_one_planner, check_plan_by
from solver.base.errors import HeptiError
from solver.base.front import program
from solver.model.kinds.attention import CACHES
from solver.model.precision import FLOAT32, PRECISIONS
from solver.plan.plan import Wire
from solver.schedule.decoders.asked import CONTEXT, TOKENS
from solver.systems import DEFAULT, SYSTEMS

EXAMPLE = """examples:
  hepti run --np 4
  hepti run --hostfile pis --model bert-large.h5 --input questions.txt --output answers.jsonl
  hepti run --hostfile pis --model resnet50.h5 --input photos/ --output answers.jsonl
or by mpirun itself:
  mpirun -np 4 --hostfile pis python -m hepti_mpi --model bert-large.h5 --input questions.txt --output answers.jsonl
"""
GENERATE_EXAMPLE = """examples:
  hepti generate --chat
  hepti generate --hostfile pis --model llama.h5 --prompt "Once upon a time" --tokens 50
  hepti generate --hostfile pis --model llama.h5 --chat
  hepti generate --hostfile pis --model llama.h5 --input asked.jsonl --output answers.jsonl
  echo '{"tokens": [1, 15043]}' | hepti generate --hostfile pis --model llama.h5 --input -
or by mpirun itself:
  mpirun -np 4 --hostfile pis python -m hepti_mpi generate --model llama.h5 --chat
"""
RERANK_EXAMPLE = """examples:
  hepti rerank --np 3 --model reranker.h5 --query "what runs on a Pi?" notes/*.txt
  grep -rh Pi notes | hepti rerank --model reranker.h5 --query "what runs on a Pi?" --top 5
"""


CACHE = "float32"
NOTHING_ASKED = "nothing is asked: give --prompt, --input or --chat"
# Options that say how a model answers in words.
FOR_WORDS = (
    "tokens", "temperature", "top_p", "seed", "stop", "ignore_eos", "lookup", "context", "sequences", "cache",
)  # fmt: skip
# Options that say something to some kinds of models alone.
FOR_SOME = ("text", "prompt", "chat", "images", "precision", *FOR_WORDS)


ASKED_OTHERWISE = ("random", *(name for name in FOR_SOME if name != "precision"))  # than by a query


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line of the main job.

    Raises
    ------
    HeptiError
        If an option is unknown, malformed, out of range, or contradicts another.
    """
    return checked(parser().parse_args(arguments))


def parse_generate(arguments: list[str]) -> argparse.Namespace:
    """Read the command line of `generate`, as `parse`."""
    options = generate_parser().parse_args(arguments)
    if not (options.prompt or options.input or options.chat or options.random is not None):
        raise HeptiError(NOTHING_ASKED)
    return checked(options)


def checked(options: argparse.Namespace) -> argparse.Namespace:
    """Return the options of a job as it reads them.

    Raises
    ------
    HeptiError
        If one contradicts another.
    """
    for name, least in (("repeat", 1), ("warmup", 0), ("context", 1), ("sequences", 1)):
        if (value := getattr(options, name)) is not None and value < least:
            raise HeptiError(f"--{name} is {value}, must be at least {least}")
    sources = [
        name for name in ("text", "prompt", "input", "chat", "random") if getattr(options, name) not in (None, False)
    ]
    if len(sources) > 1:
        does = "answer" if options.generates else "compute"
        raise HeptiError(f"--{sources[0]} and --{sources[1]} both say what to {does}: give one")
    if (options.input == "-" or options.chat) and (options.repeat, options.warmup) != (1, 0):
        raise HeptiError("--repeat and --warmup compute a file again: what standard input asks is answered once")
    if options.images is not None and options.input is None:
        raise HeptiError("--images says where lines of --input may name images: add --input")
    if options.output is not None and options.chat:
        raise HeptiError("--output is for answers to --prompt and --input, a chat is on the terminal")
    if options.watch and options.chat:
        raise HeptiError("--watch draws where a chat is: leave one of the two out")
    if options.chat and options.sequences not in (None, 1):
        raise HeptiError(f"--sequences {options.sequences} is for several prompts, a chat is one: leave it out")
    _check_words(options)
    if options.wire is not None or options.plan is None:
        options.wire = Wire(options.wire or Wire.FLOAT32)
    check_precision(options.precision or FLOAT32.name, options.backend)
    _check_planner(options)
    return options


def _check_words(options: argparse.Namespace) -> None:
    """Refuse what no answer in words can be."""
    Ending(answer_tokens(options), (), options.stop or [])
    # Without these options the model's own defaults hold, which are checked when it is read.
    Sampling(options.temperature or 0.0, 1.0 if options.top_p is None else options.top_p, 0, options.seed)


def _check_planner(options: argparse.Namespace) -> None:
    """Refuse what contradicts itself about plans; read who plans."""
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
    if options.plan_by == "measure" and options.sequences not in (None, 1):
        alone = f"--sequences {options.sequences}"
        raise HeptiError(f"--plan-by measure times tokens of one answer at a time: leave out {alone}")
    if options.watch and options.replan == "off":
        raise HeptiError("--watch shows what is measured for planning: add --replan dry-run, or auto")


def check_kind(options: argparse.Namespace, kind: str, reads: Collection[str]) -> None:
    """Refuse options that say nothing to a kind of model; `reads` names those of `FOR_SOME` that do.

    Raises
    ------
    HeptiError
        Naming the first of them.
    """
    for name in FOR_SOME:
        if name not in reads and getattr(options, name) not in (None, False):
            option = f"--{name.replace('_', '-')}"
            raise HeptiError(f"{option} says nothing to {kind}, which {options.model} is: leave it out")


def answer_tokens(options: argparse.Namespace) -> int:
    """Return the most tokens of an answer."""
    return TOKENS if options.tokens is None else int(options.tokens)


def parser() -> Parser:
    """Return the parser of the main job."""
    return _parser(
        "python -m hepti_mpi",
        "Run one transformer, language model or convolutional network, split over unequal ranks.\n"
        "Without arguments: a sentence encoder on examples.",
        EXAMPLE,
        "of hepti get minilm",
    )


def generate_parser() -> Parser:
    """Return the parser of `generate`."""
    parser = _parser(
        "python -m hepti_mpi generate",
        "Let a language model, split over unequal ranks, answer prompts or chat. All else is as in run.",
        GENERATE_EXAMPLE,
        "SmolLM2-135M-Instruct, of hepti get smollm2",
    )
    parser.set_defaults(generates=True)
    return parser


def _parser(called: str, does: str, examples: str, usual: str) -> Parser:
    parser = Parser(
        prog=program(called),
        description=does,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what to compute")
    what.add_argument(
        "--model",
        type=Path,
        metavar="MODEL.h5",
        help="weights file, from hepti convert; or a checkpoint directory, .gguf or .onnx (default: " + usual + ")",
    )
    what.add_argument("--text", nargs="+", metavar="T", help="texts, for encoders")
    what.add_argument("--prompt", nargs="+", metavar="T", help="texts to continue, for language models")
    what.add_argument("--chat", action="store_true", help="a conversation, in a language model's chat template")
    what.add_argument(
        "--input", metavar="FILE|-",
        help=".jsonl of texts, prompts, tokens, messages or images; a .txt, an image, or a folder of these; - answers "
        "lines as they come",
    )  # fmt: skip
    what.add_argument("--images", type=Path, metavar="FOLDER", help="below which lines may name images")
    what.add_argument(
        "--random", type=int, metavar="ROWS", help="one request of random tokens or pixels; for networks any number"
    )
    what.add_argument(
        "--output", type=Path, metavar="FILE", help=".jsonl: answers; .npz: last hidden states, or a network's outputs"
    )
    _add_words(parser)
    parser.set_defaults(query=None, called=called, generates=False)  # the query is that of `rerank`
    add_split(parser)
    add_measuring(parser)
    return parser


def _add_words(parser: Parser) -> None:
    """Add the options that say how a model answers in words."""
    how = parser.add_argument_group("how a language model answers")
    how.add_argument("--tokens", type=int, metavar="N", help=f"the most new ones (default: {TOKENS})")
    how.add_argument(
        "--temperature", type=float, metavar="T", help="0: always the likeliest token (default: the model's, or 0)"
    )
    how.add_argument("--top-p", type=float, metavar="P", help="draw among the likeliest that reach P together")
    how.add_argument("--seed", type=int, metavar="N", help="of what is drawn")
    how.add_argument("--stop", action="append", metavar="S", help="a text that ends an answer; may be repeated")
    how.add_argument("--ignore-eos", action="store_true", help="go on after the token that ends an answer")
    how.add_argument(
        "--lookup", choices=("auto", "off"),
        help="try tokens together that followed the same ones before, where it pays (default: auto)",
    )  # fmt: skip
    how.add_argument(
        "--context",
        type=int,
        metavar="C",
        help=f"tokens of a prompt and its answer (default: the plan's, or {CONTEXT}, or the model's if fewer)",
    )
    how.add_argument(
        "--sequences", type=int, metavar="B", help="answer so many prompts at a time (default: the plan's, or 1)"
    )
    how.add_argument(
        "--cache", choices=CACHES, help=f"what keys and values are kept in (default: the plan's, or {CACHE})"
    )


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
    others = "for other models those that hepti plan --help has"
    how.add_argument("--system", metavar="NAME", help=f"{SYSTEMS}; {others} (default: {DEFAULT})")
    how.add_argument("--backend", choices=NAMES, default="auto", help="kernels (default: %(default)s)")
    how.add_argument("--precision", choices=PRECISIONS, help="of an encoder's products (default: float32)")
    how.add_argument(
        "--wire", choices=[*map(str, Wire)], help=f"how numbers travel (default: the plan's, or {Wire.FLOAT32})"
    )
    how.add_argument(
        "--plan-by", choices=("estimate", "measure"),
        help="run the plan that is predicted to be fastest, or try a few and keep the fastest (default: measure where "
        "enough requests come to make up for reading more weights; of a language model's tokens only if asked)",
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
    parser.set_defaults(
        called="python -m hepti_mpi rerank", generates=False, input=None, **dict.fromkeys(ASKED_OTHERWISE)
    )
    add_split(parser)
    add_measuring(parser)
    return parser
