"""CoEdge's linear program by hand: three boards, two convolutions of 64 channels on 24 rows of 24 pixels."""

from itertools import product

import numpy as np
import pytest

from solver.base.errors import InfeasiblePlanError
from solver.plan.plan import Wire
from solver.schedule.networks.segment_steps import net_setting
from solver.systems.convnets import plan_network
from solver.systems.convnets.coedge import coedge_sharing, coedge_terms, halos, optimum, plan_coedge
from tests.kit import refused
from tests.kit.chains import boards, chain

WIRE = Wire.FLOAT32
NET = chain(("conv", 64), ("conv", 64), size=24)
SPEEDS, BYTES_PER_S, LATENCY_S = (0.05e9, 0.1e9, 0.2e9), 1e7, 100e-6
CLUSTER = boards(0.05, 0.1, 0.2, mbps=80.0, latency_us=100.0)
FLOP = (2 * 3 * 9 * 64 * 24 * 24, 2 * 64 * 9 * 64 * 24 * 24)


def by_hand(shares, speeds=SPEEDS):
    """Return T: pixels out, either layer with its slowest, a halo of one row from both neighbours, numbers back."""
    away = shares[1:]
    handed_out = LATENCY_S + max(sum(away), *away) * 3 * 24 * 24 / BYTES_PER_S
    taken_back = LATENCY_S + max(sum(away), *away) * 64 * 24 * 24 * 4 / BYTES_PER_S
    layers = sum(max((4e6 + work * x) / v for x, v in zip(shares, speeds, strict=True)) for work in FLOP)
    halo = LATENCY_S + 2 * 24 * 64 * 4 / BYTES_PER_S  # of the device in the middle
    return handed_out + layers + halo + taken_back


def grid(step=0.02):
    """Return all shares of three devices that are multiples of a step."""
    count = round(1 / step)
    return [(a * step, b * step, 1 - (a + b) * step) for a, b in product(range(count + 1), repeat=2) if a + b <= count]


def test_the_optimum_is_that_of_brute_force():
    s = net_setting(NET, CLUSTER)

    found = optimum(s, WIRE, coedge_terms(s, CLUSTER, WIRE), [0, 1, 2])

    best = min(map(by_hand, grid()))
    assert found.seconds == pytest.approx(by_hand(found.shares))
    assert best * 0.98 < found.seconds <= best


def test_halos_do_not_depend_on_shares_but_on_who_takes_part():
    s = net_setting(NET, CLUSTER)
    row_s = 24 * 64 * 4 / BYTES_PER_S

    assert halos(s, WIRE, [1]) == (0, pytest.approx([0, 0, 0]))
    assert halos(s, WIRE, [0, 2]) == (pytest.approx(LATENCY_S + row_s), pytest.approx([row_s, 0, row_s]))
    assert halos(s, WIRE, [0, 1, 2]) == (pytest.approx(LATENCY_S + 2 * row_s), pytest.approx([row_s, 2 * row_s, row_s]))


def test_the_smallest_share_below_the_threshold_is_dropped():
    """A pool to 3 rows: who has less than a third of them cannot give its neighbour the row that the halo is of."""
    net = chain(("conv", 64), ("conv", 64), ("pool",), ("pool",), ("pool",), ("conv", 64), size=24)
    cluster = boards(0.5, 1.0, 2.0, mbps=1000.0)
    s = net_setting(net, cluster)
    terms = coedge_terms(s, cluster, WIRE)

    shares = plan_network("coedge", net, cluster).segments[0].shares

    first = optimum(s, WIRE, terms, [0, 1, 2]).shares
    assert 0 < first[0] < first[1] < 1 / 3
    second = optimum(s, WIRE, terms, [1, 2]).shares
    assert 0 < second[1] < 1 / 3
    assert shares == (0, 0, 1)


def test_one_share_for_all_layers_and_an_exchange_before_each():
    net = chain(("conv", 64), ("pool",), ("conv", 128), ("mean",), ("flatten",), ("gemm", 3), size=24)

    plan = plan_network("coedge", net, boards(0.05, 0.05, mbps=100.0))

    assert [(part.nodes.start, part.nodes.stop) for part in plan.segments] == [(0, 2), (2, 4), (4, 6)]
    assert plan.segments[0].shares == plan.segments[1].shares
    assert len(plan.segments[0].active) == 2
    assert plan.segments[2].active == (0,)


def test_less_energy_before_a_later_deadline_and_what_a_second_costs():
    """Rank 2 is the fastest and draws most: the later the result may be, the less it gets."""
    cluster = CLUSTER.with_device(0, compute_watts=1.0, transmit_watts=0.5).with_device(1, compute_watts=2.5)
    cluster = cluster.with_device(2, compute_watts=20.0)
    s = net_setting(NET, cluster)
    least_s = coedge_sharing(s, cluster, WIRE).seconds
    a_bit = 1e-3 * least_s
    one, later, latest = (coedge_sharing(s, cluster, WIRE, least_s * 1.1 + extra) for extra in (0, a_bit, 1.0))

    assert one.seconds <= 1.1 * least_s + 1e-9
    assert one.joules > later.joules > latest.joules
    assert one.joules_per_s == pytest.approx((one.joules - later.joules) / a_bit, rel=1e-3)
    assert latest.joules_per_s == pytest.approx(0, abs=1e-9)
    assert latest.shares == pytest.approx([1, 0, 0])
    work = 1.0 * (sum(FLOP) + 8e6) / SPEEDS[0]
    assert latest.joules == pytest.approx(work)


def test_energy_is_that_of_brute_force():
    watts = np.array([1.0, 2.5, 20.0])
    cluster = CLUSTER
    for rank in range(3):
        cluster = cluster.with_device(rank, compute_watts=float(watts[rank]))
    s = net_setting(NET, cluster)
    deadline_s = 1.05 * min(map(by_hand, grid()))

    found = optimum(s, WIRE, coedge_terms(s, cluster, WIRE), [0, 1, 2], deadline_s)

    joules = lambda shares: float(watts @ ((8e6 + sum(FLOP) * np.array(shares)) / SPEEDS))
    best = min(joules(shares) for shares in grid() if by_hand(shares) <= deadline_s)
    assert by_hand(found.shares) <= deadline_s + 1e-9
    assert found.joules == pytest.approx(joules(found.shares))
    assert best * 0.95 < found.joules <= best


def test_a_deadline_that_nothing_meets_is_refused_with_what_is_possible(kept):
    cluster = CLUSTER.with_device(0, compute_watts=1.0)

    kept(refused.said(lambda boards: plan_coedge(NET, boards, deadline_s=1e-3), [cluster], InfeasiblePlanError))
    kept(refused.said(lambda boards: plan_coedge(NET, boards, deadline_s=1.0), [CLUSTER]))


def test_memory_bounds_a_share():
    """Rank 2, the fastest, has room for weights and a quarter of the rows."""
    s = net_setting(NET, CLUSTER)
    terms = coedge_terms(s, CLUSTER, WIRE)
    terms.room[2] = terms.weights[2] + 0.25 * terms.activations[2]

    assert optimum(s, WIRE, terms, [0, 1, 2]).shares[2] == pytest.approx(0.25)
