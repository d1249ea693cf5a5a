"""Plans that are tried in turn: of other devices, not much slower by prediction, and within memory."""

import pytest

from solver.live.fewer_devices import decoders_to_try, networks_to_try, words_of
from solver.live.turns import ERROR, TOKENS, Turns
from solver.programs.convnets.planner import solve_network
from solver.schedule.decoders.asked import TokenRequest
from solver.schedule.decoders.memory import rank_memory
from solver.schedule.networks.memory import memory_of
from solver.systems.convnets import plan_network
from solver.systems.decoders import plan_decoder
from tests.kit.answers import boards as slow_to_read
from tests.kit.chains import boards, chain
from tests.kit.clusters import with_free
from tests.kit.decoders import small_model

NET = chain(*[("conv", 16)] * 6, ("pool",), *[("conv", 32)] * 4, ("mean",), ("flatten",), ("gemm", 10), size=64)


@pytest.fixture
def cluster():
    """Return boards of which one is much faster, and alone not much slower than with others."""
    return boards(18, 40, 14, 8, mbps=940)


def test_fewer_devices_and_one_alone_are_tried_where_they_may_be_faster(cluster):
    plan = solve_network(NET, cluster)

    first, *others = networks_to_try(NET, cluster, plan)

    assert first == plan
    assert len(plan.active) > 1
    assert [words_of(other) for other in others] == ["pi-0 and pi-1", "pi-1 alone"]
    for other in others:
        assert other.predicted_s <= (1 + 2 * ERROR) * plan.predicted_s
        assert other.active != plan.active
        assert other.devices == cluster.names
        other.check(NET, 4)
    assert [other.predicted_s for other in others] == sorted(other.predicted_s for other in others)


def test_one_device_that_is_the_fastest_by_far_has_no_rival():
    cluster = boards(70, 1, mbps=10)

    assert len(networks_to_try(NET, cluster, solve_network(NET, cluster))) == 1


def test_slow_boards_are_not_tried_alone():
    cluster = boards(10, 10, 10, mbps=1000, latency_us=10)
    plans = networks_to_try(NET, cluster, solve_network(NET, cluster))

    assert all(len(plan.active) > 1 for plan in plans)


def test_memory_holds_the_weights_of_all_plans_that_are_tried(cluster):
    plan = solve_network(NET, cluster)
    scarce = with_free(cluster, memory_of(NET, plan))

    assert len(networks_to_try(NET, scarce, solve_network(NET, scarce))) == 1


MODEL = small_model(layers=3, heads=5, kv_heads=5, d=16, hidden=80, ffn=96, vocab=154)
ASKED = TokenRequest(prompt=8, tokens=60, context=128, precision="float32")


def tries(memory_bytes=2**30):
    cluster = slow_to_read(1e8, 3e7, 2e7, mbps=300, latency_s=1e-4, memory_bytes=memory_bytes, precision="float32")
    return decoders_to_try(MODEL, cluster, ASKED, plan_decoder("hepti", MODEL, cluster, ASKED))


def test_a_language_model_is_tried_on_fewer_devices_and_on_one():
    plans = tries()

    assert [words_of(plan) for plan in plans] == ["pi-0, pi-1 and pi-2", "pi-0 and pi-1", "pi-0 alone"]
    assert plans[-1].predicted_s <= (1 + 2 * ERROR) * plans[0].predicted_s
    for plan in plans:
        plan.check(MODEL, 3)


def test_devices_have_room_for_the_next_plan_of_a_language_model_beside_the_one_before():
    whole = max(own.total for plan in tries() for own in rank_memory(MODEL, plan))

    assert [words_of(plan) for plan in tries(whole + 2**10)] == ["pi-0, pi-1 and pi-2"]


def test_tokens_are_made_in_a_row_by_each_plan_and_the_fastest_measured_stays():
    plans = tries()
    turns, order = Turns(plans, words_of, tokens=True), []
    while not turns.settled:
        order.append(turns.number)
        turns.took({0: 1.2, 1: 0.9, 2: 1.0}[turns.number], 1.0)

    assert order == [0] * TOKENS + [1] * TOKENS + [2] * TOKENS
    assert turns.plan == min(plans, key=lambda plan: {0: 1.2, 1: 0.9, 2: 1.0}[plans.index(plan)] * plan.predicted_s)


def test_a_plan_is_named_by_who_computes(cluster):
    assert words_of(plan_network("single:pi-2", NET, cluster)) == "pi-2 alone"
    assert words_of(plan_network("modnn", NET, cluster)) == "pi-0, pi-1, pi-2 and pi-3"
