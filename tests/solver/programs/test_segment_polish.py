"""The descent on a network's plan: its price is that of the whole plan, and no step makes it slower."""

from dataclasses import replace

import numpy as np
import pytest

from solver.cluster.named import find_cluster
from solver.model.operators import cut_points, in_levels
from solver.plan.plan import Wire
from solver.plan.segments import SegmentCut
from solver.programs.convnets.planner import solve_network
from solver.programs.convnets.segment_polish import (
    FEW_MOVES,
    Priced,
    balance,
    boundary_moved,
    coarsest,
    let_edges_first,
)
from solver.programs.convnets.segments import Search
from solver.programs.moves import descend
from solver.schedule.networks.segment_steps import net_setting, plan_seconds
from tests.kit.clusters import pis
from tests.kit.convnets import random_net
from tests.sweeps import seeds
from weights.networks_zoo import zoo_network


def instance(seed):
    """Return a random network and a cluster of two to four boards, some of them alike."""
    rng = np.random.default_rng(seed)
    net = in_levels(random_net(rng, most=14)[0])
    speeds = rng.choice([5.0, 10.0, 24.6], int(rng.integers(2, 5)))
    return net, pis(*speeds, mbps=rng.choice([80, 940]), latency_us=50)


@pytest.mark.parametrize("seed", seeds(8, 30))
def test_what_a_change_costs_is_what_the_changed_plan_costs(seed):
    net, cluster = instance(seed)
    s = net_setting(net, cluster)
    for plan in Search(s, Wire.FLOAT32).plans(cluster.names):
        priced = Priced(s, plan, range(1, len(net.nodes)))
        for step in (balance, let_edges_first, lambda own: descend(own, FEW_MOVES)):
            before_s = priced.seconds

            step(priced)

            priced.plan.check(net, s.devices)
            assert priced.seconds <= before_s
            assert priced.seconds == pytest.approx(plan_seconds(s, priced.plan), rel=1e-9)


def test_who_ends_last_is_whom_the_end_waits_for():
    """Where one board has most of the rows the end waits for it from there on, through what the others send it."""
    net, _ = zoo_network("vgg16")
    cluster = find_cluster("pi4x4")
    s = net_setting(net, cluster)
    plan = solve_network(net, cluster)
    shares = (0.125, 0.5, 0.125, 0.25)

    priced = Priced(s, replace(plan, segments=(replace(plan.segments[0], shares=shares), *plan.segments[1:])))

    assert priced.critical()[0] == 1
    assert len(priced.critical()) == len(plan.segments)


def test_a_boundary_moves_in_all_segments_up_to_where_rows_become_fewer():
    """Of two equal boards one has too many rows, in all segments alike: no row of one segment alone makes up for it."""
    net, _ = zoo_network("vgg16")
    s = net_setting(net, cluster := pis(24.6, 24.6, mbps=240, latency_us=200))
    plan = solve_network(net, cluster)
    unequal = [
        replace(own, shares=(5 / 7, 2 / 7)) if own.cut is SegmentCut.ROWS and len(own.active) == 2 else own
        for own in plan.segments
    ]
    before, alone, all_moves = (Priced(s, replace(plan, segments=tuple(unequal)), cut_points(net)) for _ in range(3))

    every = [(number, stop, [own.shares for own in moved]) for number, stop, moved in boundary_moved(before, 0)]
    descend(alone, [move for move in FEW_MOVES if move is not boundary_moved])
    descend(all_moves, FEW_MOVES)

    rows = [coarsest(net, net.live(own.nodes.stop)) for own in unequal]
    assert len(every) > 1
    for number, stop, shares in every:
        assert (number, len(shares)) == (0, stop)
        assert {round(own[0] - 5 / 7, 9) for own in shares} == {round(-1 / rows[stop - 1], 9)}
    assert all_moves.seconds < 0.998 * alone.seconds


def test_a_descent_ends_when_its_prices_took_enough_work():
    net, _ = zoo_network("resnet18")
    cluster = find_cluster("pi4x4")
    s = net_setting(net, cluster)
    plan = next(iter(Search(s, Wire.FLOAT32).plans(cluster.names)))
    none, some, all_of_it = (Priced(s, plan, cut_points(net)) for _ in range(3))

    for priced, work in ((none, 0), (some, 300), (all_of_it, np.inf)):
        priced.until = work
        descend(priced, FEW_MOVES)

    assert none.plan == plan
    assert 300 <= some.work < 600
    assert none.seconds > some.seconds > all_of_it.seconds
