"""Command lines called within this process: a process of its own takes a second to import what it needs."""

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from subprocess import CompletedProcess


def run(main, *arguments):
    """Return what `main` does with these arguments, as `subprocess.run` does of a process."""
    # As words from outside they are no default itself: argparse asks with `is` whether one was given.
    words = [str(argument).encode().decode() for argument in arguments]
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as end:  # argparse ends --help so
            code = end.code
    return CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
