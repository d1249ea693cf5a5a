"""Ranks in reserve: one mpirun on all boards that live, whose ranks wait for the first model that loses its own.

To start ranks takes 1.3 s on four idle boards with a quarter of a core of 2024 each, 3 s where another model computes.
It helps where a process is lost; with a board its ranks in reserve are lost, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from launch.watch.ranks import RankJob
from launch.watch.starter import Starter

RESERVE = "reserve"
# Until the next start, which is seconds of the boards' time; behind one that failed it is doubled.
PAUSE_S, LONGEST_PAUSE_S = 1.0, 600.0
# mpirun that has not started its ranks by then was seen to hang.
LATE_S = 60.0


class Reserve:
    """Keeps ranks in reserve.

    Parameters
    ----------
    starter
        Of ranks on the boards.
    """

    def __init__(self, starter: Starter) -> None:
        self._starter = starter
        self._job: RankJob | None = None
        self._ready = False  # all its ranks are there

    @property
    def job(self) -> RankJob | None:
        """The job in reserve, once all its ranks are there."""
        return self._job if self._ready else None

    def is_on(self, boards: Sequence[str]) -> bool:
        """Return whether there are ranks in reserve on these boards, and no others."""
        return self.job is not None and self.job.code is None and self.job.boards == tuple(boards)

    async def start(self, name: str, boards: Sequence[str], program: Sequence[str]) -> RankJob:
        """Return a job that runs `hepti_mpi` with these words: the one in reserve where it is on these boards."""
        job = self.job
        if job is None or not self.is_on(boards):
            return await self._starter.start(name, boards, program)
        self._job, job.log = None, self._starter.log(name)
        job.send({"run": list(program)})
        return job

    async def run(self, calm: Callable[[], bool]) -> None:
        """Keep ranks in reserve for ever, but on this machine alone, where ranks are there at once.

        They are started where it is `calm`: no model waits for its ranks.
        """
        beats = self._starter.heartbeats
        pause_s = PAUSE_S
        while not self._starter.site.alone:
            paused_until = time.monotonic() + pause_s
            while not (calm() and beats.living and time.monotonic() > paused_until):
                await beats.beat()
            self._ready = False
            with suppress(OSError):  # a disk may be full
                await self._keep(await self._starter.start(RESERVE, beats.living, [RESERVE]))
            pause_s = PAUSE_S if self._ready else min(LONGEST_PAUSE_S, 2 * pause_s)

    async def _keep(self, job: RankJob) -> None:
        """Keep a job until a model has taken it, or it is no good any more."""
        beats = self._starter.heartbeats
        late = time.monotonic() + LATE_S / self._starter.site.scale
        self._job = job
        listening = asyncio.create_task(self._listen(job))
        try:
            while self._job is job and job.code is None and job.boards == tuple(beats.living):
                if not self._ready and time.monotonic() > late:
                    break
                await beats.beat()
        finally:
            listening.cancel()
            if self._job is job:
                self._job = None
                await self._starter.end(job, hard=True)

    async def _listen(self, job: RankJob) -> None:
        """Wait until all ranks are there."""
        async for line in job.lines():
            if RESERVE in line:
                self._ready = True
                return
