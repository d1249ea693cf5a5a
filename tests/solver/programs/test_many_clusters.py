"""Plans for random clusters: none slower than the planner before made, whose plans are kept, nor below the bound."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from solver.base.errors import InfeasiblePlanError
from solver.plan.file import plan_from_json
from solver.plan.plan import Plan
from solver.programs.planner import solve
from solver.schedule.encoders.cost import predict
from tests.solver.programs.many_clusters import instance
from tests.sweeps import count

BEFORE = json.loads(Path(__file__).with_name("plans_before.json").read_text())  # of commit 84e735a
EVERY = 12  # of which `make test` plans for one


@pytest.fixture(scope="module")
def solutions():
    """Return those of the clusters that have one."""
    found = {}
    for seed in range(0, 100, count(EVERY, 1)):
        if str(seed) in BEFORE:
            found[seed] = solve(*instance(seed))
        else:
            with pytest.raises(InfeasiblePlanError):
                solve(*instance(seed))
    return found


@pytest.mark.thorough("pins prices that a truer cost model should change")
def test_plans_are_no_worse_than_those_of_the_planner_before(solutions):
    """By today's price; some are much better: where layers are mixed, or are few and links slow."""
    ratios = {}
    for seed, solution in solutions.items():
        spec, cluster, rows = instance(seed)
        before = plan_from_json(json.dumps(BEFORE[str(seed)]), Plan)
        ratios[seed] = solution.plan.predicted_s / predict(spec, cluster, before, rows).seconds

    worst = max(ratios, key=ratios.__getitem__)
    assert ratios[worst] <= 1.005, worst
    assert np.mean(np.array([*ratios.values()]) < 0.997) >= 0.1


def test_in_fractions_no_plan_takes_longer(solutions):
    """Also where rank 0 takes no part, where a device has a share of one axis only, and where pairs are narrow."""
    free = {seed: one for seed, one in solutions.items() if not one.prices.any()}
    above = {seed: one.relaxed.seconds / one.plan.predicted_s for seed, one in free.items()}

    worst = max(above, key=above.__getitem__)
    assert above[worst] <= 1.005, worst  # layers come to the pace that the program counts
    assert any(0 not in one.crew for one in free.values())


@pytest.mark.slow("60 clusters in make test-all")
def test_in_fractions_no_plan_of_unsteady_devices_takes_longer_either():
    above = {}
    for seed in range(200, 200 + count(6, 60)):
        spec, cluster, rows = instance(seed)
        rng = np.random.default_rng(seed)
        boards = tuple(
            replace(
                board, jitter_s=rng.choice([0, 1e-3, 4e-3]) * rng.random(), rest_s=rng.choice([0, 4e-3]) * rng.random()
            )
            for board in cluster.devices
        )
        with suppress(InfeasiblePlanError):
            solution = solve(spec, replace(cluster, devices=boards), rows)
            if not solution.prices.any():
                above[seed] = solution.relaxed.seconds / solution.plan.predicted_s

    assert len(above) >= 4
    worst = max(above, key=above.__getitem__)
    assert above[worst] <= 1.02, worst
