"""A language model's plan follows its devices, where the tokens to come make up for the change."""

import numpy as np
import pytest

from solver.cluster.cluster import Cluster, Device, Link
from solver.live.decoder_replan import TokenFollower
from solver.model.named_decoders import named_decoder
from solver.schedule.decoders.asked import TokenRequest
from solver.systems.decoders import plan_decoder

CLUSTER = Cluster(tuple(Device(f"pi-{n}", 25e9, 4 << 30) for n in range(4)), Link(940e6 / 8, 2e-4))
ASKED = TokenRequest(context=512)
LOAD_S = 5.0


def followed(**facts):
    """Return a follower that has seen what is usual: 20 ms of compute on each board, 30 ms a token."""
    model = named_decoder("smollm2-135m")
    plan = plan_decoder("hepti", model, CLUSTER, ASKED)
    follower = TokenFollower(model, CLUSTER, ASKED, plan, LOAD_S, **facts)
    for _ in range(follower.first):
        assert follower.came(np.full(4, 0.02), 0.03, 500) is None
    return follower


def slow(follower, to_come):
    at_work = max(rank for rank in range(4) if follower.at_work(rank))
    compute_s = np.full(4, 0.012)
    compute_s[at_work] = 0.08
    changes = [change for _ in range(3) if (change := follower.came(compute_s, 0.09, to_come))]
    return at_work, changes


def test_a_board_at_a_quarter_of_its_speed_gets_less():
    follower = followed()
    before = follower.plan

    at_work, changes = slow(follower, 100000)

    assert changes[0].taken
    assert changes[0].why == f"pi-{at_work} takes 4.0 times as long"
    assert changes[0].after_s < changes[0].before_s
    words = [sum(stage.columns[at_work].size for stage in plan.stages) for plan in (before, follower.plan)]
    assert words[1] < words[0]


@pytest.mark.parametrize(("facts", "to_come"), [({}, 1), ({"changes": False}, 100000)])
def test_the_plan_stays_where_few_tokens_come_or_nothing_is_to_change(facts, to_come):
    follower = followed(**facts)
    before = follower.plan

    _, changes = slow(follower, to_come)

    assert not changes[0].taken
    assert follower.plan is before


def test_a_board_that_stays_slow_is_told_of_once_where_the_plan_stays():
    follower = followed()
    compute_s = np.full(4, 0.02)
    compute_s[max(rank for rank in range(4) if follower.at_work(rank))] = 0.04

    changes = [change for _ in range(200) if (change := follower.came(compute_s, 0.05, 1))]

    assert len(changes) == 1
    assert not changes[0].taken
