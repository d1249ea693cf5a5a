"""Replicas of a network: every board that holds it answers by itself, others together, and no more than travels."""

import pytest

from solver.base.errors import InfeasiblePlanError
from solver.cluster.cluster import MIB
from solver.systems.convnets import hepti_throughput, plan_network
from solver.systems.convnets.hepti_throughput import solve_replicas
from tests.kit import refused
from tests.kit.chains import boards, chain
from tests.kit.clusters import with_free

NET = chain(
    ("conv", 16), ("conv", 16), ("flatten",), ("gemm", 600), ("gemm", 10), size=32
)  # 38 MiB, most of one product


def with_memory(cluster, *mib):
    """Return the cluster whose devices have so much memory beside the program."""
    return with_free(cluster, [own * MIB for own in mib])


def test_boards_that_hold_the_network_answer_side_by_side():
    cluster = boards(10, 40, 20)

    found = solve_replicas(NET, cluster)

    assert [plan.active for plan in found.plans] == [(1,), (2,), (0,)]
    alone = [1 / plan_network("single", NET, cluster.only([rank])).predicted_s for rank in (1, 2, 0)]
    assert found.rates == pytest.approx(alone)
    assert found.images_per_s == pytest.approx(sum(alone))
    for plan in found.plans:
        plan.check(NET, 3)


def test_boards_that_hold_a_part_answer_together():
    cluster = with_memory(boards(10, 10, 10, 10, mbps=1000), 26, 60, 26, 60)

    found = solve_replicas(NET, cluster)

    assert sorted(plan.active for plan in found.plans) == [(0, 2), (1,), (3,)]


def test_a_network_that_fits_nowhere_is_refused(kept):
    kept(refused.said(solve_replicas, [(NET, with_memory(boards(10, 10), 5, 5))], InfeasiblePlanError))


def test_groups_that_cannot_hold_the_weights_are_not_planned_for(monkeypatch):
    """Of three boards none holds the 38 MiB, nor do two without the second."""
    cluster, asked = with_memory(boards(10, 10, 10, mbps=1000), 15, 30, 15), []
    solve = hepti_throughput.solve_network
    monkeypatch.setattr(
        hepti_throughput, "solve_network", lambda net, own, wire: asked.append(own.names) or solve(net, own, wire)
    )

    found = solve_replicas(NET, cluster)

    assert [plan.active for plan in found.plans] in ([(0, 1)], [(1, 2)], [(0, 1, 2)])
    assert asked
    assert all("pi-1" in names and len(names) > 1 for names in asked)


def test_more_images_than_rank_0_can_send_are_not_promised():
    cluster = boards(10, 40, 40, mbps=1)
    found = solve_replicas(NET, cluster)

    own = found.rates[[plan.active for plan in found.plans].index((0,))]
    assert found.images_per_s == pytest.approx(own + 1e6 / 8 / (3 * 32 * 32))


def test_many_boards_are_replicas_by_themselves_and_what_is_left_together():
    cluster = with_memory(boards(*[10] * 6, mbps=1000), 60, 60, 60, 60, 26, 26)

    found = solve_replicas(NET, cluster)

    assert sorted(plan.active for plan in found.plans) == [(0,), (1,), (2,), (3,), (4, 5)]
