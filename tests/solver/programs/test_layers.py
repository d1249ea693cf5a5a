"""Runs of layers with any shares are priced at once as each of them is alone."""

import numpy as np
import pytest

from solver.cluster.named import find_cluster
from solver.model.named import named_model
from solver.programs.layers import runs_seconds
from solver.programs.search import Configuration
from solver.programs.tiles_and_routes import plan_of
from solver.schedule.encoders.cost import request_seconds, setting
from solver.schedule.encoders.layer_table import layer_kinds, unit_count
from tests.kit.clusters import pis
from tests.sweeps import ALL, count, cycled

BERT = named_model("bert-base", layers=6)
KINDS = layer_kinds(BERT.blocks)[:: 1 if ALL else 2]
CLUSTERS = {"mixed4": find_cluster("mixed4"), "three": pis(24.6, 70, 10), "wide8": find_cluster("wide8")}


def some_shares(s, kind, ways, least, rng):
    """Return shares in which so many devices at least have some of every axis, [ways, p]."""

    def drawn(total):
        weights = rng.random(s.devices) * (rng.random(s.devices) > 0.4)
        weights[rng.choice(s.devices, least, replace=False)] += 0.3
        found = np.floor(weights / weights.sum() * (total - s.devices)).astype(int) + (weights > 0)
        found[found.argmax()] += total - found.sum()
        return found

    return {axis: np.stack([drawn(unit_count(s, axis)) for _ in range(ways)]) for axis in kind.axes(s.spec.blocks)}


@pytest.mark.parametrize(("kind", "cluster", "tile_rows"), cycled(10, KINDS, [*CLUSTERS], [0, 16]), ids=str)
@pytest.mark.parametrize("least", [1, 2])
def test_whoever_has_some_of_an_axis(kind, cluster, tile_rows, least):
    """But where one device alone has an axis: there would be no exchange."""
    rng, ways = np.random.default_rng(len(str(kind)) + least), count(6, 60)
    s = setting(BERT, CLUSTERS[cluster], 90, tile_rows=tile_rows)
    units = some_shares(s, kind, ways, least, rng)
    layers = [
        Configuration(kind, {axis: counts[way] for axis, counts in units.items()}, 0.0, np.zeros(s.devices))
        for way in range(ways)
    ]

    found = runs_seconds(s, [(layers[0], BERT.layers)], 0, units)

    alone = [request_seconds(s, plan_of(s, [(layer, BERT.layers)])) for layer in layers]
    np.testing.assert_allclose(found, alone, rtol=1e-9 if least > 1 else 0.02)


def test_beside_layers_that_stay_as_they_are():
    s, rng = setting(BERT, CLUSTERS["mixed4"], 90), np.random.default_rng(5)
    kinds = [kind for kind in layer_kinds(BERT.blocks) if str(kind) in ("block/block rr", "to_rows/rows rr")]
    shares = [some_shares(s, kind, 8, 2, rng) for kind in kinds]
    one, other = (
        Configuration(kind, {axis: counts[0] for axis, counts in units.items()}, 0.0, np.zeros(4))
        for kind, units in zip(kinds, shares, strict=True)
    )

    found = runs_seconds(s, [(one, 2), (other, 4)], 1, shares[1])

    for way, seconds in enumerate(found):
        own = {axis: counts[way] for axis, counts in shares[1].items()}
        layer = Configuration(other.kind, own, 0.0, np.zeros(4))
        assert seconds == pytest.approx(request_seconds(s, plan_of(s, [(one, 2), (layer, 4)])))
