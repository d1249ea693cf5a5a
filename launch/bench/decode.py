"""`bench compare` of language models on a lab's boards: our systems, and the peers themselves, in the same rounds.

Every program is started anew in every round and answers the same prompts greedily. Seconds to the first token and
seconds of a further one are measured apart. Ratios are taken within a round, where the machine is the same, and their
median and quartiles shown.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from launch.base import shell
from launch.base.json_output import written
from launch.bench.decode_peers import LETTERS, RUN_S, Answered, Task, answered
from launch.compare.compare import versions
from launch.compare.model import BenchDecoder
from launch.compare.results import quartiles
from launch.lab import run as lab_run
from launch.lab.agent import on_host
from launch.lab.lab import Host, Lab
from launch.start.last_words import why_ended
from solver.base.errors import HeptiError, explained
from solver.cluster.cluster import read_cluster, write_cluster
from solver.model.decoder import Decoder
from solver.schedule.decoders.asked import TokenRequest

SUITE = "decode"  # of reports
SINGLE = "single"
BACKEND = "onnxruntime"  # of our rows
EVEN = 0.05  # apart that boards may be, and still count as even


class Runner(Protocol):
    """Who answers a task, and keeps its logs in a folder."""

    def run(self, task: Task, files: Path) -> list[Answered]:
        """Return what every prompt took that counts."""
        ...


@dataclass(slots=True)
class Ours:
    """A system of ours on some hosts of a lab: one alone without mpirun, several that are its first."""

    system: str
    model: BenchDecoder
    lab: Lab
    hosts: Sequence[Host]
    profile: Path
    wire: str
    cache: str
    lookup: str
    predicted: dict[str, float] = field(default_factory=dict)

    def run(self, task: Task, files: Path) -> list[Answered]:
        """Answer all prompts.

        Raises
        ------
        HeptiError
            If it fails: what it said.
        """
        report, log = files / "report.json", files / "hepti.log"
        program = [sys.executable, "-m", "hepti_mpi", "generate", "--model", str(self.model.path)]
        program += ["--input", str(files / "prompts.jsonl"), "--tokens", str(task.tokens), "--temperature", "0"]
        program += ["--ignore-eos", "--lookup", self.lookup, "--context", str(task.context)]
        program += ["--cluster", str(self._cluster(files)), "--system", self.system, "--wire", self.wire]
        program += ["--cache", self.cache, "--backend", BACKEND, "--report", str(report)]
        report.unlink(missing_ok=True)
        if len(self.hosts) == 1:
            code, _, said = shell.attempt(on_host(self.lab, self.hosts[0], program), RUN_S / self.lab.scale)
        else:
            code = lab_run.run(self.lab, len(self.hosts), program, log)
            said = log.read_text(errors="replace")
        if code:
            raise HeptiError(why_ended(said, code))
        with explained("hepti_mpi generate left an unusable report", (KeyError, TypeError)):
            found = written(report, "hepti_mpi generate")
            self.predicted = found["predicted"] or {}
            return [
                answered(task, request["first_s"], 1 / request["tokens_per_s"], request["new_tokens"])
                for request in found["requests"]
                if request["id"]  # the first warms up
            ]

    def _cluster(self, files: Path) -> Path:
        """Return the profile; of a host alone the part of it that it is."""
        if len(self.hosts) > 1:
            return self.profile
        path, whole = files / "alone.toml", read_cluster(self.profile)
        write_cluster(whole.only([whole.names.index(self.hosts[0].name)]), path)
        return path


@dataclass(slots=True)
class Rival:
    """A row of the tables, and what its rounds gave, a number a round: medians of the prompts."""

    system: str
    boards: int
    runner: Runner
    wire: str = ""
    token_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    prompt_per_s: list[float] = field(default_factory=list)
    ids: tuple[int, ...] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """The row's name as the JSON has it."""
        backend = BACKEND if isinstance(self.runner, Ours) else self.system
        mode = getattr(self.runner, "mode", "")
        return {"system": self.system, "backend": backend, "wire": self.wire, "mode": mode, "devices": self.boards}

    @property
    def kin(self) -> str:
        """Whose one board this is beside: our systems are one family."""
        return "hepti" if isinstance(self.runner, Ours) else self.system

    def add(self, answers: Sequence[Answered]) -> None:
        """Add a round."""
        self.token_s.append(statistics.median(one.token_s for one in answers))
        self.first_s.append(statistics.median(one.first_s for one in answers))
        self.prompt_per_s.append(statistics.median(one.prompt_per_s for one in answers))
        self.ids = answers[-1].ids


def tasks(model: Decoder, prompt: int, tokens: int, context: int | None, timed: int = 1) -> Task:
    """Return prompts of random letters, each with another beginning, so that none is kept of the one before.

    Raises
    ------
    HeptiError
        If prompt and answer do not fit into the context, or the context into the model.
    """
    context = prompt + tokens if context is None else context
    TokenRequest(prompt=prompt, tokens=tokens, context=context).check(model)
    letters = min(LETTERS, model.vocab - 1)
    numbers = np.random.default_rng(5).integers(1, letters, (timed + 1, prompt))
    numbers[:, 0] = 1 + np.arange(timed + 1) % (letters - 1)
    numbers[:, -1] = 0
    return Task(tuple(tuple(map(int, row)) for row in numbers), tokens, context)


def fastest(lab: Lab, boards: int) -> Sequence[Host]:
    """Return the hosts of a run on so many boards: the first ones, or the fastest alone."""
    if boards == 1:
        return [max(lab.hosts, key=lambda host: host.compute_flop_per_s)]
    return lab.hosts[:boards]


def even(lab: Lab, boards: int) -> bool:
    """Return whether these boards, and the one that runs alone, are equally fast."""
    speeds = [host.compute_flop_per_s for host in (*fastest(lab, boards), *fastest(lab, 1))]
    return max(speeds) <= (1 + EVEN) * min(speeds)


def compete(
    lab: Lab,
    rivals: list[Rival],
    absent: list[dict[str, Any]],
    task: Task,
    rounds: int,
    files: Path,
    say: Callable[[str], None],
    keep: Callable[[list[dict[str, Any]], int], None],
) -> None:
    """Run everybody in every round, every second time backwards; who fails is absent from then on.

    Raises
    ------
    HeptiError
        If nobody comes through.
    """
    lines = [json.dumps({"id": number, "tokens": ids}) + "\n" for number, ids in enumerate(task.prompts)]
    for turn in range(rounds):
        for rival in list(rivals if turn % 2 == 0 else reversed(rivals)):
            folder = files / "-".join(map(str, rival.facts.values())).replace(":", "-")
            folder.mkdir(exist_ok=True)
            (folder / "prompts.jsonl").write_text("".join(lines))
            try:
                rival.add(rival.runner.run(task, folder))
                said = f"{1 / rival.token_s[-1]:.2f} tokens a second, the first after {rival.first_s[-1]:.2f} s"
            except HeptiError as error:
                said = str(error)
                absent.append({**rival.facts, "why": said})
                rivals.remove(rival)
            say(f"round {turn + 1} of {rounds}: {row_name(rival.facts)} on {rival.boards}: {said}")
        if not rivals:
            raise HeptiError(f"nobody came through; {absent[-1]['system']}: {absent[-1]['why']}")
        keep(results(lab, rivals), turn + 1)


def row_name(row: Mapping[str, Any]) -> str:
    """Return what a row is called: its system, its wire where it is not float32, how it waits."""
    wire = "" if row["wire"] == "float32" else row["wire"]
    return " ".join(word for word in (row["system"], wire, row["mode"]) if word)


def results(lab: Lab, rivals: Sequence[Rival]) -> list[dict[str, Any]]:
    """Return the rows; ratios are to the first of those on most boards, above 1 where that one is faster."""
    best = max(rivals, key=lambda rival: rival.boards)
    alone = {rival.kin: rival for rival in rivals if rival.boards == 1}
    return [
        {
            **rival.facts,
            **_runner_facts(rival.runner),
            **_spread("", rival.token_s),
            **_spread("first_", rival.first_s),
            "tokens_per_s": 1 / statistics.median(rival.token_s),
            "prompt_per_s": statistics.median(rival.prompt_per_s),
            "ratio": _ratio(rival.token_s, best.token_s),
            "prompt_ratio": _ratio(best.prompt_per_s, rival.prompt_per_s),
            "overhead_s": _overhead_s(lab, rival, alone.get(rival.kin)),
            "same_ids": len(list(takewhile(lambda pair: pair[0] == pair[1], zip(rival.ids, best.ids, strict=False)))),
            "ids": list(rival.ids),
            "seconds": rival.token_s,
            "first_seconds": rival.first_s,
            "prompt_rates": rival.prompt_per_s,
        }
        for rival in rivals
    ]


def _runner_facts(runner: Runner) -> dict[str, Any]:
    predicted: Mapping[str, float] = getattr(runner, "predicted", {})
    return {
        "predicted_s": predicted.get("token_s"),
        "predicted_first_s": predicted.get("first_s"),
    }


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    low_s, median_s, high_s = quartiles(values)
    return {f"{name}median_s": median_s, f"{name}low_s": low_s, f"{name}high_s": high_s}


def _ratio(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return quartile, median, quartile over the rounds."""
    return [*quartiles(np.divide(above, below))]


def _overhead_s(lab: Lab, rival: Rival, alone: Rival | None) -> float | None:
    """Return what a token takes beyond its share of one board's time, where boards are even."""
    if alone is None or rival.boards == 1 or not even(lab, rival.boards):
        return None
    return float(np.median(np.subtract(rival.token_s, np.divide(alone.token_s, rival.boards))))


def report_facts(lab: Lab, model: BenchDecoder, task: Task, cache: str, lookup: str, rounds: int) -> dict[str, Any]:
    """Return what was measured where, for the report."""
    return {
        "suite": SUITE,
        "cluster": lab.name,
        "lab_scale": lab.scale,
        "model": model.model.name,
        "precision": model.precision,
        "cache": cache,
        "lookup": lookup,
        "layers": len(model.model.layers),
        "prompt": len(task.prompts[-1]),
        "tokens": task.tokens,
        "context": task.context,
        "mbps": [host.bandwidth_bytes_per_s * 8 / 1e6 for host in lab.hosts],
        "device": [{"name": host.name, "gflops": host.compute_flop_per_s / 1e9} for host in lab.hosts],
        "runs_asked": rounds,
        "versions": dict(versions()),
    }
