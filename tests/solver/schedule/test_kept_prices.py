"""Plan files that the first version wrote: they are read, weigh and send what they did, and none is faster than ours.

What they were predicted to take is no longer held: ranks have clocks of their own now. `plans-1.json` has a plan a
line, for thirty-odd clusters, lengths, memories and systems.
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


@pytest.mark.thorough("one of every system and wire is read above")
@pytest.mark.parametrize("point", POINTS, ids=name)
def test_a_plan_weighs_and_sends_what_it_did(point):
    spec, cluster, rows = instance(point)
    plan = plan_from_json(json.dumps(point["plan"]), Plan)

    found = predict_plan(spec, cluster, plan, rows)

    assert found.bytes_on_wire == plan.predicted.bytes_on_wire
    assert found.weights_bytes == plan.predicted.weights_bytes


@pytest.mark.thorough("systems/test_best.py holds it on random clusters")
@pytest.mark.parametrize("point", [point for point in POINTS if point["plan"]["system"] == "hepti"], ids=name)
def test_the_planner_finds_no_worse_than_it_did(point):
    spec, cluster, rows = instance(point)
    kept = plan_from_json(json.dumps(point["plan"]), Plan)

    plan = plan_that_fits("hepti", spec, cluster, rows, kept.wire)

    assert plan.predicted_s <= 1.005 * predict_plan(spec, cluster, kept, rows).seconds
