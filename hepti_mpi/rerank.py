"""`hepti rerank`: documents by how well they answer a query, by a cross-encoder. Its command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from hepti_mpi import cli
from solver.base.command import Parser
from solver.base.errors import HeptiError
from solver.base.front import program

EXAMPLE = """examples:
  hepti rerank --np 3 --model reranker.h5 --query "what runs on a Pi?" notes/*.txt
  grep -rh Pi notes | hepti rerank --model reranker.h5 --query "what runs on a Pi?" --top 5
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line of `rerank`.

    Raises
    ------
    HeptiError
        If an option is unknown, malformed, or contradicts another.
    """
    options = cli.checked(parser().parse_args(arguments))
    if not options.query.strip():
        raise HeptiError("--query is empty")
    if options.top is not None and options.top < 1:
        raise HeptiError(f"--top is {options.top}, must be at least 1")
    if options.output is not None and options.output.suffix != ".jsonl":
        raise HeptiError(f"--output {options.output}: a ranking is written as .jsonl")
    return options


def parser() -> Parser:
    """Return the parser of `rerank`."""
    parser = Parser(
        prog=program("python -m hepti_mpi rerank"),
        description="Show which documents answer a query best, by a cross-encoder.",
        epilog=EXAMPLE,
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
    cli.add_split(parser)
    cli.add_measuring(parser)
    return parser
