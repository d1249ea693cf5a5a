"""How a plan was found: what is said of the search is what the planner does, and what a share would cost is so."""

from dataclasses import replace

import numpy as np
import pytest

from solver.model.named import named_model
from solver.programs.explain import kinds_tried, least_shares
from solver.programs.planner import solve
from solver.programs.tiles_and_routes import plan_of
from solver.schedule.encoders.cost import request_seconds
from solver.schedule.encoders.layer_table import taking
from tests.kit.clusters import pis
from tests.solver.programs.many_clusters import instance
from tests.sweeps import ALL

BERT_BASE, BERT_LARGE = named_model("bert-base", 2), named_model("bert-large")


@pytest.mark.parametrize("given", [(BERT_BASE, pis(24.6, 70, 10), 64), *map(instance, [3, 5, 28] * ALL)])
def test_no_kind_is_better_than_in_fractions_or_than_the_plan(given):
    solution = solve(*given)
    kinds = list(kinds_tried(solution))

    assert kinds
    assert len({kind.kind for kind in kinds}) == len(kinds)
    for kind in kinds:
        assert kind.fractions_s <= kind.best_s <= kind.start_s
        if not solution.prices.any():
            assert kind.best_s >= solution.plan.predicted_s * (1 - 5e-3)


def test_a_device_without_a_share_would_make_a_request_longer():
    cluster = pis(24.6, 70, 1.0, mbps=240)
    solution = solve(BERT_LARGE, cluster, 64)
    s, best = solution.setting, solution.best
    assert not taking(best.units)[2]

    added_s = least_shares(solution)[2]

    # Every way to hand one unit of an axis to it takes at least so much longer.
    for axis, counts in best.units.items():
        for giver in np.flatnonzero(counts):
            moved = counts.copy()
            moved[giver] -= 1
            moved[2] += 1
            other = replace(best, units=best.units | {axis: moved})
            seconds = request_seconds(s, plan_of(s, [(other, BERT_LARGE.layers)]))
            assert seconds - solution.plan.predicted_s >= added_s * (1 - 1e-3) > 0
