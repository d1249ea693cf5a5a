"""`python -m launch`: labs, the doctor, hostfiles, services, benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from solver.base import stopping
from solver.base.command import Parser
from solver.base.errors import HeptiError
from solver.base.front import program, typed

# What adds each command, as --help lists them.
COMMANDS = {
    "lab": "launch.lab.command",
    "doctor": "launch.doctor.command",
    "hostfile": "launch.doctor.command",
    "install": "launch.install.command",
    "get": "launch.install.get",
    "serve": "launch.serve.command",
    "bench": "launch.bench.command",
}


def load() -> stopping.Main:
    """Import what the command asked for needs, which takes long."""
    _modules(sys.argv[1:])
    return main


def main(arguments: Sequence[str]) -> int:
    """Run a command line; return the exit code: 0 done, 1 failed, 2 bad usage or input."""
    parser: argparse.ArgumentParser = Parser(
        prog=program("python -m launch"),
        description="Start Hepti: virtual labs, installation and checks of boards, hostfiles, services, benchmarks.",
        epilog="example: hepti lab up mixed4",
    )
    parser.add_argument("--debug", action="store_true", help="show where an error comes from")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in _modules(arguments):
        module.add_parser(subparsers)
    # What follows the first -- is another program's command line.
    split = arguments.index("--") if "--" in arguments else len(arguments)
    try:
        options = parser.parse_args(arguments[:split])
        options.program = list(arguments[split + 1 :])
        code: int = options.function(options)
    except (HeptiError, OSError) as error:
        if "--debug" in arguments[:split] or stopping.of_output(error):
            raise
        print(f"{typed('python -m launch', arguments)}: {_complaint(error)}", file=sys.stderr)
        return 2 if isinstance(error, HeptiError) else 1
    return code


def _modules(arguments: Sequence[str]) -> list[ModuleType]:
    """Return what adds the command that is asked for, or all: what benchmarks need takes 0.4 s to import."""
    asked = next((word for word in arguments if not word.startswith("-")), None)
    names = [COMMANDS[asked]] if asked in COMMANDS else dict.fromkeys(COMMANDS.values())
    return [import_module(name) for name in names]


def _complaint(error: HeptiError | OSError) -> str:
    """Return the line that says what is wrong: of the operating system the file and its own words."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


if __name__ == "__main__":
    stopping.run("python -m launch", load)
