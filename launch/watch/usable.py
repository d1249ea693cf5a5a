"""Which boards a model may be started on: those that live, but for those that spoil its starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from launch.watch.boards import Heartbeats
from launch.watch.site import Site

# Kind, sentence, and the board where it is of one: what is told of a model.
TellEvent = Callable[[str, str, str | None], None]


class Usable:
    """The boards that a model may use.

    Parameters
    ----------
    name
        The model's.
    site, heartbeats
        All boards.
    tell
        Hears which boards are left out.
    """

    def __init__(self, name: str, site: Site, heartbeats: Heartbeats, tell: TellEvent) -> None:
        self._name, self._site, self._beats, self._tell = name, site, heartbeats, tell
        self._held: dict[str, tuple[float, float]] = {}  # board -> until when it is left out, for how long that was

    async def all_there(self) -> None:
        """Wait for all boards' first heartbeats, but not for ever."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._beats.timing.first_s / self._site.scale):
                while len(self._beats.living) < len(self._site.boards):
                    await self._beats.beat()

    def now(self) -> tuple[str, ...]:
        """Return those that may be used now, in rank order."""
        moment = time.monotonic()
        return tuple(board for board in self._beats.living if self._held.get(board, (0.0, 0.0))[0] <= moment)

    def in_time(self) -> tuple[str, ...]:
        """Return those of them whose heartbeats are not late."""
        return tuple(board for board in self.now() if not self._beats.boards[board].suspected)

    def release(self, boards: Collection[str]) -> None:
        """Leave none of these boards out any more: a job on them has lasted."""
        self._held = {name: held for name, held in self._held.items() if name not in boards}

    def hold(self, board: str, why: str) -> None:
        """Leave a board out for some time."""
        held_s = 2 * self._held.get(board, (0.0, self._beats.timing.held_s / 2))[1]
        self._held[board] = (time.monotonic() + held_s, held_s)
        self._tell("fault", f"{self._name} goes on without {board} for {held_s:g} s: {why}", board)

    def back(self, planned_for: Sequence[str]) -> list[str]:
        """Return the boards that are back: they live, and are not among those that were planned for."""
        boards = self._beats.boards
        return [name for name in self.now() if name not in planned_for and boards[name].steady]
