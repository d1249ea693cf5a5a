"""What an exchange costs: bytes, messages and seconds on every device.

Blocks are uneven. In an all-gather, the owner of block b_j sends it to every other receiver, so with a direct route it
sends (n - 1) b_j over its own link while a receiver takes in only the sum of the others' blocks; in a reduce-scatter it
is the owner of the largest block that receives n - 1 summands. A device has all it needs once its own link has brought
everything and every sender is done with its own: streams to several receivers share the sender's link, so they end
together. By a ring or a relay (`solver.plan.routes`) others send a part of what an owner would send, and what is passed
on comes later: by a latency and a tile for every time. Arrays are [..., p]: one row for every candidate plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.cluster.cluster import Cluster
from solver.cluster.curves import Floats
from solver.plan.routes import Route

Mask = NDArray[np.bool_]
Between = Callable[[int, int], Floats]


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
    """Bytes and messages of every device, [..., p]; `between(j, i)` is what j sends to i.

    Parameters
    ----------
    sent, received, messages, between
        As they are on the wire, with what is passed on for others.
    encoded
        Bytes that a device turns into the wire's format, once for all receivers.
    tiles
        In how many tiles a device's block goes.
    last
        Bytes that are sent, by whomever, of a block's last tile.
    hops : [..., 1]
        How often the bytes of a block are sent one after the other.
    """

    sent: Floats
    received: Floats
    messages: Floats
    between: Between
    encoded: Floats
    tiles: Floats
    last: Floats
    hops: Any = 1.0

    def seconds(self, network: Network) -> Floats:
        """Return when each device has all that it needs, from the moment that all have begun."""
        return self.arrival(network, np.zeros_like(self.sent))

    def arrival(self, network: Network, begun: Floats) -> Floats:
        """Return when each device has all that it needs, where each begins to send at `begun`.

        Its own link is taken to be busy since the last of the others has begun. Who needs nothing has it at 0.
        """
        out = begun + self.sent / network.bandwidth
        if not isinstance(self.hops, float) and np.any(self.hops > 1):
            # A block that is passed on takes its time, and its last tile that of every further hop.
            passed = self.encoded * (1 - 1 / np.maximum(self.tiles, 1)) + self.last
            out = np.maximum(out, begun + passed / network.bandwidth * (self.hops > 1))
        others_begun, others_out = largest_other(np.array([begun, out]) * (self.sent > 0))
        arrived = np.maximum(others_begun + self.received / network.bandwidth, others_out)
        for one, other, bandwidth, latency_s in network.narrow:
            for sender, receiver in ((one, other), (other, one)):
                moved = self.between(sender, receiver)
                late = np.where(moved > 0, begun[..., sender] + moved / bandwidth + latency_s - network.latency_s, 0.0)
                arrived[..., receiver] = np.maximum(arrived[..., receiver], late)
        return np.where(self.received > 0, self.hops * network.latency_s + arrived, 0.0)

    def last_seconds(self, network: Network) -> Floats:
        """Return how long after its owner has done it each block's last tile is everywhere."""
        return np.where(self.last > 0, self.hops * network.latency_s + self.last / network.bandwidth, 0.0)


def gather(blocks: Floats, receivers: Mask, tiles: Floats | None = None, route: Route = Route.DIRECT) -> Exchange:
    """Every receiver gets every block: the all-gather, true counts.

    Parameters
    ----------
    blocks : [..., p] bytes
        What each device owns.
    receivers : [..., p]
        Who needs everything.
    tiles : [..., p]
        In how many tiles each block goes; in one where not given.
    route
        How it travels.
    """
    copies = receivers.sum(-1, keepdims=True) - receivers
    tiles = (blocks > 0).astype(float) if tiles is None else tiles
    received = receivers * (blocks.sum(-1, keepdims=True) - blocks)
    arriving = receivers * (tiles.sum(-1, keepdims=True) - tiles)
    hops: Any = 1.0
    between: Between
    if route is Route.RING:
        sent, leaving, between = _ring(blocks, tiles, receivers, copies)
        hops = np.maximum((copies * (blocks > 0)).max(-1, keepdims=True), 1)
    elif route is Route.RELAY:
        sent, leaving, between, relayed = _relay(blocks, tiles, receivers, copies)
        hops = 1.0 + relayed.any(-1, keepdims=True)
    else:
        sent, leaving = blocks * copies, tiles * copies

        def between(j: int, i: int) -> Floats:
            return np.asarray(blocks[..., j] * receivers[..., i])

    last = blocks / np.maximum(tiles, 1) * copies
    return Exchange(sent, received, leaving + arriving, between, blocks * (copies > 0), tiles, last, hops)


def scatter(blocks: Floats, senders: Mask, tiles: Floats | None = None) -> Exchange:
    """Every owner gets its block from every sender: the reduce-scatter, an all-gather backwards."""
    back = gather(blocks, senders, tiles)
    nothing = np.zeros_like(back.sent)
    return Exchange(
        back.received, back.sent, back.messages, lambda j, i: back.between(i, j), back.received, back.tiles, nothing
    )


def cross(row_bytes: Floats, rows: Floats, groups: Floats, scale_bytes: float) -> Exchange:
    """Every owner of rows gets the columns that others have of these: an all-to-all, true counts.

    Parameters
    ----------
    row_bytes, rows : [..., p]
        What each device has of every row, and how many rows it owns.
    groups : [..., p]
        In how many groups it sends its columns, a message to every owner each.
    scale_bytes
        That come with every row of a group.
    """
    own = row_bytes + scale_bytes * groups
    owners = rows > 0
    sent = own * (rows.sum(-1, keepdims=True) - rows)
    received = rows * (own.sum(-1, keepdims=True) - own)
    messages = groups * (owners.sum(-1, keepdims=True) - owners) + owners * (groups.sum(-1, keepdims=True) - groups)
    last = sent / np.maximum(groups, 1)
    return Exchange(sent, received, messages, lambda j, i: np.asarray(own[..., j] * rows[..., i]), sent, groups, last)


def move(have: Floats, want: Floats, row_bytes: float | Floats, tiles: Floats) -> Exchange:
    """Rows change hands: consecutive spans of these sizes, [p], become consecutive spans of those.

    A row has so many bytes, for every receiver its own number where these are [p].
    """
    stop, other_stop = np.cumsum(have), np.cumsum(want)
    start, other_start = stop - have, other_stop - want
    common = np.minimum.outer(stop, other_stop) - np.maximum.outer(start, other_start)
    moved = row_bytes * np.maximum(common, 0.0)
    np.fill_diagonal(moved, 0.0)
    return of_matrix(moved, tiles)


def of_matrix(moved: Floats, tiles: Floats | None = None, coded: Floats | None = None) -> Exchange:
    """Any exchange: `moved[j, i]` bytes go from j to i, in so many tiles; `coded` where several get the same."""
    messages = (moved > 0).sum(0) + (moved > 0).sum(1)
    sent, received = moved.sum(1), moved.sum(0)
    tiles = (sent > 0).astype(float) if tiles is None else tiles
    last, coded = sent / np.maximum(tiles, 1), sent if coded is None else coded
    return Exchange(sent, received, messages.astype(float), lambda j, i: moved[j, i], coded, tiles, last)


def tile_counts(rows: Floats, tile_rows: int) -> Floats:
    """Return in how many tiles so many rows are computed and sent: `solver.base.spans.tiles`."""
    if not tile_rows:
        return (rows > 0).astype(float)
    return np.asarray(np.minimum(rows, np.maximum(np.round(rows / tile_rows), 1)))


def largest_other(values: Floats) -> Floats:
    """Return for every device the largest value among the other devices; zero where there is none."""
    if values.shape[-1] == 1:
        return np.zeros_like(values)
    ordered = values.copy()
    ordered.partition(-2)
    second, first = ordered[..., -2:-1], ordered[..., -1:]
    return np.where(values == first, second, first)


def _ring(blocks: Floats, tiles: Floats, receivers: Mask, copies: Floats) -> tuple[Floats, Floats, Between]:
    """Return the bytes and messages that leave every device when each receiver passes on to the next.

    A receiver passes on every block but those that end with it: of the devices after it, up to the next receiver.
    """
    devices = blocks.shape[-1]
    place = np.maximum.accumulate(np.where(receivers, np.arange(devices), -1), axis=-1)
    before = np.concatenate([np.full_like(place[..., :1], -1), place[..., :-1]], axis=-1)
    end = np.where(
        before >= 0, before, place[..., -1:]
    )  # with whom a block ends: the nearest receiver before its owner
    ends = (end[..., :, None] == np.arange(devices)) & (copies > 0)[..., None]

    def passed(values: Floats) -> Floats:
        every = np.where(receivers, values.sum(-1, keepdims=True), values) - values * (copies == 0)
        return np.asarray(every - (values[..., None] * ends).sum(-2))

    sent = passed(blocks)
    follows = np.where(receivers, np.arange(devices), 2 * devices)
    ahead = np.minimum.accumulate(follows[..., ::-1], axis=-1)[..., ::-1]
    after = np.concatenate([ahead[..., 1:], np.full_like(ahead[..., :1], 2 * devices)], axis=-1)
    after = np.where(after < devices, after, ahead[..., :1])
    return sent, passed(tiles), lambda j, i: np.asarray(sent[..., j] * (after[..., j] == i))


def _relay(blocks: Floats, tiles: Floats, receivers: Mask, copies: Floats) -> tuple[Floats, Floats, Between, Mask]:
    """Return the bytes and messages that leave every device when blocks above the mean are relayed, and which are."""
    devices = blocks.shape[-1]
    owners = (blocks > 0).sum(-1, keepdims=True)
    relayed = (blocks * owners > blocks.sum(-1, keepdims=True)) & (copies > 1)
    number = np.cumsum(receivers, axis=-1)
    # How many other receivers stand between owner j and receiver r, on the way round: tile by tile they are the first.
    standing: Any = (number - receivers)[..., None, :] - number[..., :, None]
    wraps = np.arange(devices)[None, :] <= np.arange(devices)[:, None]
    standing = standing + np.where(wraps, number[..., -1:][..., None], 0)
    first = receivers[..., None, :] & relayed[..., :, None] & ~np.eye(devices, dtype=bool)
    each = np.maximum(copies, 1)[..., None]
    got = first * np.maximum(np.ceil((tiles[..., None] - standing) / each), 0)  # tiles of j that r has first
    onward = got * np.maximum(copies - 1, 0)[..., None]
    tile = blocks / np.maximum(tiles, 1)
    sent = np.where(relayed, blocks, blocks * copies) + (onward * tile[..., None]).sum(-2)
    leaving = np.where(relayed, tiles, tiles * copies) + onward.sum(-2)
    own = np.where(relayed[..., None], got * tile[..., None], blocks[..., None] * receivers[..., None, :])
    passed_on = got * tile[..., None]  # [..., owner, first receiver]

    def moved(j: int, i: int) -> Floats:
        others = passed_on[..., j].sum(-1) - passed_on[..., i, j]
        return np.asarray(own[..., j, i] + others * receivers[..., i])

    return sent, leaving, moved, relayed
