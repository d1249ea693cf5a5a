"""The closed formula of a layer against a discrete-event simulation of the engine's program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solver.base.spans import largest_remainder
from solver.model.blocks import Axis
from solver.model.named import named_model
from solver.plan.plan import Wire
from solver.plan.routes import Route
from solver.schedule.encoders.cost import setting
from solver.schedule.encoders.layer_table import kind_by_rows, layer_seconds
from tests.kit.clusters import pis
from tests.solver.schedule.simulation import seconds_per_layer
from tests.sweeps import count

BERT_LARGE = named_model("bert-large")
BY_ROWS = kind_by_rows(BERT_LARGE.blocks)


@pytest.mark.parametrize(("route", "mean", "worst"), [("direct", 0.08, 0.4), ("ring", 0.08, 0.4), ("relay", 0.08, 0.4)])
def test_seconds_of_a_layer_by_rows_are_those_of_its_simulation(route, mean, worst):
    """Two to four unlike devices, shares near their speed's, all wires and tiles; what is simulated has no barrier."""
    rng, errors = np.random.default_rng(0), []
    for _ in range(count(12, 40)):
        devices = int(rng.integers(2, 5))
        speeds = rng.choice([10, 24.6, 24.6, 70], devices)
        cluster = pis(*speeds, mbps=float(rng.choice([80, 240, 940])))
        wire, tile_rows, rows = (
            rng.choice(list(Wire)),
            int(rng.choice([0, 64, 32, 16])),
            int(rng.choice([64, 128, 256])),
        )
        s = setting(BERT_LARGE, cluster, rows, Wire(wire), int(tile_rows))
        shares = largest_remainder((speeds * rng.uniform(0.7, 1.4, devices)).tolist(), rows)

        simulated = seconds_per_layer(s, shares, Route(route))
        priced = layer_seconds(s, replace(BY_ROWS, route=Route(route)), {Axis.ROWS: np.array(shares)})

        errors.append(abs(float(priced) / simulated - 1))
    assert np.mean(errors) < mean
    assert max(errors) < worst
