"""`bench faults`: a service on a lab answers the same requests twice, in a calm run, and while boards and ranks fail.

In the second run faults come one after the other, each at a random moment after all models are ready again, on all
boards: nothing is asked until those that are back are taken in. Every answer is compared with that of the calm run.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from launch.compare.suite import Keep, Report, say
from launch.trials.asking import ASK_AGAIN_S, Bench, BenchQuestion, Heard, HeardNumbers, Table
from launch.trials.sorts import FAULTS
from solver.base.errors import HeptiError

DEVIATION = 1e-4  # of a calm embedding's numbers
CALM_S = (1.0, 3.0)  # between a service that is ready and the next fault
FOUND_S = 6.0  # in which any fault is found


def bench_faults(
    bench: Bench, questions: Sequence[BenchQuestion], names: Sequence[str], seed: int, keep: Keep, before: Report | None
) -> Report:
    """Ask all questions in a calm run, then while things fail; return what came of it.

    Parameters
    ----------
    names
        The faults, one after the other.
    seed
        Of the moments, boards and ranks.
    keep
        Gets the report after every fault.
    before
        The report of a run that did not come to its end: what it has is not done again.
    """
    bench.service.wait_ready()
    began = time.monotonic()
    calm = bench.ask(questions)
    calm_s = time.monotonic() - began
    if calm.errors:
        raise HeptiError(f"the calm run was none: {calm.errors[0]}")
    expected = dict(calm.answers)
    heard = Heard()
    happened: list[dict[str, Any]] = []
    over = threading.Event()

    def report() -> Report:
        return _report(bench, heard, happened, expected, before) | {"calm_s": calm_s}

    def fail() -> None:
        try:
            for number, name in enumerate(names, start=1):
                if before is not None and number <= len(before["faults"]):
                    continue
                rng = random.Random(f"{seed} {number}")
                bench.service.wait_ready()
                time.sleep(rng.uniform(*CALM_S))
                entry: dict[str, Any] = {"fault": name, "at": time.monotonic()}
                happened.append(entry)
                with FAULTS[name](bench, rng) as board:
                    entry["board"] = board
                say(f"{number} of {len(names)}: {name} {board}")
                time.sleep(FOUND_S)  # until then the service may not know
                bench.service.wait_ready()
                entry["until"] = _heard_again(heard)
                with bench.paused():
                    bench.service.wait_whole(len(bench.lab.hosts))
                keep(report())
        finally:
            over.set()

    failing = ThreadPoolExecutor(1).submit(fail)
    bench.ask(questions, over.is_set, heard)
    failing.result()
    return report()


def _heard_again(heard: Heard) -> float:
    """Wait until all models have said something more; return the moment."""
    ready = time.monotonic()
    while any(times[-1] < ready for times in heard.at.values()) and time.monotonic() < ready + FOUND_S:
        time.sleep(ASK_AGAIN_S)
    return time.monotonic()


def _report(
    bench: Bench, heard: Heard, happened: Sequence[Table], expected: Mapping[int, HeardNumbers], before: Report | None
) -> Report:
    """Return what is heard so far, after what a run before this one has."""
    answers, errors = list(heard.answers), list(heard.errors)
    times = {model: list(moments) for model, moments in heard.at.items()}
    first = min(moments[0] for moments in times.values())
    faults = [
        {
            "fault": entry["fault"],
            "board": entry["board"],
            "at": entry["at"] - first,
            "silent_s": max(_longest(moments, entry["at"], entry["until"]) for moments in times.values()),
        }
        for entry in happened
    ]
    found = {
        "requests": len(answers),
        "lost": errors,
        "again": heard.again,
        "different": sum(not _same(expected[number], answer) for number, answer in answers),
        "faults": faults,
    }
    return {
        "suite": "faults",
        "lab": bench.lab.name,
        "scale": bench.lab.scale,
        **({name: before[name] + value for name, value in found.items()} if before is not None else found),
        "a_second": {model: _a_second([moment - first for moment in moments]) for model, moments in times.items()},
    }


def in_turn(names: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """Return so many names, all of them equally often, in a random order."""
    found: list[str] = []
    while len(found) < count:
        found += rng.sample(names, len(names))
    return found[:count]


def seconds_by_fault(report: Table) -> list[tuple[str, int, float, float]]:
    """Return of every sort of fault how many there were, and the median and worst seconds without a token."""
    found = []
    for name in FAULTS:
        times = [entry["silent_s"] for entry in report["faults"] if entry["fault"] == name]
        if times:
            found.append((name, len(times), statistics.median(times), max(times)))
    return found


def _longest(times: Sequence[float], start: float, end: float) -> float:
    """Return the longest time between two moments, or the ends, of those between start and end."""
    moments = [start, *(moment for moment in times if start < moment < end), end]
    return max(after - before for before, after in pairwise(moments))


def _a_second(times: Sequence[float]) -> list[int]:
    """Return how many moments lie in every second."""
    found = [0] * (int(max(times)) + 1)
    for moment in times:
        found[int(moment)] += 1
    return found


def _same(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(abs(a - b) <= DEVIATION for a, b in zip(one, other, strict=True))
