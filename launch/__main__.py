"""`python -m launch`: labs, the doctor, hostfiles, services, benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from solver.base import stopping
from solver.base.command import Parser
from solver.base.errors import HeptiError
from solver.base.front import program, typed


def load() -> stopping.Main:
    """Import the commands, which takes long."""
    from launch.bench import command as bench_command  # noqa: F401
    from launch.doctor import command as doctor_command  # noqa: F401
    from launch.install import command as install_command  # noqa: F401
    from launch.lab import command as lab_command  # noqa: F401
    from launch.serve import command as serve_command  # noqa: F401

    return main


def main(arguments: Sequence[str]) -> int:
    """Run a command line; return the exit code: 0 done, 1 failed, 2 bad usage or input."""
    from launch.bench import command as bench_command
    from launch.doctor import command as doctor_command
    from launch.install import command as install_command
    from launch.lab import command as lab_command
    from launch.serve import command as serve_command

    parser: argparse.ArgumentParser = Parser(
        prog=program("python -m launch"),
        description="Start Hepti: virtual labs, installation and checks of boards, hostfiles, services, benchmarks.",
        epilog="example: hepti lab up mixed4",
    )
    parser.add_argument("--debug", action="store_true", help="show where an error comes from")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    lab_command.add_parser(subparsers)
    doctor_command.add_parser(subparsers)
    install_command.add_parser(subparsers)
    serve_command.add_parser(subparsers)
    bench_command.add_parser(subparsers)
    # What stands behind the first -- is another program's command line.
    split = arguments.index("--") if "--" in arguments else len(arguments)
    try:
        options = parser.parse_args(arguments[:split])
        options.program = list(arguments[split + 1 :])
        code: int = options.function(options)
    except (HeptiError, OSError) as error:
        if "--debug" in arguments[:split]:
            raise
        print(f"{typed('python -m launch', arguments)}: {_complaint(error)}", file=sys.stderr)
        return 2 if isinstance(error, HeptiError) else 1
    return code


def _complaint(error: HeptiError | OSError) -> str:
    """Return the line that says what is wrong: of the operating system the file and its own words."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


if __name__ == "__main__":
    stopping.run("python -m launch", load)
