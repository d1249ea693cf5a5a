"""Who gets which batch, by a clock that only computing and sending move: no rank runs, nothing is measured."""

from collections import Counter, deque
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from hepti_mpi.comm.mailbox import PAUSE_S
from hepti_mpi.engine import flow
from hepti_mpi.engine.flow import SPREAD, BatchOrder, Flow
from hepti_mpi.live.conductor import Conductor
from tests import sweeps

ROWS = 512
LAYERS = 6
MIXED4 = (0.44, 0.155, 0.44, 1.09)  # seconds of a batch of all-MiniLM-L6-v2 on the boards of `mixed4`
SPEEDS = ((0.4, 0.15), (0.15, 0.4), (0.3, 0.3), (1.0, 0.1), (0.1, 1.0), MIXED4)


class Path:
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
        self.paths = tuple(Path(rank) for rank in sorted(range(ranks), key=lambda rank: seconds(rank, 0)))
        self._done = {rank: deque() for rank in range(ranks)}
        self._free = Counter()
        self.orders = SimpleNamespace(send=lambda step, to: None)
        self.batches = Counter()

    def clock(self):
        return self.now

    def carry(self, path, batch, x, exact, look):
        rank, number = path.rank, self.batches.total()
        self.batches[rank] += 1
        if rank == 0:
            for _ in range(self._layers):
                self.now += self._seconds(0, number) / self._layers
                yield 0, None
            return x
        start = max(self._free[rank], self.now + self._wire_s)
        self._free[rank] = start + self._seconds(rank, number)
        self._done[rank].append(self._free[rank] + self._wire_s)
        yield 1, partial(self.has_rows, rank)
        self._done[rank].popleft()
        return x

    def has_rows(self, rank):
        return self._done[rank][0] <= self.now

    def pause(self):
        self.now = max(self.now + PAUSE_S, min(done[0] for done in self._done.values() if done))

    def metered(self, count, begins):
        return nullcontext()

    def finish_sending(self):
        pass


class Pipeline(Boards):
    """Four stages one after the other, none of rank 0; what they pass on is on the wire for `wire_s`."""

    def __init__(self, stage_s, wire_s):
        super().__init__(5, lambda rank, number: stage_s, wire_s)
        path = Path(4)
        path.stages = path.ranks = (1, 2, 3, 4)
        path.hops = 5
        self.paths = (path,)

    def carry(self, path, batch, x, exact, look):
        self.batches[4] += 1
        at = self.now + self._wire_s
        for rank in path.ranks:
            self._free[rank] = max(self._free[rank], at) + self._seconds(rank, 0)
            at = self._free[rank] + self._wire_s
        self._done[4].append(at)
        yield 1, partial(self.has_rows, 4)
        self._done[4].popleft()
        return x


def results(dealer, steps, meanwhile=None):
    """Submit all, and yield what has come of each, in order."""
    for step in steps:
        dealer.submit(*step)
    while not dealer.idle:
        yield from dealer.step(meanwhile)


@pytest.fixture
def deal(monkeypatch):
    """Return what runs so many batches, in order, and returns the seconds; `take` hears how many are done."""

    def run(boards, batches, dealer=None, take=lambda done: None):
        monkeypatch.setattr(flow, "clock", SimpleNamespace(now=boards.clock))
        steps = [(BatchOrder((ROWS,), True), lambda number=number: np.array([number])) for number in range(batches)]
        started = boards.now
        for number, result in enumerate(results(dealer or Flow(boards, boards), steps)):
            assert result == [number]
            take(number + 1)
        return boards.now - started

    return run


def rate(batch_s):
    """Return how many batches a second all together can do."""
    return sum(1 / each for each in batch_s)


@pytest.mark.parametrize(("batch_s", "layers"), sweeps.cycled(6, SPEEDS, [1, 6, 24]))
def test_many_batches_keep_all_ranks_busy(batch_s, layers, deal):
    """Dealt out in proportion to speed, wherever rank 0 stands, and however seldom it can deal."""
    boards = Boards(len(batch_s), lambda rank, _: batch_s[rank], layers=layers)

    seconds = deal(boards, 300)

    assert 300 / rate(batch_s) / seconds >= 0.93
    for rank, each in enumerate(batch_s):
        assert boards.batches[rank] == pytest.approx(300 / each / rate(batch_s), rel=0.1, abs=2)


@pytest.mark.parametrize("batch_s", SPEEDS)
def test_few_batches_and_no_warm_up_take_little_longer_than_all_together_need(batch_s, deal):
    """24 batches, speeds unknown: nobody waits while rank 0 computes, nor in the end for the slowest."""
    boards = Boards(len(batch_s), lambda rank, _: batch_s[rank])

    seconds = deal(boards, 24)

    assert 24 / rate(batch_s) / seconds >= 0.85


def test_known_speeds_are_used_by_what_is_dealt_out_next(deal):
    """The second time, the slow rank begins nothing that the fast one would have done sooner."""
    boards = Boards(2, lambda rank, _: (0.1, 1.0)[rank])
    dealer = Flow(boards, boards)
    deal(boards, 24, dealer)
    boards.batches.clear()

    seconds = deal(boards, 5, dealer)

    assert boards.batches == {0: 5}
    assert seconds == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(("slow", "times"), sweeps.cycled(4, range(4), [2, 4]))
def test_a_rank_that_slows_down_in_the_middle_costs_no_more_than_its_share(slow, times, deal):
    """From batch 100 of 300 on; the others take over what it lacks."""
    boards = Boards(4, lambda rank, number: MIXED4[rank] * (times if rank == slow and number >= 100 else 1))

    seconds = deal(boards, 300)

    slower = [each * (times if rank == slow else 1) for rank, each in enumerate(MIXED4)]
    assert (100 / rate(MIXED4) + 200 / rate(slower)) / seconds >= 0.9


def test_a_rank_that_all_but_stops_gets_nothing_more(deal):
    """It has at most two batches then, for which all wait in the end, and one more when they have ended."""
    boards = Boards(4, lambda rank, number: 40.0 if rank == 2 and number >= 100 else MIXED4[rank])

    seconds = deal(boards, 300)

    assert boards.batches[2] <= 100 / MIXED4[2] / rate(MIXED4) + 4
    assert seconds <= 300 / rate(MIXED4) + 2 * 40.0


@pytest.mark.parametrize("wire_s", [0.01, 0.1, 0.2])
def test_a_pipeline_is_as_fast_as_its_slowest_stage_also_where_batches_are_long_on_the_wire(wire_s, deal):
    """As many again as there are stages may be on the wire, and no more."""
    boards, most = Pipeline(0.2, wire_s), []

    seconds = deal(boards, 100, take=lambda done: most.append(boards.batches.total() - done))

    first_s = 4 * (0.2 + wire_s) + wire_s
    assert seconds <= 1.1 * (first_s + 99 * 0.2)
    assert max(most) <= SPREAD * (2 * 4 + 1)


@pytest.mark.parametrize(("takes_s", "stops_s"), [(1.0, 0.0), (0.0, 40.0)], ids=["consumer", "rank"])
def test_neither_a_slow_consumer_nor_a_slow_rank_grows_what_is_under_way(takes_s, stops_s, deal):
    """Never more than the window; and a consumer that takes nothing meets results of what had been dealt out."""
    boards = Boards(4, lambda rank, number: MIXED4[rank] + stops_s * (rank == 2 and number >= 100))
    under_way = []

    def take(done):
        boards.now += takes_s
        under_way.append(boards.batches.total() - done)

    deal(boards, 300, take=take)

    assert len(under_way) == 300
    assert max(under_way) <= SPREAD * (1 + 3 * 3)


def test_other_work_is_done_once_a_batch_while_the_others_compute():
    """After a batch has been dealt out, and before anybody waits for it."""
    boards = Boards(2, lambda rank, _: 0.1)
    dealt = []
    steps = [
        (BatchOrder((ROWS,), True), lambda number=number: dealt.append(number) or np.array([number]))
        for number in range(5)
    ]
    at = []

    done = [result[0] for result in results(Flow(boards, boards), steps, lambda: at.append(len(dealt)))]

    assert done == [0, 1, 2, 3, 4]
    assert at == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("active", "wait_s", "every"), [(True, 1.0, []), (False, 1.0, [None]), (False, 0.06, [10.0])])
def test_rank_0_without_a_share_is_probed_often_where_no_request_waits_for_it(active, wait_s, every):
    probed = []
    member = SimpleNamespace(stack=SimpleNamespace(active=active), monitor=SimpleNamespace(probe=probed.append))

    Conductor.meanwhile(SimpleNamespace(_member=member, _waited_s=wait_s))

    assert probed == every
