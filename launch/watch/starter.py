"""Starts programs of ours on boards under mpirun, and ends them; measures boards."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import NoReturn

from launch.start.mpirun import SSH_OPTIONS, mpirun_environment
from launch.watch.agent import MARK
from launch.watch.boards import Heartbeats
from launch.watch.losses import BadStartError, LossWatch, RanksLostError
from launch.watch.ranks import BAD_INPUT, RankJob
from launch.watch.site import Site, shared

# Its folder is the same on every board.
CLIENT = (sys.executable, "-E", "-S", "-s", str(files("hepti_mpi").joinpath("base/fork_client.py")))


class Starter:
    """Starts jobs.

    Parameters
    ----------
    site, heartbeats
        The boards.
    folder
        For hostfiles, mpirun's own files, and the sockets of log-ins.
    log_folder
        For what mpirun says.
    """

    def __init__(self, site: Site, heartbeats: Heartbeats, folder: Path, log_folder: Path) -> None:
        self.site, self.heartbeats, self.folder = site, heartbeats, folder
        self._log_folder = log_folder

    async def start(self, name: str, boards: Sequence[str], program: Sequence[str]) -> RankJob:
        """Start `hepti_mpi` with these words on boards; `name` is the model's."""
        number, mark = self.heartbeats.new_job()
        hostfile = self._hostfile(number)
        hostfile.write_text(self.site.hostfile_text(boards))
        service = mark.partition("/")[0]
        command = self.site.mpirun(boards, hostfile, mark, [*CLIENT, service, *program])
        # mpirun's own files go with the service. Quiet: of a rank's exit code it need not tell us. On boards they are
        # in memory: where a disk is full, its daemon would not start.
        ssh, _ = SSH_OPTIONS
        variables = {
            MARK: mark, "TMPDIR": str(self.folder), "PRTE_MCA_prte_execute_quiet": "1",
            "PRTE_MCA_prte_remote_tmpdir_base": "/dev/shm",
            ssh: " ".join([mpirun_environment()[ssh], *shared(self.folder)]),
        }  # fmt: skip
        on = [self.site.board_of(boards, rank) for rank in range(self.site.rank_count(boards))]
        return await RankJob.start(number, on, command, variables, self.log(name))

    def _hostfile(self, number: int) -> Path:
        return self.folder / f"{number}.hosts"

    def log(self, name: str) -> Path:
        """Return the file for what mpirun says of a model's job."""
        return self._log_folder / f"{name}.log"

    async def end(self, job: RankJob, *, hard: bool) -> None:
        """End a job on all boards that live; `hard` where mpirun might wait for others."""
        await job.end(hard=hard)
        self._hostfile(job.number).unlink(missing_ok=True)
        for left in self.folder.glob("prterun.*"):  # of an mpirun that was killed
            if not Path("/proc", left.suffix[1:]).exists():
                shutil.rmtree(left, ignore_errors=True)
        await self.heartbeats.end_job(job.number)

    async def measure(self, name: str, boards: Sequence[str], model: Path) -> str:
        """Measure boards for a model; return the cluster file.

        Raises
        ------
        RanksLostError, BadStartError
            If that does not come to its end.
        """
        file = f"{name}-measured.toml"
        out = await self.heartbeats.write(boards[0], file, "")
        job = await self.start(name, boards, ["profile", "--model", str(model), "--out", out])
        work = asyncio.create_task(_code(job))
        watch = asyncio.create_task(self._watch(job))
        load_s = self.heartbeats.timing.load_s
        try:
            async with asyncio.timeout(load_s / self.site.scale):
                await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                watch.result()
            if code := work.result():
                raise (BadStartError if code == BAD_INPUT else RanksLostError)(job.words())
            return await self.heartbeats.read(boards[0], file)
        except TimeoutError:
            raise RanksLostError(f"the boards were not measured after {load_s:.0f} s") from None
        finally:
            for task in (work, watch):
                task.cancel()
                with suppress(asyncio.CancelledError, RanksLostError):
                    await task
            await self.end(job, hard=True)

    async def _watch(self, job: RankJob) -> NoReturn:
        watch = LossWatch(job, self.heartbeats.boards, self.site.scale, self.heartbeats.timing)
        while True:
            await self.heartbeats.beat()
            watch.look(ready=False)


async def _code(job: RankJob) -> int:
    async for _ in job.lines():
        pass
    return await job.ended()
