"""What ranks tell rank 0 of batches, within them and after them, put together in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hepti_mpi.live.monitor import Measured, PartialReport
from solver.plan.plan import Plan


@dataclass(slots=True, eq=False)
class Begun:
    """A batch of which not all is told: under which plan it began, its rows, and whether the plan changed within it."""

    number: int
    plan: Plan
    rows: int
    torn: bool = False
    parts: dict[int, dict[int, PartialReport]] = field(default_factory=dict)  # by layer and rank
    words: dict[int, Measured] = field(default_factory=dict)  # by rank


class BatchReports:
    """Holds what ranks tell until all that have a say have spoken; later batches wait for those before them.

    Parameters
    ----------
    ranks
        How many tell of a batch after it; within it, those do that have a share.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._begun: dict[int, Begun] = {}

    def begin(self, number: int, plan: Plan, rows: int) -> None:
        """Expect word of a batch."""
        self._begun[number] = Begun(number, plan, rows)

    def tear(self, number: int) -> None:
        """Take note that a batch's plan changed within it."""
        self._begun[number].torn = True

    def take(self, rank: int, word: Measured | PartialReport) -> None:
        """Take a rank's word."""
        begun = self._begun[word.batch]
        if isinstance(word, PartialReport):
            begun.parts.setdefault(word.layer, {})[rank] = word
        else:
            begun.words[rank] = word

    def waits(self, number: int) -> bool:
        """Return whether not all is told of a batch."""
        return number in self._begun

    def complete(self) -> Iterator[tuple[Begun, Mapping[int, PartialReport] | None]]:
        """Yield a batch whenever all its ranks have reported up to a layer, with these reports; None: of all of it."""
        for begun in list(self._begun.values()):
            for layer, parts in sorted(begun.parts.items()):
                if len(parts) < len(begun.plan.stages[0].active):
                    return
                yield begun, begun.parts.pop(layer)
            if len(begun.words) < self._ranks:
                return
            del self._begun[begun.number]
            yield begun, None
