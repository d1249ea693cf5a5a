"""What the report says was predicted is for the requests that ran."""

from dataclasses import replace

import pytest

from hepti_mpi.report import prediction
from solver.cost import predict
from solver.lengths import PlansByLength
from solver.planner import solve
from tests.hepti_mpi.test_choice import SPEC
from tests.solver.clusters import pis

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
    by_hand = prediction(SPEC, CLUSTER, replace(plan, rows=0, predicted=None), [20], lambda rows: plan)

    assert found == {"predicted_rows": 250, "predicted_seconds": plan.predicted_s}
    assert by_hand["predicted_seconds"] is None
