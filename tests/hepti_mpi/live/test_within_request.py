"""When ranks look up within a request, and how much of it is done then."""

import numpy as np
import pytest

from hepti_mpi.live.within_request import HOLDS, LOOK_EVERY_S, PARTS, done_before, looks
from solver.base.spans import Partition
from solver.model.blocks import Cut
from solver.model.named import named_model
from solver.plan.plan import BlockPlan, StreamLayout, layer_by_rows, uniform_plan
from solver.systems import make_plan
from tests.kit.clusters import pis


@pytest.mark.parametrize("layers", [1, 2, 4, 8, 12, 24, 48])
def test_looks_are_apart_and_leave_layers_in_which_their_word_holds(layers):
    for seconds in (0.0, 0.1, 0.2, 0.4, 1.0, 60.0):
        at = looks(layers, seconds)

        assert len(at) < PARTS
        assert all(late - early >= HOLDS for early, late in zip((0, *at), at, strict=False))
        assert all(number + HOLDS < layers for number in at)
        assert (len(at) + 1) * LOOK_EVERY_S <= seconds or not at


def test_short_requests_have_no_looks():
    assert looks(24, 1.9 * LOOK_EVERY_S) == ()


def test_where_requests_take_long_a_quarter_is_between_two_looks():
    assert looks(8, 0.4) == (2, 4)
    assert looks(24, 10.0) == (6, 12, 18)


@pytest.mark.parametrize("system", ["sequence-weighted", "megatron"])
def test_before_a_layer_all_of_those_before_it_is_done(system):
    spec, cluster = named_model("bert-large"), pis(20, 60, 20)
    plan = make_plan(system, spec, cluster, 128)

    done = [done_before(spec, plan, 128, number) for number in (1, 2, 23)]

    assert done == pytest.approx(np.array([[1 / 24] * 3, [2 / 24] * 3, [23 / 24] * 3]))


def test_each_rank_has_done_its_own_part_of_what_is_cut_in_two_ways():
    """The first rank has all heads and no rows of the MLP, the second the other way round, the third nothing."""
    spec = named_model("bert-large")
    heads = BlockPlan(
        "attention", Cut.BLOCK, Partition.of_counts([16, 0, 0]), norm=StreamLayout.ROWS, rows=(0.0, 1.0, 0.0)
    )
    _, rows = layer_by_rows(spec.blocks, (0.0, 1.0, 0.0))
    plan = uniform_plan(spec, ("a", "b", "c"), (heads, rows))

    done = done_before(spec, plan, 128, 6)

    assert done == pytest.approx([6 / 24, 6 / 24, 6 / 24])
