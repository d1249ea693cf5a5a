"""`bench day`: many short requests, many clients at once, and a re-plan a minute; what grows, and who waits longest.

A host's CPU goes down and up again in turn, every time of which the encoder's plan follows. Memory is compared between
the first and the last quarter of the samples that lie after the warm-up, in which every plan has been seen.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from launch.compare.suite import Report
from launch.trials.asking import Bench, BenchQuestion, Heard
from launch.trials.sorts import tell_lab

SAMPLE_S = 2.0
SETTLED_S = 3.0  # until the service has closed what its clients have left
WARM = 0.4  # of the samples
SLOW = "cpu=60%"
SAME = "cpu=100%"


@dataclass(frozen=True, slots=True)
class Sample:
    """Of a process: resident bytes and open descriptors."""

    resident_bytes: int
    descriptors: int


def sample(pid: int) -> Sample | None:
    """Look at a process; None where it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except (OSError, ProcessLookupError):
        return None
    resident = next((line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")), "0")
    return Sample(1024 * int(resident), descriptors)


def bench_day(
    bench: Bench, questions: Sequence[BenchQuestion], every_s: float, advance: Callable[[int], None]
) -> Report:
    """Ask all questions, and of the faster model more, while the lab changes `every_s`; return what came of it.

    `advance` hears how many are done.
    """
    service = bench.service.process.pid
    names = {service: "service", **{pid: f"rank on {board}" for board, pid in bench.ranks()}}
    heard, restarts = Heard(), _restarts(bench)
    idle = {pid: sample(pid) for pid in names}
    samples: dict[int, list[Sample]] = {pid: [] for pid in names}
    over = threading.Event()
    changes = 0
    replans: dict[str, set[str]] = {}
    not_ready: dict[str, set[str]] = {}

    asked = Counter(str(question.body["model"]) for question in questions)

    def all_asked() -> bool:
        return all(len(heard.took_s.get(model, ())) >= count for model, count in asked.items())

    def look() -> None:
        done = 0
        while not over.wait(SAMPLE_S):
            now_done = sum(min(len(heard.took_s.get(model, ())), count) for model, count in asked.items())
            advance(now_done - done)
            done = now_done
            for model in bench.service.state()["models"]:  # it tells the last ones alone
                acted = (json.dumps(entry) for entry in model["replans"] if entry.get("acted"))
                replans.setdefault(model["name"], set()).update(acted)
                if model["reason"]:
                    not_ready.setdefault(model["name"], set()).add(model["reason"])
            for pid, found in samples.items():
                if (now := sample(pid)) is not None:
                    found.append(now)

    def change() -> None:
        nonlocal changes
        while not over.wait(every_s):
            changes += 1
            tell_lab("set", bench.lab.name, bench.lab.hosts[-1].name, SLOW if changes % 2 else SAME)

    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        beside = [pool.submit(look), pool.submit(change)]
        try:
            bench.ask(questions, all_asked, heard)
        finally:
            over.set()
    took_s = time.monotonic() - began
    for work in beside:
        work.result()
    time.sleep(SETTLED_S)
    after = {pid: sample(pid) for pid in names}
    return {
        "suite": "day",
        "lab": bench.lab.name,
        "scale": bench.lab.scale,
        "requests": len(heard.answers),
        "lost": heard.errors,
        "again": heard.again,
        "seconds": took_s,
        "changes": changes,
        "replans": {model: sorted(found) for model, found in replans.items()},
        "restarts": _restarts(bench) - restarts,
        "not_ready": {model: sorted(why) for model, why in not_ready.items()},
        "latency": {model: _latency(times) for model, times in heard.took_s.items()},
        "processes": [_grown(names[pid], samples[pid], idle[pid], after[pid]) | {"pid": pid} for pid in names],
    }


def _restarts(bench: Bench) -> int:
    return sum(model["restarts"] for model in bench.service.state()["models"])


def _latency(times: Sequence[float]) -> Report:
    ordered = sorted(times)
    median = statistics.median(ordered)
    high = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {
        "requests": len(ordered),
        "median_s": median,
        "p99_s": high,
        "worst_s": ordered[-1],
        "p99_by_median": high / median,
        "took_s": [*times],
    }


def _grown(name: str, samples: Sequence[Sample], idle: Sample | None, after: Sample | None) -> Report:
    """Return how memory has changed after the warm-up, and descriptors between two idle moments."""
    warm = [one.resident_bytes for one in samples[int(WARM * len(samples)) :]]
    quarter = max(1, len(warm) // 4)
    if not warm or idle is None or after is None:
        return {"process": name, "gone": True}
    first, last = statistics.median(warm[:quarter]), statistics.median(warm[-quarter:])
    return {
        "process": name,
        "first_bytes": first,
        "last_bytes": last,
        "grown": last / first - 1,
        "descriptors": after.descriptors - idle.descriptors,
        "samples": [one.resident_bytes for one in samples],
    }
