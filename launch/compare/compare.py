"""`bench compare`: systems, kernels, wires and single devices side by side on the same hosts.

Every entrant is a program of its own, started anew in every round; a round runs each of them once, so that a machine
that slows down slows all of them. All plans come from profiles that were measured just before, one for each kind of
kernels.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

from launch.compare.against import OtherPlanner, ratios, twice
from launch.compare.checkout import AGAINST, HERE, check_hosts, checkouts, in_checkout
from launch.compare.entrants import Absent, Entrant, Kernels, RowName, alone, planned
from launch.compare.model import AnyModel, BenchModel, BenchNetwork
from launch.compare.networks import beside_best_single, planned_networks, whole_s
from launch.compare.results import Samples, ranked, result
from launch.compare.show import variant
from launch.compare.stage import BenchHosts
from launch.start.last_words import why_ended
from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster, read_cluster
from solver.model.spec import TextInput
from solver.plan.plan import Plan
from solver.plan.writing import plan_to_json

VERSIONS_OF = ("numpy", "onnxruntime", "torch", "mpi4py", "hepti")


@dataclass(frozen=True, slots=True)
class Contest:
    """What is compared: `runs` rounds, in each of which a program answers `warmup` and then `repeat` timed requests.

    Where `many` texts come at once, each time all of them, and the seconds of a request are the reciprocal of how many
    are answered a second. Every system takes part twice where there is another checkout, `against`, to run it.
    """

    systems: Sequence[str]
    kernels: Sequence[Kernels]
    wires: Sequence[str]
    runtimes: Sequence[str]
    rows: int
    runs: int
    repeat: int
    warmup: int
    many: int = 0
    against: Path | None = None


def compare(
    stage: BenchHosts,
    model: AnyModel,
    contest: Contest,
    folder: Path,
    say: Callable[[str], None],
    beside: BenchModel | None = None,
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Run a contest on a stage and return the report; plans, logs and the last round's traces stay in `folder`.

    `beside` is the model with decoupled layers, for the system that plans no other. A round takes minutes: `keep` gets
    the report so far after every one.

    Raises
    ------
    HeptiError
        If no kernels can be measured, nobody comes through, or hosts would run other code than a checkout's.
    """
    for path in (HERE, contest.against) if contest.against is not None else ():
        check_hosts(stage, path)
    clusters, profiles, absent = _profiles(stage, model, contest, folder, say)
    entrants, unfit = _systems(model, beside, contest, clusters, profiles, folder)
    absent += unfit
    found = {number: Samples() for number in range(len(entrants))}
    cluster = next(iter(clusters.values()))
    facts = {
        "suite": "compare",
        "cluster": stage.name,
        "lab_scale": stage.scale,
        **_what(model, contest.rows),
        "mbps": cluster.links_mbps,
        "runs_asked": contest.runs,
        "repeat": contest.repeat,
        "device": _devices(model, cluster),
        "versions": versions(),
        **({"checkouts": checkouts(contest.against)} if contest.against is not None else {}),
    }
    report: dict[str, Any] = {}
    say(f"{len(entrants)} to be started {contest.runs} times each: every start loads a model, and takes seconds")
    for turn in range(contest.runs):
        # Who comes second finds the machine as the first has left it: two versions take turns at that.
        for number in sorted(found, reverse=contest.against is not None and turn % 2 == 1):
            entrant, last = entrants[number], turn == contest.runs - 1
            name = f"{entrant.entry.system} {variant(entrant.entry.facts)}"
            try:
                runs = _model(entrant.entry, model, beside)
                seconds = _run(stage, runs, contest, entrant, found[number], folder / f"{number:02}", last)
                outcome = f"{1e3 * statistics.median(seconds):.0f} ms"
            except HeptiError as error:
                outcome = str(error)
                absent.append(Absent(entrant.entry, outcome))
                del found[number]
            say(f"round {turn + 1} of {contest.runs}: {name}: {outcome}")
        if not found:
            raise HeptiError(f"nobody came through; {absent[-1].entry.system}: {absent[-1].why}")
        rows = [{**result(entrants[number], samples), "files": f"{number:02}"} for number, samples in found.items()]
        missing = [{**absence.entry.facts, "why": absence.why} for absence in absent]
        report = {**facts, "runs": turn + 1, "results": ranked(rows), "absent": missing}
        if isinstance(model, BenchNetwork):
            report |= beside_best_single(report["results"], turn + 1)
        if contest.against is not None:
            report["ratios"] = ratios(report["results"], turn + 1)
        keep(report)
    return report


def _what(model: AnyModel, rows: int) -> dict[str, Any]:
    """Return what is computed; of a network rows are the image's, and layers there are none that plans are made of."""
    if isinstance(model, BenchNetwork):
        image = model.net.shapes[model.net.input]
        return {"model": model.net.name, "rows": image[1], "layers": None, "image": list(image)}
    return {"model": model.spec.name, "rows": rows, "layers": model.spec.layers}


def _devices(model: AnyModel, cluster: Cluster) -> list[dict[str, Any]]:
    """Return every device's speed, and what it takes for a whole network alone."""
    found = [{"name": device.name, "gflops": device.compute_flop_per_s / 1e9} for device in cluster.devices]
    if isinstance(model, BenchNetwork):
        found = [entry | {"whole_s": own_s} for entry, own_s in zip(found, whole_s(model.net, cluster), strict=True)]
    return found


def _systems(
    model: AnyModel,
    beside: BenchModel | None,
    contest: Contest,
    clusters: Mapping[Kernels, Cluster],
    profiles: Mapping[Kernels, Path],
    folder: Path,
) -> tuple[list[Entrant], list[Absent]]:
    """Return who takes part, systems by both planners where there is another checkout, and those without a plan."""
    if isinstance(model, BenchNetwork):
        found, absent = planned_networks(model.net, clusters, contest.systems, contest.wires)
    else:
        other = None if beside is None else beside.spec
        many = contest.many > 0
        found, absent = planned(
            model.spec, clusters, contest.rows, contest.systems, contest.wires, many=many, beside=other
        )
    if contest.against is not None:
        planner = OtherPlanner(
            contest.against, lambda entry: _model(entry, model, beside), profiles, contest.rows, folder
        )
        found, absent = twice(found, absent, planner)
    if isinstance(model, BenchModel):
        found = [*found, *alone(model.spec, clusters, contest.rows, contest.runtimes)]
    return found, absent


def _model(entry: RowName, model: AnyModel, beside: BenchModel | None) -> AnyModel:
    """Return the model that an entrant runs."""
    return beside if beside is not None and entry.model else model


def _profiles(
    stage: BenchHosts, model: AnyModel, contest: Contest, folder: Path, say: Callable[[str], None]
) -> tuple[dict[Kernels, Cluster], dict[Kernels, Path], list[Absent]]:
    """Measure the hosts with all kernels, and return what was found and its files.

    Systems on kernels that do not run here are absent.
    """
    clusters: dict[Kernels, Cluster] = {}
    files: dict[Kernels, Path] = {}
    absent: list[Absent] = []
    for kernels in contest.kernels:
        say(f"measuring the hosts with {kernels.backend} {kernels.precision}")
        out = folder / f"cluster-{kernels.backend}-{kernels.precision}.toml"
        try:
            cluster = _profile(stage, model, kernels, out)
        except HeptiError as error:
            entries = [RowName(system, kernels, wire) for system in contest.systems for wire in contest.wires]
            absent += [Absent(entry, str(error)) for entry in entries]
            continue
        measured = Kernels(cluster.profile["backend"], kernels.precision)  # what `auto` stood for
        clusters[measured], files[measured] = cluster, out
    if not clusters:
        raise HeptiError(absent[0].why)
    return clusters, files, absent


def _profile(stage: BenchHosts, model: AnyModel, kernels: Kernels, out: Path) -> Cluster:
    """Measure the hosts with some kernels."""
    program = ["profile", "--model", str(model.path), "--out", str(out), *_kernel_words(kernels)]
    _mpirun(stage, program, out.with_suffix(".log"))
    return read_cluster(out)


def _run(
    stage: BenchHosts,
    model: AnyModel,
    contest: Contest,
    entrant: Entrant,
    samples: Samples,
    files: Path,
    last: bool,
) -> list[float]:
    """Run one entrant once, the last time with a trace; return the seconds of its requests."""
    kernels = entrant.entry.kernels
    times = ["--warmup", str(contest.warmup), "--repeat", str(contest.repeat)]
    if entrant.plan is None:
        assert isinstance(model, BenchModel)  # networks run alone by a plan
        program = ["launch.single", "--spec", model.spec.to_json(), "--rows", str(contest.rows), *times]
        program += ["--backend", kernels.backend, "--precision", kernels.precision]
        code, output, errors = stage.alone(entrant.host, [sys.executable, "-m", *program])
        if code:
            raise HeptiError(why_ended(errors, code, program="launch.single"))
        return samples.add_alone(output)
    plan, report = files.with_suffix(".plan.json"), files.with_suffix(".report.json")
    if isinstance(entrant.plan, Plan) and not entrant.plan_json:
        plan.write_text(plan_to_json(entrant.plan))
    else:
        plan.write_text(entrant.plan_json)
    report.unlink(missing_ok=True)
    program = ["--model", str(model.path), *_asked(model, contest, files), "--plan", str(plan), *times]
    program += ["--report", str(report), "--wire", entrant.entry.wire, *_kernel_words(kernels)]
    # Traces are no contract, and networks record none.
    if last and entrant.entry.version != AGAINST and isinstance(model, BenchModel):
        program += ["--trace", str(files.with_suffix(".trace.json"))]
    _mpirun(stage, program, files.with_suffix(".log"), entrant.checkout)
    return samples.add_report(report, many=contest.many > 0)


def _asked(model: AnyModel, contest: Contest, files: Path) -> list[str]:
    """Return the words that say what is computed: one random request, or a file of many."""
    if isinstance(model, BenchNetwork):
        return ["--random", "1"]
    if not contest.many:
        return ["--random", str(contest.rows)]
    text = model.spec.input
    assert isinstance(text, TextInput)
    tokens = [[(number + place) % text.vocab for place in range(contest.rows)] for number in range(contest.many)]
    path = files.with_suffix(".jsonl")
    path.write_text("".join(json.dumps({"id": number, "tokens": ids}) + "\n" for number, ids in enumerate(tokens)))
    return ["--input", str(path)]


def _mpirun(stage: BenchHosts, program: Sequence[str], log: Path, checkout: Path | None = None) -> None:
    code = stage.mpirun(in_checkout(checkout, [sys.executable, "-m", "hepti_mpi", *program]), log)
    if code:
        raise HeptiError(why_ended(log.read_text(errors="replace"), code, stage.hosts))


def _kernel_words(kernels: Kernels) -> list[str]:
    # float32 is the default of every version.
    precision = [] if kernels.precision == "float32" else ["--precision", kernels.precision]
    return ["--backend", kernels.backend, *precision]


def versions() -> Mapping[str, str]:
    """Return what measures, with its numbers."""
    found = {"python": python_version()}
    for package in VERSIONS_OF:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # a benchmark can do without
    return found
