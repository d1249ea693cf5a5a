"""The command line of `python -m weights`: convert, synthesize, export, inspect and verify weights files."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from solver.base import stopping
from solver.base.command import Parser, check_path
from solver.base.errors import HeptiError
from solver.base.front import program, typed
from solver.base.hub import refuse_hub_name
from solver.base.phrases import counted
from solver.base.progress import progress
from solver.base.spans import Span
from solver.base.tables import FittedTable, new_console
from solver.model.convnet import HEADS, ConvNet
from solver.model.kinds.weight import PRECISIONS
from solver.model.named import DECOUPLED_NAMES, NAMED_MODELS, named_model
from solver.model.named_decoders import NAMED_DECODERS, named_decoder
from solver.model.spec import ModelSpec, TextInput, encoder_blocks, norm_of, tensor_shapes
from solver.models import kind_of_name
from solver.plan.holdings import TensorSlice
from weights.convert.convert import convert
from weights.decoders import report
from weights.decoders.convert import is_language_model, open_checkpoint, write_checkpoint
from weights.decoders.export import export
from weights.decoders.file import DecoderFile
from weights.decoders.gguf import open_gguf
from weights.decoders.loss import loss, random_tokens, text_tokens
from weights.file.layout import row_spans
from weights.file.networks import NetworkFile, write_network
from weights.file.store import (
    DTYPES,
    LANGUAGE_MODEL,
    NETWORK,
    TensorFile,
    WeightsFile,
    stored_facts,
    stored_kind,
)
from weights.formats import GGUF, ONNX, checkpoint_folder
from weights.network_report import stretches, tail
from weights.networks.convert import read_network
from weights.networks_zoo import ZOO, zoo_network
from weights.synthesize import synthesize, synthesize_decoder, words_of

EXAMPLE = """examples:
  hepti convert checkpoints/all-MiniLM-L6-v2 minilm.h5
  hepti synthesize bert-large bert-large.h5 --layers 4
  hepti convert resnet.onnx resnet.h5 --labels imagenet.txt
  hepti synthesize mobilenetv2 mobilenetv2.h5
  hepti convert Llama-3.2-1B-Instruct llama.h5 --precision int4 --text sample.txt
  hepti convert Llama-3.2-1B-Instruct-Q4_0.gguf llama.h5
  hepti synthesize llama-3.2-1b llama.h5 --precision int4
  hepti inspect minilm.h5
  hepti verify minilm.h5
"""
ENDING = (".h5",)  # of weights files
LABELS_NAMED = 6  # of a classifier
PRECISION_HELP = "of a language model's matrices: in blocks of 32, or float32 (the default, of a GGUF file its own)"


def main(arguments: Sequence[str]) -> int:
    """Run one command and return the exit code: 0, or 2 on bad usage or bad input."""
    try:
        options = _parser().parse_args(arguments)
    except HeptiError as error:
        print(f"{typed('python -m weights', arguments)}: {error}", file=sys.stderr)
        return 2
    try:
        options.run(options)
    except HeptiError as error:
        if options.debug:
            raise
        print(f"{typed('python -m weights', arguments)}: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        if options.debug or stopping.of_output(error):
            raise
        print(
            f"{typed('python -m weights', arguments)}: {type(error).__name__}: {error} (see --debug)",
            file=sys.stderr,
        )
        return 1
    return 0


def _convert(options: argparse.Namespace) -> None:
    of_networks = {name: getattr(options, name) for name in ("size", "labels", "head", "picture", "anchors")}
    check_path(options.model, ENDING)
    refuse_hub_name(str(options.checkpoint))
    options.checkpoint = checkpoint_folder(options.checkpoint)
    _check_convertible(options.checkpoint)
    gguf = options.checkpoint.suffix == GGUF
    if options.checkpoint.suffix == ONNX:
        if options.dtype != "float32":
            raise HeptiError(f"--dtype {options.dtype} is for transformers, networks of ONNX are stored as float32")
        if options.precision or options.text:
            raise HeptiError(f"--precision and --text are for language models, {options.checkpoint} is a network")
        net, tensors, source = read_network(options.checkpoint, **of_networks)
        write_network(options.model, net, tensors, source)
        print(f"{options.model}: {_network_sentence(net)}, {_mib(options.model.stat().st_size)}")
        for note in net.notes:
            print(f"{options.checkpoint}: {note}", file=sys.stderr)
        return
    if given := [name for name, value in of_networks.items() if value]:
        raise HeptiError(f"--{given[0]} is for ONNX files, {options.checkpoint} is no such file")
    if gguf or is_language_model(options.checkpoint):
        _convert_decoder(options)
        return
    if options.precision or options.text:
        raise HeptiError(f"--precision and --text are for language models, {options.checkpoint} is an encoder")
    spec = convert(options.checkpoint, options.model, options.dtype)
    print(f"{options.model}: {_sentence(spec)}, {_mib(options.model.stat().st_size)}")
    with WeightsFile(options.model) as weights:
        if isinstance(spec.input, TextInput) and weights.tokenizer is None:
            print(f"{options.checkpoint} has no tokenizer.json: the model will read token ids only", file=sys.stderr)


def _check_convertible(path: Path) -> None:
    """Refuse what is not there, is a weights file already, or nothing that is converted."""
    if path.is_dir():
        return
    if not path.exists():
        if path.suffix in (GGUF, ONNX):
            raise HeptiError(f"there is no file {path}")
        raise HeptiError(f"there is no checkpoint {path}: hf download NAME --local-dir {path} gets one")
    if path.suffix in (GGUF, ONNX):
        return
    try:
        TensorFile(path).close()
    except HeptiError:
        raise HeptiError(
            f"{path} is nothing that is converted: name a checkpoint directory, the .safetensors in it, a .gguf or an "
            ".onnx"
        ) from None
    raise HeptiError(f"{path} is a weights file already: run it with --model {path}")


def _convert_decoder(options: argparse.Namespace) -> None:
    opened = open_gguf if options.checkpoint.suffix == GGUF else open_checkpoint
    with opened(options.checkpoint) as checkpoint:
        precision = options.precision or checkpoint.precision
        model, tokenizer = checkpoint.model, checkpoint.texts.tokenizer
        tokens = text_tokens(model, tokenizer, options.text) if options.text else random_tokens(model)
        write_checkpoint(checkpoint, options.model, precision, options.dtype)
        print(f"{options.model}: {report.sentence(model)}, {precision}, {_mib(options.model.stat().st_size)}")
        for note in checkpoint.notes(precision):
            print(f"{options.checkpoint} {note}", file=sys.stderr)
        if options.text or checkpoint.loses(precision) or options.dtype != "float32":
            with DecoderFile(options.model) as weights:
                found = loss(model, checkpoint.read, weights.read, tokens)
            what = options.text.name if options.text else "random words"
            report.show_loss(found, f"{counted(len(tokens), 'token')} of {what}", bool(options.text))


def _synthesize(options: argparse.Namespace) -> None:
    check_path(options.model, ENDING)
    kind = kind_of_name(options.name)
    if options.tokenizer is not None and kind == "network":
        raise HeptiError(f"--tokenizer is for models that read texts, {options.name} is a convolutional network")
    words = None if options.tokenizer is None else words_of(options.tokenizer)
    if kind == "decoder":
        if options.size is not None:
            raise HeptiError(f"--size is for convolutional networks: {', '.join(ZOO)}")
        model = named_decoder(options.name, options.layers)
        precision = options.precision or "float32"
        model = synthesize_decoder(options.model, model, options.seed, precision, options.dtype, words)
        print(f"{options.model}: {report.sentence(model)}, {_mib(options.model.stat().st_size)}")
        return
    if options.precision is not None:
        raise HeptiError(f"--precision is for language models: {', '.join(NAMED_DECODERS)}")
    if kind == "network":
        if options.layers is not None or options.dtype != "float32":
            raise HeptiError(f"--layers and --dtype are for transformers, {options.name} is a convolutional network")
        net, tensors = zoo_network(options.name, options.size, options.seed)
        write_network(options.model, net, tensors, f"synthesized {net.name}, seed {options.seed}")
        print(f"{options.model}: {_network_sentence(net)}, {_mib(options.model.stat().st_size)}")
        for note in net.notes:
            print(f"{options.checkpoint}: {note}", file=sys.stderr)
        return
    if options.size is not None:
        raise HeptiError(f"--size is for convolutional networks: {', '.join(ZOO)}")
    spec = named_model(options.name, options.layers)
    synthesize(options.model, spec, options.seed, options.dtype, words)
    print(f"{options.model}: {_sentence(spec)}, {_mib(options.model.stat().st_size)}")


def _export(options: argparse.Namespace) -> None:
    export(options.model, options.out)
    print(f"{options.out}: {_mib(options.out.stat().st_size)}")


def _inspect(options: argparse.Namespace) -> None:
    if stored_kind(options.model) == NETWORK:
        _inspect_network(options)
        return
    if stored_kind(options.model) == LANGUAGE_MODEL:
        if options.json:
            print(json.dumps(report.facts(options.model)))
        else:
            report.show(options.model)
        return
    with WeightsFile(options.model) as weights:
        shapes = tensor_shapes(weights.spec)
        stored = {name: weights.stored_bytes(name) for name in shapes}
        if options.json:
            facts = {
                **stored_facts(weights, stored, shapes),
                "tokenizer": weights.tokenizer is not None,
                "model": json.loads(weights.spec.to_json()),
            }
            print(json.dumps(facts))
            return
        _print_tables(options.model, weights, stored)


def _inspect_network(options: argparse.Namespace) -> None:
    with NetworkFile(options.model) as weights:
        net = weights.net
        if not options.json:
            _print_network(weights)
            return
        stored = {name: weights.stored_bytes(name) for name in net.tensors}
        ending = tail(net)
        facts = {
            **stored_facts(weights, stored, net.tensors),
            "model": json.loads(net.to_json()),
            "stretches": [
                {**dataclasses.asdict(stretch), "nodes": [stretch.nodes.start, stretch.nodes.stop]}
                for stretch in stretches(net)
            ],
            "row_part_ends": ending and dict(zip(("node", "operator", "work_share"), ending, strict=True)),
        }
        print(json.dumps(facts))


def _verify(options: argparse.Namespace) -> None:
    if stored_kind(options.model) == NETWORK:
        _verify_network(options.model)
        return
    if stored_kind(options.model) == LANGUAGE_MODEL:
        print(report.verify(options.model))
        return
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


def _verify_network(path: Path) -> None:
    with NetworkFile(path) as weights:
        total = sum(map(math.prod, weights.net.tensors.values()))
        with progress("verifying", total) as advance:
            for name, shape in weights.net.tensors.items():
                for rows in row_spans(shape) if shape else (Span(0, 1),):
                    advance(weights.read(name, rows).size)
        print(
            f"{path}: {len(weights.net.tensors)} tensors are whole, {_mib(4 * total)}, "
            f"fingerprint {weights.fingerprint}"
        )


def _labels(labels: Sequence[str]) -> str:
    """Return how many labels there are, and the first of them."""
    named = ", ".join(labels[:LABELS_NAMED]) + ", …" * (len(labels) > LABELS_NAMED)
    return f"{counted(len(labels), 'label')}: {named}"


def _print_network(weights: NetworkFile) -> None:
    net = weights.net
    facts = FittedTable("", "", title=str(weights.path), show_header=False, title_justify="left")
    _, height, width = net.shapes[net.input]
    result = ", ".join(_shape(net.shapes[name]) for name in net.outputs)
    labels = f", {_labels(net.labels)}" if net.labels else ""
    anchors = f", {counted(len(net.anchors), 'anchor')}" if net.anchors else ""
    ending = tail(net)
    if ending is None:
        rows = "all of it"
    else:
        name, operator, share = ending
        rows = f"up to {name} ({operator}); {share:.1%} of the work is from there on"
    for title, text in (
        ("network", _network_sentence(net)),
        ("source", weights.source),
        ("reads", f"images of {height} by {width}"),
        ("result", f"{result}, {net.head}{labels}{anchors}"),
        ("shared by rows", rows),
        ("stored as", f"{weights.dtype}, {_mib(weights.path.stat().st_size)}"),
        ("fingerprint", weights.fingerprint),
    ):
        facts.add_row(title, text)
    table = FittedTable("nodes", "map", "MFLOP", "weights", "depends on", title="stretches", title_justify="left")
    for stretch in stretches(net):
        names = stretch.first if stretch.nodes.size == 1 else f"{stretch.first} … {stretch.last}"
        field = "everything" if stretch.field is None else _shape(stretch.field)
        work = f"{stretch.flop / 1e6:.1f}"
        table.add_row(names, _shape(stretch.shape), work, _mib(stretch.weights_bytes), field)
    console = new_console(markup=False, emoji=False)
    console.print(facts)
    console.print(table)


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))  # noqa: RUF001


def _network_sentence(net: ConvNet) -> str:
    work = sum(stretch.flop for stretch in stretches(net))
    parameters = sum(map(math.prod, net.tensors.values()))
    return (
        f"{net.name}, {counted(len(net.nodes), 'node')}, image {_shape(net.shapes[net.input])}, "
        f"{work / 1e9:.2f} GFLOP, {parameters / 1e6:.1f} million parameters"
    )


def _print_tables(path: Path, weights: WeightsFile, stored: dict[str, int]) -> None:
    spec = weights.spec
    facts = FittedTable("", "", title=str(path), show_header=False, title_justify="left")
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
    head += [f"classifier of {_labels(spec.labels)}"] if spec.labels else []
    for name, value in (
        ("model", _sentence(spec)),
        ("source", weights.source),
        ("reads", reads),
        ("tokenizer", tokenizer),
        ("norm, activation", f"{norm_of(spec.blocks[-1].stream)}-norm, {mlp.activation}"),
        ("head", ", ".join(head)),
        ("stored as", f"{weights.dtype}, {_mib(path.stat().st_size)}"),
        ("fingerprint", weights.fingerprint),
    ):
        facts.add_row(name, value)
    tensors = FittedTable("tensor", "shape", "count", "stored", title="tensors", title_justify="left")
    shapes = tensor_shapes(spec)
    groups: dict[str, list[str]] = {}
    for name in shapes:
        kind = re.sub(r"^layers/\d+/\d+/", f"layers/decoupled/0-{spec.sub_blocks - 1}/", name)
        originals = "original" if spec.groups else f"0-{spec.layers - 1}"
        groups.setdefault(re.sub(r"^layers/\d+/", f"layers/{originals}/", kind), []).append(name)
    for group, names in groups.items():
        tensors.add_row(group, _shape(shapes[names[0]]), str(len(names)), _mib(sum(stored[name] for name in names)))
    console = new_console(markup=False, emoji=False)
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
        prog=program("python -m weights"),
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

    one = command("convert", _convert, "Make a weights file of a checkpoint directory, a GGUF file or an ONNX file.")
    one.add_argument(
        "checkpoint",
        type=Path,
        help="directory as transformers or sentence-transformers saves it (or the .safetensors in it), GGUF file of a "
        "language model, or ONNX file of a convolutional network",
    )
    one.add_argument("model", type=Path, help="the .h5 file to write")
    one.add_argument("--dtype", choices=DTYPES, default="float32", help="as stored (default: %(default)s)")
    decoders = one.add_argument_group("language models")
    decoders.add_argument("--precision", choices=tuple(PRECISIONS), help=PRECISION_HELP)
    decoders.add_argument("--text", type=Path, metavar="FILE", help="say the perplexity of this text")
    networks = one.add_argument_group("convolutional networks")
    networks.add_argument("--size", type=_size, metavar="HxW", help="of the image, where the ONNX file leaves it open")
    networks.add_argument("--labels", type=Path, metavar="FILE", help="a class in every line")
    networks.add_argument("--head", choices=HEADS, help="what the first output means (default: scores if a vector)")
    networks.add_argument("--anchors", type=_anchors, metavar="W,H,…", default=(), help="of a head of boxes, in cells")
    networks.add_argument(
        "--picture", type=Path, metavar="FILE", help="JSON with torchvision's resize_size, crop_size, mean, std, ..."
    )
    one = command("synthesize", _synthesize, "Make a weights file of random numbers for a well-known architecture.")
    names = ", ".join((*sorted(NAMED_MODELS), *NAMED_DECODERS, *ZOO))
    one.add_argument("name", help=f"{names}; {DECOUPLED_NAMES}")
    one.add_argument("model", type=Path, help="the .h5 file to write")
    one.add_argument("--layers", type=int, help="another number of layers than the architecture's")
    one.add_argument("--size", type=int, help="height and width of the image of a convolutional network")
    one.add_argument("--seed", type=_seed, default=0, help="of the random numbers (default: %(default)s)")
    one.add_argument("--dtype", choices=DTYPES, default="float32", help="as stored (default: %(default)s)")
    one.add_argument("--precision", choices=tuple(PRECISIONS), help=PRECISION_HELP)
    one.add_argument(
        "--tokenizer", type=Path, metavar="MODEL.h5", help="take the words, and a chat template, of this weights file"
    )
    one = command("export", _export, "Write a language model of int4 blocks for another engine, without loss.")
    one.add_argument("model", type=Path, help="the .h5 file")
    one.add_argument("out", type=Path, help=".m (distributed-llama, with a .t of made-up words) or .gguf (llama.cpp)")
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


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not height and width, as 224x224")
    return int(found[1]), int(found[2])


def _anchors(text: str) -> tuple[tuple[float, float], ...]:
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or len(numbers) % 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not width and height of every box, as 1.08,1.19,3.42,4.41")
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))
