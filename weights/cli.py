"""The command line of `python -m weights`: convert, synthesize, inspect and verify weights files."""

from __future__ import annotations

import argparse
import json
import math
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from solver.base.command import Parser
from solver.base.errors import HeptiError
from solver.base.phrases import counted
from solver.base.progress import progress
from solver.model.named import DECOUPLED_NAMES, NAMED_MODELS, named_model
from solver.model.spec import ModelSpec, TextInput, encoder_blocks, tensor_shapes
from solver.plan.holdings import TensorSlice
from weights.convert.convert import convert
from weights.file.layout import row_spans
from weights.file.store import DTYPES, FORMAT, WeightsFile
from weights.synthesize import synthesize

EXAMPLE = """examples:
  python -m weights convert checkpoints/all-MiniLM-L6-v2 minilm.h5
  python -m weights synthesize bert-large bert-large.h5 --layers 4
  python -m weights inspect minilm.h5
  python -m weights verify minilm.h5
"""


def main(arguments: Sequence[str]) -> int:
    """Run one command and return the exit code: 0, or 2 on bad usage or bad input."""
    try:
        options = _parser().parse_args(arguments)
    except HeptiError as error:
        print(f"python -m weights: {error}", file=sys.stderr)
        return 2
    try:
        options.run(options)
    except HeptiError as error:
        if options.debug:
            raise
        print(f"python -m weights {options.command}: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        if options.debug:
            raise
        print(f"python -m weights {options.command}: {type(error).__name__}: {error} (see --debug)", file=sys.stderr)
        return 1
    return 0


def _convert(options: argparse.Namespace) -> None:
    spec = convert(options.checkpoint, options.model, options.dtype)
    print(f"{options.model}: {_sentence(spec)}, {_mib(options.model.stat().st_size)}")
    with WeightsFile(options.model) as weights:
        if isinstance(spec.input, TextInput) and weights.tokenizer is None:
            print(f"{options.checkpoint} has no tokenizer.json: the model will read token ids only", file=sys.stderr)


def _synthesize(options: argparse.Namespace) -> None:
    spec = named_model(options.name, options.layers)
    synthesize(options.model, spec, options.seed, options.dtype)
    print(f"{options.model}: {_sentence(spec)}, {_mib(options.model.stat().st_size)}")


def _inspect(options: argparse.Namespace) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # inspect | head
    with WeightsFile(options.model) as weights:
        shapes = tensor_shapes(weights.spec)
        stored = {name: weights.stored_bytes(name) for name in shapes}
        if options.json:
            facts = {
                "path": str(options.model),
                "format": FORMAT,
                "source": weights.source,
                "dtype": weights.dtype,
                "fingerprint": weights.fingerprint,
                "tokenizer": weights.tokenizer is not None,
                "bytes": options.model.stat().st_size,
                "parameters": _parameters(weights.spec),
                "model": json.loads(weights.spec.to_json()),
                "tensors": {name: {"shape": shape, "bytes": stored[name]} for name, shape in shapes.items()},
            }
            print(json.dumps(facts))
            return
        _print_tables(options.model, weights, stored)


def _verify(options: argparse.Namespace) -> None:
    with WeightsFile(options.model) as weights:
        shapes = tensor_shapes(weights.spec)
        total = sum(4 * math.prod(shape) for shape in shapes.values())
        with progress("verifying", total) as advance:
            for name, shape in shapes.items():
                for rows in row_spans(shape):
                    advance(weights.read(TensorSlice(name, rows, (rows.size, *shape[1:]))).nbytes)
        text = weights.tokenizer
        print(
            f"{options.model}: {len(shapes)} tensors{' and the tokenizer' if text else ''} are whole, "
            f"{_mib(total * np.dtype(weights.dtype).itemsize // 4)}, fingerprint {weights.fingerprint}"
        )


def _print_tables(path: Path, weights: WeightsFile, stored: dict[str, int]) -> None:
    spec = weights.spec
    facts = Table("", "", title=str(path), show_header=False, title_justify="left")
    source = spec.input
    if isinstance(source, TextInput):
        reads = f"texts of up to {source.max_rows} tokens (positions for {source.positions}), vocabulary {source.vocab}"
        tokenizer = "inside" if weights.tokenizer is not None else "none: reads token ids only"
    else:
        reads, tokenizer = f"images of {source.height} by {source.width}, {source.rows} rows each", "none"
    _, mlp = encoder_blocks(spec)
    head = [f"pooling {spec.pooling}"]
    head += [f"dense {spec.dense_width} ({spec.dense})"] if spec.dense else []
    head += ["normalised"] if spec.normalize else []
    head += [f"classifier of {len(spec.labels)} labels"] if spec.labels else []
    for name, value in (
        ("model", _sentence(spec)),
        ("source", weights.source),
        ("reads", reads),
        ("tokenizer", tokenizer),
        ("norm, activation", f"{mlp.norm}-norm, {mlp.activation}"),
        ("head", ", ".join(head)),
        ("stored as", f"{weights.dtype}, {_mib(path.stat().st_size)}"),
        ("fingerprint", weights.fingerprint),
    ):
        facts.add_row(name, value)
    tensors = Table("tensor", "shape", "count", "stored", title="tensors", title_justify="left")
    shapes = tensor_shapes(spec)
    groups: dict[str, list[str]] = {}
    for name in shapes:
        kind = re.sub(r"^layers/\d+/\d+/", f"layers/decoupled/0-{spec.sub_blocks - 1}/", name)
        originals = "original" if spec.groups else f"0-{spec.layers - 1}"
        groups.setdefault(re.sub(r"^layers/\d+/", f"layers/{originals}/", kind), []).append(name)
    for group, names in groups.items():
        shape = " × ".join(map(str, shapes[names[0]]))  # noqa: RUF001
        tensors.add_row(group, shape, str(len(names)), _mib(sum(stored[name] for name in names)))
    console = Console(markup=False, emoji=False)
    console.print(facts)
    console.print(tensors)


def _sentence(spec: ModelSpec) -> str:
    attention, mlp = encoder_blocks(spec)
    parts = f" (in {spec.groups} groups, decoupled into {spec.sub_blocks} sub-blocks)" if spec.groups else ""
    return (
        f"{spec.name}, {counted(spec.layers, 'layer')}{parts}, hidden {spec.hidden}, ffn {mlp.ffn}, "
        f"{counted(attention.heads, 'head')}, {_parameters(spec) / 1e6:.1f} million parameters"
    )


def _parameters(spec: ModelSpec) -> int:
    return sum(math.prod(shape) for shape in tensor_shapes(spec).values())


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _parser() -> Parser:
    parser = Parser(
        prog="python -m weights",
        description="Convert, synthesize, inspect and verify weights files.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], text: str) -> Any:
        one = commands.add_parser(
            name, help=text, description=text, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        one.set_defaults(run=run)
        one.add_argument("--debug", action="store_true", help="show a traceback with an error")
        return one

    one = command("convert", _convert, "Make a weights file of a checkpoint directory.")
    one.add_argument("checkpoint", type=Path, help="directory as transformers or sentence-transformers saves it")
    one.add_argument("model", type=Path, help="the .h5 file to write")
    one.add_argument("--dtype", choices=DTYPES, default="float32", help="as stored (default: %(default)s)")
    one = command("synthesize", _synthesize, "Make a weights file of random numbers for a well-known architecture.")
    one.add_argument("name", help=f"{', '.join(sorted(NAMED_MODELS))}; {DECOUPLED_NAMES}")
    one.add_argument("model", type=Path, help="the .h5 file to write")
    one.add_argument("--layers", type=int, help="another number of layers than the architecture's")
    one.add_argument("--seed", type=_seed, default=0, help="of the random numbers (default: %(default)s)")
    one.add_argument("--dtype", choices=DTYPES, default="float32", help="as stored (default: %(default)s)")
    one = command("inspect", _inspect, "Show what a weights file holds.")
    one.add_argument("model", type=Path, help="the .h5 file")
    one.add_argument("--json", action="store_true", help="as one JSON object")
    one = command("verify", _verify, "Check every tensor's checksum and numbers; name the first that is damaged.")
    one.add_argument("model", type=Path, help="the .h5 file")
    return parser


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)
