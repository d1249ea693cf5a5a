"""`python -m solver`: plan for a cluster that need not be there, and show who gets what."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from rich.console import Console

from solver.advice import alternatives, bounds, limits, upgrades
from solver.cluster import Cluster
from solver.command import Parser
from solver.compare import compare, winners
from solver.cost import price, setting
from solver.errors import HeptiError
from solver.model import DEFAULT_ROWS, ModelSpec, named_model, request_rows
from solver.pipeline import price_plan
from solver.plan import Plan, Wire
from solver.plan_file import plan_to_json
from solver.plot import check_pictures, plot_timeline, plot_winners
from solver.ready import find_cluster
from solver.report import print_advice, print_comparison, print_plan, to_json
from solver.report_systems import print_stages, print_systems, stages_to_json, systems_to_json
from solver.systems import DEFAULT, PLANNERS, plan_that_fits, plans_for
from solver.systems.hepti import solve_hepti
from solver.whatif import BOARDS, changed

EXAMPLE = "example: python -m solver --model bert-large --cluster mixed4.toml --rows 256 --out plan.json"
OBJECTIVES = ("latency", "throughput")
# Where the map says who wins: links from slow radio to beyond a gigabit, and times the memory that the devices have.
MAP_MBPS = (10, 30, 100, 240, 500, 940, 2350)
MAP_MEMORY = (0.125, 0.25, 0.5, 1, 2)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        _run(_parser().parse_args(arguments))
    except HeptiError as error:
        if "--debug" in arguments:
            raise
        print(f"python -m solver: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> Parser:
    parser = Parser(prog="python -m solver", description=__doc__, epilog=EXAMPLE)
    parser.add_argument("--model", required=True, metavar="MODEL.h5|NAME", help="a weights file, or an architecture")
    parser.add_argument("--layers", type=int, metavar="N", help="another layer count, for a named architecture")
    parser.add_argument(
        "--cluster", required=True, metavar="CLUSTER.toml|NAME", help="a file, or a ready one: mixed4, pi4x4, …"
    )
    parser.add_argument("--rows", type=int, metavar="S", help=f"length of a request (default: {DEFAULT_ROWS})")
    parser.add_argument("--system", default=DEFAULT, help=f"{', '.join(PLANNERS)} (default: %(default)s)")
    parser.add_argument(
        "--wire", choices=[*map(str, Wire)], default=Wire.FLOAT32, help="numbers on the wire (default: %(default)s)"
    )
    parser.add_argument(
        "--objective", choices=OBJECTIVES, default="latency", help="one request, or many (default: %(default)s)"
    )
    parser.add_argument("--compare", action="store_true", help="predict all systems side by side, and plan by none")
    parser.add_argument("--map", type=Path, metavar="FILE.svg|png", help="draw who wins over bandwidth and memory")
    parser.add_argument("--out", type=Path, metavar="PLAN.json", help="write the plan")
    parser.add_argument("--json", action="store_true", help="print the plan and all about it as JSON, not as tables")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg|png", help="draw the timeline (needs matplotlib)")
    what_if = parser.add_argument_group("what if", "another cluster, without editing the file; each may be repeated")
    what_if.add_argument("--set", action="append", default=[], metavar="pi-2.gflops=70", help="a device or the network")
    what_if.add_argument(
        "--add", action="append", default=[], metavar="pi5[:COUNT]", help=f"{', '.join(BOARDS)}, or as a device"
    )
    what_if.add_argument("--without", action="append", default=[], metavar="pi-3")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _run(options: argparse.Namespace) -> None:
    if options.plot or options.map:
        check_pictures()
    spec = _model(options.model, options.layers)
    cluster = changed(find_cluster(options.cluster), options.set, options.add, options.without)
    rows = request_rows(spec, options.rows)
    wire = Wire(options.wire)
    if options.compare or options.map:
        _compare(options, spec, cluster, rows)
        return
    if options.objective == "throughput":
        if options.system not in (DEFAULT, "hepti-throughput"):
            raise HeptiError(f"--objective throughput is for --system hepti, {options.system} has its own objective")
        options.system = "hepti-throughput"
    if options.system == DEFAULT:
        plan, solution = solve_hepti(spec, cluster, rows, wire)
    else:
        plan, solution = plan_that_fits(options.system, spec, cluster, rows, wire), None
    if options.out:
        try:
            options.out.write_text(plan_to_json(plan), encoding="utf-8")
        except OSError as error:
            raise HeptiError(f"cannot write plan {options.out}: {error.strerror}") from error
    if not plan.in_one:
        _show_stages(options, spec, cluster, plan, rows)
        return
    priced = price(setting(spec, cluster, rows), plan)
    if options.plot:
        title = f"{spec.name}, {rows} rows, {plan.system}: {1e3 * priced.seconds:.0f} ms"
        plot_timeline(cluster, priced, options.plot, title)
    others, bound = alternatives(spec, cluster, rows, wire), bounds(spec, cluster, rows, priced)
    better = upgrades(spec, cluster, rows, solution) if solution else []
    if options.json:
        print(to_json(cluster, plan, priced, others, bound, solution, better), end="")
        return
    console = Console(highlight=False)
    print_plan(console, cluster, plan, priced)
    print_comparison(console, plan, others, bound)
    if solution:
        print_advice(console, solution, limits(cluster, solution), better)


def _show_stages(options: argparse.Namespace, spec: ModelSpec, cluster: Cluster, plan: Plan, rows: int) -> None:
    if options.plot:
        raise HeptiError(f"--plot draws one stage of all devices, the plan by {plan.system} has others")
    found = price_plan(spec, cluster, plan, rows)
    if options.json:
        print(stages_to_json(plan, found), end="")
    else:
        print_stages(Console(highlight=False), cluster, plan, found)


def _compare(options: argparse.Namespace, spec: ModelSpec, cluster: Cluster, rows: int) -> None:
    title = f"{spec.name}, {rows} rows"
    if options.compare:
        entries = compare(spec, cluster, rows, Wire(options.wire))
        if options.json:
            print(systems_to_json(cluster, entries, rows), end="")
        else:
            print_systems(Console(highlight=False), entries, title)
    if options.map:
        # What is made for the other objective wins nowhere.
        systems = [name for name in plans_for(spec) if options.objective == "throughput" or name != "hepti-throughput"]
        mbps, times, wire = MAP_MBPS, MAP_MEMORY, Wire(options.wire)
        names = winners(spec, cluster, rows, [each * 1e6 / 8 for each in mbps], times, systems, options.objective, wire)
        plot_winners(names, mbps, [f"{each:g} times" for each in times], options.map, f"{title}: {options.objective}")


def _model(argument: str, layers: int | None) -> ModelSpec:
    """Return a named architecture, or what a weights file says of itself."""
    if not (Path(argument).suffix or Path(argument).exists()):
        if layers is not None and layers < 1:
            raise HeptiError(f"--layers is {layers}, must be at least 1")
        return named_model(argument, layers)
    if layers is not None:
        raise HeptiError(f"--layers is for named architectures: {argument} has the layers that it has")
    # The library `solver` knows nothing of weights files. Its command line may meet the room that does, and only when
    # it is given a file, so that planning for a named model needs no h5py.
    weights = importlib.import_module("weights.store").WeightsFile(Path(argument))
    with weights:
        spec: ModelSpec = weights.spec
    return spec


if __name__ == "__main__":
    sys.exit(main())
