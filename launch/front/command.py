"""The command line of `hepti`: what each command calls."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.base import shell
from launch.front.job import run_job
from launch.front.places import split
from launch.install.get import fetched
from solver.base.errors import HeptiError
from solver.base.front import CALLED
from solver.base.hub import CHAT
from solver.base.phrases import did_you_mean


@dataclass(frozen=True, slots=True)
class FrontCommand:
    """A command: what runs it, and what it is for.

    Parameters
    ----------
    words
        After `python -m`.
    on_hosts
        Whether mpirun starts it, on hosts.
    """

    words: tuple[str, ...]
    about: str
    on_hosts: bool = False


COMMANDS = {
    "run": FrontCommand(("hepti_mpi",), "encode texts, classify images", on_hosts=True),
    "generate": FrontCommand(("hepti_mpi", "generate"), "answer prompts, or chat", on_hosts=True),
    "rerank": FrontCommand(("hepti_mpi", "rerank"), "show which documents answer a query best", on_hosts=True),
    "serve": FrontCommand(("launch", "serve"), "answer requests over HTTP"),
    "profile": FrontCommand(("hepti_mpi", "profile"), "measure boards, and write a cluster file", on_hosts=True),
    "plan": FrontCommand(("solver",), "plan for boards that need not be there"),
    "get": FrontCommand(("launch", "get"), "list and fetch models"),
    "convert": FrontCommand(("weights", "convert"), "make a weights file of a checkpoint, a GGUF or an ONNX file"),
    "synthesize": FrontCommand(("weights", "synthesize"), "make a weights file of random numbers"),
    "inspect": FrontCommand(("weights", "inspect"), "show what a weights file holds"),
    "verify": FrontCommand(("weights", "verify"), "check every number of a weights file"),
    "export": FrontCommand(("weights", "export"), "write a language model for another engine"),
    "install": FrontCommand(("launch", "install"), "make the same environment on every board"),
    "doctor": FrontCommand(("launch", "doctor"), "find what is wrong with boards, and how to fix it"),
    "lab": FrontCommand(("launch", "lab"), "make a virtual cluster of this machine"),
    "bench": FrontCommand(("launch", "bench"), "measure systems side by side"),
}
SHELLS = ("bash", "zsh")
HELP = f"""\
usage: hepti COMMAND …

One transformer, language model or convolutional network, split unevenly over
unequal small computers.

{chr(10).join(f"  {name:<12}{command.about}" for name, command in COMMANDS.items())}
  completion  print what {" or ".join(SHELLS)} completes of these

`run`, `generate`, `rerank` and `profile` start on
  --hosts pi-0,pi-1,pi-2   these hosts, one rank each
  --hostfile F             the hosts of a file, as mpirun reads it
  --np N                   so many ranks (default: one a host; without hosts one)
  --agent PROGRAM          what starts on hosts in place of ssh

examples:
  hepti generate --chat
  hepti run --np 4
  hepti run --hosts pi-0,pi-1 --input questions.txt --output answers.jsonl
  hepti generate --hostfile pis --model llama.h5 --chat
  hepti profile --hosts pi-0,pi-1 --model bert-large.h5 --out pis.toml
  hepti plan --model bert-large --cluster mixed4

hepti COMMAND --help has the options of each, hepti --version its version.
"""
COMPLETION = f"""\
usage: hepti completion {{{",".join(SHELLS)}}}

Print what a shell completes of hepti's commands, options and paths.

examples:
  hepti completion bash > ~/.local/share/bash-completion/completions/hepti
  hepti completion zsh > "${{fpath[1]}}/_hepti"
"""
ON_HOSTS = """\
usage: hepti {name} [--hosts HOST,… | --hostfile F] [--np N] [--agent PROGRAM]
       OPTIONS

where it runs:
  --hosts HOST,…   these hosts, one rank each, rank 0 on the first
  --hostfile F     the hosts of a file, as mpirun reads it
  --np N           so many ranks (default: one a host; without hosts one)
  --agent PROGRAM  what starts on hosts in place of ssh

OPTIONS, as `{module}` has them:

"""


def main(arguments: Sequence[str]) -> int:
    """Run a command line; return the exit code: 0 done, 1 failed, 2 bad usage or input."""
    try:
        return _run(arguments)
    except HeptiError as error:
        print(f"{' '.join(['hepti', *arguments[:1]])}: {error}", file=sys.stderr)
        return 2


def _run(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    name, words = arguments[0], arguments[1:]
    if name == "--version":
        from importlib import metadata  # takes as long as all else

        print(f"hepti {metadata.version('hepti')}")
        return 0
    if name == "completion" and {"-h", "--help"} & {*words}:
        print(COMPLETION, end="")
        return 0
    if name == "completion":
        if list(words) not in [[shell] for shell in SHELLS]:
            raise HeptiError(f"for which shell? hepti completion {' or '.join(SHELLS)}")
        print(Path(__file__).with_name("completion").joinpath(f"hepti.{words[0]}").read_text(), end="")
        return 0
    if name not in COMMANDS:
        raise HeptiError(f"there is no such command{did_you_mean(name, [*COMMANDS, 'completion'])}: see hepti --help")
    command = COMMANDS[name]
    # A file of the folder that it is typed in is not to be taken for one of our packages (-P).
    module = [sys.executable, "-P", "-m", *command.words]
    # A module whose own command has this name says it after the program's.
    called = "hepti" if command.words[-1] == name and not command.on_hosts else f"hepti {name}"
    if not command.on_hosts:
        shell.become([*module, *words], {CALLED: called})
    place, words = split(words)
    if "-h" in words or "--help" in words:
        print(ON_HOSTS.format(name=name, module=" ".join(["python -m", *command.words])), end="", flush=True)
        shell.become([*module, "--help"], {CALLED: called})
    given = {word.partition("=")[0] for word in words}
    if name == "generate" and not place.hosts and "--model" not in given and given & {"--chat", "--prompt", "--input"}:
        fetched(CHAT)  # before ranks start: they find it
    if not place.hosts and place.ranks == 1:
        shell.become([*module, *words], {CALLED: called})
    return run_job(called, place, [*module, *words])
