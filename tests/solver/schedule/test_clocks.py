"""Clocks of ranks, against sums by hand: when a rank has a message, and when it goes on."""

import math
from dataclasses import replace

import numpy as np
import pytest

from solver.base.spans import Span
from solver.cluster.cluster import Cluster, Link
from solver.schedule.clocks import Messages, Moment, advanced, computed, exchanged, waited_for
from solver.schedule.timing import Machine
from solver.schedule.turns import ClockTurn, priced, together_s
from tests.kit.clusters import pis
from tests.sweeps import seeds

BANDWIDTH, LATENCY_S = 1e6, 1e-3


def machine(devices, links=None, jitter_s=0.0, rest_s=0.0):
    """Return boards with a link of 1 MB/s and a latency of a millisecond; pairs may have others."""
    cluster = pis(*[1.0] * devices, mbps=8.0, latency_us=1000.0)
    boards = tuple(replace(device, jitter_s=jitter_s, rest_s=rest_s) for device in cluster.devices)
    narrow = {frozenset(cluster.names[rank] for rank in pair): Link(*link) for pair, link in (links or {}).items()}
    return Machine.of(Cluster(boards, cluster.network, narrow))


def messages(*pieces, sending=0.0, taking=0.0):
    """Return so many bytes from rank to rank, piece by piece, and CPU seconds that all ranks have."""
    moved = np.array(pieces, float)
    return Messages(moved, np.full(moved.shape[-1], sending), np.full(moved.shape[-1], taking))


def after(machine, *pieces):
    """Return the moment when ranks have computed so many seconds, piece by piece, from the beginning on."""
    return computed(machine, Moment.at(np.zeros(machine.devices)), np.array(pieces, float))


def test_a_message_leaves_when_its_piece_is_computed():
    """Rank 0 computes for a second and two; its first piece is on its way, and there, while it computes the second."""
    two = machine(2)
    now = exchanged(two, after(two, (1.0, 0.5), (2.0, 0.0)), messages([[0, 1e6], [0, 0]], [[0, 0], [0, 0]]))

    assert now.ready == pytest.approx([3.0, 1.0 + 1.0 + LATENCY_S])
    assert now.waited == pytest.approx([0.0, 1.5 + LATENCY_S])


def test_a_message_leaves_when_its_senders_link_is_free():
    """The first piece takes the link three seconds: the second, computed in a tenth, leaves after it."""
    two = machine(2)
    now = exchanged(two, after(two, (1.0, 0.0), (0.1, 0.0)), messages([[0, 3e6], [0, 0]], [[0, 1e6], [0, 0]]))

    assert now.ready[1] == pytest.approx(1.0 + 3.0 + 1.0 + LATENCY_S)


def test_who_gets_something_from_several_has_it_when_its_own_link_has_taken_all():
    three = machine(3)
    now = exchanged(three, after(three, (0.0, 1.0, 1.5)), messages([[0, 0, 0], [1e6, 0, 0], [1e6, 0, 0]]))

    assert now.ready[0] == pytest.approx(1.0 + 2.0 + LATENCY_S)


def test_a_narrow_pair_is_waited_for():
    three = machine(3, {(0, 1): (1e5, 0.5)})
    now = exchanged(three, after(three, (1.0, 0.0, 0.0)), messages([[0, 1e5, 1e5], [0, 0, 0], [0, 0, 0]]))

    assert now.ready == pytest.approx([1.0, 1.0 + 1.0 + 0.5, 1.0 + 0.2 + LATENCY_S])


def test_over_a_narrow_pair_nothing_leaves_before_it_is_computed():
    """Also where another rank computes more pieces than the sender."""
    two = machine(2, {(0, 1): (1e5, 0.5)})
    now = exchanged(two, after(two, (4.0, 1.0), (0.0, 1.0)), messages([[0, 1e5], [0, 0]], [[0, 0], [0, 0]]))

    assert now.ready[1] == pytest.approx(4.0 + 1.0 + 0.5)


def test_handling_what_is_sent_keeps_the_sender_and_not_the_message():
    two = machine(2)
    now = exchanged(two, after(two, (1.0, 0.0)), messages([[0, 1e6], [0, 0]], sending=0.25, taking=0.5))

    assert now.ready == pytest.approx([1.0 + 0.25 + 0.5, 1.0 + 1.0 + LATENCY_S + 0.5])


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_the_latest_of_ranks_that_vary_is_later_than_each(devices):
    """By the logarithm of their number, where all are as late; who waits for nobody is not later."""
    jitter_s = 0.01
    every = machine(devices, jitter_s=jitter_s)
    moved = np.full((devices, devices), 1e3) * (1 - np.eye(devices))
    # Its own work takes as long as what comes.
    sending = 1e-3 * (devices - 1) + LATENCY_S
    now = exchanged(every, after(every, [1.0] * devices), messages(moved, sending=sending))
    idle = exchanged(every, after(every, [1.0] * devices), messages(0 * moved))

    assert now.ready == pytest.approx([1.0 + sending + jitter_s * math.log2(devices)] * devices)
    assert idle.ready.tolist() == [1.0] * devices


def test_who_has_waited_computes_faster_for_a_moment():
    rested = machine(2, rest_s=0.3)
    gives = messages([[0, 1e6], [0, 0]])

    def seconds(wait_s, compute_s):
        now = exchanged(rested, after(rested, (wait_s, 0.0)), gives)
        return computed(rested, now, np.array([[0.0, compute_s]])).ready[1] - now.ready[1]

    wait_s = 1.0 + LATENCY_S
    assert seconds(0.0, 2.0) == pytest.approx(2.0 - 0.3)
    assert seconds(0.0, 0.4) == pytest.approx(0.2)  # half of it at most
    assert computed(rested, after(rested, (0.0, 0.0)), np.array([[0.0, 2.0]])).ready[1] == 2.0
    short = exchanged(rested, after(rested, (0.0, 0.9)), gives)
    gained = short.ready[1] + 2.0 - computed(rested, short, np.array([[0.0, 2.0]])).ready[1]
    assert gained == pytest.approx(0.5 * (wait_s - 0.9))


def test_whom_every_rank_waits_for():
    three = machine(3)
    gives = messages([[0, 1e3, 1e3], [0, 0, 1e3], [0, 0, 0]])

    assert waited_for(three, after(three, (1.0, 2.0, 0.0)), gives) == [0, 1, 1]
    assert waited_for(three, after(three, (2.0, 1.0, 0.0)), gives) == [0, 0, 0]


@pytest.mark.parametrize("seed", seeds(6, 100))
def test_many_plans_at_once_are_what_each_is_alone(seed):
    rng = np.random.default_rng(seed)
    plans, pieces, devices = 5, int(rng.integers(1, 4)), int(rng.integers(1, 5))
    links = {(0, 1): (3e5, 0.1)} if devices > 1 and seed % 2 else None
    several = machine(devices, links, jitter_s=0.05 * (seed % 3), rest_s=0.1 * (seed % 2))
    moved = rng.integers(0, 2, (plans, pieces, devices, devices)) * rng.uniform(0, 1e6, (plans, 1, devices, devices))
    moved *= 1 - np.eye(devices)
    before, compute = rng.uniform(0, 1, (2, plans, pieces, devices))
    handled = rng.uniform(0, 0.1, (2, plans, devices))
    begin = Moment.at(np.zeros((plans, devices)))

    together = advanced(several, begin, (before, Messages(moved, *handled), compute))
    turns = [ClockTurn((before,), "first"), ClockTurn((Messages(moved, *handled), compute), "then")]
    seconds = together_s(several, turns)

    for plan in range(plans):
        messages = Messages(moved[plan], *handled[:, plan])
        alone = advanced(several, Moment.at(np.zeros(devices)), (before[plan], messages, compute[plan]))
        np.testing.assert_allclose(together.ready[plan], alone.ready, rtol=1e-12)
        np.testing.assert_allclose(together.computed_at[plan], alone.computed_at, rtol=1e-12)
        steps = priced(several, [ClockTurn((before[plan],), "first"), ClockTurn((messages, compute[plan]), "then")])
        assert sum(step.times.end.max() for step in steps) == pytest.approx(seconds[plan])
        assert seconds[plan] == pytest.approx(alone.ready.max())


def test_layers_that_are_alike_go_on_at_the_pace_of_the_second():
    """Priced twice: where one rank is the slowest all the time, that is as if all of them were priced."""
    two = machine(2)
    turn = (np.array([[0.3, 0.4]]), messages([[0, 2e4], [3e4, 0]], taking=0.01))
    first = ClockTurn((np.array([[1.0, 1.0]]),), "first")

    often = together_s(two, [first, ClockTurn(turn, "layer", repeats=5)])
    unfolded = together_s(two, [first, *[ClockTurn(turn, "layer")] * 5])
    steps = priced(two, [first, ClockTurn(turn, "layer", layers=Span(0, 5), repeats=5)])

    assert often == pytest.approx(unfolded)
    assert [(step.repeats, step.layers) for step in steps] == [(1, ""), (5, "0-4")]
    assert sum(step.repeats * step.times.end.max() for step in steps) == pytest.approx(often)


@pytest.mark.parametrize("ahead_s", [0.2, 3.0, 50.0])
def test_who_has_nothing_to_do_may_be_ahead_of_layers_that_are_alike(ahead_s):
    """It hears of a token late, and computes nothing: the others' layers, of 0.7 s, are not over before it has."""
    three = machine(3)
    heard = messages([[0, 0, 0], [0, 0, 0], [0, 0, 0]], taking=(0.0, 0.0, ahead_s))
    layer = (np.array([[0.3, 0.4, 0.0]]), messages([[0, 2e4, 0], [3e4, 0, 0], [0, 0, 0]], taking=(0.01, 0.01, 0.0)))

    def turns(often, **facts):
        return [ClockTurn((np.zeros((1, 3)), heard), "heard"), *[ClockTurn(layer, "layer", **facts)] * often]

    folded, unfolded = turns(1, layers=Span(0, 9), repeats=9), turns(9)
    steps = priced(three, folded)

    assert together_s(three, folded) == pytest.approx(together_s(three, unfolded))
    assert sum(step.repeats * step.times.end.max() for step in steps) == pytest.approx(together_s(three, unfolded))
