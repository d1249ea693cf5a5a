"""What a request asks of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """So many rows to compute, `new`, after so many of which blocks have kept what they need, `before`.

    An encoder keeps nothing: all of its rows are new.
    """

    new: int
    before: int = 0

    @property
    def keys(self) -> int:
        """Rows that a row attends to."""
        return self.new + self.before
