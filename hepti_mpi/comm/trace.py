"""When a rank computed which block of the layers, and when it waited: the last request as a Chrome trace.

Perfetto (and chrome://tracing) show such files. Recording costs two clock readings a tile and one a wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from solver.base import clock

Item = TypeVar("Item")

OUTSIDE = "outside the layers"


@dataclass(slots=True)
class Trace:
    """One request on one rank, in seconds of its own clock: what it was at from when to when, and when it waited.

    Blocks are computed when their tiles are asked for, so that the work on one is cut up by that on another.
    """

    slices: list[tuple[str, float, float]] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    _at: list[str] = field(default_factory=list)  # the innermost block last
    _since: float = 0.0

    def begin(self) -> None:
        """Forget the request before, and begin one."""
        self.slices.clear()
        self.waits.clear()
        self._at = [OUTSIDE]
        self._since = clock.now()

    def end(self) -> None:
        """End the request."""
        self._cut()

    @contextmanager
    def block(self, name: str) -> Iterator[None]:
        """Work on a block within the one that was at work."""
        self._cut()
        self._at.append(name)
        try:
            yield
        finally:
            self._cut()
            self._at.pop()

    def over(self, name: str, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items, each of which takes work on a block."""
        source = iter(items)
        while True:
            with self.block(name):
                found = next(source, None)
            if found is None:
                return
            yield found

    def shifted(self, seconds: float) -> Trace:
        """Return the trace by a clock that is so many seconds behind."""
        return Trace(
            [(name, start - seconds, stop - seconds) for name, start, stop in self.slices],
            [(start - seconds, stop - seconds) for start, stop in self.waits],
        )

    def _cut(self) -> None:
        now = clock.now()
        self.slices.append((self._at[-1], self._since, now))
        self._since = now


def chrome_trace(devices: Sequence[str], traces: Sequence[Trace]) -> dict[str, Any]:
    """Return the traces of all ranks, by one clock, as Chrome's trace events: a row a rank, waits within blocks."""
    first = min((start for trace in traces for _, start, _ in trace.slices), default=0.0)
    events: list[dict[str, Any]] = []
    for rank, (device, trace) in enumerate(zip(devices, traces, strict=True)):
        events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": {"name": device}})
        waits = [("wait", start, stop) for start, stop in trace.waits]
        for name, start, stop in [*trace.slices, *waits]:
            at_us, for_us = round(1e6 * (start - first), 1), round(1e6 * (stop - start), 1)
            kind = "wait" if name == "wait" else "compute"
            if for_us >= 1:
                events.append({"name": name, "cat": kind, "ph": "X", "pid": 0, "tid": rank, "ts": at_us, "dur": for_us})
    return {"traceEvents": events, "displayTimeUnit": "ms"}
