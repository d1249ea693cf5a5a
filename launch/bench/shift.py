"""`bench shift`: latency while devices and links change, for plans that stay, plans that follow, and an oracle.

A script changes the lab between requests. Every strategy has a lab of its own, all alike, and they answer the same
requests in turn, a few at a time, while the others stand still: the machine below changes by up to a fifth within the
minutes that one strategy takes for the whole script. The oracle starts anew in every state of the lab, with the plan
for its true speeds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launch.base import shell
from launch.base.json_output import written
from launch.compare.model import BenchModel
from launch.lab import run as lab_run
from launch.lab import up as lab_up
from launch.lab.agent import on_host
from launch.lab.lab import Lab, load_lab
from solver.base.errors import HeptiError
from solver.base.progress import progress
from solver.cluster.cluster import Cluster, read_cluster
from solver.live.drift import scaled
from solver.model.spec import ModelSpec
from solver.plan.holdings import weights_bytes
from solver.plan.plan import Plan
from solver.plan.writing import plan_to_json
from solver.programs.planner import solve
from solver.systems.sequence import rows_plan

ORACLE = "oracle"
STRATEGIES = ("static-equal", "static-proportional", "static-hepti", "live-hepti", ORACLE)
WARMUP = 3  # requests before the script begins
TURN = 5  # requests
PATIENCE_S = 30.0
RESIDENT_BYTES = 300 * 2**20  # of a rank besides its weights: measured, at most
PROFILE = "profile.toml"
COMPETITOR = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]


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


def bench_shift(lab: Lab, model: BenchModel, rows: int, requests: int, strategies: Sequence[str]) -> dict[str, Any]:
    """Run the script under every strategy, on labs like one that is up."""
    spec = model.spec
    profile = _profile(lab, model.path)
    plans = _plans(spec, profile, rows)
    phases = script(lab, requests, max(weights_bytes(spec, plan, _fastest(lab)) for plan in plans.values()))
    latency_s: dict[str, list[float]] = {name: [] for name in strategies}
    replans: dict[str, list[Any]] = {name: [] for name in strategies}
    total = len(strategies) * sum(phase.requests for phase in phases)
    with ExitStack() as stack:
        labs = {
            name: stack.enter_context(lab_up.another(lab, f"{lab.name}-{number}"))
            for number, name in enumerate(strategies, start=1)
        }
        jobs = {
            name: _start(own, model.path, rows, _options(lab, own, name, plans))
            for name, own in labs.items()
            if name != ORACLE
        }
        advance = stack.enter_context(progress("bench shift", total, unit="requests"))
        for phase in phases:
            with ExitStack() as states:
                for own in labs.values():
                    states.enter_context(_state(own, phase.state))
                if ORACLE in labs:
                    path = _write(labs[ORACLE], solve(spec, _truth(lab, profile, phase.state), rows).plan)
                    jobs[ORACLE] = _start(labs[ORACLE], model.path, rows, ["--plan", str(path)])
                for asked in turns(phase.requests):
                    for name, own in labs.items():
                        with lab_up.awake(own):
                            latency_s[name] += [own.scale * _ask(jobs[name], rows) for _ in range(asked)]
                        advance(asked)
                if ORACLE in labs:
                    _end(labs[ORACLE], jobs.pop(ORACLE))
        for name, job in jobs.items():
            replans[name] = _end(labs[name], job)
    return {
        "suite": "shift",
        "cluster": lab.name,
        "lab_scale": lab.scale,
        "model": spec.name,
        "rows": rows,
        "layers": spec.layers,
        "mbps": profile.links_mbps,
        "versions": {"python": sys.version.split()[0]},
        "phases": [{"name": phase.name, "requests": phase.requests} for phase in phases],
        "results": [
            {"system": name, "latency_s": taken_s, "total_s": sum(taken_s), "replans": replans[name]}
            for name, taken_s in latency_s.items()
        ],
    }


def turns(requests: int) -> list[int]:
    """Return how many requests a strategy answers before the next has its turn.

    Examples
    --------
    >>> turns(12)
    [5, 5, 2]
    """
    return [min(TURN, requests - begin) for begin in range(0, requests, TURN)]


def _fastest(lab: Lab) -> int:
    """Return the number of the host that changes most in the script."""
    return max(range(len(lab.hosts)), key=lambda rank: lab.hosts[rank].device_flop_per_s)


def _plans(spec: ModelSpec, profile: Cluster, rows: int) -> dict[str, Plan]:
    """Return the plans that stay: rows shared out equally, and in proportion to the profile's speeds."""
    speeds = [device.compute_flop_per_s for device in profile.devices]
    shared = {"static-equal": [1.0] * len(speeds), "static-proportional": speeds}
    return {name: rows_plan("rows", spec, profile, rows, weights) for name, weights in shared.items()}


def _options(lab: Lab, own: Lab, strategy: str, plans: Mapping[str, Plan]) -> list[str]:
    """Return what hepti_mpi is told by a strategy that has one job for the whole script."""
    if strategy in plans:
        return ["--plan", str(_write(own, plans[strategy]))]
    return ["--cluster", str(lab.directory / PROFILE), "--replan", "auto" if strategy == "live-hepti" else "off"]


def _truth(lab: Lab, profile: Cluster, state: State) -> Cluster:
    compute = [state.cpu.get(name, 1.0) * (0.5 if name in state.busy else 1.0) for name in profile.names]
    links = [state.link.get(name, 1.0) for name in profile.names]
    gone = [host.memory_bytes - state.memory.get(host.name, host.memory_bytes) for host in lab.hosts]
    memory = [max(0, device.memory_bytes - less) for device, less in zip(profile.devices, gone, strict=True)]
    return scaled(profile, compute, links, memory)


def _start(lab: Lab, model: Path, rows: int, options: Sequence[str]) -> shell.Process:
    """Start a job, let it answer a few requests, and leave it standing still."""
    command = ["lab", "run", lab.name, "--", sys.executable, "-m", "hepti_mpi", "--model", str(model)]
    command += ["--input", "-", "--report", str(_report(lab)), *options]
    with lab_up.awake(lab):
        job = shell.start([sys.executable, "-m", "launch", *command])
        for _ in range(WARMUP):
            _ask(job, rows)
    return job


def _end(lab: Lab, job: shell.Process) -> list[Any]:
    """End a job in order; return what it has re-planned."""
    assert job.stdin is not None
    with lab_up.awake(lab):
        job.stdin.close()
        code = shell.wait(job, PATIENCE_S / lab.scale)
    if code:
        raise HeptiError(f"hepti_mpi ended with exit code {code}: its own message stands above")
    replans: list[Any] = written(_report(lab), "hepti_mpi")["replans"]
    return replans


def _report(lab: Lab) -> Path:
    return lab.directory / "report.json"


def _ask(job: shell.Process, rows: int) -> float:
    """Send a request and return the seconds, by the clock, until its answer is here."""
    assert job.stdin is not None
    assert job.stdout is not None
    started = time.perf_counter()
    # Of a job that has ended the answer is the end of its output.
    with suppress(BrokenPipeError):
        job.stdin.write(json.dumps({"id": str(started), "tokens": [1 + number % 997 for number in range(rows)]}) + "\n")
    while not (line := job.stdout.readline()).startswith("{"):
        if not line:
            raise HeptiError("hepti_mpi ended before it had answered: its own message stands above")
    return time.perf_counter() - started


@contextmanager
def _state(lab: Lab, state: State) -> Iterator[None]:
    """Put a state in force, and end what it has started, which stands still until the lab is awake."""
    for host in lab.hosts:
        cpu, link = state.cpu.get(host.name, 1.0), state.link.get(host.name, 1.0)
        changed = replace(
            host,
            cpu=cpu * host.cpu,
            bandwidth_bytes_per_s=link * host.bandwidth_bytes_per_s,
            memory_bytes=state.memory.get(host.name, host.memory_bytes),
        )
        lab_up.change(load_lab(lab.name), changed)
    with lab_up.awake(lab):
        competitors = [shell.start(on_host(lab, lab.host(name), COMPETITOR)) for name in state.busy]
        for process in competitors:
            assert process.stdout is not None
            process.stdout.readline()  # it runs
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
