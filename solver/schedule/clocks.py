"""A clock for every rank: what networks and language models take, of one plan or of many at once.

Ranks do not wait for all others: each goes on when it has what it needs. Rank i has computed its piece k at t_ik, and
all pieces at r_i. It sends rank j the bytes m_ijk of piece k, over a link of bandwidth B_i and latency L, narrow pairs'
B_ij and L_ij; it handles what it sends in h_i seconds, what comes in g_i. Then

    o_ik = max(o_i,k-1, t_ik) + sum_j m_ijk / B_i        when its link has sent the pieces up to k, and all before
    n_ij = min_k t_ik + sum_k m_ijk / B_ij + L_ij        and a narrow pair everything
    a_ij = max(o_iK + L, n_ij)                           when j has all from i; K is the last piece that goes to j
    f_j  = min_i t_i1 + sum_ik m_ijk / B_j + L           when j's own link has taken all: what arrives last, not before
    b_j  = s log sum exp(x / s), x = r_j + h_j, a_ij     when j goes on: the latest that is expected of these moments
    w_j  = b_j - r_j - h_j                               how long it has waited
    e_j  = b_j + g_j + max(c_j - min(R_j, w_j / 2), c_j / 2)

and at e_j it has computed what takes it c_j seconds. Where it computes with what comes as that comes, w_ij seconds with
what comes from i, it goes on at s log sum exp of r_j + h_j + sum_i w_ij and a_ij + w_ij: it has done so with all else.
What is passed on by a route comes as `solver.schedule.exchange` says. Moments vary, with the scale s of the devices'
jitter (`Machine.late_scale`), and the latest of several is expected later than the latest mean (`timing.lateness`);
where none vary, b_j is that. Who has waited computes faster for a moment, by its rest R_j at most. Both are those of
steps of `timing.UNREST_S`; of a language model's shorter ones they are as much smaller (`turns`).

Arrays are [..., p], of messages [..., pieces, p, p]. Who sends and computes what, and in which order, the turns of a
schedule say (`solver.schedule.turns`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from solver.cluster.curves import Floats
from solver.schedule.exchange import Exchange, Mask, Network, largest_other
from solver.schedule.timing import PASSING, RESTED, TINY_S, Machine

MOST_GAINED = 0.5  # of what a rank computes: by how much it is faster after a wait, at most


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """Where ranks' clocks stand, in seconds since the request came.

    Parameters
    ----------
    ready : [..., p]
        When each goes on.
    computed_at : [..., pieces, p]
        When each had computed the pieces of what it sends.
    waited : [..., p]
        How long each has waited since.
    sent_at : [..., p]
        When its link has sent all that was to be sent.
    """

    ready: Floats
    computed_at: Floats
    waited: Floats
    sent_at: Floats

    @classmethod
    def at(cls, ready: Floats, sent_at: Floats | None = None) -> Moment:
        """Return that all have computed what they send, as one piece, when they are ready."""
        nothing = np.zeros(ready.shape)
        return cls(ready, ready[..., None, :], nothing, nothing if sent_at is None else sent_at)

    @property
    def last(self) -> Floats:
        """When the last one goes on, [..., 1]."""
        return np.asarray(self.ready.max(-1, keepdims=True))

    def gained(self, since: Moment) -> Floats:
        """Return by how much the clocks that have gone on did so in step, [..., p]; the others by nothing."""
        some = self.ready > since.ready
        last, first = (np.where(some, own.ready, 0.0).max(-1, keepdims=True) for own in (self, since))
        return np.asarray(np.where(some, last - first, 0.0))

    def later(self, seconds: Floats) -> Moment:
        """Return the same, so many seconds later, [..., p] or [..., 1]."""
        computed_at = self.computed_at + seconds[..., None, :]
        return Moment(self.ready + seconds, computed_at, self.waited, self.sent_at + seconds)


@dataclass(frozen=True, eq=False)
class Messages:
    """What ranks send each other of what they have computed.

    Parameters
    ----------
    moved : [..., pieces, p, p] bytes
        From each to each, piece by piece.
    sending, taking : [..., p]
        The seconds in which every rank handles what it sends, and what comes.
    working : [..., p, p]
        The seconds in which each computes with what it has from each, itself among them, as it comes: it has done so
        with what comes last when it has done so with all else. None: it does when all is there.
    routed
        How it travels, if not from its owners to all; `moved` has what is passed on, too.
    """

    moved: Floats
    sending: Floats
    taking: Floats
    working: Floats | None = None
    routed: Exchange | None = None

    @property
    def worked(self) -> Floats | float:
        """The seconds in which every rank computes with what it has from each, [..., p]."""
        return 0.0 if self.working is None else self.working.sum(-2)

    @cached_property
    def leaving(self) -> Floats:
        """Bytes that every rank sends of its pieces, [..., pieces, p]."""
        return np.asarray(self.moved.sum(-1))

    @cached_property
    def sent(self) -> Floats:
        """Bytes that every rank sends, [..., p]."""
        return np.asarray(self.leaving.sum(-2))

    @cached_property
    def received(self) -> Floats:
        """Bytes that every rank receives, [..., p]."""
        return np.asarray(self.moved.sum((-3, -2)))

    def wire_s(self, network: Network) -> Floats:
        """Return how long until every rank has what comes, [..., p], if all have computed everything; 0 for nothing."""
        computed_at = np.zeros(self.moved.shape[:-1])
        return np.asarray(_arrivals(network, self, computed_at, np.zeros(self.sending.shape))[0].max(-2))


TurnPart = Floats | Messages  # what ranks do: the seconds of its pieces, [..., pieces, p], or what they exchange


def advanced(machine: Machine, now: Moment, parts: Iterable[TurnPart], unrest_s: float = 0.0) -> Moment:
    """Return when ranks have done the parts of a turn, one after the other.

    Parameters
    ----------
    unrest_s
        Of turns whose longest computation takes less than that, jitter and rest are as much smaller.
    """
    unrest: Floats | float = 1.0
    for part in parts:
        if isinstance(part, Messages):
            now = exchanged(machine, now, part, unrest)
            continue
        unrest = unrest_of(part, unrest_s)
        now = computed(machine, now, part, unrest)
    return now


def unrest_of(pieces: Floats, unrest_s: float) -> Floats | float:
    """Return how much of jitter and rest there is where ranks compute pieces of so many seconds, [..., 1]."""
    return np.minimum(pieces.sum(-2).max(-1, keepdims=True) / unrest_s, 1.0) if unrest_s else 1.0


def exchanged(machine: Machine, now: Moment, messages: Messages, unrest: Floats | float = 1.0) -> Moment:
    """Return when ranks have what comes, and have handled it; these moments have so much of the devices' jitter."""
    moments, sent_at = moments_of(machine, now, messages)
    begin = _latest(_late_scale(machine), unrest, moments)
    done = now.ready + messages.sending + messages.worked
    return Moment(begin + messages.taking, now.computed_at, begin - done, sent_at)


def moments_of(machine: Machine, now: Moment, messages: Messages) -> tuple[Floats, Floats]:
    """Return the moments that every rank waits for in an exchange, [..., p, p], and when its link has sent all.

    Those in which it has what comes from each, -inf where nothing does, and, in place of its own, in which it has done
    all else.
    """
    arrival, sent_at = _arrivals(machine.network, messages, now.computed_at, now.sent_at)
    done = now.ready + messages.sending + messages.worked
    begun = arrival if messages.working is None else arrival + messages.working
    moments = np.where(_same(machine.devices), done[..., None, :], np.where(arrival > 0, begun, -np.inf))
    return moments, sent_at


def computed(machine: Machine, now: Moment, pieces: Floats, unrest: Floats | float = 1.0) -> Moment:
    """Return when ranks have computed pieces of so many seconds, [..., pieces, p]; `unrest` is as of `exchanged`."""
    seconds = pieces.sum(-2)
    if machine.rest.any():
        faster = np.minimum(unrest * machine.rest, RESTED * now.waited)
        seconds = np.maximum(seconds - faster, (1 - MOST_GAINED) * seconds)
    ready = now.ready + seconds
    if pieces.shape[-2] == 1:
        return Moment.at(ready, now.sent_at)
    after = [pieces[..., number + 1 :, :].sum(-2) for number in range(pieces.shape[-2])]
    return Moment(ready, ready[..., None, :] - np.stack(after, -2), np.zeros(ready.shape), now.sent_at)


def waited_for(machine: Machine, now: Moment, messages: Messages) -> list[int]:
    """Return for whose messages every rank waits last; itself, if it waits for none."""
    arrival, _ = _arrivals(machine.network, messages, now.computed_at, now.sent_at)
    np.fill_diagonal(arrival, now.ready + messages.sending)
    return [int(rank) for rank in arrival.argmax(0)]


@lru_cache(maxsize=64)
def _same(devices: int) -> Mask:
    """Return which sender is which receiver, [p, p]."""
    return np.eye(devices, dtype=bool)


@lru_cache(maxsize=8)
def _late_scale(machine: Machine) -> float:
    every = np.ones(machine.devices, bool)
    return float(machine.late_scale(every)[0]) if machine.devices > 1 else 0.0


def _arrivals(network: Network, messages: Messages, computed_at: Floats, sent_at: Floats) -> tuple[Floats, Floats]:
    """Return when what a rank sends another is there, [..., sender, receiver], 0 where it sends nothing.

    And when each link has sent what was to be sent; it begins when it has sent what was before.
    """
    if messages.routed is not None:
        return _by_route(network, messages.routed, computed_at, sent_at)
    moved, sent, received = messages.moved, messages.leaving, messages.received
    computed_at, out = np.maximum(computed_at, sent_at[..., None, :]), sent_at
    arrival = np.zeros((*received.shape, received.shape[-1]))
    for number in range(moved.shape[-3]):
        own, at = sent[..., number, :], computed_at[..., number, :]
        out = np.where(own > 0, np.maximum(out, at) + own / network.bandwidth, out)
        arrival = np.where(moved[..., number, :, :] > 0, out[..., None] + network.latency_s, arrival)
    for one, other, bandwidth, latency_s in network.narrow:
        for sender, receiver in ((one, other), (other, one)):
            total = moved[..., sender, receiver].sum(-1)
            late = np.where(total > 0, computed_at[..., sender].min(-1) + total / bandwidth + latency_s, 0.0)
            arrival[..., sender, receiver] = np.maximum(arrival[..., sender, receiver], late)
    from_whom, last = arrival > 0, arrival.argmax(-2)
    begun = np.where(from_whom, computed_at[..., 0, :, None], np.inf).min(-2)
    full = np.where(received > 0, begun + received / network.bandwidth + network.latency_s, 0.0)
    is_last = last[..., None, :] == np.arange(received.shape[-1])[:, None]
    return np.asarray(np.maximum(arrival, is_last * full[..., None, :])), out


def _by_route(network: Network, exchange: Exchange, computed_at: Floats, sent_at: Floats) -> tuple[Floats, Floats]:
    """Return the same of what others pass on: all that comes, as if it were from the rank that is the last to send."""
    computed_at = np.maximum(computed_at, sent_at[..., None, :])
    first, last = computed_at[..., 0, :], computed_at[..., -1, :]
    # Who passes a tile on does it when a tile of its own is done: half of one later, on average.
    tile = (last - first) / np.maximum(exchange.tiles - 1, 1)
    begun = first + tile * PASSING * (exchange.hops - 1) * (exchange.tiles > 1)
    done = (last + exchange.last_seconds(network)) * (exchange.sent > 0)
    arrived = np.maximum(largest_other(done), exchange.arrival(network, begun)) * (exchange.received > 0)
    ranks = np.arange(arrived.shape[-1])
    sender = np.where(ranks == ranks[:, None], -1.0, done[..., :, None]).argmax(-2)
    found = (sender[..., None, :] == ranks[:, None]) * arrived[..., None, :]
    return found, np.where(exchange.sent > 0, begun + exchange.sent / network.bandwidth, sent_at)


def _latest(scale: float, unrest: Floats | float, moments: Floats) -> Floats:
    """Return what is expected of the latest of moments that vary, column by column; of what never comes -inf."""
    latest = moments.max(-2)
    if scale > 0:
        own = np.maximum(unrest * scale, TINY_S)
        latest = latest + own * np.log(np.exp((moments - latest[..., None, :]) / own[..., None]).sum(-2))
    return np.asarray(latest)
