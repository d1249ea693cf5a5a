"""The heartbeats of all boards: who lives, what each tells of itself, and orders to end ranks there."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launch.base import shell
from launch.base.json_output import SHOWN
from launch.watch.site import Site
from launch.watch.timing import Gaps, Timing
from solver.base.errors import HeptiError

# Until a board's first heartbeat: a log-in over ssh takes seconds on a slow host.
CONNECT_S = 20.0
FILE_S = 10.0
UNKNOWN_NAME = "Could not resolve hostname"  # as ssh says it
MEND_NAME = "is it spelled so? Else give its address in the hostfile, in /etc/hosts or in ~/.ssh/config"
POLL_S = 0.05
LEAVE_S = 3.0  # of an agent whose input has ended: it waits for ranks that are about to end

# Kind, board, sentence: what is told of the boards.
TellBoard = Callable[[str, str, str], None]


class WatchedBoard:
    """One board, by its heartbeats.

    Attributes
    ----------
    facts
        The last heartbeat.
    seen_at, since
        Monotonic seconds: of the last heartbeat, None before the first; of the first one since it lives.
    alive
        Whether it is counted on.
    gaps
        Between its heartbeats.
    complaint
        The last line that its way there, ssh for example, has said.
    told
        The last one of these that a person heard before the first heartbeat.
    """

    def __init__(self, name: str, timing: Timing) -> None:
        self.name = name
        self.facts: dict[str, Any] = {}
        self.seen_at: float | None = None
        self.since = 0.0
        self.alive = False
        self.gaps = Gaps(timing.beat_s)
        self._timing = timing
        self.complaint = self.told = ""
        self.answered = 0
        self.process: shell.StreamedProcess | None = None

    @property
    def silent_s(self) -> float:
        """Seconds since the last heartbeat."""
        return time.monotonic() - self.seen_at if self.seen_at is not None else float("inf")

    def heard(self, now: float) -> None:
        """Take a heartbeat that has come now, by the monotonic clock."""
        if self.alive and self.seen_at is not None:
            self.gaps.take(now - self.seen_at)
        self.seen_at = now

    @property
    def suspected_s(self) -> float:
        """Seconds of silence after which it may be lost."""
        return min(max(self._timing.suspect_s, self.gaps.late_s), self._timing.silence_s)

    @property
    def suspected(self) -> bool:
        """Whether it is late, and may be lost."""
        return self.silent_s > self.suspected_s

    @property
    def free_bytes(self) -> int:
        """The memory that is free, as the last heartbeat has it."""
        return int(self.facts.get("free_bytes", 0))

    @property
    def steady(self) -> bool:
        """Whether it has been alive for some time."""
        return self.alive and time.monotonic() - self.since >= self._timing.steady_s

    def ranks(self, job: int) -> list[Mapping[str, Any]]:
        """Return what the last heartbeat says of a job's ranks."""
        return [rank for rank in self.facts.get("ranks", ()) if rank["job"] == job]

    def send(self, order: Mapping[str, Any]) -> None:
        """Send an order, if there is a way."""
        if self.process is not None and self.process.stdin is not None and not self.process.stdin.is_closing():
            self.process.stdin.write(json.dumps(order).encode() + b"\n")


class Heartbeats:
    """All boards of a service.

    Parameters
    ----------
    site
        Which they are, and the way to them.
    service, token
        Mark the ranks: what is of this service but of another token is left from before, and killed.
    folder
        For the sockets of log-ins.
    tell
        Hears which boards are lost and back.
    timing
        How long is waited for what.

    Attributes
    ----------
    jobs
        Numbers of the jobs that may run; what else is of this service is killed.
    """

    def __init__(
        self, site: Site, service: str, token: str, folder: Path, tell: TellBoard, timing: Timing | None = None
    ) -> None:
        self.timing = timing or Timing()
        self.boards = {name: WatchedBoard(name, self.timing) for name in site.boards}
        self.jobs: set[int] = set()
        self._site, self._service, self._token, self._folder, self._tell = site, service, token, folder, tell
        self._numbers = itertools.count(1)
        self._jobs = itertools.count(1)
        self._following = 1
        self._beat = asyncio.Event()

    @property
    def living(self) -> list[str]:
        """The boards that are counted on, in rank order."""
        return [board.name for board in self.boards.values() if board.alive]

    def new_job(self) -> tuple[int, str]:
        """Return the number of a new job, which is let live, and the mark of its ranks."""
        number = next(self._jobs)
        self._following = number + 1
        self.jobs.add(number)
        # At once: an agent that loses us ends only what it has heard of.
        self._order_all()
        return number, f"{self._service}/{self._token}/{number}"

    async def run(self) -> None:
        """Watch all boards for ever; when that ends, so does what ran there."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for board in self.boards.values():
                    tasks.create_task(self._connect(board))
                tasks.create_task(self._watch())
                tasks.create_task(self._order())
        finally:
            self.jobs.clear()
            for board in self.boards.values():
                _hang_up(board)

    async def beat(self) -> None:
        """Wait for any board's next heartbeat, or a change of who lives, at most for `look_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.timing.look_s):
                await self._beat.wait()

    async def end_job(self, job: int) -> None:
        """Have a job's ranks killed on all boards that live, and wait until they say so."""
        self.jobs.discard(job)
        await self.ask(self.living, self.timing.silence_s)

    async def ask(self, names: Iterable[str], timeout_s: float, **order: Any) -> None:
        """Send an order to boards, and wait until they have answered or no longer live."""
        number = next(self._numbers)
        boards = [self.boards[name] for name in names]
        for board in boards:
            board.send(self._orders(number) | order)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(board.alive and board.answered < number for board in boards):
                    await self.beat()

    async def write(self, name: str, file: str, text: str) -> str:
        """Write a file on a board; return its path there.

        Raises
        ------
        HeptiError
            If the board cannot.
        """
        await self._file(name, write=file, text=text)
        return f"{self.boards[name].facts['folder']}/{file}"

    async def read(self, name: str, file: str) -> str:
        """Return the text of a file in the agent's folder on a board.

        Raises
        ------
        HeptiError
            If the board has none.
        """
        await self._file(name, read=file)
        return str(self.boards[name].facts["text"])

    async def _file(self, name: str, **order: str) -> None:
        board = self.boards[name]
        board.facts.pop("error", None)
        before = board.answered
        await self.ask([name], FILE_S, **order)
        if board.answered == before:
            raise HeptiError(f"{name} does not answer")
        if "error" in board.facts:
            raise HeptiError(f"{name}: {board.facts['error']}")

    def _orders(self, number: int) -> dict[str, Any]:
        return {"n": number, "keep": sorted(self.jobs), "next": self._following}

    def _order_all(self) -> None:
        for board in self.boards.values():
            board.send(self._orders(next(self._numbers)))

    async def _order(self) -> None:
        """Say every `beat_s` who may live: a board that hears nothing takes us for dead."""
        while True:
            self._order_all()
            await asyncio.sleep(self.timing.beat_s)

    async def _watch(self) -> None:
        """Notice who is silent. What stops us ourselves, as a suspended machine, is no silence of theirs."""
        before, look_s = time.monotonic(), self.timing.look_s
        while True:
            await asyncio.sleep(look_s)
            late_s = time.monotonic() - before - look_s
            before += look_s + late_s
            for board in self.boards.values():
                if late_s > self.timing.beat_s and board.seen_at is not None:
                    board.seen_at += late_s
                if board.alive and board.silent_s > self.timing.silence_s:
                    board.alive = False
                    self._tell("lost", board.name, silence(board))
                    _hang_up(board)
                    self._woken()

    async def _connect(self, board: WatchedBoard) -> None:
        """Keep an agent running on a board."""
        while True:
            command, first = self._site.agent(board.name, self._service, self._token, self._folder)
            try:
                await self._listen(board, command, first)
            except OSError as error:
                board.complaint = str(error)
            self._tell_unreached(board)
            await asyncio.sleep(self.timing.again_s)

    def _tell_unreached(self, board: WatchedBoard) -> None:
        """Tell once why a board that never answered does not."""
        if board.seen_at is None and board.complaint != board.told:
            board.told = board.complaint
            mend = f": {MEND_NAME}" if UNKNOWN_NAME in board.complaint else ""
            self._tell("unreached", board.name, f"{silence(board)}{mend}; trying again every {self.timing.again_s:g} s")

    async def _listen(self, board: WatchedBoard, command: shell.Command, first: bytes) -> None:
        board.process = process = await shell.start_streamed(command, shell.environment())
        assert process.stdin is not None
        assert process.stdout is not None
        words = asyncio.create_task(_complaints(board, process))
        try:
            process.stdin.write(first)
            board.send(self._orders(next(self._numbers)))
            async with asyncio.timeout(CONNECT_S / self._site.scale) as limit:
                while line := await process.stdout.readline():
                    limit.reschedule(None)  # from now on `_watch` is who finds it silent
                    self._take(board, line)
        except (TimeoutError, ValueError) as error:
            board.complaint = f"its agent {_unlike(error)}"
        except asyncio.CancelledError:
            board.send(self._orders(next(self._numbers)) | {"last": True})
            raise
        finally:
            _hang_up(board)
            words.cancel()
            end = time.monotonic() + LEAVE_S
            while process.returncode is None:
                if time.monotonic() > end:
                    _kill(process)
                await asyncio.sleep(POLL_S)

    def _take(self, board: WatchedBoard, line: bytes) -> None:
        try:
            facts = json.loads(line)
            ranks = facts["ranks"]
        except (ValueError, KeyError, TypeError):
            board.complaint = f"its log-in says {line[:SHOWN].decode(errors='replace').strip()!r}"
            return
        assert isinstance(ranks, list)
        board.facts = facts
        board.answered = max(board.answered, facts.get("n", 0))
        first, now = board.seen_at is None, time.monotonic()
        board.heard(now)
        if not board.alive:
            board.alive, board.since, board.complaint = True, now, ""
            # What it still runs of a job that has been given up meanwhile is killed before it is used again.
            board.send(self._orders(next(self._numbers)))
            if board.told or not first:
                self._tell("back", board.name, f"{board.name} is back" if not first else f"{board.name} answers")
                board.told = ""
        self._woken()

    def _woken(self) -> None:
        self._beat.set()
        self._beat = asyncio.Event()


def silence(board: WatchedBoard) -> str:
    """Say that a board is silent, and what its way there says of it."""
    if board.seen_at is None:
        return f"{board.name} has not answered yet" + (f": {board.complaint}" if board.complaint else "")
    why = board.complaint or "unplugged, frozen or off"
    return f"{board.name} has been silent for {board.silent_s:.0f} s: {why}"


def states(boards: Mapping[str, WatchedBoard], jobs: Mapping[int, Sequence[str]]) -> list[dict[str, Any]]:
    """Return all boards for the page; `jobs` are those that run, and the board of each of their ranks."""
    rows = []
    for board in boards.values():
        own = [
            {"pid": rank["pid"], "rank": rank["rank"], "job": rank["job"], "state": rank["state"]}
            for rank in board.facts.get("ranks", ())
            if board.alive and board.name in jobs.get(rank["job"], ())[rank["rank"] : rank["rank"] + 1]
        ]
        keys = ("free_bytes", "total_bytes", "temperature_c", "throttled", "cpu_percent")
        seen_s = None if board.seen_at is None else round(board.silent_s, 1)
        facts = {key: board.facts.get(key) for key in keys}
        rows.append({"name": board.name, "alive": board.alive, "seen_s": seen_s, **facts, "ranks": own})
    return rows


def _hang_up(board: WatchedBoard) -> None:
    """End the way to a board: its agent ends by itself, where it still can."""
    process, board.process = board.process, None
    if process is not None:
        if process.stdin is not None:
            process.stdin.close()
        if not board.alive:
            _kill(process)


def _kill(process: shell.StreamedProcess) -> None:
    """Kill a process: asyncio's own way may take its exit code away from who waits for it."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


async def _complaints(board: WatchedBoard, process: shell.StreamedProcess) -> None:
    assert process.stderr is not None
    while line := await process.stderr.readline():
        if text := line.decode(errors="replace").strip():
            board.complaint = text


def _unlike(error: Exception) -> str:
    return "does not start" if isinstance(error, TimeoutError) else f"says what nobody can read: {error}"
