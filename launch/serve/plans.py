"""Plans of a served model: those that have run, and those that are made ahead, for when a board is lost.

To plan takes a rank 0 that has a quarter of a core longer than all the rest of its start: 6 of 12 s for an encoder.
Ranks are started where a plan has shares alone: what happens to other boards does not touch the model.
A service that is started again has the plans of the one before it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from launch.base import shell
from solver.base.command import whole_file
from solver.base.errors import HeptiError
from solver.cluster.cluster import PROGRAM_BYTES, Cluster, write_cluster

# Behind everything that answers, and the first to go where memory is short.
LAST = ("nice", "-n", "19", "choom", "-n", "1000", "--")
PLAN_S = 600.0


class Plans:
    """Plans of one model by the boards that they are for, and which of these they give something.

    Parameters
    ----------
    words
        Of the planner's command line: the model, and what else is asked for.
    path
        For its files, without an ending.
    kept
        The file of plans that outlives this service.

    Attributes
    ----------
    unplanned
        Boards that no plan can be made for ahead.
    """

    def __init__(self, words: Sequence[str], path: Path, kept: Path) -> None:
        self._words = tuple(words)
        self._asked, self._found = (path.with_name(f"{path.name}.{ending}") for ending in ("toml", "json"))
        self._kept = kept
        self._known: dict[tuple[str, ...], str] = {}
        # By the boards that were planned for, those of them that have a share.
        self._used: dict[tuple[str, ...], tuple[str, ...]] = {}
        with suppress(OSError, ValueError, KeyError, TypeError):  # none yet, or of another version
            table = json.loads(kept.read_text())
            known = {tuple(boards): str(plan) for boards, plan in table["plans"]}
            self._used = {tuple(planned): tuple(used) for planned, used in table["shares"]}
            self._known = known
        self.unplanned: set[tuple[str, ...]] = set()
        self._making = asyncio.Lock()  # of its files

    def of(self, boards: tuple[str, ...]) -> str | None:
        """Return the plan for these boards, as the text of a plan file; None where there is none."""
        return self._known.get(boards)

    def used(self, boards: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return which of these boards have a share where there are no others; None where that is not planned yet.

        Without a board that has nothing the plan is the same.
        """
        for planned, used in self._used.items():
            if set(used) <= set(boards) <= set(planned):
                return used
        return None

    def target(self, boards: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return on which of these boards there would be ranks; None as long as that is being planned."""
        return self.used(boards) or (boards if boards in self.unplanned else None)

    def next_boards(self, usable: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return which boards may be next: all that are usable, and those without one that has a share."""
        parts = [tuple(board for board in usable if board != lost) for lost in self.used(usable) or ()]
        return [boards for boards in (usable, *parts) if boards]

    def needs(self, boards: tuple[str, ...]) -> Mapping[str, int] | None:
        """Return the bytes that ranks on boards take of each; None where there is no plan that says so."""
        sizes = _sizes(self._known.get(self.used(boards) or boards, "{}"))
        return {board: size + PROGRAM_BYTES for board, size in zip(boards, sizes, strict=True)} if sizes else None

    def keep(self, boards: tuple[str, ...], plan: str) -> None:
        """Keep a plan that runs."""
        self._known[boards] = plan
        self._write()

    def forget(self, boards: tuple[str, ...]) -> None:
        """Forget a plan that does not fit, or does not last."""
        self._known.pop(boards, None)
        self._used = {planned: used for planned, used in self._used.items() if used != boards}
        self._write()

    def forget_all(self) -> None:
        """Forget all plans: boards are measured anew."""
        self._known.clear()
        self._used.clear()
        self._write()

    async def make(self, boards: tuple[str, ...], cluster: Cluster, *, ahead: bool) -> None:
        """Plan for some boards, a cluster in the same order; and where some have nothing, for the others alone.

        Parameters
        ----------
        ahead
            Nobody waits for it.
        """
        async with self._making:
            plan = await self._made(cluster, ahead=ahead)
            if plan is None:
                return
            with_share = [rank for rank, size in enumerate(_sizes(plan)) if size]
            used = tuple(boards[rank] for rank in with_share) or boards
            if used != boards:
                plan = self._known.get(used) or await self._made(cluster.only(with_share), ahead=ahead)
            if plan is not None:
                self._known.setdefault(used, plan)
            self._used[boards] = used
        if ahead:  # else ranks try it first
            self._write()

    def _write(self) -> None:
        table = {"plans": [*self._known.items()], "shares": [*self._used.items()]}
        with suppress(HeptiError, OSError):  # a disk may be full
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self._kept) as temporary:
                temporary.write_text(json.dumps(table))

    async def _made(self, cluster: Cluster, *, ahead: bool) -> str | None:
        """Return the plan for a cluster, None where there is none: whoever needs it is told why then."""
        words = ["--cluster", str(self._asked), "--out", str(self._found)]
        first = LAST if ahead else ()
        try:
            write_cluster(cluster, self._asked)
            planner = [sys.executable, "-P", "-m", "solver", *self._words, *words]
            code, _, _ = await shell.carry([*first, *planner], (), PLAN_S)
            return self._found.read_text() if code == 0 else None
        except (HeptiError, OSError):  # a disk may be full
            return None


def _sizes(plan: str) -> list[int]:
    """Return the bytes that a plan takes of every device, as far as it says so."""
    predicted = json.loads(plan).get("predicted") or {}
    return list(predicted.get("memory_bytes") or predicted.get("weights_bytes") or ())
