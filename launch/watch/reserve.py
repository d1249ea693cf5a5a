"""Ranks in reserve: for each model one mpirun where it would start next, whose ranks wait until it does.

To start ranks takes 1.3 s on four idle boards with a quarter of a core of 2024 each, 3 s where another model computes.
Where a board is late, ranks are started without it before its silence counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from launch.watch.ranks import RankJob
from launch.watch.starter import Starter

RESERVE = "reserve"
Wanted = Callable[[], Collection[tuple[str, ...]]]


class Reserve:
    """Keeps ranks in reserve for one model.

    Parameters
    ----------
    starter
        Of ranks on the boards.
    name
        The model's.

    Attributes
    ----------
    jobs
        Those in reserve, by their boards, all their ranks there.
    """

    def __init__(self, starter: Starter, name: str) -> None:
        self.jobs: dict[tuple[str, ...], RankJob] = {}
        self._coming: dict[tuple[str, ...], RankJob] = {}
        self._starter, self._name = starter, name
        self._timing = starter.heartbeats.timing

    @property
    def boards(self) -> set[tuple[str, ...]]:
        """Where there are ranks in reserve, or will be in a moment."""
        return {*self.jobs, *self._coming}

    def is_on(self, boards: Sequence[str]) -> bool:
        """Return whether there are ranks in reserve on these boards, and no others."""
        job = self.jobs.get(tuple(boards))
        return job is not None and job.code is None

    async def start(self, boards: tuple[str, ...], program: Sequence[str]) -> RankJob:
        """Return a job that runs `hepti_mpi` with these words: the one in reserve where it is on these boards."""
        waited_until = time.monotonic() + self._timing.coming_s / self._starter.site.scale
        while boards in self._coming and time.monotonic() < waited_until:
            await self._starter.heartbeats.beat()
        if not self.is_on(boards):
            return await self._starter.start(self._name, boards, program)
        job = self.jobs.pop(boards)
        job.log = self._starter.log(self._name)
        job.send({"run": list(program)})
        return job

    async def run(self, wanted: Wanted) -> None:
        """Keep ranks in reserve for ever on the boards that are `wanted` at any time.

        Not on this machine alone, where ranks are there at once.
        """
        keeping: dict[tuple[str, ...], asyncio.Task[None]] = {}
        try:
            while not self._starter.site.alone:
                for boards in wanted():
                    if boards not in keeping or keeping[boards].done():
                        keeping[boards] = asyncio.create_task(self._keep(boards, wanted))
                await self._starter.heartbeats.beat()
        finally:
            for task in keeping.values():
                task.cancel()
            await asyncio.gather(*keeping.values(), return_exceptions=True)

    async def _keep(self, boards: tuple[str, ...], wanted: Wanted) -> None:
        """Keep ranks on some boards as long as they are wanted."""
        pause_s = self._timing.reserve_pause_s
        while boards in wanted():
            was_ready = False
            with suppress(OSError):  # a disk may be full
                was_ready = await self._one(boards, wanted)
            longer_s = min(self._timing.longest_reserve_pause_s, 2 * pause_s)
            pause_s = self._timing.reserve_pause_s if was_ready else longer_s
            paused_until = time.monotonic() + pause_s
            while boards in wanted() and time.monotonic() < paused_until:
                await self._starter.heartbeats.beat()

    async def _one(self, boards: tuple[str, ...], wanted: Wanted) -> bool:
        """Keep a job until the model has taken it, it ends, or is wanted no more; return whether it was ready."""
        late = time.monotonic() + self._timing.reserve_late_s / self._starter.site.scale
        self._coming[boards] = job = await self._starter.start(f"{self._name}-{RESERVE}", boards, [RESERVE])
        listening = asyncio.create_task(self._listen(boards, job))
        try:
            while boards in self.boards and job.code is None and boards in wanted():
                if boards in self._coming and time.monotonic() > late:
                    break
                await self._starter.heartbeats.beat()
            return boards not in self._coming
        finally:
            listening.cancel()
            taken = boards not in self.boards
            self._coming.pop(boards, None)
            self.jobs.pop(boards, None)
            if not taken:
                await self._starter.end(job, hard=True)

    async def _listen(self, boards: tuple[str, ...], job: RankJob) -> None:
        """Wait until all ranks are there."""
        async for line in job.lines():
            if RESERVE in line:
                self.jobs[boards] = self._coming.pop(boards)
                return
