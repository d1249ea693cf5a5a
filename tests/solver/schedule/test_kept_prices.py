"""Plan files that the first version wrote, with what it predicted: they are read, and cost what they did.

`plans-1.json` has a plan a line, for thirty-odd clusters, lengths, memories and systems.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from solver.cluster.named import find_cluster
from solver.model.named import named_model
from solver.plan.file import plan_from_json
from solver.plan.plan import Plan
from solver.schedule.encoders.stages import predict_plan
from solver.systems import plan_that_fits
from tests.solver.systems.test_best import random_instance

POINTS = json.loads((Path(__file__).parents[2] / "data" / "plans-1.json").read_text())

# Where memory is scarce: with two more kinds of cuts the descent ends at a mix that is 0.7 % slower. The planner's next
# version has to find it.
WORSE = {"seed 12 384 hepti float32 1.0"}


def name(point):
    where = point["cluster"] or f"seed {point['seed']}"
    return f"{where} {point['rows']} {point['plan']['system']} {point['plan']['wire']} {point['memory']}"


def instance(point):
    """Return model, cluster and rows."""
    if point["seed"] is None:
        spec, cluster, rows = named_model(point["model"], point["layers"]), find_cluster(point["cluster"]), 0
    else:
        spec, cluster, rows = random_instance(np.random.default_rng(point["seed"]))
    devices = (replace(device, memory_bytes=round(device.memory_bytes * point["memory"])) for device in cluster.devices)
    return spec, replace(cluster, devices=tuple(devices)), rows or point["rows"]


def test_plan_files_of_the_first_version_are_read_and_fit():
    """One of every system and wire that is there."""
    for point in {(point["plan"]["system"], point["plan"]["wire"]): point for point in POINTS}.values():
        spec, cluster, _ = instance(point)

        plan = plan_from_json(json.dumps(point["plan"]), Plan)

        plan.check(spec, len(cluster.devices))
        assert plan.predicted.seconds > 0


@pytest.mark.thorough("pins prices that a truer cost model should change")
@pytest.mark.parametrize("point", POINTS, ids=name)
def test_a_plan_is_priced_as_it_was(point):
    spec, cluster, rows = instance(point)
    plan = plan_from_json(json.dumps(point["plan"]), Plan)

    found = predict_plan(spec, cluster, plan, rows)

    assert found.seconds == pytest.approx(plan.predicted.seconds, rel=0.01)
    assert found.bytes_on_wire == plan.predicted.bytes_on_wire
    assert found.weights_bytes == plan.predicted.weights_bytes


@pytest.mark.thorough("pins prices that a truer cost model should change")
@pytest.mark.parametrize("point", [point for point in POINTS if point["plan"]["system"] == "hepti"], ids=name)
def test_the_planner_finds_no_worse_than_it_did(point, request):
    if name(point) in WORSE:
        request.applymarker(pytest.mark.xfail(reason="a mix that is 0.7 % slower", strict=True))
    spec, cluster, rows = instance(point)
    kept = plan_from_json(json.dumps(point["plan"]), Plan)

    plan = plan_that_fits("hepti", spec, cluster, rows, kept.wire)

    assert plan.predicted_s <= 1.005 * predict_plan(spec, cluster, kept, rows).seconds
