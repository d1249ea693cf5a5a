"""Whose ranks start now: one model at a time, since each sees what memory the others left.

Models whose plans say what they need start side by side where that is free.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from launch.watch.boards import Heartbeats

Needs = Mapping[str, int]  # bytes of boards


class Starts:
    """The starts of all models of a service.

    Parameters
    ----------
    heartbeats
        Of the boards, which say what memory is free.
    """

    def __init__(self, heartbeats: Heartbeats) -> None:
        self._beats = heartbeats
        self._now: dict[str, Needs | None] = {}

    @property
    def busy(self) -> bool:
        """Whether any model starts."""
        return bool(self._now)

    @asynccontextmanager
    async def turn(self, model: str, needs: Needs | None) -> AsyncIterator[Needs]:
        """Wait until a model may start, and have it start within the block.

        Parameters
        ----------
        needs
            What it takes of every board; None: that is not known yet.

        Yields
        ------
        Needs
            What those that start beside it may still take.
        """
        while not self._fits(needs):
            await self._beats.beat()
        others = self._claimed()
        self._now[model] = needs
        try:
            yield others
        finally:
            del self._now[model]

    def _fits(self, needs: Needs | None) -> bool:
        if not self._now:
            return True
        if needs is None or None in self._now.values():
            return False
        claimed = self._claimed()
        return all(self._beats.boards[board].free_bytes - claimed.get(board, 0) >= needs[board] for board in needs)

    def _claimed(self) -> Needs:
        claimed: dict[str, int] = {}
        for needs in self._now.values():
            for board, size in (needs or {}).items():
                claimed[board] = claimed.get(board, 0) + size
        return claimed
