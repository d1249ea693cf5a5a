"""A network's plan follows its devices: a change is seen within three images, and noise is none."""

import numpy as np
import pytest

from solver.cluster.cluster import GIB, PROGRAM_BYTES
from solver.live.follower import AGAIN
from solver.live.network_replan import NetworkFollower
from solver.live.observe import Cusum
from solver.plan.segments import SegmentCut
from solver.programs.convnets.planner import solve_network
from solver.programs.convnets.segment_polish import shared_out
from solver.schedule.networks.memory import lacking
from solver.schedule.networks.segment_steps import net_setting
from tests.kit.clusters import pis
from tests.sweeps import count
from weights.networks_zoo import zoo_network


@pytest.fixture(scope="module")
def net():
    return zoo_network("tiny-yolov2", 160)[0]


CLUSTER = pis(25, 25, 25, 25, memory_gib=4)


@pytest.fixture(scope="module")
def plan(net):
    return solve_network(net, CLUSTER)


@pytest.fixture
def follower(net, plan):
    """Return a follower of four equal boards, which has seen what is usual: 20 ms each, 30 ms an image."""
    follower = NetworkFollower(net, CLUSTER, plan)
    usual(follower)
    return follower


def usual(follower):
    for _ in range(follower.first):
        assert follower.took([0.02] * 4, 0.03) is None


def rows(plan):
    return np.mean([segment.shares for segment in plan.segments], axis=0)


def test_a_board_at_a_quarter_of_its_speed_has_fewer_rows_within_three_images(follower):
    """The others wait for it, and are faster by that."""
    before = rows(follower.plan)

    changes = [change for _ in range(3) if (change := follower.took([0.012, 0.012, 0.08, 0.012], 0.09))]

    assert changes[0].taken
    assert changes[0].why == "pi-2 takes 4.0 times as long"
    assert rows(follower.plan)[2] < 0.6 * before[2]
    assert changes[0].after_s < changes[0].before_s


def test_where_memory_is_scarce_no_plan_needs_more_than_there_is():
    """No board holds the network, and channels are shared out: by speed the others would hold more than they can."""
    net, _ = zoo_network("vgg16")
    cluster = pis(25, 25, 25, memory_gib=(PROGRAM_BYTES + (250 << 20)) / GIB)
    follower = NetworkFollower(net, cluster, solve_network(net, cluster))
    slow = cluster.with_device(2, compute_flop_per_s=5e9)

    assert any(segment.cut is SegmentCut.CHANNELS for segment in follower.plan.segments)
    assert lacking(net, cluster, shared_out(net_setting(net, slow), follower.plan))
    assert not lacking(net, cluster, follower.sought(slow).result())


def test_noise_is_no_change(follower):
    rng = np.random.default_rng(0)

    changes = [
        follower.took(0.02 * np.exp(rng.normal(0, 0.4, 4)), 0.03 * np.exp(rng.normal(0, 0.1))) for _ in range(500)
    ]

    assert not any(changes)


def test_a_board_that_is_back_gets_its_rows_back(follower):
    """Where it was left out it is tried again, first after some images; where it has rows, it computes faster."""
    before = rows(follower.plan)
    for _ in range(3):
        follower.took([0.012, 0.012, 0.08, 0.012], 0.09)
    usual(follower)
    left_out = not rows(follower.plan)[2]

    seconds = [0.02, 0.02, 0.0 if left_out else 0.005, 0.02]
    changes = [change for _ in range(AGAIN) if (change := follower.took(seconds, 0.03))]

    assert changes[0].why == ("pi-2 is tried again" if left_out else "pi-2 is 4.0 times as fast")
    assert rows(follower.plan)[2] == pytest.approx(before[2], abs=0.05)


def test_a_slower_network_moves_no_rows(follower):
    """No device computes longer."""
    assert not any(follower.took([0.015] * 4, 0.09) for _ in range(20))


@pytest.mark.parametrize(("sigma", "delay"), [(0.15, 2), (0.15, 7), (0.4, 17)])
def test_a_cusum_is_wrong_as_rarely_as_it_says(sigma, delay):
    """Of normal numbers, within the scatter of the runs and the approximation's error."""
    rng, often = np.random.default_rng(1), 200
    runs = []
    for _ in range(count(120, 300)):
        cusum, images = Cusum(sigma, delay, often), 1
        while cusum.take(rng.normal(0, sigma)) is None:
            images += 1
        runs.append(images)

    assert np.mean(runs) == pytest.approx(often, rel=0.35)


@pytest.mark.parametrize("delay", [2, 3, 7, 17])
def test_a_cusum_sees_the_least_change_after_its_delay_and_one_number_never(delay):
    cusum = Cusum(0.15, delay)
    seen = [cusum.take(1.001 * cusum.change) is not None for _ in range(delay)]

    assert seen == [False] * (delay - 1) + [True]
    assert not any(cusum.take(number) for number in (100.0, 0.0, -100.0, 0.0) * 10)


def test_the_least_change_grows_with_what_is_promised():
    assert Cusum(0.15, 3, 100).change < Cusum(0.15, 3, 1000).change < Cusum(0.3, 3, 1000).change
    assert Cusum(0.15, 7).change < Cusum(0.15, 3).change
