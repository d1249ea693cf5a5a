"""How a program ends that a person, or the system, asks to end: one line, and nothing left half-done."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from solver.base import front

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Until what interrupts is raised again, where a library has swallowed it: one of 48 planners that drew a map went on.
AGAIN_S = 0.5
# Of what takes no more: a full disk, a quota, a limit of `ulimit`, a device that has failed.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
Main = Callable[[Sequence[str]], int]
_whole: list[None] = []  # one for every step that is not interrupted


@contextmanager
def whole() -> Iterator[None]:
    """Interrupt a short step after it, not within: a program that is half started is known to nobody."""
    _whole.append(None)
    try:
        yield
    finally:
        _whole.pop()


def heeded() -> list[signal.Signals]:
    """Return the signals that are not ignored, as Ctrl-C is in what a shell runs in the background."""
    return [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Give the signals that are heeded another handler for a block."""
    before = {number: signal.signal(number, handler) for number in heeded()}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def run(program: str, load: Callable[[], Main], *, silent: bool = False) -> NoReturn:
    """Run a program on the command line, and exit with its code; it is interrupted by Ctrl-C, SIGTERM and SIGHUP.

    It then exits with 128 + the signal's number, after its `finally` clauses, and says so in one line. Signals that
    are ignored, as Ctrl-C in what a shell runs in the background, stay so.

    Parameters
    ----------
    program
        As it is called in the line.
    load
        Imports what takes long, and returns what is to be run. There is nothing to clean up yet, and what raises within
        an import may be swallowed there: meanwhile a signal ends the program at once.
    silent
        Whether somebody else says that the program ends.
    """
    program = front.program(program)
    asked: list[int] = []

    def leave(number: int, _: FrameType | None) -> None:
        # Whatever is being printed or torn down meanwhile: `print` might be in the middle of a line.
        if not (silent or asked):
            os.write(2, f"{program}: interrupted\n".encode())
        os._exit(128 + number)

    def interrupt(number: int, _: FrameType | None) -> None:
        asked.append(number)
        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)
        if not _whole:
            raise KeyboardInterrupt

    def again(number: int, _: FrameType | None) -> None:
        if not (_whole or _interrupted(sys.exc_info()[1])):
            raise KeyboardInterrupt

    numbers = heeded()
    _handle(numbers, leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # `hepti` holds them up while one program becomes another
    main = load()
    try:
        _handle(numbers, interrupt)
        code: int | str | None
        try:
            code = main(sys.argv[1:])
        except SystemExit as ended:  # as --help
            if asked:
                raise
            code = ended.code
        sys.stdout.flush()
        _handle(numbers, leave)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except BaseException as error:  # what a library makes of an interruption may be another error
        if not asked:
            if _unread(error):
                os._exit(128 + signal.SIGPIPE)
            if reason := unwritten(error):
                os.write(2, f"{program}: {reason}\n".encode())
                os._exit(1)  # the interpreter's end would try once more, and complain
            raise
        signal.setitimer(signal.ITIMER_REAL, 0)
        _handle(numbers, leave)
        with suppress(OSError):  # nobody reads it any more
            sys.stdout.flush()
        sys.stderr.flush()
        if not silent:
            os.write(2, f"{program}: interrupted\n".encode())
        # Not by way of the interpreter's end: MPI's waits for the other ranks.
        os._exit(128 + asked[0])
    sys.exit(code)


def unwritten(error: BaseException) -> str | None:
    """Return the line about an error that comes of what is printed, on a full disk say; None about any other.

    Such an error names no file, nor do those of some other files: a line end tells whether anything can be printed.
    """
    if isinstance(error, OSError) and error.errno in FULL and error.filename is None:
        try:
            sys.stdout.flush()
            os.write(1, b"\n")
        except OSError as still:
            return f"cannot write to standard output: {still.strerror}"
    return None


def of_output(error: BaseException) -> bool:
    """Return whether an error comes of what is printed, and not of what is done: `run` says what there is to say."""
    return _unread(error) or unwritten(error) is not None


def _unread(error: BaseException) -> bool:
    """Return whether what is printed goes to a pipe whose other end is closed, as before `| head`."""
    if not isinstance(error, BrokenPipeError):
        return False
    output = select.poll()
    output.register(1, select.POLLOUT)
    return any(event & select.POLLERR for _, event in output.poll(0))


def _interrupted(error: BaseException | None) -> bool:
    """Return whether what is being handled, as `finally` clauses do, comes of an interruption."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _handle(numbers: Sequence[int], handler: Callable[[int, FrameType | None], None]) -> None:
    for number in numbers:
        signal.signal(number, handler)
