"""`bench faults`: a service on a lab answers the same requests twice, in a calm run, and while boards and ranks fail.

Requests are embeddings and greedy answers of a language model, all of token ids, several clients at once. In the second
run faults come one after the other, each at a random moment after all models are ready again. Every answer is compared
with that of the calm run. A client whose connection breaks because the service itself is killed asks again, as clients
do; nothing else is asked twice.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from launch.base import shell
from launch.lab import up as lab_up
from launch.lab.lab import Host, Lab, load_lab
from solver.base.errors import HeptiError
from solver.cluster.cluster import GIB

CLIENTS = 2  # of each model
TOKENS = 24  # of an answer
PATIENCE_S = 300.0  # for one answer, or until the service is ready
LASTS_S = 10.0  # what is mended again, but for a rank that is frozen
FROZEN_S = 5.0
DEVIATION = 1e-4  # of a calm embedding's numbers
ASK_AGAIN_S = 0.2
FOUND_S = 6.0  # in which any fault is found
LEFT_GIB = 0.1  # where memory is short
Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BenchQuestion:
    """One request: to which endpoint, and what."""

    path: str
    body: Table


@dataclass(slots=True)
class Heard:
    """What clients have heard, all times by the monotonic clock.

    Parameters
    ----------
    answers
        By the number of the question, each as often as it was asked.
    at
        When a token or an embedding came, by model.
    again
        How often a question was asked again, since the service was gone.
    errors
        What was answered in their place.
    """

    answers: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    at: dict[str, list[float]] = field(default_factory=dict)
    again: int = 0
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StartedService:
    """`launch serve` on a lab: its process, and where it listens."""

    process: shell.Process
    port: int

    def get(self, path: str) -> tuple[int, bytes]:
        """Return what a path has: status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            if path == "/events":  # without an end
                while not (line := answer.readline()).startswith(b"data:"):
                    pass
                return answer.status, line.removeprefix(b"data:")
            return answer.status, answer.read()
        finally:
            connection.close()

    def wait_ready(self) -> None:
        """Wait until all models are ready.

        Raises
        ------
        HeptiError
            If they are not after PATIENCE_S.
        """
        end, last = time.monotonic() + PATIENCE_S, b""
        while time.monotonic() < end:
            try:
                status, last = self.get("/health")
            except OSError:
                status = 0
            if status == http.HTTPStatus.OK:
                return
            time.sleep(ASK_AGAIN_S)
        raise HeptiError(f"the service was not ready after {PATIENCE_S:.0f} s: {last.decode(errors='replace')}")

    def state(self) -> dict[str, Any]:
        """Return how boards and models are."""
        found: dict[str, Any] = json.loads(self.get("/events")[1])
        return found


class Bench:
    """A service on a lab, and those who ask it.

    Parameters
    ----------
    lab
        Up, with sshd.
    models
        Weights files: a language model, and an encoder.
    port
        For the service.
    log
        What the service says.
    """

    def __init__(self, lab: Lab, models: Sequence[Path], port: int, log: Path) -> None:
        self.lab, self._models, self._port, self._log = lab, models, port, log
        self.service = self._start()

    def _start(self) -> StartedService:
        words = [sys.executable, "-m", "launch", "serve", "--lab", self.lab.name, "--port", str(self._port)]
        words += ["--sequences", str(CLIENTS)]
        for model in self._models:
            words += ["--model", str(model)]
        return StartedService(shell.start_logged(words, shell.environment(), self._log), self._port)

    def start_again(self) -> None:
        """Start the service again, which was killed."""
        shell.wait(self.service.process)
        self.service = self._start()

    def end(self) -> int:
        """End the service; return its exit code."""
        self.service.process.send_signal(signal.SIGTERM)
        code = shell.wait(self.service.process, 60.0)
        if code is None:
            self.service.process.kill()
            raise HeptiError("the service did not end within a minute of SIGTERM")
        return code

    def ranks(self) -> list[tuple[str, int]]:
        """Return the ranks that are there: board, process number."""
        found = self.service.state()["boards"]
        return [(board["name"], rank["pid"]) for board in found for rank in board["ranks"]]

    def ask(self, questions: Sequence[BenchQuestion], until: Callable[[], bool]) -> Heard:
        """Ask all questions once, and go on from the first as long as it is not `until`; return what was heard."""
        heard, lock = Heard(), threading.Lock()
        by_path: dict[str, list[int]] = {}
        for number, question in enumerate(questions):
            by_path.setdefault(question.path, []).append(number)

        def client(numbers: Iterator[int]) -> None:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                self._ask(number, questions[number], heard)

        def endless(numbers: Sequence[int]) -> Iterator[int]:
            yield from numbers
            while not until():
                yield from numbers

        sources = [endless(numbers) for numbers in by_path.values()]
        threads = [threading.Thread(target=client, args=(source,)) for source in sources for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return heard

    def _ask(self, number: int, question: BenchQuestion, heard: Heard) -> None:
        """Ask until there is an answer, or an error."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                answer = self._answer(question, heard)
            except (OSError, http.client.HTTPException):
                heard.again += 1
                time.sleep(ASK_AGAIN_S)
                continue
            except HeptiError as error:
                heard.errors.append(f"request {number}: {error}")
                return
            heard.answers.append((number, answer))
            return
        heard.errors.append(f"request {number}: no answer within {PATIENCE_S:.0f} s")

    def _answer(self, question: BenchQuestion, heard: Heard) -> tuple[float, ...]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            connection.request("POST", question.path, json.dumps(question.body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise HeptiError(f"{answer.status}: {answer.read().decode(errors='replace')}")
            times = heard.at.setdefault(str(question.body["model"]), [])
            if not question.body.get("stream"):
                vector = json.loads(answer.read())["data"][0]["embedding"]
                times.append(time.monotonic())
                return tuple(vector)
            return tuple(_tokens(answer, times))
        finally:
            connection.close()


def _tokens(answer: http.client.HTTPResponse, times: list[float]) -> Iterator[float]:
    """Yield the tokens of a stream of completions.

    Raises
    ------
    ConnectionError
        If it ends before its end.
    HeptiError
        If an error comes in the stream.
    """
    while line := answer.readline():
        if not line.startswith(b"data:"):
            continue
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        entry = json.loads(data)
        if "error" in entry:
            raise HeptiError(str(entry["error"]["message"]))
        for choice in entry["choices"]:
            for token in (choice.get("logprobs") or {}).get("tokens", ()):
                times.append(time.monotonic())
                yield float(token.removeprefix("token_id:"))
    raise ConnectionError("the stream has no end")


def questions_of(
    model: str, vocab: int, encoder: str, encoder_vocab: int, count: int, rng: random.Random
) -> list[BenchQuestion]:
    """Return requests of random tokens, embeddings and answers in turn."""
    found = []
    for number in range(count):
        if number % 2:
            tokens = [rng.randrange(encoder_vocab) for _ in range(rng.randint(4, 60))]
            found.append(BenchQuestion("/v1/embeddings", {"model": encoder, "input": tokens}))
        else:
            tokens = [rng.randrange(vocab) for _ in range(rng.randint(2, 60))]
            body = {
                "model": model, "prompt": tokens, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True,
                "stream": True, "logprobs": 0,
            }  # fmt: skip
            found.append(BenchQuestion("/v1/completions", body))
    return found


# Faults: each is done in a `with`, and mended at its end.


def _tell_lab(*words: str) -> None:
    shell.run([sys.executable, "-m", "launch", "lab", *words])


def _some_rank(bench: Bench, rng: random.Random) -> tuple[str, int]:
    """Return a rank by chance, once there is one: board, process number."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if ranks := bench.ranks():
            return rng.choice(ranks)
        time.sleep(ASK_AGAIN_S)
    raise HeptiError(f"the service had no ranks for {PATIENCE_S:.0f} s")


@contextmanager
def kill_rank(bench: Bench, rng: random.Random) -> Iterator[str]:
    """Kill a rank."""
    board, pid = _some_rank(bench, rng)
    os.kill(pid, signal.SIGKILL)
    yield board


@contextmanager
def kill_mpirun(bench: Bench, rng: random.Random) -> Iterator[str]:
    """Kill an mpirun, which is a process below the service."""
    starters = [pid for pid in _below(bench.service.process.pid) if _name(pid) in ("prterun", "mpirun")]
    os.kill(rng.choice(starters), signal.SIGKILL)
    yield ""


@contextmanager
def kill_service(bench: Bench, rng: random.Random) -> Iterator[str]:
    """Kill the service itself, and start it again at once."""
    bench.service.process.kill()
    bench.start_again()
    yield ""


@contextmanager
def freeze_rank(bench: Bench, rng: random.Random) -> Iterator[str]:
    """Stop a rank for a while."""
    board, pid = _some_rank(bench, rng)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield board
        time.sleep(FROZEN_S)
    finally:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:  # the service has ended it
            return


@contextmanager
def cut_cable(bench: Bench, rng: random.Random) -> Iterator[str]:
    """Unplug a board."""
    host = rng.choice(bench.lab.hosts)
    _tell_lab("cut", bench.lab.name, host.name)
    try:
        yield host.name
        time.sleep(LASTS_S)
    finally:
        _tell_lab("mend", bench.lab.name, host.name)


def setting(words: Callable[[Lab, Host], tuple[str, str]]) -> Callable[..., Any]:
    """Return the fault of a board that is set to something else: `words` are what is set, and what was."""

    @contextmanager
    def fault(bench: Bench, rng: random.Random) -> Iterator[str]:
        lab = load_lab(bench.lab.name)
        host = rng.choice(lab.hosts)
        other, before = words(lab, host)
        _tell_lab("set", bench.lab.name, host.name, other)
        try:
            yield host.name
            time.sleep(LASTS_S)
        finally:
            _tell_lab("set", bench.lab.name, host.name, before)

    return fault


def _thin_link(_: Lab, host: Host) -> tuple[str, str]:
    rate = host.bandwidth_bytes_per_s * 8 / 1e6
    return f"bandwidth_mbps={0.05 * rate:.3g}", f"bandwidth_mbps={rate!r}"


def _short_memory(lab: Lab, host: Host) -> tuple[str, str]:
    used = lab_up.usage(lab)[lab.hosts.index(host)]["memory_used_gib"]
    # A cap below what is used the kernel refuses.
    return f"memory_gib={used + LEFT_GIB:.4f}", f"memory_gib={host.memory_bytes / GIB!r}"


FAULTS: Mapping[str, Callable[[Bench, random.Random], Any]] = {
    "rank killed": kill_rank,
    "mpirun killed": kill_mpirun,
    "service killed": kill_service,
    "rank frozen": freeze_rank,
    "cable cut": cut_cable,
    "link at 5 %": setting(_thin_link),
    "CPU at a tenth": setting(lambda lab, host: ("cpu=10%", f"cpu={100 * host.cpu!r}%")),
    "memory short": setting(_short_memory),
}


def bench_faults(bench: Bench, questions: Sequence[BenchQuestion], faults: int, rng: random.Random) -> dict[str, Any]:
    """Ask all questions in a calm run, then while things fail; return what came of it."""
    bench.service.wait_ready()
    began = time.monotonic()
    calm = bench.ask(questions, lambda: True)
    calm_s = time.monotonic() - began
    if calm.errors:
        raise HeptiError(f"the calm run was none: {calm.errors[0]}")
    expected = dict(calm.answers)
    happened: list[dict[str, Any]] = []
    over = threading.Event()
    trouble: list[BaseException] = []

    def fail() -> None:
        try:
            names = _in_turn([*FAULTS], faults, rng)
            for name in names:
                bench.service.wait_ready()
                time.sleep(rng.uniform(1.0, 3.0))
                entry: dict[str, Any] = {"fault": name, "at": time.monotonic()}
                happened.append(entry)
                with FAULTS[name](bench, rng) as board:
                    entry["board"] = board
                print(f"{len(happened)} of {faults}: {name} {entry['board']}", file=sys.stderr, flush=True)
                time.sleep(FOUND_S)  # until then the service may not know
            bench.service.wait_ready()
        except BaseException as error:  # told by the thread that waits for this one
            trouble.append(error)
        finally:
            over.set()

    failing = threading.Thread(target=fail)
    failing.start()
    heard = bench.ask(questions, over.is_set)
    failing.join()
    if trouble:
        raise trouble[0]
    ends = [entry["at"] for entry in happened[1:]] + [time.monotonic()]
    for entry, end in zip(happened, ends, strict=True):
        entry["silent_s"] = max(_longest(times, entry["at"], end) for times in heard.at.values())
    first = min(times[0] for times in heard.at.values())
    return {
        "suite": "faults",
        "lab": bench.lab.name,
        "scale": bench.lab.scale,
        "requests": len(heard.answers),
        "calm_s": calm_s,
        "lost": heard.errors,
        "again": heard.again,
        "different": sum(not _same(expected[number], answer) for number, answer in heard.answers),
        "faults": [entry | {"at": entry["at"] - first} for entry in happened],
        "a_second": {model: _a_second([moment - first for moment in times]) for model, times in heard.at.items()},
    }


def seconds_by_fault(report: Table) -> list[tuple[str, int, float, float]]:
    """Return of every sort of fault how many there were, and the median and worst seconds without a token."""
    found = []
    for name in FAULTS:
        times = [entry["silent_s"] for entry in report["faults"] if entry["fault"] == name]
        if times:
            found.append((name, len(times), statistics.median(times), max(times)))
    return found


def _in_turn(names: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """Return so many names, all of them equally often, in a random order."""
    found: list[str] = []
    while len(found) < count:
        found += rng.sample(names, len(names))
    return found[:count]


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


def _below(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_below(int(child))]
    return found


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
