"""Exchanges among any number of ranks, by a network that keeps no more order than MPI does."""

import re
from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np
import pytest

from hepti_mpi.comm.messages import packed
from hepti_mpi.comm.rows import RowExchange, whole
from hepti_mpi.comm.wires import EXACT
from solver.base.spans import Partition, Span
from solver.plan.routes import Route
from tests import sweeps

LARGEST_TAG = 32767  # what MPI guarantees


@dataclass(eq=False)
class Receive:
    out: np.ndarray
    sent: np.ndarray | None = None


class Network:
    """Matches messages of one sender, receiver and tag in order; these end in any order."""

    def __init__(self, rng):
        self.rng = rng
        self.sent, self.asked = defaultdict(deque), defaultdict(deque)

    def match(self, way):
        assert way[-1] <= LARGEST_TAG
        while self.sent[way] and self.asked[way]:
            self.asked[way].popleft().sent = self.sent[way].popleft()


class Rank:
    """What an exchange asks of its group."""

    coding = EXACT

    def __init__(self, network, rank):
        self.network, self.rank = network, rank
        self.dropped = []

    def drop(self, rows):
        self.dropped.append(rows)

    def post_send(self, message, peer, tag):
        self.network.sent[self.rank, peer, tag].append(message)
        self.network.match((self.rank, peer, tag))

    def post_receive(self, message, peer, tag):
        receive = Receive(message)
        self.network.asked[peer, self.rank, tag].append(receive)
        self.network.match((peer, self.rank, tag))
        return receive

    def arrived(self, requests):
        here = [number for number, request in enumerate(requests) if request and request.sent is not None]
        ended = [number for number in here if self.network.rng.random() < 0.5]
        for number in ended:
            assert requests[number].sent.shape == requests[number].out.shape
            requests[number].out[...] = requests[number].sent
            requests[number] = None
        return ended

    wait_some = arrived


def wanted(kind, ranks, total, rng):
    if kind == "all":
        return [Span(0, total)] * ranks
    edges = np.sort(rng.integers(0, total + 1, (ranks, 2)))
    return [Span(int(start), int(stop)) for start, stop in edges]


SIZES = ((33, 4, 0), (3, 1040, 1), (6, 9, 2), (6, 9, 3), (6, 9, 4))


@pytest.mark.parametrize(("size", "route", "kind"), sweeps.cycled(10, SIZES, Route, ["all", "some"]))
def test_rows_of_any_number_of_tiles_and_owners_come_to_their_places(size, route, kind):
    """Owners of up to so many tiles of a row; ranks do their parts in any order, and messages end in any order."""
    ranks, most, seed = size
    rng = np.random.default_rng([seed, ranks])
    network = Network(rng)
    have = Partition.of_counts([most, *rng.integers(0, min(most, 20), ranks - 1).tolist()])
    want = wanted(kind, ranks, have.total, rng)
    x = np.arange(have.total, dtype=np.float32)[:, None]
    exchanges = [RowExchange(Rank(network, rank), have, want, (1,), tile_rows=1, route=route) for rank in range(ranks)]
    left = [deque(enumerate(exchange.tiles)) for exchange in exchanges]

    for rank in rng.permutation(np.repeat(np.arange(ranks), have.counts)).tolist():
        number, tile = left[rank].popleft()
        exchanges[rank].own[tile.slice] = x[have[rank].slice][tile.slice]
        exchanges[rank].put(number)
    while any(request for exchange in exchanges for request in exchange._exchange._requests):
        for rank in rng.permutation(ranks).tolist():
            exchanges[rank].pass_on()

    for exchange, span in zip(exchanges, want, strict=True):
        np.testing.assert_array_equal(exchange.array, x[span.slice])
    assert not any(network.sent.values())


def test_rows_are_dropped_until_all_are_put_and_taken(kept):
    """Two ranks of three tiles: what rank 0 drops too early is named, with what is missing."""
    have, complaints = Partition.of_counts([3, 3]), []
    for puts, others, takes in [(0, 0, 0), (2, 0, 0), (3, 0, 0), (3, 3, 0), (3, 3, 3)]:
        ranks = [Rank(Network(np.random.default_rng(0)), rank) for rank in range(2)]
        ranks[1].network = ranks[0].network
        exchanges = [RowExchange(rank, have, [Span(0, 6)] * 2, (1,), tile_rows=1) for rank in ranks]
        for exchange, count in zip(exchanges, (puts, others), strict=True):
            for number in range(count):
                exchange.put(number)
        if takes:
            assert whole(exchanges[0]).shape == (6, 1)
        del exchanges[0]
        complaints += [ranks[0].dropped]

    assert [[re.findall(r"\d+", line) for line in said] for said in complaints] == [
        *([[tiles, messages]] for tiles, messages in ("33", "13", "03", "03")), []
    ]  # fmt: skip
    kept(complaints[0][0])


def test_what_goes_by_rows_is_sent_from_where_it_lies_and_else_as_a_copy():
    """A network's tiles are computed in the same place, one after the other: the one before may be on its way."""
    x = np.arange(6, dtype=np.float32).reshape(3, 2)

    rows, copy = (packed([x], EXACT, scaled=scaled) for scaled in (1, 0))
    x[...] = 0

    assert not rows.any()
    assert copy.reshape(-1).tolist() == [0, 1, 2, 3, 4, 5]
