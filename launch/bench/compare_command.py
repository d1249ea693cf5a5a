"""`python -m launch bench compare …`: what a person types, and the files that come out, for models of every kind."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from pathlib import Path

from launch.base.titles import heading
from launch.bench import decode_command
from launch.bench.decode import SUITE as DECODE
from launch.bench.decode_command import NONE, OURS, PEER_PRECISION, USUAL
from launch.compare.checkout import checkout
from launch.compare.compare import Contest, compare
from launch.compare.entrants import SINGLE, Kernels
from launch.compare.model import BenchNetwork, bench_model, bench_network, check_model, decoupled_model
from launch.compare.networks import SPLITS, is_single
from launch.compare.plot import plot_bars, plot_trace
from launch.compare.show import comparison_markdown, print_comparison, variant
from launch.compare.stage import BenchHosts, hosts_stage, lab_stage
from launch.compare.suite import Keep, Report, Suite, add_list, at_least, one_of_each, say, write_json, write_text
from launch.lab.up import require_tools
from launch.single.command import RUNTIMES
from solver.base.errors import HeptiError
from solver.base.phrases import did_you_mean
from solver.cluster.named import find_cluster
from solver.model.kinds.weight import PRECISIONS as DECODER_PRECISIONS
from solver.model.precision import FLOAT32, PRECISIONS
from solver.model.spec import request_rows
from solver.models import kind_of
from solver.plan.plan import Wire
from solver.systems import DECOUPLED, PLANNERS
from solver.systems.convnets import SYSTEMS
from solver.systems.named import ALONE

REPEAT, WARMUP = 5, 2  # requests of a round
# What of other options a convolutional network takes.
NETWORKS = {"precisions": ("float32",), "wires": ("float32", "float16")}


def _add_options(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--cluster", default="mixed4", help="file of a lab, or a ready one (default: %(default)s)")
    where.add_argument("--hostfile", type=Path, metavar="F", help="real hosts, of which this machine is the first")
    text = "a transformer, language model or convolutional network (default: %(default)s)"
    parser.add_argument("--model", default="bert-large", metavar="NAME|FILE", help=text)
    parser.add_argument("--layers", type=int, metavar="N", help="another layer count, for a named architecture")
    parser.add_argument("--rows", type=int, metavar="S", help="length of a request (default: 256)")
    names = dict.fromkeys((*PLANNERS, *SYSTEMS, *OURS))
    text = (
        f"of {', '.join(PLANNERS)}; of networks {', '.join(SYSTEMS)}, {ALONE}DEVICE; of language models "
        f"{', '.join(OURS)} (default: all, and every device; of language models {','.join(USUAL)})"
    )
    parser.add_argument("--systems", type=one_of_each([*names], ALONE), metavar="A,B,…", help=text)
    add_list(parser, "--backends", ("auto", "numpy", "onnxruntime"), "auto")
    known = dict.fromkeys((*PRECISIONS, *DECODER_PRECISIONS))
    text = f"of {', '.join(known)} (default: float32; of a language model, which has one, {PEER_PRECISION})"
    parser.add_argument("--precisions", type=one_of_each([*known]), metavar="A,B,…", help=text)
    add_list(parser, "--wires", Wire, "float32")
    add_list(parser, "--singles", (*RUNTIMES, NONE), ",".join(RUNTIMES))
    text = "another checkout of Hepti: every system runs in both versions, planned by each, in the same rounds"
    parser.add_argument("--against", type=checkout, metavar="PATH", help=text)
    parser.add_argument("--runs", type=int, default=5, help="rounds (default: %(default)s)")
    text = f"timed requests in a round (default: {REPEAT}; of a language model 1)"
    parser.add_argument("--repeat", type=int, metavar="N", help=text)
    text = f"untimed ones before them (default: {WARMUP}; of a language model always 1)"
    parser.add_argument("--warmup", type=int, metavar="N", help=text)
    decode_command.add_options(parser)


def _measure(options: argparse.Namespace, files: Path, keep: Keep) -> Report:
    at_least(options, rows=1, runs=1, repeat=1, warmup=0)
    if kind_of(options.model) == "decoder":
        return decode_command.measure(options, files, keep)
    for name in decode_command.OWN:
        if getattr(options, name) is not None:
            raise HeptiError(f"--{name} is for language models, {options.model} is none: leave it out")
    options.precisions = options.precisions or (FLOAT32.name,)
    for word in options.precisions:
        if word not in PRECISIONS:
            raise HeptiError(f"--precisions: {word} is of language models, {options.model} is none")
    options.repeat = REPEAT if options.repeat is None else options.repeat
    options.warmup = WARMUP if options.warmup is None else options.warmup
    if (network := bench_network(options.model, options.layers)) is not None:
        contest = network_contest(network, options)
        with _stage(options) as stage:
            return compare(stage, network, contest, files, say, keep=keep)
    check_model(options.model, options.layers)
    systems = PLANNERS if options.systems is None else options.systems
    for word in systems:
        if word not in PLANNERS:
            raise HeptiError(f"--systems: {word} plans no encoders, as {options.model} is one")
    with _stage(options) as stage:
        model = bench_model(options.model, options.layers)
        contest = Contest(
            systems=tuple(systems),
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


def network_contest(network: BenchNetwork, options: argparse.Namespace) -> Contest:
    """Return what is compared of a network.

    Raises
    ------
    HeptiError
        If an option is for transformers, or a device is not in the cluster.
    """
    name = network.net.name
    if options.rows is not None:
        raise HeptiError(f"--rows is for transformers, {name} reads images of its own size")
    for option, known in NETWORKS.items():
        for word in getattr(options, option):
            if word not in known:
                raise HeptiError(f"--{option}: {word} is for transformers, {name} takes {' or '.join(known)}")
    if options.singles not in (tuple(RUNTIMES), (NONE,)):
        raise HeptiError(f"--singles: of {name} devices run alone on Hepti's engine: leave it out, or say {NONE}")
    singles = () if options.singles == (NONE,) else (SINGLE,)
    if options.systems is None:
        systems = (*SPLITS, ALONE) if singles else SPLITS
    else:
        systems = options.systems if any(map(is_single, options.systems)) else (*options.systems, *singles)
    for word in systems:
        if word not in SYSTEMS and not word.startswith(ALONE):
            raise HeptiError(f"--systems: {word} plans no convolutional networks, as {name} is one")
        device = word.removeprefix(ALONE)
        if options.hostfile is None and device not in ("", word):
            devices = find_cluster(options.cluster).names
            if device not in devices:
                raise HeptiError(
                    f"--systems: {options.cluster} has no device {device!r}{did_you_mean(device, devices)}"
                )
    return Contest(
        systems=systems,
        kernels=[Kernels(backend, "float32") for backend in options.backends],
        wires=options.wires,
        runtimes=(),
        rows=network.net.shapes[network.net.input][1],
        runs=options.runs,
        repeat=options.repeat,
        warmup=options.warmup,
        against=options.against,
    )


def print_tables(report: Report) -> None:
    """Print the tables of a report."""
    show = decode_command.print_tables if report["suite"] == DECODE else print_comparison
    show(report)


def write_numbers(report: Report, files: Path, out: Path) -> None:
    """Write table and JSON, and profiles and traces as the runs left them."""
    if report["suite"] == DECODE:
        write_json(report, files, out)
        return
    write_text(out / "results.json", json.dumps(report, indent=1))
    write_text(out / "table.md", comparison_markdown(report))
    for file in files.glob("cluster-*.toml"):
        shutil.copy(file, out)
    for _, label, trace in _traces(report, files):
        shutil.copy(trace, out / f"trace-{label}.json")
    for name, label, _ in _runs(report) if "image" in report else ():
        shutil.copy(files / f"{name}.plan.json", out / f"plan-{label}.json")


def draw_pictures(report: Report, files: Path, out: Path) -> None:
    """Draw bars, and timelines of the traces; of a language model rates over the number of boards."""
    if report["suite"] == DECODE:
        decode_command.draw_picture(report, files, out)
        return
    plot_bars(report, out / "bars.png")
    for name, label, trace in _traces(report, files):
        plot_trace(trace, out / f"timeline-{label}.png", f"{name}: the last request\n{heading(report)}")


def _traces(report: Report, files: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield who left a trace, the same as a part of a file's name, and the trace."""
    for number, label, name in _runs(report):
        if (trace := files / f"{number}.trace.json").exists():
            yield name, label, trace


def _runs(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield the number of all who ran, what they are called as a part of a file's name, and in words."""
    for row in report["results"]:
        name = f"{row['system']} {variant(row)}"
        yield row["files"], name.replace(" ", "-").replace(":", "-"), name


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
  hepti bench compare --cluster mixed4 --layers 4 --out results       # as root
  hepti bench compare --hostfile pis --model bert-large.h5 --systems hepti,megatron
  hepti bench compare --cluster pi4x4 --model resnet50 --systems hepti,coedge,single:pi-0
  hepti bench compare --model llama-3.2-1b --peer dllama=PATH/dllama --out results
  git worktree add ../before HEAD~20; hepti bench compare --systems hepti --against ../before
""",
    add_options=_add_options,
    measure=_measure,
    show=print_tables,
    draw=draw_pictures,
    write=write_numbers,
)
