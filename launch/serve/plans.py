"""Plans of a served model: those that have run, and those that are made ahead, for when a board is lost.

To plan takes a rank 0 that has a quarter of a core longer than all the rest of its start: 6 of 12 s for an encoder.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from launch.base import shell
from solver.base.errors import HeptiError
from solver.cluster.cluster import Cluster, write_cluster

# Behind everything that answers, and the first to go where memory is short.
LAST = ("nice", "-n", "19", "choom", "-n", "1000", "--")
PLAN_S = 600.0


class Plans:
    """Plans of one model by the boards that they are for.

    Parameters
    ----------
    words
        Of the planner's command line: the model, and what else is asked for.
    path
        For its files, without an ending.
    """

    def __init__(self, words: Sequence[str], path: Path) -> None:
        self._words = tuple(words)
        self._asked, self._found = (path.with_name(f"{path.name}.{ending}") for ending in ("toml", "json"))
        self._known: dict[tuple[str, ...], str] = {}

    def of(self, boards: tuple[str, ...]) -> str | None:
        """Return the plan for these boards, as the text of a plan file; None where there is none."""
        return self._known.get(boards)

    def keep(self, boards: tuple[str, ...], plan: str) -> None:
        """Keep a plan that runs, unless there is one."""
        self._known.setdefault(boards, plan)

    def forget(self, boards: tuple[str, ...]) -> None:
        """Forget a plan that does not fit, or does not last."""
        self._known.pop(boards, None)

    async def make_ahead(self, boards: tuple[str, ...], cluster: Cluster) -> None:
        """Make the plan for some boards, a cluster in the same order, if there is none yet."""
        if boards not in self._known and (plan := await self._made(cluster)):
            self.keep(boards, plan)

    async def _made(self, cluster: Cluster) -> str | None:
        """Return the plan for a cluster, None where there is none: whoever needs it is told why then."""
        words = ["--cluster", str(self._asked), "--out", str(self._found)]
        try:
            write_cluster(cluster, self._asked)
            code, _, _ = await shell.carry([*LAST, sys.executable, "-m", "solver", *self._words, *words], (), PLAN_S)
            return self._found.read_text() if code == 0 else None
        except (HeptiError, OSError):  # a disk may be full
            return None
