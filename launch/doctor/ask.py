"""Ask the hosts of a hostfile, over ssh or a lab's agent, what the doctor wants to know."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from launch.base import shell
from launch.base.json_output import printed
from launch.base.sent import sent
from launch.doctor.findings import HostAnswer
from launch.start.reach import FAILED, SSH, remote
from solver.base.errors import HeptiError

T = TypeVar("T")
ANSWER_S = 60.0
# The host's own limit for a trial of onnxruntime is 120 s.
TRIAL_S = 150.0
# Begins our output, after whatever the host's .bashrc says.
MARK = "hepti-doctor"
PROBE = Path(__file__).with_name("probe.py")


def ask_all(hosts: Sequence[str], python: str, agent: str, model: str) -> list[HostAnswer]:
    """Ask every host, all at the same time."""
    return _on_each(hosts, lambda host: ask(host, python, agent, model))


def look_at_all(hosts: Sequence[str], python: str, agent: str) -> list[HostAnswer]:
    """Ask every host, all at the same time, for what takes no computing."""
    return _on_each(hosts, lambda host: look_at(host, python, agent))


def ask(host: str, python: str, agent: str, model: str) -> HostAnswer:
    """Ask one host for its facts, what computes there, and the fingerprint of its weights file."""
    answer = look_at(host, python, agent)
    if answer.facts is None:
        return answer
    answer = _with_kernels(answer, python, agent)
    return _with_model(answer, python, agent, model) if model else answer


def look_at(host: str, python: str, agent: str) -> HostAnswer:
    """Ask one host for its facts."""
    # As mpirun does: to our directory where the host has it, and a shell without login.
    # Before all else the environment's programs, as `hepti run` takes them.
    script = (
        f"cd {shlex.quote(str(Path.cwd()))} 2>/dev/null; PATH={shlex.quote(str(Path(python).parent))}:$PATH; "
        f"echo {MARK}; "
        'echo "$(mpirun --version 2>/dev/null | head -n 1)"; echo "$(command -v prted orted | head -n 1)"; '
        f"exec {shlex.quote(python)} -"
    )
    code, out, error = shell.attempt(remote(host, agent, script), ANSWER_S, stdin=sent(PROBE))
    if code in (FAILED, 124):
        return HostAnswer(host, reached=False, error=_last_line(error))
    mpi, daemon, facts = (out.partition(f"{MARK}\n")[2] + "\n\n").split("\n", 2)
    answer = HostAnswer(host, reached=True, error=_last_line(error) or f"exit code {code}", mpi=mpi, daemon=daemon)
    if code:
        return answer
    try:
        return replace(answer, facts=printed(facts, python), error="")
    except HeptiError as complaint:
        return replace(answer, error=str(complaint))


def ask_pairs(hosts: Sequence[str], agent: str) -> dict[str, list[str]]:
    """Return, for every host, the others that it reaches by ssh."""
    tries = " ".join(
        f"({shlex.join([*SSH, '-n', '--', peer, 'true'])} >/dev/null 2>&1 && echo {shlex.quote(peer)}) &"
        for peer in hosts
    )
    answers = _on_each(hosts, lambda host: shell.attempt(remote(host, agent, f"{tries} wait"), ANSWER_S)[1].split())
    return dict(zip(hosts, answers, strict=True))


def _with_kernels(answer: HostAnswer, python: str, agent: str) -> HostAnswer:
    """Ask which backend computes there; where that has no answer, others say what is wrong with the host."""
    script = f"cd {shlex.quote(str(Path.cwd()))} 2>/dev/null; {shlex.join([python, '-m', 'hepti_mpi.kernels.trial'])}"
    code, out, _ = shell.attempt(remote(answer.host, agent, script), TRIAL_S)
    if code:
        return answer
    try:
        return replace(answer, kernels=printed(out, f"{python} -m hepti_mpi.kernels.trial"))
    except HeptiError as complaint:
        return replace(answer, kernels={"backend": "numpy", "missing": False, "why": str(complaint)})


def _with_model(answer: HostAnswer, python: str, agent: str, model: str) -> HostAnswer:
    command = shlex.join([python, "-m", "weights.file.facts", model])
    script = f"cd {shlex.quote(str(Path.cwd()))} 2>/dev/null; {command}"
    code, out, error = shell.attempt(remote(answer.host, agent, script), ANSWER_S)
    if code:
        return replace(answer, model_error=_last_line(error))
    try:
        facts = printed(out, f"{python} -m weights.file.facts")
    except HeptiError as error:
        return replace(answer, model_error=str(error))
    if facts.get("absent"):
        return replace(answer, model_absent=True)
    return replace(
        answer, fingerprint=facts["fingerprint"], model_bytes=facts["bytes"], model_kind=facts.get("kind", "")
    )


def _on_each(hosts: Sequence[str], work: Callable[[str], T]) -> list[T]:
    with ThreadPoolExecutor(max_workers=max(1, len(hosts))) as pool:
        return list(pool.map(work, hosts))


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
