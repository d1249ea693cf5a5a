"""What the report says was predicted is for the requests that ran."""

import pytest

from hepti_mpi.report.report import predicted_rate, prediction
from solver.programs.lengths import PlansByLength
from solver.programs.planner import solve
from solver.schedule.encoders.cost import predict
from solver.schedule.encoders.stages import chain, price_plan
from tests.hepti_mpi.test_plan_choice import SPEC
from tests.kit.clusters import pis

CLUSTER = pis(1, 2, 1)


@pytest.fixture(scope="module")
def plan():
    return solve(SPEC, CLUSTER, 250).plan


@pytest.mark.parametrize(
    ("rows", "middle"), [([250, 20, 20], (20, 20)), ([20, 250, 60, 20], (20, 60)), ([], (250,) * 2)]
)
def test_the_median_request_is_predicted_under_its_own_plan(rows, middle, plan):
    plans = PlansByLength(SPEC, CLUSTER, plan)

    found = prediction(SPEC, CLUSTER, plan, rows, plans.of)

    seconds = [predict(SPEC, CLUSTER, plans.of(number), number).seconds for number in middle]
    assert found == {"predicted_rows": sum(middle) / 2, "predicted_seconds": pytest.approx(sum(seconds) / 2)}


def test_without_a_cluster_the_plan_says_what_was_predicted_for_its_own_rows(plan):
    found = prediction(SPEC, None, plan, [20], lambda rows: plan)

    assert found == {"predicted_rows": 250, "predicted_seconds": plan.predicted_s}


def test_batches_come_as_fast_as_the_plan_lets_them_behind_the_first():
    """Requests of one batch are answered together; the mean of its batches' rows stands for all."""
    stages = chain(SPEC, CLUSTER, [(0, 1), (1, SPEC.layers - 1)], "by hand", 40)
    priced = price_plan(SPEC, CLUSTER, stages, 40)

    alone = predicted_rate(SPEC, CLUSTER, stages, [[30, 10]], lambda rows: stages)
    five = predicted_rate(SPEC, CLUSTER, stages, [[30, 30], [20, 20], [40], [40], [20]], lambda rows: stages)
    many = predicted_rate(SPEC, CLUSTER, stages, [[40]] * 10000, lambda rows: stages)

    assert alone == pytest.approx(2 / priced.prediction.seconds)
    assert five == pytest.approx(7 / (priced.prediction.seconds + 4 / priced.requests_per_s))
    assert many == pytest.approx(priced.requests_per_s, rel=1e-3)
    assert priced.requests_per_s > 1.1 / priced.prediction.seconds


def test_in_one_stage_batches_run_one_after_the_other_under_their_own_plan(plan):
    plans = PlansByLength(SPEC, CLUSTER, plan)

    found = predicted_rate(SPEC, CLUSTER, plan, [[20], [20], [20]], plans.of)

    assert found == pytest.approx(1 / predict(SPEC, CLUSTER, plans.of(20), 20).seconds)


def test_no_rate_is_predicted_where_nothing_is_known(plan):
    """No cluster, and standard input, of which nobody knows beforehand what it asks."""
    assert predicted_rate(SPEC, None, plan, [[20]], lambda rows: plan) is None
    assert predicted_rate(SPEC, CLUSTER, plan, [], lambda rows: plan) is None
