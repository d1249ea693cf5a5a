"""Who gets which batch, by a clock that only computing and sending move: no rank runs, nothing is measured."""

from collections import Counter, deque
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from hepti_mpi import flow
from hepti_mpi.comm import PAUSE_S
from hepti_mpi.flow import MOST, SPREAD, Flow, Step

ROWS = 512
LAYERS = 6
MIXED4 = (0.44, 0.155, 0.44, 1.09)  # seconds of a batch of all-MiniLM-L6-v2 on the boards of `mixed4`


class Lane:
    """A replica of one rank."""

    def __init__(self, rank):
        self.ranks, self.stages, self.hops, self.rank = [rank], (rank,), 2, rank

    def stage_of(self, rank):
        return 0 if rank == self.rank else None


class Boards:
    """Stack and group of rank 0 in one: each rank takes `seconds(rank, batch)` for a batch, one after the other.

    Rank 0 computes layer by layer; another's result comes `wire_s` after it is done.
    """

    def __init__(self, ranks, seconds, wire_s=0.02, layers=LAYERS):
        self.size, self.now, self._seconds, self._wire_s, self._layers = ranks, 0.0, seconds, wire_s, layers
        # As `data` has it: the fastest replica first.
        self.lanes = tuple(Lane(rank) for rank in sorted(range(ranks), key=lambda rank: seconds(rank, 0)))
        self._done = {rank: deque() for rank in range(ranks)}
        self._free = Counter()
        self.batches = Counter()

    def perf_counter(self):
        return self.now

    def carry(self, lane, batch, x, exact):
        rank, number = lane.rank, self.batches.total()
        self.batches[rank] += 1
        if rank == 0:
            for _ in range(self._layers):
                self.now += self._seconds(0, number) / self._layers
                yield 0, None
            return x
        start = max(self._free[rank], self.now + self._wire_s)
        self._free[rank] = start + self._seconds(rank, number)
        self._done[rank].append(self._free[rank] + self._wire_s)
        yield 1, rank
        self._done[rank].popleft()
        return x

    def has_message(self, rank):
        return self._done[rank][0] <= self.now

    def pause(self):
        self.now += PAUSE_S

    def metered(self, count, begins):
        return nullcontext()

    def announce(self, step, ranks):
        pass

    def finish_sending(self):
        pass


@pytest.fixture
def deal(monkeypatch):
    """Return what runs so many batches; it returns the seconds."""

    def run(boards, batches, dealer=None):
        monkeypatch.setattr(flow, "time", SimpleNamespace(perf_counter=boards.perf_counter))
        steps = [(Step((ROWS,), True), lambda number=number: np.array([number])) for number in range(batches)]
        started = boards.now
        results = [int(result[0]) for result in (dealer or Flow(boards, boards)).run(steps)]
        assert results == [*range(batches)]
        return boards.now - started

    return run


@pytest.mark.parametrize("batch_s", [(0.4, 0.15), (0.15, 0.4), (0.3, 0.3), (1.0, 0.1), (0.1, 1.0), MIXED4])
def test_few_batches_and_no_warm_up_take_little_more_than_all_together_need(batch_s, deal):
    """24 batches: no rank waits long, neither for rank 0 in the middle nor for the slowest in the end."""
    boards = Boards(len(batch_s), lambda rank, _: batch_s[rank])

    seconds = deal(boards, 24)

    together = sum(1 / each for each in batch_s)
    assert seconds <= 24 / together + 0.6 * max(min(batch_s), 0.2) + 0.5 * sorted(batch_s)[1]
