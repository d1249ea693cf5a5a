"""mpirun started for the person: its settings right, its noise in a file, its end ours."""

from __future__ import annotations

import os
import selectors
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from launch.base import shell
from launch.front.places import StartPlace
from launch.front.sieve import ERRORS, OUTPUT, Sieve
from launch.start.hostfile import clean_lines
from launch.start.last_words import why_ended
from launch.start.mpirun import hostfile_text, mpirun_command, mpirun_environment, need_mpirun
from solver.base.cache import cache_folder
from solver.base.errors import HeptiError, explained
from solver.base.front import CALLED, JOB_OF

# The person is told where to look: four boards begin within two seconds, a Pi 3 that has to load its libraries in ten.
LATE_S = 20.0
# mpirun ends its ranks within a second; told to end, it may never do so.
TOLD_S = 0.5
GRACE_S = 10.0
ROOM_BYTES = 1 << 16  # of mpirun's files about a job
# How long what a killed mpirun has left open is read.
REST_S = 0.5


def run_job(called: str, place: StartPlace, program: Sequence[str]) -> int:
    """Start a program on hosts under mpirun, and wait for it; return the exit code.

    Raises
    ------
    HeptiError
        If there is no mpirun, or no host of a name.
    """
    mpirun = need_mpirun()
    agent = Path(place.agent) if place.agent else None
    environment = mpirun_environment(agent) | {CALLED: called, JOB_OF: str(os.getpid())}
    check_room(Path(environment.get("TMPDIR") or "/tmp"))
    with tempfile.TemporaryDirectory(prefix="hepti-") as folder:
        hostfile = place.hostfile
        text = hostfile_text(place.hosts) if place.hosts and hostfile is None else clean_lines(hostfile)
        if text is not None:
            hostfile = Path(folder) / "hosts"
            hostfile.write_text(text)
        passed = [word for name in (CALLED, JOB_OF) for word in ("-x", name)]
        command = mpirun_command(place.ranks, max(len(place.hosts), 1), hostfile, agent, [*passed, *program])
        # By its whole path: so it looks for its own parts at the same path on the other hosts.
        job = MpirunJob(called, [mpirun, *command[1:]], environment)
        try:
            code = job.wait()
        except BaseException:
            job.stop()
            raise
    return job.close(code, place)


def check_room(folder: Path) -> None:
    """Check that mpirun can write its own files, of which it tells nobody that they do not fit.

    Raises
    ------
    HeptiError
        If it cannot.
    """
    with (
        explained(f"{folder} takes no files of mpirun: make room, or set TMPDIR to another folder", OSError),
        tempfile.TemporaryFile(dir=folder, buffering=0) as file,
    ):
        file.write(bytes(ROOM_BYTES))


def _open_log() -> tuple[Path | None, BinaryIO]:
    """Return where mpirun's noise goes, and the file; on disks that take nothing it goes nowhere."""
    for folder in (cache_folder(), Path(tempfile.gettempdir())):
        path = folder / f"mpirun-{os.getpid()}.log"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            return path, path.open("wb", buffering=0)
    return None, Path(os.devnull).open("wb", buffering=0)


class MpirunJob:
    """A running mpirun, whose streams come by us.

    Parameters
    ----------
    called
        What the person has typed.
    command, environment
        Of mpirun.
    """

    def __init__(self, called: str, command: Sequence[str], environment: dict[str, str]) -> None:
        self._called = called
        self._log, self._log_file = _open_log()
        self._sieve = Sieve(_write, self._note, called)
        self._process = shell.start_between(command, environment)
        self._selector = selectors.DefaultSelector()
        for stream, pipe in ((OUTPUT, self._process.stdout), (ERRORS, self._process.stderr)):
            assert pipe is not None
            self._selector.register(pipe, selectors.EVENT_READ, stream)

    def wait(self) -> int:
        """Pass on what ranks say until mpirun ends; return its exit code, negative where a signal has ended it."""
        late = time.monotonic() + LATE_S
        while self._read(REST_S):
            if not self._sieve.begun and time.monotonic() > late:
                late = float("inf")
                said = f", {self._log} what mpirun says" if self._log else ""
                self._say(f"the job has not begun after {LATE_S:.0f} s: hepti doctor says why{said}")
        return self._process.wait()

    def stop(self) -> None:
        """End mpirun, which a terminal's Ctrl-C has reached, too."""
        began = time.monotonic()
        # Nobody reads it any more.
        self._sieve = Sieve(lambda stream, text: None, self._note, self._called)
        told = False
        while self._read(0.05) and self._process.poll() is None:
            passed = time.monotonic() - began
            if passed > TOLD_S and not told:
                self._process.terminate()
                told = True
            if passed > GRACE_S:
                self._process.kill()
        shell.wait(self._process, GRACE_S)
        self._log_file.close()
        self._forget()

    def close(self, code: int, place: StartPlace) -> int:
        """Say why it failed, where it did and no rank has said so; return our exit code.

        Raises
        ------
        HeptiError
            If a host's name is none: what mpirun says of it says no more.
        """
        self._sieve.end()
        self._log_file.close()
        # A rank that finds fault with what is asked says so itself, on the terminal or by us.
        if code == 0 or self._sieve.complained or (self._sieve.begun and code == 2):
            self._forget()
            return code
        from launch.front.trouble import host_trouble  # numpy, which a job that runs well does not wait for

        try:
            trouble = None if self._sieve.begun else host_trouble(place)
        except HeptiError:
            self._forget()
            raise
        said = self._log.read_text(errors="replace") if self._log else ""
        reason = trouble or why_ended(said, code)
        if said:
            self._say(f"{reason} ({self._log} has all that mpirun said)")
        else:
            self._forget()
            self._say(reason)
        return 1

    def _read(self, timeout_s: float) -> bool:
        """Take what comes; return whether more may come."""
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            chunk = os.read(key.fd, 1 << 16)
            if chunk:
                self._sieve.take(key.data, chunk)
            else:
                self._selector.unregister(key.fileobj)
        # Ranks that outlive a killed mpirun hold its streams open.
        return bool(self._selector.get_map()) and (bool(ready) or self._process.poll() is None)

    def _note(self, text: bytes) -> None:
        """Put what mpirun says into the log; a full disk takes no more of it."""
        with suppress(OSError):
            self._log_file.write(text)

    def _forget(self) -> None:
        if self._log is not None:
            self._log.unlink(missing_ok=True)

    def _say(self, line: str) -> None:
        print(f"{self._called}: {line}", file=sys.stderr, flush=True)


def _write(stream: int, text: bytes) -> None:
    while text:
        text = text[os.write(stream, text) :]
