"""A batch without padding: the requests' rows lie one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from solver.base.spans import Partition, Span


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of every request in one array of S rows."""

    requests: Partition

    @classmethod
    def of_lengths(cls, lengths: Sequence[int]) -> Batch:
        """Lay requests of these row counts one after the other."""
        return cls(Partition.of_counts(lengths))

    @property
    def rows(self) -> int:
        """Rows of all requests, S."""
        return self.requests.total

    def keys_of(self, rows: Span) -> Span:
        """Return the rows that `rows` attend to: those of every request that they touch."""
        touched = [request for request in self.requests if request.intersect(rows).size]
        return Span(touched[0].start, touched[-1].stop) if touched else Span(0, 0)

    def pieces(self, rows: Span, keys: Span) -> list[tuple[slice, slice]]:
        """Return for every request its rows within `rows` and within `keys`."""
        return [
            (request.intersect(rows).within(rows).slice, request.within(keys).slice)
            for request in self.requests
            if request.intersect(rows).size
        ]

    def places(self, rows: Span) -> list[Span]:
        """Return for every request of `pieces` which of its own rows those are, counted from its first."""
        touched = [(request, request.intersect(rows)) for request in self.requests]
        return [some.within(request) for request, some in touched if some.size]
