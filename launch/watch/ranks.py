"""One mpirun and its ranks: lines of JSON to and from rank 0, its last words, and its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launch.base import shell
from launch.start.last_words import blamed_host, killed_rank, why_ended
from launch.start.mpirun import mpirun_environment

# Of what mpirun and the ranks say, so many lines may tell why they ended.
LAST_WORDS = 60
# mpirun that was told to end, and ends its ranks first.
END_S = 3.0
POLL_S = 0.05
WORDS_S = 0.3  # mpirun's last words come before it ends: they are there already, unless others hold its streams
BAD_INPUT = 2


class RankJob:
    """A running mpirun.

    Parameters
    ----------
    number
        Of the job, in its ranks' mark.
    boards
        On which its ranks run, one by rank.
    process
        mpirun.
    log
        The file that gets what it says on standard error.
    """

    def __init__(self, number: int, boards: Sequence[str], process: shell.StreamedProcess, log: Path) -> None:
        self.number, self.boards, self.log = number, tuple(boards), log
        self._process = process
        self._words: deque[str] = deque(maxlen=LAST_WORDS)
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls, number: int, boards: Sequence[str], command: shell.Command, variables: Mapping[str, str], log: Path
    ) -> RankJob:
        """Start mpirun; `variables` come on top of its environment."""
        environment = {**mpirun_environment(), **variables}
        return cls(number, boards, await shell.start_streamed(command, environment), log)

    @property
    def code(self) -> int | None:
        """The exit code of mpirun, negative where a signal ended it; None while it runs."""
        return self._process.returncode

    def send(self, line: Mapping[str, Any]) -> None:
        """Send a line to rank 0; one that is gone gets none."""
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(json.dumps(line).encode() + b"\n")

    async def lines(self) -> AsyncIterator[dict[str, Any]]:
        """Yield what rank 0 says until it says no more; what is no JSON object goes to the log."""
        assert self._process.stdout is not None
        with suppress(ValueError):  # a line longer than any answer: nothing after it can be read
            while line := await self._process.stdout.readline():
                try:
                    found = json.loads(line)
                except ValueError:
                    found = None
                if isinstance(found, dict):
                    yield found
                else:
                    self._say(line)

    async def ended(self) -> int:
        """Wait for mpirun's end; return its exit code once its last words are read.

        asyncio's own `wait` also waits for the end of its streams, which ranks and ssh may hold open.
        """
        while (code := self.code) is None:
            await asyncio.sleep(POLL_S)
        if code >= 0:  # one that a signal has ended had none
            with suppress(TimeoutError):
                async with asyncio.timeout(WORDS_S):
                    await asyncio.shield(self._listening)
        return code

    def signalled(self) -> str | None:
        """Say which rank was ended by a signal, as far as mpirun has said so."""
        return killed_rank(self._said(), self.boards)

    @property
    def blamed(self) -> str | None:
        """The board that mpirun says it lost, or could not start on."""
        found = blamed_host(self._said())
        return found if found in self.boards else None

    def words(self) -> str:
        """Say in one line why it ended, in its own words as far as there are any."""
        return why_ended(self._said(), self.code or 0, self.boards)

    async def end(self, *, hard: bool) -> None:
        """End mpirun: `hard` where it would wait for boards that do not answer, else in order, so that it cleans up."""
        for number in (signal.SIGKILL,) if hard else (signal.SIGTERM, signal.SIGKILL):
            if self.code is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                with suppress(TimeoutError):
                    async with asyncio.timeout(END_S):
                        while self.code is None:
                            await asyncio.sleep(POLL_S)
        self._listening.cancel()
        shell.let_go(self._process)

    def _said(self) -> str:
        return "".join(self._words)

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        with suppress(ValueError):
            while line := await self._process.stderr.readline():
                self._words.append(line.decode(errors="replace").replace("\0", ""))  # seen where mpirun ends
                self._say(line)

    def _say(self, line: bytes) -> None:
        with suppress(OSError), self.log.open("ab") as file:  # a full disk is no reason to end
            file.write(line)
