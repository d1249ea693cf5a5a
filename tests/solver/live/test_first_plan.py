"""A plan that may change is by rows where that is nearly as fast, and its ranks keep what they may need again."""

from dataclasses import replace

import numpy as np
import pytest

from solver.cluster.cluster import GIB
from solver.live.first_plan import WORTH, among, plan_by_rows, plan_to_begin_with
from solver.model.named import named_model
from solver.plan.changes import Holdings, all_by_rows, layer_shares
from solver.plan.holdings import weights_bytes
from solver.programs.planner import solve
from solver.schedule.encoders.memory import holds_all, needed_bytes
from solver.systems import make_plan
from tests.kit.clusters import pis
from tests.sweeps import ALL, pairs

SPEC, ROWS = named_model("bert-base"), 128


@pytest.mark.parametrize(
    ("memory_gib", "speeds"),
    pairs([1.5, 0.55, 0.4], [(24.6, 70, 24.6, 10), (24.6, 24.6), *[(24.6, 24.6, 24.6, 24.6, 24.6)] * ALL]),
)
def test_the_best_plan_runs_and_all_weights_are_held_besides_where_there_is_room(speeds, memory_gib):
    """Else a plan by rows runs where it is nearly as fast."""
    cluster = pis(*speeds, memory_gib=memory_gib)
    best, by_rows = solve(SPEC, cluster, ROWS), plan_by_rows(SPEC, cluster, ROWS)

    plan, spare = plan_to_begin_with(SPEC, cluster, best.plan)

    if spare is not None:
        both = Holdings(best.plan, len(speeds), spare)
        weights = [both.held_bytes(SPEC, rank) for rank in range(len(speeds))]
        assert plan is best.plan
        assert all_by_rows(spare)
        assert spare.stages[0].active == tuple(np.flatnonzero(holds_all(SPEC, cluster, ROWS)))
        assert max(needed_bytes(SPEC, cluster.precision, ROWS, weights)) <= memory_gib * GIB
    elif by_rows is not None:
        close = by_rows.predicted_s <= (1 + WORTH) * best.plan.predicted_s
        assert plan == (by_rows if close else best.plan)
        assert memory_gib < 1.5 or all_by_rows(best.plan)


def test_devices_that_cannot_hold_all_weights_get_no_rows():
    cluster = pis(24.6, 70, 24.6, 10, memory_gib=1.5)
    small = pis(24.6, 70, 24.6, 10, memory_gib=0.3)

    assert holds_all(SPEC, cluster, ROWS).all()
    assert not holds_all(SPEC, small, ROWS).any()
    assert plan_by_rows(SPEC, small, ROWS) is None
    assert plan_to_begin_with(SPEC, small, plan := solve(SPEC, small, ROWS).plan) == (plan, None)


def test_rows_are_shared_among_a_crew_by_speed():
    cluster = pis(20, 60, 20)
    plan = among(make_plan("sequence", SPEC, cluster, ROWS), cluster, np.array([True, True, False]))

    assert plan.layer(3)[1].rows == pytest.approx((0.25, 0.75, 0))
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

    assert list(holdings.lacking(SPEC, blocks, 2)) == list(range(SPEC.layers))
    holdings.adopt(blocks, frees=[2])
    assert list(holdings.lacking(SPEC, plan, 2)) == list(range(SPEC.layers))


def test_a_rank_keeps_what_it_ran_by_for_plans_of_the_other_sort():
    """From blocks to rows and back nothing is read; what both need it has once; other blocks replace blocks."""
    cluster = pis(20, 60, 20)
    rows, blocks, others = (
        make_plan(name, SPEC, cluster, ROWS) for name in ("sequence", "megatron", "megatron-weighted")
    )
    mixed = make_plan("galaxy", SPEC, cluster, ROWS)
    whole, third = (weights_bytes(SPEC, plan, 2) for plan in (rows, blocks))
    common = 6 * 768 * 4 * SPEC.layers  # norms and last biases

    holdings = Holdings(blocks, 3, spare=rows)

    assert not holdings.moved_bytes(SPEC, rows, 2)
    assert not holdings.moved_bytes(SPEC, blocks, 2)
    assert whole + third - common <= holdings.held_bytes(SPEC, 2) <= whole + third
    holdings.adopt(rows)
    assert holdings.bytes_with(SPEC, others, 1) > weights_bytes(SPEC, others, 1)
    holdings.adopt(others)
    assert not holdings.moved_bytes(SPEC, rows, 1)
    assert holdings.moved_bytes(SPEC, blocks, 1)
    assert not Holdings(mixed, 3).moved_bytes(SPEC, replace(mixed, rows=2 * ROWS), 1)


def test_what_runs_by_layers_of_two_plans_is_known_of_every_rank():
    """In parts, nothing else is kept: a rank without rows keeps whole later layers, and frees those in front."""
    cluster = pis(20, 60, 20)
    rows, blocks = (make_plan(name, SPEC, cluster, ROWS) for name in ("sequence", "megatron"))
    holdings = Holdings(rows, 3)
    holdings.adopt(among(rows, cluster, np.array([True, True, False])))
    whole = holdings.held_bytes(SPEC, 2)

    holdings.adopt_front(blocks, (), 4)

    share = layer_shares(SPEC, blocks, 2)[0]
    runs = layer_shares(SPEC, holdings.runs(2), 2)
    assert (runs[3], runs[4]) == (share, layer_shares(SPEC, rows, 2)[4])
    assert holdings.held_bytes(SPEC, 2) == pytest.approx(whole * (4 / 3 + 8) / 12, rel=0.01)
