"""What an exchange costs: bytes, messages and seconds on every device.

Blocks are uneven. In an all-gather, the owner of block b_j sends it to every other receiver, so with a direct route it
sends (n - 1) b_j over its own link while a receiver takes in only the sum of the others' blocks; in a reduce-scatter it
is the owner of the largest block that receives n - 1 summands. A device has all it needs once its own link has brought
everything and every sender is done with its own: streams to several receivers share the sender's link, so they end
together. Arrays are [..., p]: one row for every candidate plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.cluster import Cluster
from solver.curves import Floats

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A cluster's links as arrays.

    Parameters
    ----------
    bandwidth : [p] bytes/s
        All that a device can send, and receive, at a time.
    latency_s
        Of one message.
    narrow
        Pairs that carry less than both their devices could, or later: (rank, rank, bytes/s, seconds).
    """

    bandwidth: Floats
    latency_s: float
    narrow: tuple[tuple[int, int, float, float], ...]

    @classmethod
    def of(cls, cluster: Cluster) -> Network:
        """Describe the network of a cluster."""
        ranks = {name: rank for rank, name in enumerate(cluster.names)}
        bandwidth = np.array([cluster.bandwidth(rank) for rank in range(len(ranks))])
        narrow = []
        for pair, link in cluster.links.items():
            one, other = sorted(ranks[name] for name in pair)
            if link.bandwidth_bytes_per_s < min(bandwidth[one], bandwidth[other]) or (
                link.latency_s > cluster.network.latency_s
            ):
                narrow.append((one, other, link.bandwidth_bytes_per_s, link.latency_s))
        return cls(bandwidth, cluster.network.latency_s, tuple(narrow))

    def only(self, devices: NDArray[np.intp]) -> Network:
        """Return the network of some of the devices."""
        place = {int(device): number for number, device in enumerate(devices)}
        narrow = tuple(
            (place[one], place[other], bandwidth, latency_s)
            for one, other, bandwidth, latency_s in self.narrow
            if one in place and other in place
        )
        return Network(self.bandwidth[devices], self.latency_s, narrow)


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """Bytes and messages of every device, [..., p]; `between(j, i)` is what j sends to i."""

    sent: Floats
    received: Floats
    messages: Floats
    between: Callable[[int, int], Floats]

    def seconds(self, network: Network) -> Floats:
        """Return when each device has all that it needs, from the moment that all have begun."""
        out = self.sent / network.bandwidth
        arrived = np.maximum(self.received / network.bandwidth, _largest_other(out))
        for one, other, bandwidth, latency_s in network.narrow:
            for sender, receiver in ((one, other), (other, one)):
                moved = self.between(sender, receiver)
                late = np.where(moved > 0, moved / bandwidth + latency_s - network.latency_s, 0.0)
                arrived[..., receiver] = np.maximum(arrived[..., receiver], late)
        return np.where(self.received > 0, network.latency_s + arrived, 0.0)


def gather(blocks: Floats, receivers: Mask) -> Exchange:
    """Every receiver gets every block: the all-gather, true counts.

    Parameters
    ----------
    blocks : [..., p] bytes
        What each device owns.
    receivers : [..., p]
        Who needs everything.
    """
    copies = receivers.sum(-1, keepdims=True) - receivers
    owners = blocks > 0
    sent = blocks * copies
    received = receivers * (blocks.sum(-1, keepdims=True) - blocks)
    arriving = owners.sum(-1, keepdims=True) - owners
    messages = owners * copies + receivers * arriving
    return Exchange(sent, received, messages, lambda j, i: blocks[..., j] * receivers[..., i])


def scatter(blocks: Floats, senders: Mask) -> Exchange:
    """Every owner gets its block from every sender: the reduce-scatter, an all-gather backwards."""
    back = gather(blocks, senders)
    return Exchange(back.received, back.sent, back.messages, lambda j, i: back.between(i, j))


def move(have: Floats, want: Floats, row_bytes: int) -> Exchange:
    """Rows change hands: consecutive spans of these sizes, [p], become consecutive spans of those."""
    stop, other_stop = np.cumsum(have), np.cumsum(want)
    start, other_start = stop - have, other_stop - want
    common = np.minimum.outer(stop, other_stop) - np.maximum.outer(start, other_start)
    moved = row_bytes * np.maximum(common, 0.0)
    np.fill_diagonal(moved, 0.0)
    return of_matrix(moved)


def of_matrix(moved: Floats) -> Exchange:
    """Any exchange: `moved[j, i]` bytes go from j to i."""
    messages = (moved > 0).sum(0) + (moved > 0).sum(1)
    return Exchange(moved.sum(1), moved.sum(0), messages.astype(float), lambda j, i: moved[j, i])


def _largest_other(values: Floats) -> Floats:
    """Return for every device the largest value among the other devices."""
    if values.shape[-1] == 1:
        return np.zeros_like(values)
    second, first = np.moveaxis(np.partition(values, -2, axis=-1)[..., -2:], -1, 0)
    largest = np.where(values == first[..., None], second[..., None], first[..., None])
    return np.asarray(largest)
