"""Measure the links: every pair alone, every device with all others at once, and what a message costs its ends."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from hepti_mpi.comm.group import Group
from hepti_mpi.comm.rows import RowExchange, Tiles, gather_rows, whole
from hepti_mpi.measure.timing import fitting_clock
from solver.base import clock
from solver.base.spans import Partition, Span
from solver.cluster.cluster import Link
from solver.cluster.curves import Curve

ROUNDS, MOST_ROUNDS, AGREEMENT = 3, 8, 0.05  # until the best two agree
PING_BYTES = 4
SHORT_BYTES, LONG_BYTES = 1 << 18, 1 << 20  # their difference is wire time alone: no latency, no burst of a shaper
MESSAGE_BYTES = (4 << 10, 64 << 10, 1 << 20)
REST_S = 0.01  # before every round: who waited for the others in a barrier has spent a quota of CPU, and gets it back
# A pair that is slower than its devices' own links by less is no exception to them, only noise.
TOLERANCE = 0.15
LATE_S = 2e-3  # and one that is later by less; a quota's period and a sleeping wait are that long
LOOKS = 3  # what is slow or late all the same is looked at again, so often in all, and its best counts
# One rank has no links, and its plans no exchange.
NO_LINK = Link(125e6, 200e-6)


@dataclass(frozen=True, slots=True)
class Links:
    """What was measured: the network, every device's own link (bytes/s), and every pair by ranks."""

    network: Link
    own: tuple[float | None, ...]
    pairs: dict[tuple[int, int], Link]

    def stands_out(self, pair: tuple[int, int]) -> bool:
        """Return whether a pair carries less than its devices' own links, or later than the network."""
        link = self.pairs[pair]
        expected = min(self.own[rank] or 0.0 for rank in pair)
        slow = link.bandwidth_bytes_per_s < (1 - TOLERANCE) * expected
        return slow or link.latency_s > 2 * self.network.latency_s + LATE_S

    def exceptions(self, names: Sequence[str]) -> dict[frozenset[str], Link]:
        """Return the pairs that stand out, by name."""
        return {
            frozenset(names[rank] for rank in pair): link for pair, link in self.pairs.items() if self.stands_out(pair)
        }


def measure_links(group: Group) -> Links:
    """Measure every pair in turn, then every device with all others at once; every rank calls this."""
    if group.size == 1:
        return Links(NO_LINK, (None,), {})
    pairs = {pair: _pair(group, pair) for pair in combinations(range(group.size), 2)}
    own = [_own(group, rank) for rank in range(group.size)]
    for rank in range(group.size):
        for _ in range(LOOKS - 1):
            if own[rank] < (1 - TOLERANCE) * statistics.median(own):
                own[rank] = max(own[rank], _own(group, rank))
    latency_s = statistics.median(link.latency_s for link in pairs.values())
    links = Links(Link(statistics.median(own), latency_s), tuple(own), pairs)
    for pair in pairs:
        for _ in range(LOOKS - 1):
            if links.stands_out(pair):
                one, other = pairs[pair], _pair(group, pair)
                pairs[pair] = Link(
                    max(one.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s), min(one.latency_s, other.latency_s)
                )
    return links


def _pair(group: Group, pair: tuple[int, int]) -> Link:
    """Measure two ranks that send to each other, alone."""
    both = {rank: set(pair) for rank in pair}
    return Link(_bandwidth(group, both), _seconds(group, PING_BYTES, both))


def _own(group: Group, centre: int) -> float:
    """Return the bytes per second that a rank exchanges with all others at once, the slower way."""
    others = {rank for rank in range(group.size) if rank != centre}
    sends_s = _seconds(group, LONG_BYTES, {rank: {centre} for rank in others})
    takes_s = _seconds(group, LONG_BYTES, {centre: others})
    return len(others) * LONG_BYTES / max(sends_s, takes_s)


def measure_messages(group: Group, links: Links, pace: float) -> Curve:
    """Return what posting and completing one message takes of this device's time, over its bytes.

    All send to all and sleep while the wires are busy, so that waiting does not count. They rest by that: what it takes
    of one that has work is that by the clock, at its `pace` (`timing.seconds_of`).
    """
    now = fitting_clock()
    blocks, everything = Partition.of_counts([1] * group.size), [Span(0, group.size)] * group.size
    messages = max(1, 2 * (group.size - 1))
    seconds = []
    for size in MESSAGE_BYTES:
        wires_s = group.size * size / links.network.bandwidth_bytes_per_s
        samples = []
        for _ in range(ROUNDS):
            group.barrier()
            started = now()
            exchange = RowExchange(group, blocks, everything, (size // 4,))
            exchange.put(0)
            posted = now()
            clock.sleep(2 * wires_s + 2e-3)
            woken = now()
            whole(exchange)
            samples.append(pace * (now() - woken + posted - started) / messages)
            group.finish_sending()
        seconds.append(statistics.median(samples))
    return Curve(tuple(map(float, MESSAGE_BYTES)), (0.0, 1.0), tuple((value,) * 2 for value in seconds))


def _bandwidth(group: Group, sources: Mapping[int, set[int]]) -> float:
    """Return the bytes per second of every stream; `sources` says from whom each rank receives."""
    short, long = (_seconds(group, size, sources) for size in (SHORT_BYTES, LONG_BYTES))
    # Where noise makes the short one as slow, a quarter of the long one stands in for their difference.
    return (LONG_BYTES - SHORT_BYTES) / max(long - short, long / 4)


def _seconds(group: Group, size: int, sources: Mapping[int, set[int]]) -> float:
    """Return how long the slowest rank takes until it has a block of `size` bytes from each of its sources.

    The best of several rounds: what else the hosts do only ever makes one longer.
    """
    senders = set().union(*sources.values())
    blocks = Partition.of_counts([int(rank in senders) for rank in range(group.size)])
    nothing = Span(0, 0)
    want = [
        Span(min(blocks[s].start for s in sources[r]), max(blocks[s].stop for s in sources[r]))
        if r in sources
        else nothing
        for r in range(group.size)
    ]
    samples: list[float] = []
    while len(samples) < ROUNDS or (len(samples) < MOST_ROUNDS and samples[1] > (1 + AGREEMENT) * samples[0]):
        block = np.zeros((blocks[group.rank].size, size // 4), np.float32)
        group.barrier()
        clock.sleep(REST_S)
        started = clock.now()
        whole(gather_rows(group, Tiles.here(block), blocks, want))
        samples = sorted([*samples, group.slowest(clock.now() - started)])
        group.finish_sending()
    return samples[0]
