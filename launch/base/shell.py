"""The one place that starts other programs; everything else in `launch` only says what to start."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from solver.base import clock
from solver.base.errors import HeptiError
from solver.base.stopping import SIGNALS, whole

Command = Sequence[str]
Process = subprocess.Popen[str]
StreamedProcess = asyncio.subprocess.Process
GRACE_S = 5.0  # mpirun ends its ranks within one
LONGEST_LINE = 64 * 2**20  # bytes that a program which is read line by line may say in one


def environment() -> dict[str, str]:
    """Return our environment; in a virtual environment that is not activated, its programs first on the PATH."""
    path = os.environ.get("PATH", os.defpath)
    if sys.prefix != sys.base_prefix:
        path = f"{Path(sys.executable).parent}{os.pathsep}{path}"
    return {**os.environ, "PATH": path}


def run(command: Command, timeout_s: float = 60.0, stdin: str = "") -> str:
    """Run a command and return its output.

    Raises
    ------
    HeptiError
        If the program is missing, fails or takes longer than `timeout_s`: the command and what it said.
    """
    code, out, err = attempt(command, timeout_s, stdin)
    if code:
        raise HeptiError(f"`{shlex.join(command)}` failed: {' '.join((err or out).split()) or f'exit code {code}'}")
    return out


def attempt(command: Command, timeout_s: float = 60.0, stdin: str = "") -> tuple[int, str, str]:
    """Run a command that may fail; return its exit code, output and error output.

    `timeout_s` are seconds of the lab that we run in, if any: at a small scale its hosts take longer for the same.
    """
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s / clock.SCALE,
            check=False,
        )
    except OSError as error:
        return 127, "", f"{command[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return 124, "", f"no answer within {timeout_s:g} s"
    return done.returncode, done.stdout, done.stderr


def start(command: Command) -> Process:
    """Start a program to talk to line by line; its errors go where ours go. A terminal's Ctrl-C is for us alone."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, process_group=0)


async def start_streamed(command: Command, environment: Mapping[str, str]) -> StreamedProcess:
    """Start a program to talk to in an event loop, over its three streams. A terminal's Ctrl-C is for us alone."""
    pipe = subprocess.PIPE
    with whole():
        return await asyncio.create_subprocess_exec(
            *command, env=dict(environment), stdin=pipe, stdout=pipe, stderr=pipe, process_group=0, limit=LONGEST_LINE
        )


def let_go(process: StreamedProcess) -> None:
    """Close our ends of a program's streams, which what it has started may hold open; else they outlive the loop."""
    transport: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]
    transport.close()


async def carry(command: Command, source: Iterable[bytes] = (), timeout_s: float = 60.0) -> tuple[int, str, str]:
    """Run a command that may fail, and hand it bytes; return its exit code, output and error output.

    It ends with us, and when the task that waits for it is cancelled. `timeout_s` as for `attempt`.
    """
    try:
        process = await start_streamed(command, environment())
    except OSError as error:
        return 127, "", f"{command[0]}: {error.strerror}"
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    said = [asyncio.create_task(stream.read()) for stream in (process.stdout, process.stderr)]
    try:
        async with asyncio.timeout(timeout_s / clock.SCALE):
            with suppress(BrokenPipeError, ConnectionResetError):  # it has ended, and says why
                for chunk in source:
                    process.stdin.write(chunk)
                    await process.stdin.drain()
            process.stdin.close()
            out, error_output = [(await stream).decode(errors="replace") for stream in said]
            return await process.wait(), out, error_output
    except TimeoutError:
        return 124, "", f"no answer within {timeout_s:g} s"
    finally:
        for stream in said:
            stream.cancel()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it has started: it is alone in its group
            await process.wait()


def start_logged(command: Command, environment: Mapping[str, str], log: Path) -> Process:
    """Start a program whose output and errors go to a file."""
    with log.open("w") as file:
        return subprocess.Popen(
            command, env=dict(environment), text=True, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )


def start_here(command: Command, environment: Mapping[str, str], hush: bytes | None = None) -> Process:
    """Start a program on our own terminal: standard input, output and errors are shared with it.

    Parameters
    ----------
    hush : regular expression
        Left out of its errors, which then pass through us.
    """
    errors = None if hush is None else subprocess.PIPE
    process = subprocess.Popen(command, env=dict(environment), text=True, stderr=errors)
    if hush is not None and process.stderr is not None:
        # Not a daemon: we end when the last word is out.
        threading.Thread(target=_forward, args=(process.stderr, hush)).start()
    return process


def _forward(source: IO[str], hush: bytes) -> None:
    with source:
        while chunk := os.read(source.fileno(), 65536):
            os.write(sys.stderr.fileno(), re.sub(hush, b"", chunk))


def start_between(command: Command, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a program on our standard input, whose output and errors come to us as bytes."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=dict(environment), stdout=pipe, stderr=pipe, bufsize=0)


def become(command: Command, variables: Mapping[str, str]) -> NoReturn:
    """Run a Python program of ours in the place of this one, with these variables besides.

    What asks us to end meanwhile waits until the program heeds it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.execve(command[0], list(command), {**environment(), **variables})


def start_alone(command: Command) -> None:
    """Start a program that outlives us: it must not hold our terminal or pipe."""
    nothing = subprocess.DEVNULL
    subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)


def wait(process: subprocess.Popen[Any], timeout_s: float | None = None) -> int | None:
    """Return a program's exit code (negative: the signal that ended it), None if it still runs after `timeout_s`.

    A program that we wait for ends with us: Ctrl-C reaches both, other signals us alone.
    """
    try:
        return process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return None
    except KeyboardInterrupt:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_S)
        raise
