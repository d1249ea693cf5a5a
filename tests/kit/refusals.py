"""Refusals as tables: command line, exit code, line. One runner, in this process.

A table is a text file: a line `$ command line`, below it the exit code and what stderr says. A row is added as its
`$ …` line; `HEPTI_WRITE_TABLES=1 pytest …` writes the rest, to be read. What holds for every row is checked here and
stands in no table: nothing on standard output, one line of complaint, an exit code that is not 0, no traceback.
"""

import os
import shlex
import sys
from pathlib import Path

from solver.base.errors import HeptiError
from tests.kit import inside

PROMPT = "$ "


def commands(table: Path):
    """Return the command lines of a table."""
    lines = table.read_text().splitlines()
    return [line.removeprefix(PROMPT) for line in lines if line.startswith(PROMPT)]


def check(table: Path, programs, folder: Path):
    """Run every command line of a table in `folder`, and assert that all answers are those that are kept.

    Parameters
    ----------
    table
        The text file.
    programs
        The functions that are called with a line's words, by what the line begins with: `{"python -m solver": main}`.
    folder
        What the command lines name lies here; how it is called is written as TMP.
    """
    before = Path.cwd()
    os.chdir(folder)
    try:
        shown = "\n".join(_row(line, programs, folder) for line in commands(table))
    finally:
        os.chdir(before)
    if os.environ.get("HEPTI_WRITE_TABLES"):
        table.write_text(shown)
    assert shown == table.read_text()


def parsing(name, parse):
    """Return a program that only parses its words, and says as `name` what is wrong with them."""

    def main(words):
        try:
            parse(words)
        except HeptiError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        return 0

    return main


def _row(line, programs, folder):
    beginning = max((name for name in programs if line.startswith(f"{name} ") or line == name), key=len)
    done = inside.run(programs[beginning], *shlex.split(line.removeprefix(beginning)))
    complaint = done.stderr.replace(str(folder), "TMP")
    usage = complaint.startswith("usage: ")  # argparse's, whose last line says what is wrong
    assert done.returncode in (1, 2), f"{line}: code {done.returncode}"
    assert not done.stdout, line
    assert usage or complaint.count("\n") == 1, f"{line}: {complaint}"
    assert "Traceback" not in complaint, line
    return f"{PROMPT}{line}\n{done.returncode}  {complaint.strip().splitlines()[-1]}\n"
