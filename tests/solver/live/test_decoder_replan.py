"""A language model's plan follows its devices, where the tokens to come make up for the change."""

import numpy as np
import pytest

from solver.cluster.cluster import Cluster, Device, Link
from solver.live.decoder_replan import TokenFollower
from solver.model.named_decoders import named_decoder
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.cost import price_pass, setting_of
from solver.systems.decoders import plan_decoder

CLUSTER = Cluster(tuple(Device(f"pi-{n}", 25e9, 4 << 30) for n in range(4)), Link(940e6 / 8, 2e-4))
ASKED = TokenRequest(context=512)
LOAD_S = 5.0
BEHIND = ASKED.behind


def followed(**facts):
    """Return a follower that has seen what is usual: 20 ms of compute on each board, 30 ms a token."""
    model = named_decoder("smollm2-135m")
    plan = plan_decoder("hepti", model, CLUSTER, ASKED)
    follower = TokenFollower(model, CLUSTER, ASKED, plan, LOAD_S, **facts)
    for _ in range(follower.first):
        assert follower.came(np.full(4, 0.02), 0.03, BEHIND, 500) is None
    return follower


def slow(follower, to_come):
    at_work = max(rank for rank in range(4) if follower.at_work(rank))
    compute_s = np.full(4, 0.012)
    compute_s[at_work] = 0.08
    changes = [change for _ in range(3) if (change := follower.came(compute_s, 0.09, BEHIND, to_come))]
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

    changes = [change for _ in range(200) if (change := follower.came(compute_s, 0.05, BEHIND, 1))]

    assert len(changes) == 1
    assert not changes[0].taken


def answered(system, slow_from=1000, slow_by=1.0):
    """Return which board has most to do, and what was decided over 1000 tokens, which take longer and longer."""
    model, asked = named_decoder("smollm2-135m"), TokenRequest(context=2048)
    plan = plan_decoder(system, model, CLUSTER, asked)
    follower, s = TokenFollower(model, CLUSTER, asked, plan, LOAD_S, changes=False), setting_of(model, CLUSTER, plan)
    random, found = np.random.default_rng(0), []
    busiest = int(price_pass(s, plan, 1, asked.prompt).compute_s.argmax())
    for token in range(1000):
        behind = asked.prompt + token
        price = price_pass(s, plan, 1, behind)
        compute_s, seconds = price.compute_s * np.exp(random.normal(0, 0.05, 4)), price.seconds
        if token >= slow_from:
            seconds += (slow_by - 1) * price.compute_s[busiest]
            compute_s[busiest] *= slow_by
        change = follower.came(compute_s, seconds * np.exp(random.normal(0, 0.1)), behind, 1000 - token)
        found += [(token, change)] if change else []
    return busiest, found


@pytest.mark.parametrize("system", ["hepti", "megatron"])
def test_a_longer_context_is_no_slower_board(system):
    """On one board the last token takes 1.5 times as long as the first."""
    assert not answered(system)[1]


@pytest.mark.parametrize("system", ["hepti", "megatron"])
def test_a_board_that_slows_behind_a_long_context_is_named_alone(system):
    busiest, found = answered(system, slow_from=900, slow_by=3.0)

    assert len(found) == 1
    token, change = found[0]
    assert 900 <= token < 910
    assert change.why.startswith(f"pi-{busiest} takes 3.")
    assert "," not in change.why
