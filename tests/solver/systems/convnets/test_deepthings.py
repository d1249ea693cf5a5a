"""DeepThings: tiles walked back by hand, their shares, the grid by memory, and the paper's figures of memory."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from solver.base.errors import InfeasiblePlanError
from solver.base.spans import Span
from solver.cluster.cluster import MIB, PROGRAM_BYTES
from solver.model.convnet import MapBox
from solver.model.operators import flop
from solver.plan.segments import Segment, SegmentCut, SegmentPlan, whole_parts
from solver.schedule.networks.memory import memory_of
from solver.schedule.networks.pieces import Strip, map_box, tile_pieces
from solver.schedule.networks.segment_steps import net_setting, network_turns, pieces_flop, price_segments, weights_of
from solver.schedule.networks.steps import image_on_root, segment_shares, unrolled
from solver.systems.convnets import plan_network
from solver.systems.convnets.common import chain_points
from solver.systems.convnets.deepthings import tiled
from tests.kit.chains import boards, chain
from tests.kit.convnets import random_net
from tests.sweeps import seeds
from weights.networks_zoo import zoo_network

NET = chain(("conv", 8), ("relu",), ("pool",), ("conv", 8), ("mean",), ("flatten",), ("gemm", 10), size=12)


def fused(net, stop, ranks, cut, shares, grid=(1, 1), *, stealing=False, reuse=False):
    """Return what follows from the first nodes as one segment, and the plan of that alone."""
    first = replace(net, nodes=net.nodes[:stop], outputs=(net.nodes[stop - 1].output,))
    segment = Segment(Span(0, stop), cut, shares, False, grid, stealing, reuse)
    return first, SegmentPlan((segment,), tuple(f"pi-{rank}" for rank in range(ranks)), net.name)


def test_tiles_are_walked_back_as_in_algorithm_1():
    """Of 6 × 6 pixels in four tiles: a convolution needs one more around, a pool twice as many, as far as there are."""
    net, plan = fused(NET, 4, 2, SegmentCut.TILES, (0.5, 0.5), (2, 2))
    (shares,) = unrolled(net, plan)

    needs = [tile.walk.needs["x"] for tile in tile_pieces(shares)]
    assert [(box.rows, box.columns) for box in needs] == [
        (rows, columns) for rows in (Span(0, 9), Span(3, 12)) for columns in (Span(0, 9), Span(3, 12))
    ]
    assert shares.tiles.owners == (0, 0, 1, 1)
    assert [map_box(own.box, (0, 0)) for own in shares.after.values()] == [net.extent("conv3")]


def test_every_other_tile_takes_what_its_neighbours_have_computed():
    """Of four tiles the upper right one takes what the lower right and the upper left have of its 4 × 4 pooled pixels.

    The second convolution needs rows 0 to 3, columns 2 to 5. Below are rows from 2 on, to the left columns before 4.
    """
    net, plan = fused(NET, 4, 2, SegmentCut.TILES, (0.5, 0.5), (2, 2), reuse=True)
    (shares,) = unrolled(net, plan)

    assert shares.tiles.beside == ({}, {"below": 3, "left": 0}, {"above": 0, "right": 3}, {})
    tiles, every = tile_pieces(shares), Span(0, 8)
    right = tiles[1]
    below, left = MapBox(every, Span(2, 4), Span(2, 6)), MapBox(every, Span(0, 2), Span(2, 4))
    assert right.walk.taken == (Strip("pool2", "below", below), Strip("pool2", "left", left))
    assert right.walk.made[2].made == right.walk.made[2].wanted == MapBox(every, Span(0, 2), Span(4, 6))
    assert right.walk.needs["x"] == MapBox(Span(0, 3), Span(0, 5), Span(7, 12))
    assert [len(tile.given) for tile in tiles] == [2, 0, 0, 2]


@pytest.mark.parametrize("seed", seeds(10, 40))
def test_what_tiles_take_their_neighbours_have(seed):
    """And with what they make themselves it is all that they need, of which they make no more than without reuse."""
    rng = np.random.default_rng(seed)
    net, _ = random_net(rng)
    grid = tuple(int(count) for count in rng.integers(2, 5, 2))
    without, reusing = (
        unrolled(*fused(net, len(net.nodes), 1, SegmentCut.TILES, (1.0,), grid, reuse=reuse))[0]
        for reuse in (False, True)
    )
    tiles = tile_pieces(reusing)

    for tile, alone, beside in zip(tiles, tile_pieces(without), reusing.tiles.beside, strict=True):
        sizes = Counter()
        for strip in tile.walk.taken:
            giver = tiles[beside[strip.side]]
            assert strip in giver.given
            assert not giver.walk.taken
            assert giver.walk.needs[strip.value].contains(strip.box)
            sizes[strip.value] += strip.box.size
        for value, taken in sizes.items():
            own = tile.walk.made.get(net.made_by[value])
            assert tile.walk.needs[value].size == taken + (own.wanted.size if own else 0)
        for number, reach in tile.walk.made.items():
            assert reach.made.contains(reach.wanted)
            assert alone.walk.made[number].made.contains(reach.made)
    assert work(net, reusing) <= work(net, without)


def work(net, shares):
    """Return the FLOP of all tiles."""
    return pieces_flop(net, shares.tiles).sum()


def test_tiles_are_shared_out_by_speed_and_the_rest_is_on_the_gateway():
    cluster = boards(1e-3, 3e-3, 1e-3)

    plan = plan_network("deepthings", NET, cluster)

    first, rest = plan.segments
    assert (first.cut, first.grid, first.stealing) == (SegmentCut.TILES, (3, 3), True)
    assert first.nodes.stop in chain_points(NET)
    assert whole_parts(NET, first) == (2, 5, 2)
    assert rest.active == (0,)


def test_who_steals_may_compute_any_tile_and_holds_its_weights():
    s = net_setting(NET, boards(1.0, 1.0, 1.0))
    shares = (0.5, 0.5, 0.0)
    for stealing in (False, True):
        segment = replace(next(tiled(s, 4, (2, 2), stealing=stealing)), shares=shares)
        own = segment_shares(NET, segment, image_on_root(NET, 3))
        assert [len(own.able(rank)) for rank in range(3)] == ([4, 4, 0] if stealing else [2, 2, 0])


def test_what_is_sent_is_what_tiles_need_overlaps_included_and_what_they_leave():
    """Two of four tiles go to the other board, of 9 × 9 pixels each, and come back as 3 × 3 of 8 channels."""
    net, plan = fused(NET, 4, 2, SegmentCut.TILES, (0.5, 0.5), (2, 2))

    price = price_segments(net_setting(net, boards(1.0, 1.0)), plan)

    out, back = price.steps
    assert out.sent.tolist() == [2 * 3 * 9 * 9, 0]
    assert back.sent.tolist() == [0, 2 * 8 * 3 * 3 * 4]


def test_with_reuse_strips_are_sent_by_way_of_rank_0():
    """Of the four tiles above the other board takes 12 pixels of 8 channels for one, and gives as many of the other."""
    net, plan = fused(NET, 4, 2, SegmentCut.TILES, (0.5, 0.5), (2, 2), reuse=True)

    price = price_segments(net_setting(net, boards(1.0, 1.0)), plan)

    out, back = price.steps
    strips = 4 * 8 * (2 * 4 + 2 * 2)
    assert out.sent.tolist() == [3 * (9 * 9 + 5 * 5) + strips, strips]
    assert back.sent.tolist() == [0, 2 * 8 * 3 * 3 * 4]


def test_who_takes_strips_waits_for_the_slowest_that_gives_some():
    """Each board has one tile that gives and one that takes; where the other is half as fast, the first one waits."""
    net, plan = fused(NET, 4, 2, SegmentCut.TILES, (0.5, 0.5), (2, 2), reuse=True)
    (gives_s, takes_s), other = network_turns(net_setting(net, boards(1.0, 1.0)), plan)[0].computed[0].T
    fast, slow = network_turns(net_setting(net, boards(1.0, 0.5)), plan)[0].computed[0].T

    assert other == pytest.approx([takes_s, gives_s])
    assert fast == pytest.approx([gives_s, slow[1] - gives_s + takes_s])
    assert slow[1] > 1.5 * gives_s


def test_memory_of_a_tile_by_hand():
    """A worker holds the weights, a tile of the image in bytes, one that comes out, and between them both of a node."""
    net, plan = fused(NET, 4, 2, SegmentCut.TILES, (0.5, 0.5), (2, 2))

    weights = 4 * (8 * 3 * 9 + 8 * 8 * 9)
    assert weights_of(net, plan) == [weights, weights]
    pool = 8 * 8 * 8 + 8 * 4 * 4
    assert memory_of(net, plan)[1] == weights + 4 * (-(-3 * 9 * 9 // 4) + 8 * 3 * 3 + pool)


@pytest.fixture(scope="module")
def yolov2():
    return zoo_network("yolov2", 608)[0]


@pytest.mark.parametrize(("side", "paper"), [(3, -0.58), (5, -0.68)])
def test_the_papers_figures_of_memory_come_out(side, paper, yolov2):
    """Of a board, weights included, against all of the first 16 layers; maps alone shrink by more."""
    stop = next(n for n, node in enumerate(yolov2.nodes) if node.name == "conv13")
    net, whole = fused(yolov2, stop, 2, SegmentCut.ROWS, (0.0, 1.0))
    _, tiles = fused(yolov2, stop, 2, SegmentCut.TILES, (0.5, 0.5), (side, side), stealing=True)
    assert sum(node.op in ("Conv", "MaxPool") for node in net.nodes) == 16

    before, after = memory_of(net, whole)[1], memory_of(net, tiles)[1]
    assert after / before - 1 == pytest.approx(paper, abs=0.02)
    weights = weights_of(net, whole)[1]
    assert weights_of(net, tiles)[1] == weights
    assert (after - weights) / (before - weights) - 1 < paper - 0.12


@pytest.mark.parametrize(("side", "without", "reusing"), [(3, 1.53, 1.07), (4, 1.85, 1.16), (5, 2.20, 1.28)])
def test_overlaps_of_yolov2_that_are_computed_twice(side, without, reusing, yolov2):
    """Of the first 16 layers, against 26 GFLOP; the paper: without reuse 5 × 5 takes 43 % longer than 3 × 3."""
    stop = next(n for n, node in enumerate(yolov2.nodes) if node.name == "conv13")
    for expected, reuse in ((without, False), (reusing, True)):
        net, plan = fused(yolov2, stop, 1, SegmentCut.TILES, (1.0,), (side, side), reuse=reuse)
        once = sum(flop(net, node) for node in net.nodes)

        assert once == pytest.approx(26.05e9, rel=1e-3)
        assert work(net, unrolled(net, plan)[0]) / once == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(("mbps", "reuse"), [(1000, True), (10, False)])
def test_tiles_take_strips_where_that_is_faster(mbps, reuse, yolov2):
    cluster = boards(20.0, 20.0, 20.0, 20.0, mbps=mbps)

    assert plan_network("deepthings", yolov2, cluster).segments[0].reuse is reuse


def test_little_memory_means_a_grid_of_more_tiles(yolov2):
    """Of boards that are fast enough that tiles pay; where none suffices, it is said what is missing."""
    cluster = boards(1.0, 1.0, 1.0, 1.0)
    wanted = memory_of(yolov2, plan_network("deepthings", yolov2, cluster))

    def with_workers_of(size):
        less = cluster
        for rank in (1, 2, 3):
            less = less.with_device(rank, memory_bytes=PROGRAM_BYTES + size)
        return less

    finer = plan_network("deepthings", yolov2, with_workers_of(max(wanted[1:]) - MIB // 4))
    assert memory_of(yolov2, finer)[1] < wanted[1]
    with pytest.raises(InfeasiblePlanError, match="MiB more on pi-1"):
        plan_network("deepthings", yolov2, with_workers_of(MIB // 8))
