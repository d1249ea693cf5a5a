"""What command lines of ours share: their parser, checks, and how files are written: whole or not at all."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

from solver.base.errors import HeptiError, explained


class Parser(argparse.ArgumentParser):
    """Argparse whose errors, and those of its subcommands, are one line that the command prints like any other."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse what is unknown here, where the options are known, and not in the command above a subcommand."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            near = difflib.get_close_matches(word, self._option_string_actions, n=1) if word.startswith("-") else []
            guess = f": did you mean {near[0]}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{guess}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing usage and error and exiting, on every rank at that.

        Raises
        ------
        HeptiError
            Always: what is wrong with the arguments, and which help to ask.
        """
        raise HeptiError(f"{message} (see {self.prog} --help)")


def check_path(path: Path, suffixes: Sequence[str] = ()) -> None:
    """Refuse, before anything is computed, a file that could not be written at the end.

    Raises
    ------
    HeptiError
        If the ending is another (there may be any where none are named), it is a folder, or its folder is missing or
        takes no files.
    """
    if suffixes and path.suffix not in suffixes:
        raise HeptiError(f"cannot write {path}: the ending must be {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise HeptiError(f"cannot write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise HeptiError(f"cannot write {path}: it is a folder")
    # Not asked of its permissions: root has them all, and /proc takes none.
    with explained(f"cannot write {path}", OSError), TemporaryFile(dir=path.parent):
        pass


def check_one_planner(plan: Path | None, system: str | None) -> None:
    """Refuse a system where a plan is given: nothing is planned, and what was asked of it would be silently ignored.

    Raises
    ------
    HeptiError
        If both are given.
    """
    if plan is not None and system is not None:
        raise HeptiError(f"--plan and --system {system} both say who has what: give one")


def check_plan_by(plan_by: str | None, planner: str, replan: str) -> None:
    """Refuse to choose among plans that hepti does not make, or that follow what is measured.

    Parameters
    ----------
    planner
        The option that says who plans, if not hepti.

    Raises
    ------
    HeptiError
        Naming the option to leave out.
    """
    if plan_by is not None and planner:
        raise HeptiError(f"--plan-by {plan_by} says how hepti chooses its plan: leave out {planner}")
    if plan_by == "measure" and replan != "off":
        raise HeptiError(f"--replan {replan} goes by what is measured already: leave out --plan-by measure")


def check_measured(cluster: str | None, plan: Path | None, *, measure: bool) -> None:
    """Refuse to measure boards where something else says what to plan for.

    Raises
    ------
    HeptiError
        If it does.
    """
    for name, value in (("cluster", cluster), ("plan", plan)):
        if measure and value is not None:
            raise HeptiError(f"--measure and --{name} {value} both say what to plan for: give one")


def write_whole(path: Path, text: str) -> None:
    """Write a text file whole, or not at all.

    Raises
    ------
    HeptiError
        As `whole_file`.
    """
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a temporary file that becomes `path` at the end, or disappears.

    Raises
    ------
    HeptiError
        If it cannot be written; what was at `path` stays there.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise HeptiError(f"cannot write {path}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
