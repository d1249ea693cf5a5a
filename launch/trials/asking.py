"""A service on a lab, and clients that ask it: embeddings and greedy answers of a language model, all of token ids.

A client whose connection breaks because the service itself is killed asks again, as clients do; nothing else is asked
twice.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, takewhile
from pathlib import Path
from typing import Any

from launch.base import shell
from launch.lab import up as lab_up
from launch.lab.lab import Lab, lab_name, plan_lab
from solver.base.errors import HeptiError
from solver.cluster.named import find_cluster

MOST_SEQUENCES = 8  # of a language model together
PATIENCE_S = 300.0  # for one answer, or until the service is ready
ASK_AGAIN_S = 0.2
WHOLE_S = 90.0  # until boards that are back are in: more than a board is left out for at first
END_S = 60.0
LEAVE_S = 20.0  # an agent that hears nothing of its service leaves after 15 s
Table = Mapping[str, Any]
HeardNumbers = tuple[float, ...]  # tokens, or an embedding


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
    took_s
        Of every request that was answered, by model.
    again
        How often a question was asked again, since the service was gone.
    errors
        What was answered in their place.
    """

    answers: list[tuple[int, HeardNumbers]] = field(default_factory=list)
    at: dict[str, list[float]] = field(default_factory=dict)
    took_s: dict[str, list[float]] = field(default_factory=dict)
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

    def wait_whole(self, boards: int) -> None:
        """Wait until all models are planned for so many boards; one that is left out for longer is not waited for."""
        end = time.monotonic() + WHOLE_S
        while time.monotonic() < end:
            self.wait_ready()
            if all(len(model["planned_for"]) == boards for model in self.state()["models"]):
                return
            time.sleep(ASK_AGAIN_S)

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
    clients
        Of each model, at once.
    """

    def __init__(self, lab: Lab, models: Sequence[Path], port: int, log: Path, clients: int) -> None:
        self.lab, self._models, self._port, self._log, self._clients = lab, models, port, log, clients
        self._going = threading.Event()
        self._going.set()
        self.service = self._start()

    def _start(self) -> StartedService:
        words = [sys.executable, "-m", "launch", "serve", "--lab", self.lab.name, "--port", str(self._port)]
        words += ["--sequences", str(min(self._clients, MOST_SEQUENCES))]
        for model in self._models:
            words += ["--model", str(model)]
        return StartedService(shell.start_logged(words, shell.environment(), self._log), self._port)

    def start_again(self) -> None:
        """Start the service again, which was killed."""
        shell.wait(self.service.process)
        self.service = self._start()

    def end(self) -> int:
        """End the service, where it runs; return how many processes it leaves on the hosts.

        Raises
        ------
        HeptiError
            If it does not end.
        """
        process = self.service.process
        if shell.wait(process, 0.0) is None:
            process.send_signal(signal.SIGTERM)
            if shell.wait(process, END_S) is None:
                process.kill()
                raise HeptiError(f"the service did not end within {END_S:.0f} s of SIGTERM")
        end = time.monotonic() + LEAVE_S
        while (left := self._left()) and time.monotonic() < end:
            time.sleep(ASK_AGAIN_S)
        return left

    def _left(self) -> int:
        """Return how many processes the hosts have besides their sshd."""
        return int(sum(use["processes"] for use in lab_up.usage(self.lab))) - len(self.lab.hosts)

    def ranks(self) -> list[tuple[str, int]]:
        """Return the ranks that are there: board, process number."""
        return [(board["name"], rank["pid"]) for board, rank in self._ranks()]

    def jobs(self) -> set[int]:
        """Return the numbers of the models' jobs."""
        return {rank["job"] for _, rank in self._ranks()}

    def _ranks(self) -> list[tuple[Any, Any]]:
        return [(board, rank) for board in self.service.state()["boards"] for rank in board["ranks"]]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Have nothing asked anew within the block: the service takes boards that are back in at once."""
        self._going.clear()
        try:
            yield
        finally:
            self._going.set()

    def ask(
        self,
        questions: Sequence[BenchQuestion],
        until: Callable[[], bool] = lambda: True,
        heard: Heard | None = None,
    ) -> Heard:
        """Ask all questions once, and go on from each model's first as long as it is not `until`.

        Parameters
        ----------
        heard
            Gets what is heard meanwhile, too.
        """
        heard, lock = heard or Heard(), threading.Lock()
        by_path: dict[str, list[int]] = {}
        for number, question in enumerate(questions):
            by_path.setdefault(question.path, []).append(number)

        def client(numbers: Iterator[int]) -> None:
            while True:
                self._going.wait()
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                self._ask(number, questions[number], heard)

        def endless(numbers: Sequence[int]) -> Iterator[int]:
            yield from numbers
            yield from takewhile(lambda number: not until(), cycle(numbers))

        sources = [endless(numbers) for numbers in by_path.values()]
        threads = [threading.Thread(target=client, args=(source,)) for source in sources for _ in range(self._clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return heard

    def _ask(self, number: int, question: BenchQuestion, heard: Heard) -> None:
        """Ask until there is an answer, or an error."""
        began = time.monotonic()
        while time.monotonic() < began + PATIENCE_S:
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
            heard.took_s.setdefault(str(question.body["model"]), []).append(time.monotonic() - began)
            return
        heard.errors.append(f"request {number}: no answer within {PATIENCE_S:.0f} s")

    def _answer(self, question: BenchQuestion, heard: Heard) -> HeardNumbers:
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


@contextmanager
def serving(cluster: str, suffix: str, models: Sequence[Path], clients: int, files: Path) -> Iterator[Bench]:
    """Give a service that is ready, on a lab of its own that goes with it.

    Raises
    ------
    HeptiError
        If it does not get ready.
    """
    name = f"{lab_name(cluster)}-{suffix}"
    with lab_up.brought_up(plan_lab(name, find_cluster(cluster), ssh=True)) as lab:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        bench = Bench(lab, models, port, files / "service.log", clients)
        try:
            bench.service.wait_ready()
            yield bench
        finally:
            bench.end()


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
