"""The open requests of one model: what waits, what the ranks have, and what its client has been told.

A request that the ranks had when they were lost is sent again, with the tokens that were told: the answer goes on
after them. Nothing here knows HTTP or processes; everything runs in one event loop.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from solver.base.phrases import counted

# A request that the ranks are lost over so often, without a token between, is taken to be what ends them.
MOST_LOSSES = 5


class QueueFullError(Exception):
    """No more requests are taken: `taken` are open, of which the ranks take `at_once`, and `most` may wait besides."""

    def __init__(self, taken: int, at_once: int, most: int) -> None:
        super().__init__(f"{counted(taken, 'open request')}: the ranks take {at_once} at once, {most} may wait")


class OpenRequest:
    """A request that a client waits for.

    Parameters
    ----------
    line
        What goes to the ranks, its id, tokens and seed included.
    ended
        Called with this request when its client wants no more.

    Attributes
    ----------
    id
        Of the line.
    line
        What goes to the ranks, but for what was said.
    said
        Tokens that were told so far.
    created, first_at
        Monotonic seconds: when it came, and when the first line about it came; None before.
    losses
        How often the ranks were lost over it since it last got on.
    """

    def __init__(self, line: Mapping[str, Any], ended: Callable[[OpenRequest], None]) -> None:
        self.id = str(line["id"])
        self.line = dict(line)
        self.said: list[int] = []
        self.created = time.monotonic()
        self.first_at: float | None = None
        self.losses = 0
        self._ended = ended
        self._told: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield a line for each token, and the answer last, or what has "error": the ranks', or with "lost" ours."""
        while (line := await self._told.get()) is not None:
            yield line

    def cancel(self) -> None:
        """End the request: it waits no more, or the ranks are told. Once it has its answer, nothing happens."""
        self._ended(self)

    def tell(self, line: Mapping[str, Any], *, last: bool) -> None:
        """Give the client a line, after those before it."""
        if self.first_at is None:
            self.first_at = time.monotonic()
        if "token" in line:
            self.said.append(line["token"])
            self.losses = 0
        self._told.put_nowait(dict(line))
        if last:
            self._told.put_nowait(None)

    @property
    def to_send(self) -> dict[str, Any]:
        """The line that the ranks get."""
        return {**self.line, "said": list(self.said)} if self.said else dict(self.line)


class Journal:
    """The open requests of one model, first come, first sent.

    Parameters
    ----------
    at_once
        The most requests that the ranks have together.
    most_waiting
        The most that wait besides.

    Attributes
    ----------
    wake
        Set where `to_send` has something new, which clears it.
    """

    def __init__(self, at_once: int, most_waiting: int) -> None:
        self.wake = asyncio.Event()
        self._at_once = at_once
        self._most_waiting = most_waiting
        self._waiting: deque[OpenRequest] = deque()
        self._running: dict[str, OpenRequest] = {}  # in the order in which they were sent
        self._cancelled: set[str] = set()  # that the ranks have, and nobody waits for
        self._to_cancel: list[str] = []  # that the ranks do not know of yet

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many the ranks have; those that were cancelled, too, until the ranks have ended them."""
        return len(self._running)

    @property
    def open(self) -> tuple[OpenRequest, ...]:
        """What clients wait for, those that the ranks have first."""
        return (*(r for r in self._running.values() if r.id not in self._cancelled), *self._waiting)

    def submit(self, line: Mapping[str, Any]) -> OpenRequest:
        """Take a request; it gets an id where it has none.

        Raises
        ------
        QueueFullError
            If as many wait as may, besides those that the ranks have, or will have once they are there.
        """
        taken = self.waiting + self.running
        if taken >= self._at_once + self._most_waiting:
            raise QueueFullError(taken, self._at_once, self._most_waiting)
        request = OpenRequest({"id": uuid.uuid4().hex, **line}, self._end)
        self._waiting.append(request)
        self.wake.set()
        return request

    def to_send(self) -> list[dict[str, Any]]:
        """Return what the ranks get now: what they shall end, and the next requests, as many as they take."""
        self.wake.clear()
        lines: list[dict[str, Any]] = [{"cancel": name} for name in self._to_cancel]
        self._to_cancel.clear()
        while self._waiting and self.running < self._at_once:
            request = self._waiting.popleft()
            self._running[request.id] = request
            lines.append(request.to_send)
        return lines

    def take(self, answer: Mapping[str, Any]) -> None:
        """Take a line of the ranks' about a request; what is about none that they have is dropped."""
        name = str(answer.get("id"))
        request = self._running.get(name)
        if request is None:
            return
        last = "token" not in answer
        if last:
            del self._running[name]
            self.wake.set()
        if name not in self._cancelled:
            request.tell(answer, last=last)
        elif last:
            self._cancelled.discard(name)

    def lost(self) -> None:
        """Take back what the ranks had: it waits in front, in its order. They are gone, and say nothing more."""
        back = [request for request in self._running.values() if request.id not in self._cancelled]
        self._running.clear()
        self._cancelled.clear()
        self._to_cancel.clear()
        for request in back:
            request.losses += 1
        given_up = [request for request in back if request.losses >= MOST_LOSSES]
        self._waiting.extendleft(reversed([request for request in back if request.losses < MOST_LOSSES]))
        for request in given_up:
            _refuse(request, f"the ranks were lost {MOST_LOSSES} times over this request: it is not tried again")
        self.wake.set()

    def fail(self, reason: str) -> None:
        """Answer every open request with an error: there will be no ranks."""
        refused = self.open
        self._waiting.clear()
        self._running.clear()
        self._cancelled.clear()
        self._to_cancel.clear()
        for request in refused:
            _refuse(request, reason)

    def _end(self, request: OpenRequest) -> None:
        """End a request that its client does not want any more."""
        if request in self._waiting:
            self._waiting.remove(request)
        elif self._running.get(request.id) is request and request.id not in self._cancelled:
            self._cancelled.add(request.id)
            self._to_cancel.append(request.id)
        else:
            return
        request.tell({"id": request.id, "finish_reason": "cancelled"}, last=True)
        self.wake.set()


def _refuse(request: OpenRequest, reason: str) -> None:
    request.tell({"id": request.id, "error": reason, "lost": True}, last=True)
