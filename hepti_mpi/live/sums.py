"""What every rank has done so far, told to rank 0 when somebody asks for a job's status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hepti_mpi.comm.group import Group
from hepti_mpi.engine.stack import Meter


@dataclass(frozen=True, slots=True)
class SumsOrder:
    """Rank 0's word to the others, between two batches: send your meter to `Group.sums`."""


class Sums:
    """Rank 0's side: it asks the others, and knows what they said last.

    A status waits for nobody. It shows what has been told, and asks for the next one: a message each way, for all
    batches in between.

    Parameters
    ----------
    group
        All ranks.
    own
        Rank 0's.
    """

    def __init__(self, group: Group, own: Meter) -> None:
        self._group = group
        self._told = {0: own}
        self._asked: set[int] = set()  # who has not answered yet

    def look(self) -> Mapping[int, Meter]:
        """Return what every rank has told, of those that have told anything; and ask again, once all have answered."""
        while (found := self._group.sums.poll()) is not None:
            self._take(*found)
        if not self._asked:
            self._asked = set(self._group.others())
            self._group.orders.send(SumsOrder(), self._asked)
        return self._told

    def close(self) -> None:
        """Take what is still to come, so that no message is left when the job ends."""
        while self._asked:
            if (found := self._group.sums.poll()) is not None:
                self._take(*found)
            else:
                self._group.pause()

    def _take(self, rank: int, meter: Meter) -> None:
        self._told[rank] = meter
        self._asked.discard(rank)
