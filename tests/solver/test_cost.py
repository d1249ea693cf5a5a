from __future__ import annotations

import pytest

from solver.cost import device_weights_bytes
from solver.model import named_model
from solver.shares import weights_bytes
from solver.systems import PLANNERS, make_plan
from tests.solver.clusters import pis


@pytest.mark.parametrize("system", PLANNERS)
def test_weights_of_a_run_of_layers_are_those_of_every_layer(system):
    spec, cluster = named_model("bert-base", layers=3), pis(24.6, 70, 24.6, 10)
    plan = make_plan(system, spec, cluster, rows=100)

    for rank in range(4):
        assert device_weights_bytes(spec, plan, rank) == weights_bytes(spec, plan, rank)
