"""A plan that may change is by rows where that is nearly as fast, and its ranks keep what they may need again."""

import numpy as np
import pytest

from solver.living import WORTH, among, living, plan_by_rows
from solver.memory import holds_all
from solver.model import named_model
from solver.moves import Holdings, all_by_rows
from solver.planner import solve
from solver.systems import make_plan
from tests.solver.clusters import pis

SPEC, ROWS = named_model("bert-base"), 128


@pytest.mark.parametrize("speeds", [(24.6, 70, 24.6, 10), (24.6, 24.6), (24.6, 24.6, 24.6, 24.6, 24.6)])
def test_a_plan_by_rows_is_taken_where_it_is_nearly_as_fast(speeds):
    cluster = pis(*speeds)
    best = solve(SPEC, cluster, ROWS)

    solution = living(SPEC, cluster, best)

    by_rows = plan_by_rows(SPEC, cluster, ROWS)
    close = by_rows.predicted.seconds <= (1 + WORTH) * best.plan.predicted.seconds
    assert solution.plan == (by_rows if close else best.plan)


def test_devices_that_cannot_hold_all_weights_get_no_rows():
    cluster = pis(24.6, 70, 24.6, 10, memory_gib=1.5)
    small = pis(24.6, 70, 24.6, 10, memory_gib=0.3)

    assert holds_all(SPEC, cluster, ROWS).all()
    assert not holds_all(SPEC, small, ROWS).any()
    assert plan_by_rows(SPEC, small, ROWS) is None
    assert living(SPEC, small, solution := solve(SPEC, small, ROWS)) is solution


def test_rows_are_shared_among_a_crew_by_speed():
    cluster = pis(20, 60, 20)
    plan = among(make_plan("sequence", SPEC, cluster, ROWS), cluster, np.array([True, True, False]))

    assert plan.layer(3).mlp.rows == pytest.approx((0.25, 0.75, 0))
    assert all_by_rows(plan)


def test_a_rank_without_rows_keeps_its_weights_unless_memory_is_wanted():
    cluster = pis(20, 60, 20)
    plan = make_plan("sequence", SPEC, cluster, ROWS)
    fewer = among(plan, cluster, np.array([True, True, False]))
    for frees in ((), (2,)):
        holdings = Holdings(plan, 3)
        before = holdings.held_bytes(SPEC, 2)
        assert bool(holdings.lacking(SPEC, fewer, 2, frees)) == bool(frees)

        holdings.adopt(fewer, frees)

        assert (holdings.held_bytes(SPEC, 2) == before) == (not frees)
        assert bool(holdings.moved_bytes(SPEC, plan, 2)) == bool(frees)
        assert not holdings.moved_bytes(SPEC, plan, 1)


def test_other_cuts_need_what_they_cut():
    cluster = pis(20, 60, 20)
    plan = make_plan("sequence", SPEC, cluster, ROWS)
    holdings = Holdings(plan, 3)
    blocks = make_plan("megatron", SPEC, cluster, ROWS)

    assert holdings.lacking(SPEC, blocks, 2) == list(range(SPEC.layers))
    holdings.adopt(blocks)
    assert holdings.lacking(SPEC, plan, 2) == list(range(SPEC.layers))
