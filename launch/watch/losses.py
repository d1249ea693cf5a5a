"""What heartbeats say is lost of a job: a board that is silent, a rank that has ended or stands still."""

from __future__ import annotations

import time
from collections.abc import Mapping

from launch.start.last_words import signal_name
from launch.watch.boards import WatchedBoard, silence
from launch.watch.ranks import END_S, RankJob
from launch.watch.timing import Timing


class RanksLostError(Exception):
    """Ranks are gone, or as good as: one sentence, and the board where it is one's fault."""

    def __init__(self, sentence: str, board: str | None = None) -> None:
        super().__init__(sentence)
        self.board = board


class BadStartError(Exception):
    """The ranks refuse what they are given: no use to start them again in the same way."""


class LossWatch:
    """Finds in heartbeats what is lost of a job.

    Parameters
    ----------
    job
        Its ranks and their boards.
    boards
        All boards by name.
    scale
        Of the lab.
    timing
        How long is waited for what.
    """

    def __init__(self, job: RankJob, boards: Mapping[str, WatchedBoard], scale: float, timing: Timing) -> None:
        self._job, self._boards, self._scale, self._timing = job, boards, scale, timing
        self._there: set[int] = set()
        self._gone: dict[int, float] = {}  # rank -> since when
        self._still: dict[int, float] = {}  # rank -> since when it is stopped
        self._kills = _oom_kills(boards, job)
        self._cpu_s = 0.0
        self._moved_at = time.monotonic()

    def look(self, *, ready: bool, asked_s: float = 0.0) -> None:
        """Look at the last heartbeats.

        Parameters
        ----------
        ready
            Whether ranks serve; before, one may end by itself, and mpirun with it says why.
        asked_s
            How long rank 0 has owed an answer.

        Raises
        ------
        RanksLostError
            If anything is lost.
        """
        if killed := self.killed():
            raise killed
        now = time.monotonic()
        cpu_s = 0.0
        for rank, name in enumerate(self._job.boards):
            board = self._boards[name]
            if not board.alive:
                raise RanksLostError(silence(board), name)
            found = next((own for own in board.ranks(self._job.number) if own["rank"] == rank), None)
            if found is None or found["state"] in "ZX":
                since = self._gone.setdefault(rank, now) if rank in self._there else now
                over = self._job.code is not None  # with mpirun, whose words say more
                if not over and now - since > (self._timing.gone_s if ready else END_S):
                    raise self.lost(self._job.signalled() or f"rank {rank} on {name} has ended", name)
                continue
            self._there.add(rank)
            self._gone.pop(rank, None)
            cpu_s += found["cpu_s"]
            if found["state"] in "Tt":
                since = self._still.setdefault(rank, now)
                if now - since > self._timing.silence_s:
                    raise RanksLostError(f"rank {rank} on {name} has stood still for {now - since:.0f} s", name)
            else:
                self._still.pop(rank, None)
        if cpu_s != self._cpu_s:
            self._cpu_s, self._moved_at = cpu_s, now
        idle_s = min(asked_s, now - self._moved_at)
        if idle_s > self._timing.silence_s / self._scale:
            raise RanksLostError(f"rank 0 has said nothing for {asked_s:.0f} s, and no rank computes")
        if asked_s > self._timing.stuck_s / self._scale:
            raise RanksLostError(f"rank 0 has said nothing for {asked_s:.0f} s")

    def killed(self) -> RanksLostError | None:
        """Return the error that says which rank was killed, if its board's fork server has said so."""
        for rank, name in enumerate(self._job.boards):
            for end in self._boards[name].facts.get("killed", ()):
                if (end["job"], end["rank"]) == (self._job.number, rank):
                    return self.lost(f"rank {rank} on {name} was ended by {signal_name(end['signal'])}", name)
        return None

    def lost(self, sentence: str, board: str | None) -> RanksLostError:
        """Return the error, with the reason where it is memory."""
        now = _oom_kills(self._boards, self._job)
        short = next((name for name, kills in now.items() if kills > self._kills[name]), None)
        return RanksLostError(f"{sentence}: {short} is out of memory" if short else sentence, short or board)


def _oom_kills(boards: Mapping[str, WatchedBoard], job: RankJob) -> dict[str, int]:
    return {name: int(boards[name].facts.get("oom_kills", 0)) for name in job.boards}
