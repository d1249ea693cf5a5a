"""How an axis is cut: spans, partitions, and rounding shares to whole parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from solver.base.errors import HeptiError


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open, zero-based range of rows, heads, columns or layers; may be empty."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise HeptiError(f"span [{self.start}, {self.stop}) does not ascend from zero")

    @property
    def size(self) -> int:
        """Number of indices."""
        return self.stop - self.start

    @property
    def slice(self) -> slice:
        """The span as an index."""
        return slice(self.start, self.stop)

    def intersect(self, other: Span) -> Span:
        """Return the indices that both hold; empty where they are disjoint."""
        if other.start <= self.start and self.stop <= other.stop:
            return self
        if self.start <= other.start and other.stop <= self.stop:
            return other
        start = max(self.start, other.start)
        return Span(start, max(start, min(self.stop, other.stop)))

    def within(self, other: Span) -> Span:
        """Return this span counted from the start of `other`, which contains it."""
        return Span(self.start - other.start, self.stop - other.start)

    def scaled(self, factor: int) -> Span:
        """Return the span of columns that belong to this span of heads, `factor` columns each."""
        return Span(self.start * factor, self.stop * factor)


@dataclass(frozen=True, slots=True)
class Partition:
    """Consecutive spans that cover an axis, one per rank."""

    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        if not self.spans:
            raise HeptiError("there are no spans")
        if self.spans[0].start != 0:
            raise HeptiError(f"the first span {_text(self.spans[0])} does not begin at 0")
        for before, after in pairwise(self.spans):
            if after.start < before.stop:
                raise HeptiError(f"spans {_text(before)} and {_text(after)} overlap")
            if after.start > before.stop:
                raise HeptiError(f"nobody has {_text(Span(before.stop, after.start))}: the spans leave a gap")

    @classmethod
    def of_counts(cls, counts: Iterable[int]) -> Partition:
        """Build from one count per rank."""
        stops = list(accumulate(counts, initial=0))
        return cls(tuple(Span(start, stop) for start, stop in pairwise(stops)))

    @classmethod
    def of_shares(cls, shares: Sequence[float], total: int) -> Partition:
        """Round shares to whole parts of `total` by the largest remainder."""
        return _rounded(tuple(shares), total)

    @property
    def total(self) -> int:
        """Length of the axis."""
        return self.spans[-1].stop

    @property
    def counts(self) -> tuple[int, ...]:
        """Length of each rank's span."""
        return tuple(span.size for span in self.spans)

    @property
    def taking(self) -> tuple[bool, ...]:
        """Whose spans are not empty."""
        return tuple(span.stop > span.start for span in self.spans)

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, rank: int) -> Span:
        return self.spans[rank]

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def __str__(self) -> str:
        return ", ".join(_text(span) for span in self.spans)


@lru_cache(maxsize=64)
def _rounded(shares: tuple[float, ...], total: int) -> Partition:
    """Round shares; every block of every layer asks for the same."""
    return Partition.of_counts(largest_remainder(shares, total))


def tiles(span: Span, rows: int) -> list[Span]:
    """Cut a span into nearly equal tiles of about `rows`; 0: one tile. An empty span has none."""
    return pieces_of(span, max(1, round(span.size / rows)) if rows else 1)


def pieces_of(span: Span, count: int) -> list[Span]:
    """Cut a span into so many nearly equal pieces, at most one for each of its units. An empty span has none."""
    if not span.size:
        return []
    count = min(span.size, count)
    edges = [span.start + span.size * number // count for number in range(count + 1)]
    return [Span(start, stop) for start, stop in pairwise(edges)]


def largest_remainder(shares: Sequence[float], total: int) -> list[int]:
    """Round `shares` (any non-negative weights) to integers that add up to `total`.

    Every part is within one of its exact share; a share of zero gets nothing; ties go to the lower rank.
    """
    weight = sum(shares)  # not fsum, which raises where a sum overflows
    if total < 0 or not 0 < weight * max(total, 1) < math.inf or min(shares) < 0:
        raise HeptiError(f"cannot share {total} parts by the weights {list(shares)}")
    exact = [total * share / weight for share in shares]
    counts = [math.floor(part) for part in exact]
    by_remainder = sorted(
        (rank for rank, share in enumerate(shares) if share > 0),
        key=lambda rank: (counts[rank] - exact[rank], rank),
    )
    for step in range(total - sum(counts)):
        counts[by_remainder[step % len(by_remainder)]] += 1
    return counts


def _text(span: Span) -> str:
    return f"[{span.start}, {span.stop})"
