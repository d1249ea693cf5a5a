"""The peers of `bench compare`, as their own programs: distributed-llama over boards, llama.cpp on one.

Both read the weights that Hepti reads, with the same levels and scales (`hepti export`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from launch.base import shell
from launch.base.json_output import printed
from launch.compare.checkout import HERE, in_checkout
from launch.lab.agent import on_host
from launch.lab.lab import Host, Lab
from launch.start.last_words import why_ended
from solver.base.errors import HeptiError, explained

PORT = 9990
LETTERS = 26  # ids 0 to 25 are letters in what `weights export` writes for distributed-llama
READY_S, RUN_S = 30.0, 1800.0  # of the lab
POLL_S = 0.1
MODES = ("spins", "blocks")  # while it waits for messages: --net-turbo 1, its default, and 0
PREDICTED = re.compile(r"Pred\s+(\d+) ms Sync\s+(\d+) ms \|.*?\| (.*)$", re.MULTILINE)
SUMMARY = re.compile(
    r"^Evaluation$.*?nTokens: (\d+)$.*?\(([\d.]+) ms/tok\).*?^Prediction$.*?nTokens: (\d+)$.*?\(([\d.]+) ms/tok\)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Answered:
    """What a system took for the answer to one prompt.

    Parameters
    ----------
    first_s
        From the prompt to the first token.
    token_s
        Of every further token, on average.
    prompt_per_s
        Tokens of the prompt a second.
    ids
        The tokens.
    """

    first_s: float
    token_s: float
    prompt_per_s: float
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """What everybody is asked: equally long prompts, the first of which warms up, and so many tokens after each.

    Prompts are letters for distributed-llama, and end with id 0, which it takes for the last one of any prompt: it
    reads one place beyond (src/dllama.cpp, `token = inputTokens[pos + 1]`, at 8d624a7).
    """

    prompts: tuple[tuple[int, ...], ...]
    tokens: int
    context: int


@dataclass(frozen=True, slots=True)
class Dllama:
    """distributed-llama on some hosts of a lab, the first of which leads.

    Parameters
    ----------
    program, model
        `dllama`, and its .m, beside which a .t lies.
    mode
        One of `MODES`; alone it has nobody to wait for.
    """

    program: Path
    model: Path
    lab: Lab
    hosts: Sequence[Host]
    mode: str = ""

    def run(self, task: Task, files: Path) -> list[Answered]:
        """Answer the last prompt once; it is loaded anew for every one.

        Raises
        ------
        HeptiError
            If it fails: what it said.
        """
        prompt = "".join(chr(ord("a") + token) for token in task.prompts[-1])
        turbo = ["--net-turbo", "1" if self.mode == "spins" else "0"]
        # Its first prediction takes the last token of the prompt.
        steps = len(prompt) - 1 + task.tokens
        root, *others = self.hosts
        command = [str(self.program), "inference", "--model", str(self.model)]
        command += ["--tokenizer", str(self.model.with_suffix(".t")), "--buffer-float-type", "q80", *turbo]
        command += ["--nthreads", str(root.threads), "--steps", str(steps), "--temperature", "0"]
        command += ["--max-seq-len", str(task.context), "--prompt", prompt]
        if others:
            command += ["--workers", *(f"{host.address}:{PORT}" for host in others)]
        with self._workers(others, turbo, files):
            code, out, error = shell.attempt(on_host(self.lab, root, command), RUN_S / self.lab.scale)
        if code or "Critical error" in out:
            raise HeptiError(why_ended(_complaint(out) or error or out, code, program="dllama"))
        return [parse_dllama(out, self.lab.scale)]

    @contextmanager
    def _workers(self, hosts: Sequence[Host], turbo: Sequence[str], files: Path) -> Iterator[None]:
        """Let a worker wait on every one of these hosts; they end with us."""
        started = []
        try:
            for host in hosts:
                command = [str(self.program), "worker", "--host", host.address, "--port", str(PORT)]
                command += ["--nthreads", str(host.threads), *turbo]
                ends_with_us = ["setpriv", "--pdeathsig", "TERM", "--", *on_host(self.lab, host, command)]
                started.append(shell.start_logged(ends_with_us, shell.environment(), files / f"{host.name}.log"))
            end = time.monotonic() + READY_S / self.lab.scale
            while not all(self._listens(host) for host in hosts):
                if time.monotonic() > end:
                    raise HeptiError(f"its workers do not listen after {READY_S:g} s")
                time.sleep(POLL_S)
            yield
        finally:
            for process in started:
                process.kill()
                process.wait()

    def _listens(self, host: Host) -> bool:
        command = ["ip", "netns", "exec", self.lab.namespace(host), "ss", "-ltnH", f"sport = :{PORT}"]
        return bool(shell.run(command).strip())


def _complaint(out: str) -> str:
    return "\n".join(line.partition("error: ")[2] for line in out.splitlines() if "Critical error" in line)


def parse_dllama(output: str, scale: float) -> Answered:
    """Return what distributed-llama says of a generation, in the lab's seconds.

    Its totals have hundredths of a millisecond a token; the first token's line has whole ones.

    Raises
    ------
    HeptiError
        If it says nothing of the kind.
    """
    summary, lines = SUMMARY.search(output), PREDICTED.findall(output)
    if summary is None or len(lines) < 2:
        raise HeptiError(f"dllama printed no times: {why_ended(output, 0, program='dllama')}")
    evaluated, evaluation_ms, predicted, prediction_ms = (float(word) for word in summary.groups())
    prompt_s, all_s = (ms / 1e3 * scale for ms in (evaluated * evaluation_ms, predicted * prediction_ms))
    first_s = sum(map(int, lines[0][:2])) / 1e3 * scale
    return Answered(
        first_s=prompt_s + first_s,
        token_s=(all_s - first_s) / (len(lines) - 1),
        prompt_per_s=evaluated / prompt_s,
        ids=tuple(_id(word) for _, _, word in lines),
    )


def _id(word: str) -> int:
    """Return the id of a word of `weights export`'s; -1 of the one that begins texts, which is not printed."""
    if word.startswith("<t"):
        return int(word[2:-1])
    return -1 if word == "~" else ord(word) - ord("a")


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """llama.cpp on one host, by the Python that llama-cpp-python is installed in."""

    python: Path
    model: Path
    lab: Lab
    host: Host
    versions: dict[str, str] = field(default_factory=dict)

    def run(self, task: Task, files: Path) -> list[Answered]:
        """Answer all prompts; errors as `Dllama.run`."""
        path = files / "prompts.jsonl"
        program = [str(self.python), "-m", "launch.single.on_llamacpp", "--model", str(self.model)]
        program += ["--input", str(path), "--tokens", str(task.tokens), "--context", str(task.context)]
        program += ["--threads", str(self.host.threads)]
        command = on_host(self.lab, self.host, in_checkout(HERE, program))
        code, out, error = shell.attempt(command, RUN_S / self.lab.scale)
        if code:
            raise HeptiError(why_ended(error, code, program="launch.single.on_llamacpp"))
        with explained("launch.single.on_llamacpp", (KeyError, TypeError)):
            said = printed(out, "launch.single.on_llamacpp")
            self.versions["llama-cpp-python"] = said["version"]
            return [answered(task, **answer) for answer in said["answers"]]


def answered(task: Task, first_s: float, token_s: float, new_tokens: Sequence[int]) -> Answered:
    """Return what an engine says that chooses the first token in the step that ends the prompt."""
    return Answered(first_s, token_s, len(task.prompts[-1]) / first_s, tuple(new_tokens))
