"""What the common schedule of an encoder's plan takes by the clocks of ranks, against steps that all end together.

Those are an upper bound but for rounding: where nobody waits for all, ranks go on when they have what they need.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from solver.base.errors import HeptiError
from solver.base.spans import Partition
from solver.cluster.named import find_cluster
from solver.model.blocks import Axis
from solver.model.named import named_model
from solver.model.spec import ImageInput
from solver.plan.plan import Wire, uniform_plan
from solver.programs.planner import solve
from solver.schedule.encoders.cost import price, request_seconds, setting
from solver.schedule.encoders.layer_table import kind_by_rows, layer_kinds, layer_plan, layer_seconds, unit_count
from solver.schedule.encoders.placing import request_schedule
from solver.schedule.encoders.stages import chain
from solver.schedule.encoders.turn_costs import priced_turns
from solver.schedule.price import Price
from tests import sweeps
from tests.kit.clusters import pis
from tests.kit.encoders import CUTS, KINDS, plan_of, random_layer, random_plan, requests_seconds, structure
from tests.kit.plans import like

BERT = named_model("bert-base", layers=6)
LARGE = named_model("bert-large", layers=6)
VIT = named_model("vit-base", layers=6)
# What may be saved where nobody waits for all, by plans that are made so that nobody does. And what more it may be: a
# rank without rows of its own sends its last summand when all are made.
SAVED, LATE = 0.8, 1.05


def ratio(spec, cluster, kind, units, rows, wire=Wire.FLOAT32):
    """Return the seconds by clocks over those of steps, of layers of a kind."""
    s = setting(spec, cluster, rows, wire)
    plan = replace(uniform_plan(spec, cluster.names, layer_plan(s, kind, units)), wire=wire)
    return request_seconds(s, plan) / (spec.layers * float(layer_seconds(s, kind, units)))


@pytest.mark.parametrize(
    ("name", "spec", "wire"),
    sweeps.cycled(
        0, ["mixed3", "pi4x4", "wide8", "mixed4", "pi5x4"], [BERT, VIT, LARGE], ["float32", "float16", "int8"]
    ),
)
def test_clocks_save_the_waiting_for_all_and_nothing_else_changes(name, spec, wire):
    cluster, rows, wire = find_cluster(name), 197 if spec is VIT else 128, Wire(wire)
    for layer in solve(spec, cluster, rows, wire=wire).kinds[:4]:
        assert SAVED < ratio(spec, cluster, layer.kind, layer.units, rows, wire) < LATE


@pytest.mark.parametrize("kind", ["rows/rows rr", "block/block ff", "block/block rr", "columns/columns ff"])
def test_equal_shares_of_equal_boards_cost_what_steps_do(kind):
    """Nobody waits longer than others do; the first exchanges, of which rank 0 has all, apart."""
    cluster, (own,) = pis(10, 10, 10, 10), [one for one in layer_kinds(BERT.blocks) if str(one) == kind]
    s = setting(BERT, cluster, 128)
    units = {axis: np.full(4, unit_count(s, axis) // 4) for axis in own.axes(BERT.blocks)}

    assert ratio(BERT, cluster, own, units, 128) == pytest.approx(1, abs=0.01)


def test_one_device_computes_what_it_did():
    for spec, rows in ((BERT, 100), (VIT, 197)):
        own = kind_by_rows(spec.blocks)
        assert ratio(spec, pis(10, 20), own, {Axis.ROWS: np.array([0, rows])}, rows) == pytest.approx(1, abs=0.001)


@pytest.mark.parametrize("seed", sweeps.seeds(6, 60))
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_layers_that_are_alike_cost_together_what_every_one_does(norm, seed):
    """But where ranks wait for each other in turn: what is done often goes on at the pace of its second time."""
    rng = np.random.default_rng(seed)
    spec = like(BERT, layers=7, norm=norm)
    plan = random_plan(spec, rng, 3)
    s = setting(spec, pis(24.6, 70, 10), 64)

    crew, every = request_schedule(spec, plan, 64, folded=False)
    one_by_one = Price(priced_turns(s, crew, every), ())
    together = price(s, plan)

    assert together.seconds == pytest.approx(one_by_one.seconds, rel=0.02)
    np.testing.assert_allclose(together.compute_s, one_by_one.compute_s, rtol=1e-9)
    np.testing.assert_array_equal(together.moved_bytes, one_by_one.moved_bytes)


@pytest.mark.parametrize("kind", KINDS)
def test_under_every_pair_of_cuts_nobody_computes_longer_than_a_request_takes(kind):
    rng, cluster = np.random.default_rng(8), pis(10, 20, 30)
    for attention, mlp in product(CUTS, repeat=2):
        layers = [random_layer(BERT, attention, mlp, kind, 3, rng) for _ in range(BERT.layers)]

        found = price(setting(BERT, cluster, 40), replace(plan_of(BERT, layers, 3), tile_rows=7))

        assert 0 < found.compute_s.max() <= found.seconds * (1 + 1e-9) < np.inf


def resized(plan, rng):
    """Return a plan of the same structure: who has units of an axis has another number of them."""

    def counts(own):
        taking = np.array([span.size > 0 for span in own])
        drawn = rng.multinomial(own.total - taking.sum(), rng.dirichlet(np.ones(taking.sum())))
        found = np.zeros(len(own), int)
        found[taking] = drawn + 1
        return Partition.of_counts(found.tolist())

    def shares(rows):
        some = np.array(rows) > 0
        drawn = np.where(some, rng.dirichlet(np.ones(len(rows))) + 0.2, 0)
        return tuple(drawn / drawn.sum())

    known = {}

    def block(own):
        if own not in known:
            known[own] = replace(
                own, inner=own.inner and counts(own.inner), columns=own.columns and counts(own.columns),
                rows=own.rows and known.setdefault(own.rows, shares(own.rows)),
            )  # fmt: skip
        return known[own]

    (stage,) = plan.stages
    layers = tuple((span, tuple(map(block, layer))) for span, layer in stage.layers)
    return replace(plan, stages=(replace(stage, layers=layers),))


@pytest.mark.parametrize("seed", sweeps.seeds(12, 100))
def test_plans_of_one_structure_cost_at_once_what_each_does(seed):
    rng = np.random.default_rng(seed)
    spec = like([BERT, VIT][seed % 2], layers=int(rng.integers(1, 5)))
    cluster, rows = (
        [pis(24.6, 70, 10), find_cluster("mixed4"), pis(10, 20)][seed % 3],
        197 if isinstance(spec.input, ImageInput) else 90,
    )
    plan = random_plan(spec, rng, len(cluster.devices))
    plan = replace(plan, tile_rows=int(rng.choice([0, 16, 32])), wire=Wire(rng.choice(["float32", "float16", "int8"])))
    plans = [plan, *(resized(plan, rng) for _ in range(4))]
    s = setting(spec, cluster, rows)

    assert len({structure(plan, rows) for plan in plans}) <= 2  # shares of few rows may be none
    np.testing.assert_allclose(requests_seconds(s, plans), [request_seconds(s, plan) for plan in plans], rtol=1e-9)


def test_plans_whose_sums_all_have_but_rank_0_cost_at_once_what_each_does():
    """It gets them in the end from one of the others."""
    s, cluster = setting(BERT, pis(10, 20, 30), 64), pis(10, 20, 30)
    (kind,) = [one for one in layer_kinds(BERT.blocks) if str(one) == "block/block ff"]
    totals = {axis: unit_count(s, axis) for axis in kind.axes(BERT.blocks)}
    units = [{axis: np.array([0, own, total - own]) for axis, total in totals.items()} for own in (3, 5)]
    plans = [uniform_plan(BERT, cluster.names, layer_plan(s, kind, own)) for own in units]

    np.testing.assert_allclose(requests_seconds(s, plans), [request_seconds(s, plan) for plan in plans], rtol=1e-9)


def test_several_stages_are_no_schedule_of_one():
    cluster = pis(10, 20)
    plan = chain(BERT, cluster, [(0, 2), (1, 4)], "by hand", 64)

    with pytest.raises(HeptiError, match="price it as a pipeline"):
        request_seconds(setting(BERT, cluster, 64), plan)
