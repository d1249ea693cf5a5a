"""Plans of a network that are tried in turn: of other devices, not much slower by prediction, and within memory."""

import pytest

from solver.live.network_trials import networks_to_try, words_of
from solver.live.turns import ERROR
from solver.programs.convnets.segments import solve_network
from solver.schedule.networks.memory import memory_of
from solver.systems.convnets import plan_network
from tests.kit.chains import boards, chain
from tests.kit.clusters import with_free

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


def test_a_plan_is_named_by_who_computes(cluster):
    assert words_of(plan_network("single:pi-2", NET, cluster)) == "pi-2 alone"
    assert words_of(plan_network("modnn", NET, cluster)) == "pi-0, pi-1, pi-2 and pi-3"
