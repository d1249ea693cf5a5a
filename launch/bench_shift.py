"""`bench shift`: latency while devices and links change, for plans that stay, plans that follow, and an oracle.

Every strategy answers the same requests, one after the other, while a script changes the lab between requests. The
oracle has, for every state of the lab, the fastest of the plans of planners that know the true speeds: predictions are
off by more than these differ, so all are run.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launch import lab_run, lab_up, shell
from launch.lab import Lab, load_lab
from launch.lab_agent import on_host
from launch.plot import Curve, draw
from solver.cluster import Cluster, read_cluster
from solver.drift import scaled
from solver.errors import HeptiError
from solver.living import plan_by_rows
from solver.model import ModelSpec
from solver.plan import Plan
from solver.plan_file import plan_to_json
from solver.planner import solve
from solver.shares import weights_bytes
from solver.systems.sequence import rows_plan

STRATEGIES = ("static-equal", "static-proportional", "static-hepti", "live-hepti", "oracle")
WARMUP = 3  # requests before the script begins
ORACLE_REQUESTS = 8  # in a state, at least
PATIENCE_S = 30.0
RESIDENT_BYTES = 300 * 2**20  # of a rank besides its weights: measured, at most
PROFILE = "profile.toml"
COMPETITOR = [sys.executable, "-c", "while True: pass"]


@dataclass(frozen=True, slots=True)
class State:
    """How the lab differs from its cluster file: factors on speed and bandwidth, bytes of memory, busy neighbours."""

    cpu: Mapping[str, float] = field(default_factory=dict)
    link: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    busy: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Phase:
    """So many requests in one state."""

    name: str
    requests: int
    state: State


def script(lab: Lab, requests: int, share_bytes: int) -> list[Phase]:
    """Return the changes: speed, link, both, a competing process, memory, a blip; each followed by the first state.

    Memory goes down to what a rank with `share_bytes` of weights needs, and a tenth; speed and memory are the fastest
    host's.
    """
    fast = lab.hosts[_fastest(lab)].name
    other = lab.hosts[-2].name if lab.hosts[-2].name != fast else lab.hosts[0].name
    slow, narrow = {fast: 0.25}, {fast: 240 / 940}
    calm = State()
    changes = [
        ("cpu 25 %", State(cpu=slow)),
        ("link 240", State(link=narrow)),
        ("both", State(cpu=slow, link=narrow)),
        ("competitor", State(busy=(other,))),
        ("memory", State(memory={fast: round(1.1 * (share_bytes + RESIDENT_BYTES))})),
    ]
    phases = [Phase("calm", requests, calm)]
    for name, state in changes:
        phases += [Phase(name, requests, state), Phase("calm", requests, calm)]
    return [*phases, Phase("blip", 1, State(cpu={fast: 0.1})), Phase("calm", requests, calm)]


def bench_shift(lab: Lab, model: Path, rows: int, requests: int, strategies: Sequence[str]) -> dict[str, Any]:
    """Run the script under every strategy on a lab that is up."""
    facts = json.loads(shell.run([sys.executable, "-m", "weights", "inspect", str(model), "--json"]))
    spec = ModelSpec.from_json(json.dumps(facts["model"]))
    profile = _profile(lab, model)
    plans = _plans(spec, profile, rows)
    phases = script(lab, requests, max(weights_bytes(spec, plan, _fastest(lab)) for plan in plans.values()))
    results = []
    for strategy in strategies:
        if strategy == "oracle":
            results.append(oracle(lab, model, spec, profile, rows, phases))
            continue
        options = ["--cluster", str(lab.directory / PROFILE), "--replan", "auto" if strategy == "live-hepti" else "off"]
        if strategy in plans:
            options = ["--plan", str(_write(lab, plans[strategy]))]
        results.append({"system": strategy, **_run(lab, model, rows, options, phases)})
    return {
        "suite": "shift",
        "cluster": lab.name,
        "model": spec.name,
        "rows": rows,
        "layers": spec.layers,
        "versions": {"python": sys.version.split()[0]},
        "phases": [{"name": phase.name, "requests": phase.requests} for phase in phases],
        "results": results,
    }


def _fastest(lab: Lab) -> int:
    """Return the number of the host that changes most in the script."""
    return max(range(len(lab.hosts)), key=lambda rank: lab.hosts[rank].device_flop_per_s)


def write_picture(report: Mapping[str, Any], path: Path) -> None:
    """Draw the latency of every request under every strategy."""
    curves = [
        Curve(entry["system"], list(range(len(entry["latency_s"]))), [1e3 * s for s in entry["latency_s"]])
        for entry in report["results"]
    ]
    names = ", ".join(phase["name"] for phase in report["phases"] if phase["name"] != "calm")
    draw([(names, "request", curves)], "ms", path)


def _plans(spec: ModelSpec, profile: Cluster, rows: int) -> dict[str, Plan]:
    """Return the plans that stay: rows shared out equally, and in proportion to the profile's speeds."""
    speeds = [device.compute_flop_per_s for device in profile.devices]
    shared = {"static-equal": [1.0] * len(speeds), "static-proportional": speeds}
    return {name: rows_plan("rows", spec, profile, rows, weights) for name, weights in shared.items()}


def oracle(
    lab: Lab, model: Path, spec: ModelSpec, profile: Cluster, rows: int, phases: Sequence[Phase]
) -> dict[str, Any]:
    """Measure every state on its own, under the plans for its true speeds; it has the requests of the faster plan.

    The result's `states` have the medians of the best plan by prediction and of the best by rows, where there is one.
    """
    best: list[tuple[State, list[float]]] = []
    states = []
    for phase in phases:
        if any(state == phase.state for state, _ in best):
            continue
        truth = _truth(lab, profile, phase.state)
        alone = [Phase(phase.name, max(phase.requests, ORACLE_REQUESTS), phase.state)]
        runs = {}
        for name, plan in (("best", solve(spec, truth, rows).plan), ("by rows", plan_by_rows(spec, truth, rows))):
            if plan is not None:
                run = _run(lab, model, rows, ["--plan", str(_write(lab, plan))], alone, phase.state)
                runs[name] = run["latency_s"]
        best.append((phase.state, min(runs.values(), key=statistics.median)))
        states.append({"name": phase.name, "median_s": {name: statistics.median(run) for name, run in runs.items()}})
    of_state = [next(latency_s for state, latency_s in best if state == phase.state) for phase in phases]
    latency_s = [s for phase, measured in zip(phases, of_state, strict=True) for s in measured[: phase.requests]]
    return {"system": "oracle", "latency_s": latency_s, "total_s": sum(latency_s), "replans": [], "states": states}


def _truth(lab: Lab, profile: Cluster, state: State) -> Cluster:
    compute = [state.cpu.get(name, 1.0) * (0.5 if name in state.busy else 1.0) for name in profile.names]
    links = [state.link.get(name, 1.0) for name in profile.names]
    gone = [host.memory_bytes - state.memory.get(host.name, host.memory_bytes) for host in lab.hosts]
    memory = [max(0, device.memory_bytes - less) for device, less in zip(profile.devices, gone, strict=True)]
    return scaled(profile, compute, links, memory)


def _run(
    lab: Lab, model: Path, rows: int, options: Sequence[str], phases: Sequence[Phase], before: State | None = None
) -> dict[str, Any]:
    """Answer the script's requests in one job; return the seconds of each and what was re-planned."""
    report = lab.directory / "report.json"
    command = ["lab", "run", lab.name, "--", sys.executable, "-m", "hepti_mpi", "--model", str(model)]
    command += ["--input", "-", "--report", str(report), *options]
    latency_s = []
    with _state(lab, before or State()):
        job = shell.start([sys.executable, "-m", "launch", *command])
        for _ in range(WARMUP):
            _ask(job, rows)
    for phase in phases:
        with _state(lab, phase.state):
            latency_s += [_ask(job, rows) for _ in range(phase.requests)]
    assert job.stdin is not None
    job.stdin.close()
    if code := shell.wait(job, PATIENCE_S):
        raise HeptiError(f"hepti_mpi ended with exit code {code}: its own message stands above")
    replans = json.loads(report.read_text())["replans"]
    return {"latency_s": latency_s, "total_s": sum(latency_s), "replans": replans}


def _ask(job: shell.Process, rows: int) -> float:
    """Send a request and return the seconds until its answer is here."""
    assert job.stdin is not None
    assert job.stdout is not None
    started = time.perf_counter()
    job.stdin.write(json.dumps({"id": str(started), "tokens": [1 + number % 997 for number in range(rows)]}) + "\n")
    while not (line := job.stdout.readline()).startswith("{"):
        if not line:
            raise HeptiError("hepti_mpi ended before it had answered: its own message stands above")
    return time.perf_counter() - started


@contextmanager
def _state(lab: Lab, state: State) -> Iterator[None]:
    """Put a state in force, and end what it has started."""
    for host in lab.hosts:
        cpu, link = state.cpu.get(host.name, 1.0), state.link.get(host.name, 1.0)
        changed = replace(
            host,
            cpu=cpu * host.cpu,
            bandwidth_bytes_per_s=link * host.bandwidth_bytes_per_s,
            memory_bytes=state.memory.get(host.name, host.memory_bytes),
        )
        lab_up.change(load_lab(lab.name), changed)
    competitors = [shell.start(on_host(lab, lab.host(name), COMPETITOR)) for name in state.busy]
    try:
        yield
    finally:
        for process in competitors:
            process.kill()


def _profile(lab: Lab, model: Path) -> Cluster:
    """Measure the lab as it is; return what was found."""
    path = lab.directory / PROFILE
    program = [sys.executable, "-m", "hepti_mpi", "profile", "--model", str(model), "--out", str(path)]
    if code := lab_run.run(lab, len(lab.hosts), program):
        raise HeptiError(f"hepti_mpi profile ended with exit code {code}: its own message stands above")
    return read_cluster(path)


def _write(lab: Lab, plan: Plan) -> Path:
    path = lab.directory / "plan.json"
    path.write_text(plan_to_json(plan))
    return path
