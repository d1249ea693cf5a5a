"""What follows from a network's plan: all ranks at once as each alone, its pieces, and the bytes of its steps."""

import numpy as np
import pytest

from solver.base.spans import Span
from solver.model.kinds.operator import MAP
from solver.model.operators import parts_between
from solver.plan.plan import Wire
from solver.plan.segments import SegmentCut
from solver.schedule.networks.pieces import map_box, pieces_of, walk_back
from solver.schedule.networks.segment_steps import net_setting, network_turns
from solver.schedule.networks.steps import (
    bytes_across,
    computation,
    exchanges_of,
    handed_in,
    image_on_root,
    unrolled,
)
from tests.kit.chains import boards
from tests.kit.convnets import random_net, random_plan, random_shares
from tests.sweeps import seeds


def instance(seed):
    """Return a random network and a random plan of it."""
    rng = np.random.default_rng(seed)
    net, _ = random_net(rng, verbatim=seed % 3 == 0)
    return net, random_plan(net, rng, 1 + seed % 6)


@pytest.mark.parametrize("seed", seeds(40, 400))
def test_all_ranks_are_walked_at_once_as_each_alone(seed):
    """Whatever the shares; where nodes add up over parts of their input, what others need of that is the same."""
    net, plan = instance(seed)
    for shares in unrolled(net, plan):
        parts = parts_between(net, shares.segment.nodes)
        for rank in range(len(plan.devices)):
            for piece in pieces_of(shares, rank):
                alone = walk_back(parts, piece.boxes)
                if not piece.summed:
                    assert (piece.walk.made, dict(piece.walk.needs)) == (alone.made, dict(alone.needs))
                assert piece.walk.made.keys() == alone.made.keys()
                assert all(alone.needs[value].contains(box) for value, box in piece.walk.needs.items())


@pytest.mark.parametrize("seed", seeds(40, 400))
def test_pieces_leave_what_a_rank_has_each_number_once(seed):
    """And what they need to begin is in what is brought to the rank."""
    net, plan = instance(seed)
    for shares in unrolled(net, plan):
        for rank in range(len(plan.devices)):
            pieces = pieces_of(shares, rank)
            for name, held in shares.after.items():
                whole = map_box(shares.whole.made[name], (0, rank))
                boxes = [piece.boxes[name] for piece in pieces if name in piece.boxes]
                assert sum(box.size for box in boxes) == whole.size
                assert all(whole.contains(box) for box in boxes)
                assert held.partial or not any(
                    one.intersect(two).size for one in boxes for two in boxes if one is not two
                )
            for name, box in (pair for piece in pieces for pair in piece.coming.values()):
                assert map_box(shares.needs[name], (0, rank)).contains(box)


@pytest.mark.parametrize("seed", seeds(40, 400))
def test_what_steps_move_is_what_is_priced(seed):
    net, plan = instance(seed)
    ranks = len(plan.devices)
    s, wire = net_setting(net, boards(*[1.0] * ranks)), Wire.FLOAT32
    every = unrolled(net, plan)
    held = [image_on_root(net, ranks), *(shares.after for shares in every)]
    needs = [*(shares.needs for shares in every), handed_in(net, ranks)]

    for turn, before, needed in zip(network_turns(s, plan), held, needs, strict=True):
        moved = np.zeros((ranks, ranks))
        for exchange in exchanges_of(before, needed):
            moved += exchange.moved[0] * bytes_across(net, exchange.value.name, MAP, wire)
        np.testing.assert_array_equal(turn.messages[0].moved.sum(0), moved)


@pytest.mark.parametrize("cut", [SegmentCut.ROWS, SegmentCut.CHANNELS])
@pytest.mark.parametrize("seed", seeds(20, 100))
def test_many_plans_of_a_segment_are_computed_as_each_alone(seed, cut):
    rng = np.random.default_rng(seed)
    net, _ = random_net(rng)
    nodes, ranks = Span(0, len(net.nodes)), int(rng.integers(1, 5))
    shares = tuple(tuple(random_shares(rng, ranks).tolist()) for _ in range(6))

    together, _ = computation(net, nodes, cut, shares).walked

    for number, own in enumerate(shares):
        alone, _ = computation(net, nodes, cut, (own,)).walked
        for (_, one), (_, other) in zip(together, alone, strict=True):
            for axis, spans in one.items():
                np.testing.assert_array_equal(spans[number], other[axis][0])
