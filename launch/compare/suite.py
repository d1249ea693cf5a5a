"""What the suites of `launch bench` have in common: options, the order of things, and `--out`, the folder of results.

What takes half an hour must not be lost at its end: the folder is tried before anything runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from solver.base.command import whole_file
from solver.base.environment import install
from solver.base.errors import HeptiError, explained
from solver.base.phrases import did_you_mean

Report = dict[str, Any]
Keep = Callable[[Report], None]


def write_json(report: Report, _: Path, out: Path) -> None:
    """Write a report under the name of its suite."""
    write_text(out / f"{report['suite']}.json", json.dumps(report, indent=1))


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite of measurements.

    Parameters
    ----------
    name, text, example
        For its help.
    add_options
        Adds the options that not all suites have.
    measure
        Refuses options that are wrong, then measures; gets a folder for files, and what keeps the report so far.
    show
        Prints the tables of a report.
    draw, write
        Draw a report's pictures, and write its numbers; get the folder of files, and that of results.
    """

    name: str
    text: str
    example: str
    add_options: Callable[[argparse.ArgumentParser], None]
    measure: Callable[[argparse.Namespace, Path, Keep], Report]
    show: Callable[[Report], None]
    draw: Callable[[Report, Path, Path], None]
    write: Callable[[Report, Path, Path], None] = write_json

    def add_parser(self, suites: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Add the suite to those of a command line."""
        parser = suites.add_parser(
            self.name,
            help=self.text,
            description=self.text,
            epilog=self.example,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.set_defaults(function=self.run)
        self.add_options(parser)
        parser.add_argument("--out", type=Path, metavar="DIR", help="write numbers there, as they come, then pictures")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, options: argparse.Namespace) -> int:
        """Measure; print tables, or JSON, and only then write numbers and pictures: the disk may be full by now."""
        with folder_for(options.out), tempfile.TemporaryDirectory(prefix=f"hepti-{self.name}-") as folder:
            files = Path(folder)

            def keep(report: Report) -> None:
                if options.out is not None:
                    self.write(report, files, options.out)

            report = self.measure(options, files, keep)
            if options.json:
                print(json.dumps(report))
            else:
                self.show(report)
            keep(report)
            if options.out is not None and can_draw():
                self.draw(report, files, options.out)
        return 0


def add_rounds(parser: argparse.ArgumentParser, runs: int, repeat: int, warmup: int) -> None:
    """Add how often programs are started, and how many requests each answers."""
    parser.add_argument("--runs", type=int, default=runs, help="rounds (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=repeat, help="timed requests in a round (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=warmup, help="untimed ones before them (default: %(default)s)")


def add_list(parser: argparse.ArgumentParser, option: str, known: Iterable[str], default: str = "") -> None:
    """Add an option of several words with commas between, each once; by default all that are known."""
    names = list(known)
    text = f"of {', '.join(names)} (default: {default or 'all'})"
    parser.add_argument(option, type=one_of_each(names), default=default or ",".join(names), metavar="A,B,…", help=text)


def one_of_each(names: Sequence[str], beginning: str | None = None) -> Callable[[str], tuple[str, ...]]:
    """Return what reads words with commas between, each once; known, or with a known beginning, for argparse."""

    def chosen(text: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
        for word in found:
            if word not in names and not (beginning and word.startswith(beginning)):
                raise argparse.ArgumentTypeError(f"there is no {word!r}{did_you_mean(word, names)}")
        if not found:
            raise argparse.ArgumentTypeError(f"the list is empty{did_you_mean('', names)}")
        return found

    return chosen


def at_least(options: argparse.Namespace, **least: int) -> None:
    """Refuse options that are given, and less than they must be."""
    for name, number in least.items():
        given = getattr(options, name)
        if given is not None and given < number:
            raise HeptiError(f"--{name} is {given}, must be at least {number}")


@contextmanager
def folder_for(out: Path | None) -> Iterator[None]:
    """Make the folder, if one is asked for, and try it; take it away again if nothing came of it.

    Raises
    ------
    HeptiError
        If it cannot be made, or takes no file.
    """
    if out is None:
        yield
        return
    with explained(f"cannot write to --out {out}", OSError):
        if out.is_file():
            raise HeptiError(f"--out {out} is a file: name a folder")
        is_new = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    try:
        yield
    finally:
        if is_new and not any(out.iterdir()):
            out.rmdir()


def write_text(path: Path, text: str) -> None:
    """Write a file; where the disk is full, what was there before stays."""
    with whole_file(path) as temporary:
        temporary.write_text(text)


def can_draw() -> bool:
    """Return whether pictures can be drawn; say so where they cannot."""
    if find_spec("matplotlib") is None:
        say(f"note: no pictures without matplotlib: {install('plot')}")
        return False
    return True


def say(line: str) -> None:
    """Say on stderr how far it is."""
    print(line, file=sys.stderr, flush=True)
