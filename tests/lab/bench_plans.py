"""Are plans true, and is there no better one? In the lab: python tests/lab/bench_plans.py [--help].

As root. For every ready cluster, bandwidth and row count: the plan of `hepti`, and what it predicts against what it
takes; beside it, in the same program and in turn, all other systems, single devices, and every device left out; of an
encoder every pair of cuts, too, and the plan with sixteen rows, a head or a tile moved between two devices. Bars:
predictions off by 7 % on average and 15 % at most, and nobody faster than `hepti` by more than 4 % beyond the noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from solver.base.errors import HeptiError
from solver.base.spans import Span
from solver.cluster.cluster import Cluster, read_cluster, write_cluster
from solver.cluster.named import find_cluster
from solver.cluster.whatif import changed as what_if
from solver.live.fewer_devices import decoders_to_try, networks_to_try, words_of
from solver.model.blocks import Axis, Cut
from solver.model.convnet import ConvNet
from solver.model.decoder import Decoder
from solver.model.spec import ModelSpec
from solver.models import decoder_of, encoder_of, kind_of, network_of
from solver.plan.decoder_plan import DecoderPlan
from solver.plan.plan import LayerPlan, Plan, Stage
from solver.plan.segments import SegmentPlan
from solver.plan.writing import plan_table
from solver.programs.planner import Solution, solve
from solver.programs.search import Configuration, Terms, drafts, finish, improved
from solver.programs.tiles_and_routes import best_sending
from solver.schedule.decoders.asked import PRECISION, TokenRequest
from solver.schedule.decoders.cost import answer_seconds, setting_of
from solver.schedule.encoders.cost import setting
from solver.schedule.encoders.layer_table import layer_kinds, layer_plan
from solver.schedule.encoders.setting import Setting
from solver.schedule.encoders.stages import predict_plan
from solver.show.decoder_facts import decoder_systems
from solver.show.network_facts import network_systems, priced_network
from solver.systems import make_plan
from solver.systems.convnets import plan_network
from solver.systems.decoders import plan_decoder

AnyPlan = TypeVar("AnyPlan", SegmentPlan, DecoderPlan)
Candidates = dict[str, tuple[dict[str, Any], float]]  # by name a plan's file, and the seconds that it predicts

ROOT = Path(__file__).parents[2]
NAME = "plans-bench"
MOVED_ROWS = 16
TOKENS = 12  # of an answer
# The fastest of thirty plans in a first run owe that to luck, too: they are run again, more often.
FINALISTS, FINAL = 3, 3
HOPELESS = 1.3  # times the best prediction: such plans are not run, unless all are asked for


def launch(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "launch", "lab", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def rivals(spec: ModelSpec, cluster: Cluster, rows: int, solution: Solution) -> Iterator[tuple[str, Plan]]:
    """Yield named plans to hold beside the solution's."""
    for system in ("megatron", "megatron-weighted", "sequence", "sequence-weighted", "single"):
        yield system, make_plan(system, spec, cluster, rows)
    s = setting(spec, cluster, rows)
    terms = Terms(np.zeros(s.devices), np.full(s.devices, np.inf))
    everyone = np.ones(s.devices, bool)
    for attention, mlp in product((Cut.ROWS, Cut.BLOCK, Cut.COLUMNS), repeat=2):
        kinds = [kind for kind in layer_kinds(spec.blocks) if [cut for cut, _ in kind.cuts] == [attention, mlp]]
        found = [improved(draft, terms) for kind in kinds for draft in drafts(s, kind, [everyone], terms)]
        layer = finish(min(found, key=lambda draft: draft.score), terms, s.devices)
        yield f"{attention}/{mlp}", best_sending(s, one_kind(cluster, s, layer))
    for name in cluster.names[1:]:
        plan = solve(spec, what_if(cluster, [], [], [name]), rows).plan
        yield f"without {name}", replace(plan, devices=cluster.names)
    main = solution.runs[0][0]
    for axis, units in main.units.items():
        step = MOVED_ROWS if axis is Axis.ROWS else 1
        pairs = [(one, (one + 1) % s.devices) for one in range(s.devices)]
        for source, target in (*pairs, *(pair[::-1] for pair in pairs)):
            if units[source] >= step:
                moved = units.copy()
                moved[[source, target]] += -step, step
                name = f"{step} {axis} {cluster.names[source]} > {cluster.names[target]}"
                yield name, changed(solution.plan, layer_plan(s, main.kind, {**main.units, axis: moved}))


def one_kind(cluster: Cluster, s: Setting, layer: Configuration) -> Plan:
    run = Span(0, s.spec.layers), layer_plan(s, layer.kind, layer.units)
    return Plan((Stage(cluster.names, (run,)),), s.spec.name, rows=s.rows)


def changed(plan: Plan, layer: LayerPlan) -> Plan:
    """Return the plan with its first run of layers as given, routes and tiles as they are."""
    (stage,) = plan.stages
    (span, before), *others = stage.layers
    sent = tuple(replace(block, route=old.route) for block, old in zip(layer, before, strict=True))
    return replace(plan, stages=(Stage(stage.devices, ((span, sent), *others)),), predicted=None)


def encoder_candidates(spec: ModelSpec, cluster: Cluster, rows: int) -> Candidates:
    """Return an encoder's plan, and those to hold beside it."""
    solution = solve(spec, cluster, rows)
    plans = {"hepti": solution.plan, **dict(rivals(spec, cluster, rows, solution))}
    return {name: (plan_table(plan), predict_plan(spec, cluster, plan, rows).seconds) for name, plan in plans.items()}


def network_candidates(net: ConvNet, cluster: Cluster) -> Candidates:
    """Return a network's plan, and those to hold beside it."""
    plans = able(network_systems(cluster), lambda system: plan_network(system, net, cluster))
    differing(plans, ((words_of(plan), plan) for plan in networks_to_try(net, cluster, plans["hepti"])))
    return {
        name: (plan_table(plan, net), priced_network(net, cluster, plan).price.prediction.seconds)
        for name, plan in plans.items()
    }


def decoder_candidates(model: Decoder, cluster: Cluster, asked: TokenRequest) -> Candidates:
    """Return a language model's plan, and those to hold beside it; seconds are of the whole answer."""
    plans = able(decoder_systems(cluster), lambda system: plan_decoder(system, model, cluster, asked))
    differing(plans, ((words_of(plan), plan) for plan in decoders_to_try(model, cluster, asked, plans["hepti"])))
    return {
        name: (plan_table(plan, model), answer_seconds(setting_of(model, cluster, plan), plan, asked))
        for name, plan in plans.items()
    }


def able(systems: Iterable[str], planned: Callable[[str], AnyPlan]) -> dict[str, AnyPlan]:
    """Return the plans of all systems that find memory for theirs, `hepti` among them, as far as they differ."""

    def each() -> Iterator[tuple[str, AnyPlan]]:
        for system in systems:
            with suppress(HeptiError):
                yield system, planned(system)

    return differing({"hepti": planned("hepti")}, each())


def differing(plans: dict[str, AnyPlan], others: Iterable[tuple[str, AnyPlan]]) -> dict[str, AnyPlan]:
    """Add named plans to some, but those that are one of them by another name; return them."""
    for name, plan in others:
        if plan not in (replace(known, system=plan.system) for known in plans.values()):
            plans[name] = plan
    return plans


def measure(model: Path, plans: Candidates, sizes: Sequence[int], beside: str, turns: int) -> dict[str, Any]:
    """Return what was predicted of all plans, and measured of those that are to run; `sizes` as `plans.py` has them."""
    limit = {"none": 0.0, "near": HOPELESS * min(found for _, found in plans.values()), "all": np.inf}[beside]
    chosen = [name for name, (_, predicted) in plans.items() if predicted <= limit or name == "hepti"]
    path = model.with_name("plans.json")
    program = str(Path(__file__).with_name("programs") / "plans.py")

    def seconds_of(names: Sequence[str], turns: int) -> dict[str, list[float]]:
        path.write_text(json.dumps({name: plans[name][0] for name in names}))
        words = [program, *map(str, (model, path, turns, *sizes))]
        found: dict[str, list[float]] = json.loads(launch("run", NAME, "--", sys.executable, "-m", "mpi4py", *words))
        return found

    seconds = seconds_of(chosen, turns)
    finalists = sorted((name for name in seconds if name != "hepti"), key=lambda name: statistics.median(seconds[name]))
    final = seconds_of(["hepti", *finalists[:FINALISTS]], FINAL * turns) if finalists else {}
    return {
        name: {"predicted_s": predicted, "seconds": seconds.get(name), "final": final.get(name)}
        for name, (_, predicted) in plans.items()
    }


def show(points: list[dict]) -> None:
    """Print how true the plans are, and who came near."""
    table = Table(title="ms; quartiles in brackets")
    headings = "model", "cluster", "Mbps", "rows", "predicted", "measured", "off by", "fastest other", "of its time"
    for heading in headings:
        table.add_column(heading)
    errors, everyone = [], []
    for point in points:
        timed = {name: found["seconds"] for name, found in point["plans"].items() if found["seconds"]}
        mine = statistics.median(timed.pop("hepti"))
        predicted = point["plans"]["hepti"]["predicted_s"]
        errors.append(abs(predicted / mine - 1))
        everyone += [
            abs(point["plans"][name]["predicted_s"] / statistics.median(times) - 1) for name, times in timed.items()
        ]
        row = [str(point[key]) for key in ("model", "cluster", "mbps", "rows")]
        row += [f"{1e3 * predicted:.0f}", f"{1e3 * mine:.0f}"]
        row.append(f"{predicted / mine - 1:+.1%}")
        if timed:
            final = {name: found["final"] for name, found in point["plans"].items() if found["final"]}
            mine = statistics.median(final.pop("hepti"))
            other = min(final, key=lambda name: statistics.median(final[name]))
            low, middle, high = np.quantile(final[other], (0.25, 0.5, 0.75))
            row += [f"{other} ({len(timed)} tried)", f"{middle / mine:.2f} ({low / mine:.2f} to {high / mine:.2f})"]
        table.add_row(*row)
    Console(width=140).print(table)
    print(f"hepti is off by {np.mean(errors):.1%} on average, {max(errors):.1%} at most; all plans by", end=" ")
    print(f"{np.mean(errors + everyone):.1%} on average, {max(errors + everyone):.1%} at most")


def main() -> None:
    """Measure the points that are asked for, add them to a file, and print all that it has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bert-large", help="known by name (default: %(default)s)")
    helps = "of an encoder or a language model, whose matrices are int4 (default: %(default)s)"
    parser.add_argument("--layers", type=int, default=4, help=helps)
    parser.add_argument("--clusters", default="pi4x4,mixed3,mixed4")
    parser.add_argument("--mbps", default="940,240,80")
    helps = f"an encoder's, or a prompt's, whose answer has {TOKENS} tokens (default: %(default)s)"
    parser.add_argument("--rows", default="64,128,256", help=helps)
    parser.add_argument("--turns", type=int, default=3)
    helps = f"beside hepti; near: those predicted less than {HOPELESS} times as slow as the best (default: %(default)s)"
    parser.add_argument("--rivals", choices=("none", "near", "all"), default="near", help=helps)
    parser.add_argument("--out", type=Path, default=Path("plans.jsonl"), help="default: %(default)s")
    options = parser.parse_args()
    kind = kind_of(options.model)
    made = {"encoder": [], "network": [], "decoder": ["--precision", PRECISION]}[kind]
    layers = [] if kind == "network" else ["--layers", str(options.layers)]
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = folder / "model.h5"
        words = ["synthesize", options.model, str(model), *layers, *made]
        subprocess.run([sys.executable, "-m", "weights", *words], cwd=ROOT, check=True)
        for name, mbps in product(options.clusters.split(","), map(int, options.mbps.split(","))):
            file, profile = folder / f"{name}.toml", folder / f"{name}-{mbps}.toml"
            write_cluster(what_if(find_cluster(name), [f"network.bandwidth_mbps={mbps}"], [], []), file)
            launch("up", str(file), "--name", NAME)
            try:
                profiling = ["profile", "--model", str(model), "--out", str(profile)]
                launch("run", NAME, "--", sys.executable, "-m", "hepti_mpi", *profiling)
                for rows in [0] if kind == "network" else map(int, options.rows.split(",")):
                    plans, sizes = candidates(model, read_cluster(profile), rows)
                    found = measure(model, plans, sizes, options.rivals, options.turns)
                    point = {"model": options.model, "cluster": name, "mbps": mbps, "rows": rows, "plans": found}
                    with options.out.open("a") as out:
                        out.write(json.dumps(point) + "\n")
            finally:
                launch("down", NAME)
    show([json.loads(line) for line in options.out.read_text().splitlines()])


def candidates(model: Path, cluster: Cluster, rows: int) -> tuple[Candidates, Sequence[int]]:
    """Return the plans to hold beside each other, and the sizes that they run with."""
    word = str(model)
    kind = kind_of(word)
    if kind == "network":
        return network_candidates(network_of(word), cluster), ()
    if kind == "decoder":
        decoder, precision = decoder_of(word)
        asked = TokenRequest(prompt=rows, tokens=TOKENS, context=2 * (rows + TOKENS), precision=precision or PRECISION)
        return decoder_candidates(decoder, cluster, asked), (rows, TOKENS)
    return encoder_candidates(encoder_of(word), cluster, rows), (rows,)


if __name__ == "__main__":
    main()
