"""Cutting a network into segments: the shortest path is the best of all paths, and no device alone is faster."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from solver.base.errors import InfeasiblePlanError
from solver.base.spans import Span
from solver.cluster.cluster import GIB, PROGRAM_BYTES
from solver.model.operators import in_levels
from solver.plan.plan import Wire
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, alone_on
from solver.programs.convnets.planner import solve_network
from solver.programs.convnets.segment_polish import apportioned
from solver.programs.convnets.segments import Search, WeightsRoom
from solver.schedule.networks.memory import memory_of
from solver.schedule.networks.segment_steps import net_setting, price_segments, run_bytes, weights_of
from tests.kit import refused
from tests.kit.chains import chain
from tests.kit.clusters import pis
from tests.kit.convnets import random_net
from tests.sweeps import count, pairs, seeds
from weights.networks_zoo import zoo_network


def every_plan(search, devices):
    """Yield every way to cut at the search's points with its crews."""
    inner = range(1, len(search._points) - 1)
    for kept in product([False, True], repeat=len(inner)):
        ends = [at for at, keep in zip(inner, kept, strict=True) if keep] + [len(search._points) - 1]
        for crews in product(range(len(search._crews)), repeat=len(ends)):
            start, segments = 0, []
            for end, crew in zip(ends, crews, strict=True):
                shares = tuple(search._shares[end][crew].tolist())
                segments.append(Segment(Span(start, search._points[end]), SegmentCut.ROWS, shares))
                start = search._points[end]
            yield SegmentPlan(tuple(segments), devices, "chain")


@pytest.mark.parametrize(
    ("boards", "height"),
    pairs(
        [
            ((20, 20), 100, 200),
            ((10, 30, 20), 300, 1000),
            ((30, 10), 20, 200),
            ((25, 24, 5), 940, 50),
            ((5, 40), 5, 200),
        ],
        [17, 6],
    ),
)
def test_the_best_of_all_paths_is_found(boards, height):
    """Up to what the search adds up, where a step in truth overlaps compute and exchange."""
    gflops, mbps, latency_us = boards
    net = chain(*[("conv", 16)] * count(3, 4), size=(height, 20))
    cluster = pis(*gflops, mbps=mbps, latency_us=latency_us)
    s = net_setting(net, cluster)
    search = Search(s, Wire.FLOAT32)

    best = min(price_segments(s, plan).seconds for plan in every_plan(search, cluster.names))
    found = solve_network(net, cluster)

    assert found.predicted is not None
    assert found.predicted.seconds <= 1.02 * best


@pytest.mark.parametrize("seed", seeds(12, 60))
def test_no_device_alone_is_faster(seed):
    rng = np.random.default_rng(seed)
    net = in_levels(random_net(rng, most=14)[0])
    ranks = int(rng.integers(1, 7))
    speeds, mbps, latency_us = rng.uniform(2, 60, ranks), rng.choice([20, 80, 940]), rng.choice([50, 200, 2000])
    cluster = pis(*speeds, mbps=mbps, latency_us=latency_us)
    s = net_setting(net, cluster)

    plan = solve_network(net, cluster)

    plan.check(net, ranks)
    assert plan.predicted is not None
    for rank in range(ranks):
        whole = Segment(Span(0, len(net.nodes)), SegmentCut.ROWS, alone_on(rank, ranks))
        alone = price_segments(s, replace(plan, segments=(whole,)))
        assert plan.predicted.seconds <= 1.001 * alone.seconds


@pytest.mark.parametrize("seed", seeds(6, 20))
def test_rows_are_shared_out_as_well_as_can_be(seed):
    """Against all ways to give whole rows to four devices, to whom some rows come for nothing, and some at a jump."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(3, 14))
    seconds = np.cumsum(rng.choice([0.0, 1.0, 2.5, 9.0], (4, rows + 1)), axis=1)

    every, without = apportioned(seconds, [np.arange(4), np.array([0, 1, 3])])

    ways = np.array([way for way in product(range(rows + 1), repeat=4) if sum(way) == rows])
    slowest = seconds[np.arange(4), ways].max(1)
    for counts, allowed in ((every, slowest), (without, slowest[ways[:, 2] == 0])):
        assert counts.sum() == rows
        assert seconds[np.arange(4), counts].max() == allowed.min()
    assert without[2] == 0


def test_scarce_memory_is_shared_out_too(kept):
    """VGG-16 holds 528 MiB of weights; four boards with 256 MiB for them have its products by columns."""
    net, _ = zoo_network("vgg16")

    def with_memory(size):
        return pis(25, 25, 25, 25, memory_gib=size / GIB)

    plan = solve_network(net, with_memory((256 << 20) + PROGRAM_BYTES))

    assert max(memory_of(net, plan)) <= 256 << 20
    assert sum(weights_of(net, plan)) > 528 << 20
    kept(refused.said(solve_network, [(net, with_memory(250 << 20))], InfeasiblePlanError))


@pytest.mark.parametrize("seed", seeds(6, 40))
def test_a_path_holds_no_more_than_there_is_room_for_and_less_where_bytes_are_dear(seed):
    rng = np.random.default_rng(seed)
    net = in_levels(random_net(rng, most=14)[0])
    s, names = net_setting(net, pis(10, 25, 15, mbps=940)), ("pi-0", "pi-1", "pi-2")
    room = run_bytes(net, Span(0, len(net.nodes))) * rng.uniform(0.3, 1.2, 3)

    held = [weights_of(net, plan) for plan in Search(s, Wire.FLOAT32, WeightsRoom(room, np.zeros(3))).paths(names)]
    free = np.full(3, np.inf)
    cheap, dear = (
        weights_of(net, next(Search(s, Wire.FLOAT32, WeightsRoom(free, np.array([0, price, 0]))).paths(names)))
        for price in (0.0, 1.0)
    )

    # Shares are parts of a whole, channels are whole.
    assert all((np.array(own) <= 1.1 * room + 1024).all() for own in held)
    assert dear[1] <= cheap[1]


def test_boards_without_room_for_the_program_take_no_part():
    """Of three boards the second has none, and no board holds the network alone."""
    net, _ = zoo_network("resnet18")
    cluster = pis(25, 40, 25, memory_gib=(PROGRAM_BYTES + (35 << 20)) / GIB).with_device(1, memory_bytes=100 << 20)

    plan = solve_network(net, cluster)

    assert plan.active == (0, 2)
    assert max(memory_of(net, plan)) <= 35 << 20
