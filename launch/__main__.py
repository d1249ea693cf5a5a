"""`python -m launch`: labs, the doctor, hostfiles, benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from launch import bench_command, doctor_command, lab_command
from solver.command import Parser
from solver.errors import HeptiError


def main(arguments: Sequence[str]) -> int:
    """Run a command line; return the exit code: 0 done, 1 failed, 2 bad usage or input."""
    parser: argparse.ArgumentParser = Parser(
        prog="python -m launch",
        description="Start Hepti: virtual labs, checks of real clusters, hostfiles, benchmarks.",
        epilog="example: python -m launch lab up mixed4",
    )
    parser.add_argument("--debug", action="store_true", help="show where an error comes from")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    lab_command.add_parser(subparsers)
    doctor_command.add_parser(subparsers)
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
        print(f"python -m launch: {_complaint(error)}", file=sys.stderr)
        return 2 if isinstance(error, HeptiError) else 1
    except KeyboardInterrupt:
        print("python -m launch: interrupted", file=sys.stderr)
        return 1
    return code


def _complaint(error: HeptiError | OSError) -> str:
    """Return the line that says what is wrong: of the operating system the file and its own words."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
