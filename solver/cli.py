"""The command line of `python -m solver`: plan for a cluster that need not be there, and show who gets what."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from solver.api import plan_encoder
from solver.base.command import Parser, check_path, write_whole
from solver.base.errors import HeptiError
from solver.base.front import program
from solver.base.progress import progress, signs_of_life
from solver.base.tables import new_console
from solver.cluster.cluster import Cluster
from solver.cluster.named import asked_cluster
from solver.cluster.whatif import BOARDS
from solver.decoder_cli import is_about_decoder, refuse_decoder_options, run_decoder
from solver.model.kinds.attention import CACHES
from solver.model.kinds.weight import PRECISIONS as DECODER_PRECISIONS
from solver.model.named import named_model
from solver.model.spec import DEFAULT_ROWS, ModelSpec, request_rows
from solver.models import encoder_of
from solver.network_cli import is_about_network, run_network
from solver.plan.file import plan_to_price, read_plan
from solver.plan.plan import Plan, Wire
from solver.plan.writing import plan_table, plan_to_json
from solver.programs.candidates import kinds_to_try
from solver.programs.planner import Solution
from solver.schedule.decoders.asked import CONTEXT, PRECISION, PROMPT, TOKENS
from solver.schedule.encoders.memory import lacks
from solver.schedule.encoders.stages import PricedPlan, price_plan
from solver.show.advice import Upgrade, bounds, changes, limits, other_systems, proved_encoder, upgrades
from solver.show.comparison import beside_devices, compare, compared
from solver.show.explanation import explain, explanation_to_json, print_explanation
from solver.show.pictures import (
    PRINTED,
    check_map,
    check_picture,
    draw_winners,
    plot_timeline,
    request_drawn,
)
from solver.show.plan_tables import (
    priced_to_json,
    print_comparison,
    print_estimated,
    print_limits,
    print_plan,
    print_upgrades,
    to_json,
)
from solver.show.schedule_table import print_schedule, schedule_rows, schedule_to_json
from solver.show.system_tables import print_stages, print_systems, stages_to_json, systems_to_json
from solver.show.titles import encoder_title, links, place, say_drawn
from solver.systems import DEFAULT, SYSTEMS, THROUGHPUT, plans_for
from solver.systems.convnets import SYSTEMS as CONVNET_SYSTEMS
from solver.systems.decoders import SYSTEMS as DECODER_SYSTEMS
from solver.systems.hepti import plan_hepti
from solver.systems.named import ALONE

ABOUT = "Plan for a cluster that need not be there, and show who gets what."
EXAMPLE = "example: hepti plan --model bert-large --cluster mixed4 --rows 256 --out plan.json"
OBJECTIVES = ("latency", "throughput")


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    try:
        options = _parser().parse_args(arguments)
        with signs_of_life("planning"):
            _run(options)
    except HeptiError as error:
        if "--debug" in arguments:
            raise
        print(f"{program('python -m solver')}: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> Parser:
    parser = Parser(prog=program("python -m solver"), description=ABOUT, epilog=EXAMPLE)
    parser.add_argument(
        "--model",
        metavar="MODEL.h5|NAME",
        help="a weights file, a checkpoint directory, .gguf or .onnx, or an architecture: bert-base, resnet50, …",
    )
    parser.add_argument("--layers", type=int, metavar="N", help="another layer count, for a named architecture")
    parser.add_argument(
        "--cluster", required=True, metavar="CLUSTER.toml|NAME", help="a file, or a ready one: mixed4, pi4x4, …"
    )
    parser.add_argument(
        "--rows", type=int, metavar="S", help=f"length of a request, one a token (default: {DEFAULT_ROWS})"
    )
    networks = f"of a convolutional network {', '.join(CONVNET_SYSTEMS)}; {ALONE}DEVICE"
    decoders = f"of a language model {', '.join(DECODER_SYSTEMS)}; {ALONE}DEVICE"
    parser.add_argument("--system", help=f"{SYSTEMS}; {networks}; {decoders} (default: {DEFAULT})")
    parser.add_argument(
        "--wire", choices=[*map(str, Wire)], help=f"numbers on the wire (default: the plan's, or {Wire.FLOAT32})"
    )
    parser.add_argument(
        "--objective", choices=OBJECTIVES, default="latency", help="one request, or many (default: %(default)s)"
    )
    parser.add_argument(
        "--deadline-ms", type=float, metavar="MS", help="of --system coedge: least energy for an image within that time"
    )
    parser.add_argument("--compare", action="store_true", help="predict all systems side by side, and plan by none")
    parser.add_argument(
        "--price", type=Path, metavar="PLAN.json", help="predict a plan that is there, and plan nothing"
    )
    parser.add_argument(
        "--map", nargs="?", const=PRINTED, type=Path, metavar="FILE.svg|png|pdf",
        help="draw who wins over bandwidth and memory; without a file print who has what (networks, language models)",
    )  # fmt: skip
    parser.add_argument(
        "--schedule", nargs="?", const="", metavar="DEVICE", help="print what the plan does step by step, on a device"
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print where the time goes; of a transformer how the plan was found and what limits it, too",
    )
    parser.add_argument(
        "--prove", type=_percent, metavar="PERCENT",
        help="search on until no other plan can save more than this part of the time, or all is tried; for example 5%%",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="PLAN.json", help="write the plan")
    parser.add_argument("--json", action="store_true", help="print the plan and all about it as JSON, not as tables")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.svg|png|pdf",
        help="draw the timeline, of a convolutional network everybody's rows (needs matplotlib)",
    )
    language = parser.add_argument_group("language models", "an answer, and what is kept of it")
    language.add_argument("--prompt", type=int, metavar="S", help=f"its tokens (default: {PROMPT})")
    language.add_argument("--tokens", type=int, metavar="N", help=f"of the answer (default: {TOKENS})")
    language.add_argument("--context", type=int, metavar="C", help=f"tokens to have room for (default: {CONTEXT})")
    language.add_argument("--sequences", type=int, metavar="B", help="how many sequences have room (default: 1)")
    language.add_argument("--cache", choices=CACHES, help="what keys and values are kept in (default: float32)")
    language.add_argument(
        "--precision", choices=[*DECODER_PRECISIONS], help=f"of the weights of a named one (default: {PRECISION})"
    )
    what_if = parser.add_argument_group("what if", "another cluster, without editing the file; each may be repeated")
    what_if.add_argument("--set", action="append", default=[], metavar="pi-2.gflops=70", help="a device or the network")
    what_if.add_argument(
        "--add", action="append", default=[], metavar="pi5[:COUNT]", help=f"{', '.join(BOARDS)}, or as a device"
    )
    what_if.add_argument("--without", action="append", default=[], metavar="pi-3")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _percent(text: str) -> float:
    """Return a percentage between 0 and 100."""
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = 0.0
    if not 0 < number < 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage between 0 and 100, such as 5%")
    return number


def _run(options: argparse.Namespace) -> None:
    _check_prove(options)
    if options.wire is None and not options.price:
        options.wire = Wire.FLOAT32
    if is_about_decoder(options):
        run_decoder(options)
        return
    refuse_decoder_options(options)
    if is_about_network(options):
        run_network(options)
        return
    _check(options)
    cluster = asked_cluster(options)
    if options.price:
        _price(options, cluster)
        return
    spec = encoder_of(options.model, options.layers)
    rows = request_rows(spec, options.rows)
    if options.compare:
        _compare(options, spec, cluster, rows)
    if options.map:
        _map(options, spec, cluster, rows)
    if not options.compare and not options.map:
        _plan(options, spec, cluster, rows)


def _check_prove(options: argparse.Namespace) -> None:
    """Refuse to prove plans that are not hepti's own for one request."""
    if options.prove is None:
        return
    for name in ("compare", "price"):
        if getattr(options, name):
            raise HeptiError(f"--prove is for a plan that is made, --{name} makes none: leave one of the two out")
    if options.system not in (None, DEFAULT) or options.objective != "latency":
        other = f"--system {options.system}" if options.system not in (None, DEFAULT) else "--objective throughput"
        raise HeptiError(f"--prove is for --system {DEFAULT} and one request: leave out {other}")


def _check(options: argparse.Namespace) -> None:
    """Refuse, before anything is planned, what cannot be written and options that say nothing beside others."""
    if options.compare:
        for name in ("system", "out", "plot", "schedule", "explain", "prove"):
            if getattr(options, name) not in (None, False):
                raise HeptiError(f"--{name} is for one plan, --compare is about all systems: leave one of the two out")
    if options.price:
        for name in ("system", "out", "plot", "map", "compare", "explain"):
            if getattr(options, name):
                raise HeptiError(f"--{name} is for planning, --price is about a plan that is there: leave one out")
        if options.objective != "latency":
            given = f"--objective {options.objective}"
            raise HeptiError(f"{given} is for planning, --price is about a plan that is there: leave one out")
    elif options.model is None:
        raise HeptiError("--model is missing: a weights file, or an architecture such as bert-large")
    if options.map:
        if options.map == PRINTED:
            raise HeptiError("--map needs a file to draw into: --map FILE.svg")
        check_map(options)
    for name in ("plot", "schedule"):
        if options.explain and getattr(options, name) is not None:
            raise HeptiError(f"--explain prints how the plan was found, and no more: leave out --{name}")
    if options.explain and (options.system not in (None, DEFAULT) or options.objective == "throughput"):
        system = options.system or THROUGHPUT
        raise HeptiError(f"--explain is about --system {DEFAULT} for one request, not about {system}: leave it out")
    if options.deadline_ms is not None:
        raise HeptiError("--deadline-ms is of --system coedge, for convolutional networks: leave it out")
    if options.objective == "throughput" and options.system not in (None, DEFAULT, THROUGHPUT):
        raise HeptiError(f"--objective throughput is for --system hepti, {options.system} has its own objective")
    if options.plot is not None:
        check_picture(options.plot)
    if options.out is not None:
        check_path(options.out, (".json",))


def _plan(options: argparse.Namespace, spec: ModelSpec, cluster: Cluster, rows: int) -> None:
    wire, system = Wire(options.wire), options.system or DEFAULT
    if options.objective == "throughput":
        system = THROUGHPUT
    if options.prove is None:
        plan, solution = plan_encoder(system, spec, cluster, rows, wire)
    else:
        (plan, solution), words = proved_encoder(spec, cluster, rows, wire, options.prove)
        print(words, file=sys.stderr)
    if options.out:
        write_whole(options.out, plan_to_json(plan))
    found = price_plan(spec, cluster, plan, rows)
    if options.plot:
        title = f"{_title(options, spec, rows)}{links(cluster)}\npredicted by {plan.system}: {_predicted(found)}"
        plot_timeline(cluster, request_drawn(found), found.prediction.seconds, options.plot, title)
        say_drawn(options, options.plot)
    if options.schedule is not None:
        _show_schedule(options, cluster, found)
        return
    if options.explain:
        _explain(options, spec, cluster, found, solution)
        return
    tried = changes(spec, cluster, rows, solution) if system == DEFAULT else []
    better = upgrades(plan.predicted_s, lambda other: plan_hepti(spec, other, rows, wire).predicted_s, tried)
    if not plan.in_one:
        _show_stages(options, spec, cluster, plan, found, better)
        return
    priced = found.in_one
    systems = beside_devices(other_systems(spec), cluster)
    with progress("comparing", len(systems), unit="systems") as advance:
        others = compare(spec, cluster, rows, wire, systems, advance)
    bound = bounds(spec, cluster, rows, priced)
    if options.json:
        print(to_json(cluster, plan, priced, others, bound, solution, better), end="")
        return
    console = new_console(highlight=False)
    console.print(_title(options, spec, rows) + links(cluster), markup=False)
    print_plan(console, cluster, plan, priced)
    print_comparison(console, plan, others, bound)
    if solution:
        print_limits(console, solution, limits(cluster, solution))
    print_upgrades(console, plan.predicted_s, better)
    print_estimated(console, cluster, lambda device: device.curves is not None, plan.predicted_s, others)


def _explain(
    options: argparse.Namespace, spec: ModelSpec, cluster: Cluster, priced: PricedPlan, solution: Solution | None
) -> None:
    if solution is None:
        raise HeptiError(
            "--explain is about shares and mixes of layers: for so little memory another system's stages are faster, "
            "and this plan is made as they are"
        )
    kinds = kinds_to_try(solution.setting)
    with progress("explaining", len(kinds), unit="kinds of layers") as advance:
        found = explain(solution, advance)
    if options.json:
        explained = {"explanation": explanation_to_json(cluster, solution, found, priced.in_one)}
        print(json.dumps(plan_table(solution.plan) | explained, indent=1))
        return
    console = new_console(highlight=False)
    console.print(_title(options, spec, solution.plan.rows) + links(cluster), markup=False)
    print_explanation(console, cluster, solution, found, priced.in_one)


def _price(options: argparse.Namespace, cluster: Cluster) -> None:
    """Show what a plan file would take; of the model that it names, where no other is given."""
    plan = read_plan(options.price, Plan)
    if options.model is None:
        try:
            made = plan.stages[-1].span.stop if plan.model_fingerprint else None  # of as many layers as asked for then
            spec = named_model(plan.model_name, options.layers or made)
        except HeptiError as error:
            raise HeptiError(f"{options.price}: {error}; or say --model MODEL.h5") from error
    else:
        spec = encoder_of(options.model, options.layers)
    plan = plan_to_price(options.price, plan, spec, cluster.names, options.wire)
    options.wire = plan.wire
    rows = request_rows(spec, options.rows or plan.rows or None)
    plan = replace(plan, rows=rows, cluster_fingerprint=cluster.fingerprint)
    found = price_plan(spec, cluster, plan, rows)
    plan = replace(plan, predicted=found.prediction)
    notes = [f": {text}" for text in plan.unheeded]
    if lacking := lacks(spec, cluster, plan, found.weights_bytes):
        notes.append(f" {lacking}")
    for note in notes:
        print(f"note: {options.price}{note}", file=sys.stderr)
    if options.schedule is not None:
        _show_schedule(options, cluster, found)
        return
    if not plan.in_one:
        _show_stages(options, spec, cluster, plan, found, [])
        return
    if options.json:
        print(priced_to_json(cluster, plan, found.in_one), end="")
        return
    console = new_console(highlight=False)
    console.print(_title(options, spec, rows) + links(cluster), markup=False)
    print_plan(console, cluster, plan, found.in_one)


def _show_schedule(options: argparse.Namespace, cluster: Cluster, priced: PricedPlan) -> None:
    found = schedule_rows(cluster, priced, options.schedule)
    if options.json:
        print(schedule_to_json(found), end="")
    else:
        print_schedule(new_console(highlight=False), found, options.schedule)


def _show_stages(
    options: argparse.Namespace, spec: ModelSpec, cluster: Cluster, plan: Plan, found: PricedPlan, better: list[Upgrade]
) -> None:
    if options.json:
        print(stages_to_json(plan, found, better), end="")
        return
    console = new_console(highlight=False)
    console.print(_title(options, spec, plan.rows) + links(cluster), markup=False)
    print_stages(console, cluster, plan, found)
    print_upgrades(console, plan.predicted_s, better)


def _compare(options: argparse.Namespace, spec: ModelSpec, cluster: Cluster, rows: int) -> None:
    systems = compared(spec)
    with progress("comparing", len(systems), unit="systems") as advance:
        entries = compare(spec, cluster, rows, Wire(options.wire), systems, advance)
    if options.json:
        print(systems_to_json(spec, cluster, entries, rows, Wire(options.wire)), end="")
    else:
        print_systems(
            new_console(highlight=False), entries, _title(options, spec, rows) + links(cluster), options.objective
        )


def _map(options: argparse.Namespace, spec: ModelSpec, cluster: Cluster, rows: int) -> None:
    objective, wire = options.objective, Wire(options.wire)
    # What is made for the other objective wins nowhere.
    systems = [name for name in plans_for(spec) if objective == "throughput" or name != THROUGHPUT]
    title = f"{_title(options, spec, rows)}: who wins by {objective}"
    draw_winners(
        options.map, title, cluster, systems,
        lambda other, advance: compare(spec, other, rows, wire, systems, advance), objective,
    )  # fmt: skip
    say_drawn(options, options.map)


def _predicted(found: PricedPlan) -> str:
    """Return what a picture of a plan says of it."""
    ms = f"{1e3 * found.prediction.seconds:.0f} ms"
    if (count := len(found.replicas)) == 1:
        return ms
    return (
        f"{ms} on the fastest of {count} replicas, which is drawn; {found.requests_per_s:.2f} requests a second on all"
    )


def _title(options: argparse.Namespace, spec: ModelSpec, rows: int) -> str:
    """Return what is planned, in words."""
    return f"{encoder_title(spec, rows)} {place(options)}"
