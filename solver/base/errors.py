"""The one kind of error that a user can mend, and what turns others into it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from json import JSONDecodeError

from solver.base.phrases import printable


class HeptiError(Exception):
    """Bad usage or bad input: one line that says what is wrong and how to mend it; exit code 2.

    A name in a stranger's file may hold line ends, or what a terminal obeys: they are shown as Python writes them.
    """

    def __init__(self, line: str) -> None:
        super().__init__(printable(line))


class InfeasiblePlanError(HeptiError):
    """No plan fits: the message says how many bytes are missing and where."""


@contextmanager
def explained(problem: str, errors: type[Exception] | tuple[type[Exception], ...]) -> Iterator[None]:
    """Turn errors of the operating system, or of a library, into one line that begins with `problem`.

    Raises
    ------
    HeptiError
        In the place of any of these errors.
    """
    try:
        yield
    except errors as error:
        # Python puts a number before the system's words and the file after them, and quotes around those of a KeyError.
        reason = getattr(error, "strerror", None) or (error.args[0] if isinstance(error, KeyError) else error)
        reason = no_text(error) if isinstance(error, UnicodeDecodeError) else reason
        reason = "it has half of a surrogate pair" if isinstance(error, UnicodeEncodeError) else reason
        reason = no_json(error) if isinstance(error, JSONDecodeError) else reason
        raise HeptiError(f"{problem}: {' '.join(str(reason).split())}") from error


def no_text(error: UnicodeDecodeError) -> str:
    """Return why bytes are no text, without the words of Python's codecs."""
    return f"byte {error.object[error.start]:#04x} in place {error.start} is no text in UTF-8"


def no_json(error: JSONDecodeError) -> str:
    """Return why a text is no JSON, and where: of a single line, whose number others know, the column alone."""
    line = f"line {error.lineno}, " * ("\n" in error.doc.rstrip())
    return f"{error.msg} in {line}column {error.colno}"
