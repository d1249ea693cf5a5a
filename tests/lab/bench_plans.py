"""Are plans true, and is there no better one? In the lab: python tests/lab/bench_plans.py [--help].

As root. For every ready cluster, bandwidth and row count: the plan of `hepti`, and what it predicts against what it
takes; beside it, in the same program and in turn, equal and proportional shares, every pair of cuts, every device left
out, and the plan with sixteen rows, a head or a tile moved between two devices. Bars: predictions off by 10 % on
average and 20 % at most, and nobody faster than `hepti` by more than 5 % beyond the noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from solver.base.spans import Span
from solver.cluster.cluster import Cluster, read_cluster, write_cluster
from solver.cluster.named import find_cluster
from solver.cluster.whatif import changed as what_if
from solver.model.blocks import Axis, Cut
from solver.model.named import named_model
from solver.model.spec import ModelSpec
from solver.plan.plan import LayerPlan, Plan, Stage
from solver.plan.writing import plan_table
from solver.programs.planner import Solution, solve
from solver.programs.search import Configuration, Terms, drafts, finish, improved
from solver.programs.tiles_and_routes import best_sending
from solver.schedule.encoders.cost import setting
from solver.schedule.encoders.layer_table import layer_kinds, layer_plan
from solver.schedule.encoders.setting import Setting
from solver.schedule.encoders.stages import predict_plan
from solver.systems import make_plan

ROOT = Path(__file__).parents[2]
NAME, LAYERS = "plans-bench", 4
MOVED_ROWS = 16
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


def measure(model: Path, cluster: Cluster, rows: int, beside: str, turns: int, folder: Path) -> dict:
    """Return predictions and measurements of all plans for one cluster and row count."""
    spec = named_model("bert-large", LAYERS)
    solution = solve(spec, cluster, rows)
    plans = {"hepti": solution.plan}
    for name, plan in rivals(spec, cluster, rows, solution):
        plans[name] = plan
    predicted = {name: predict_plan(spec, cluster, plan, rows).seconds for name, plan in plans.items()}
    limit = {"none": 0.0, "near": HOPELESS * min(predicted.values()), "all": np.inf}[beside]
    chosen = [name for name in plans if predicted[name] <= limit or name == "hepti"]
    path = folder / "plans.json"
    program = str(Path(__file__).with_name("programs") / "plans.py")

    def seconds_of(names: list[str], turns: int) -> dict[str, list[float]]:
        path.write_text(json.dumps({name: plan_table(plans[name]) for name in names}))
        words = [program, str(model), str(path), str(rows), str(turns)]
        return json.loads(launch("run", NAME, "--", sys.executable, "-m", "mpi4py", *words))

    seconds = seconds_of(chosen, turns)
    finalists = sorted((name for name in seconds if name != "hepti"), key=lambda name: statistics.median(seconds[name]))
    final = seconds_of(["hepti", *finalists[:FINALISTS]], FINAL * turns) if finalists else {}
    return {
        name: {"predicted_s": predicted[name], "seconds": seconds.get(name), "final": final.get(name)} for name in plans
    }


def show(points: list[dict]) -> None:
    """Print how true the plans are, and who came near."""
    table = Table(title="ms; quartiles in brackets")
    for heading in ("cluster", "Mbps", "rows", "predicted", "measured", "off by", "fastest other", "of hepti's time"):
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
        row = [point["cluster"], str(point["mbps"]), str(point["rows"]), f"{1e3 * predicted:.0f}", f"{1e3 * mine:.0f}"]
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
    parser.add_argument("--clusters", default="pi4x4,mixed3,mixed4")
    parser.add_argument("--mbps", default="940,240,80")
    parser.add_argument("--rows", default="64,128,256")
    parser.add_argument("--turns", type=int, default=3)
    helps = f"beside hepti; near: those predicted less than {HOPELESS} times as slow as the best (default: %(default)s)"
    parser.add_argument("--rivals", choices=("none", "near", "all"), default="near", help=helps)
    parser.add_argument("--out", type=Path, default=Path("plans.jsonl"), help="default: %(default)s")
    options = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = folder / "model.h5"
        words = ["synthesize", "bert-large", str(model), "--layers", str(LAYERS)]
        subprocess.run([sys.executable, "-m", "weights", *words], cwd=ROOT, check=True)
        for name, mbps in product(options.clusters.split(","), map(int, options.mbps.split(","))):
            cluster = find_cluster(name)
            file, profile = folder / f"{name}.toml", folder / f"{name}-{mbps}.toml"
            write_cluster(what_if(cluster, [f"network.bandwidth_mbps={mbps}"], [], []), file)
            launch("up", str(file), "--name", NAME)
            try:
                profiling = ["profile", "--model", str(model), "--out", str(profile)]
                launch("run", NAME, "--", sys.executable, "-m", "hepti_mpi", *profiling)
                for rows in map(int, options.rows.split(",")):
                    plans = measure(model, read_cluster(profile), rows, options.rivals, options.turns, folder)
                    with options.out.open("a") as out:
                        out.write(json.dumps({"cluster": name, "mbps": mbps, "rows": rows, "plans": plans}) + "\n")
            finally:
                launch("down", NAME)
    show([json.loads(line) for line in options.out.read_text().splitlines()])


if __name__ == "__main__":
    main()
