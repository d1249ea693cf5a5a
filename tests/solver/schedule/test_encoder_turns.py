"""What the common schedule of an encoder's plan takes by the clocks of ranks, against steps that all end together.

Those are an upper bound but for rounding: where nobody waits for all, ranks go on when they have what they need.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from solver.base.errors import HeptiError
from solver.base.spans import Partition
from solver.cluster.named import find_cluster
from solver.model.named import named_model
from solver.model.spec import ImageInput
from solver.plan.plan import Wire
from solver.schedule.encoders.cost import plan_seconds, price, request_seconds, requests_seconds, setting
from solver.schedule.encoders.placing import request_schedule, structure
from solver.schedule.encoders.stages import chain
from solver.schedule.encoders.turn_costs import priced_turns
from solver.schedule.price import Price
from solver.systems import make_plan, plans_for
from tests import sweeps
from tests.kit.clusters import pis
from tests.kit.encoders import random_plan
from tests.kit.plans import like

BERT = named_model("bert-base", layers=6)
LARGE = named_model("bert-large", layers=6)
VIT = named_model("vit-base", layers=6)
SYSTEMS = [system for system in plans_for(BERT) if system not in ("data", "hepti-throughput")]
# What may be saved where nobody waits for all: of the planner's plans, whose ranks are busy alike, and of others'. And
# what more it may be: who has no rows of its own sends its last summand when all are made.
BUSY, UNLIKE, LATE = 0.96, 0.75, 1.05


@cache
def planned(system, spec, name, rows, wire):
    return make_plan(system, spec, find_cluster(name), rows, wire)


def ratio(system, spec, name, rows, wire=Wire.FLOAT32):
    """Return the seconds by clocks over those of the closed sums; 1 of what is no plan of one stage."""
    plan = planned(system, spec, name, rows, wire)
    if not plan.in_one:
        return 1.0
    s = setting(spec, find_cluster(name), rows)
    return request_seconds(s, plan) / plan_seconds(s, plan)


@pytest.mark.parametrize(
    ("system", "cluster", "spec"),
    sweeps.cycled(0, SYSTEMS, ["mixed3", "pi4x4", "wide8", "mixed4", "pi5x4"], [BERT, VIT, LARGE]),
)
def test_clocks_save_the_waiting_for_all_and_nothing_else_changes(system, cluster, spec):
    least = BUSY if system.startswith("hepti") else UNLIKE

    assert least < ratio(system, spec, cluster, 197 if spec is VIT else 128) < LATE


@pytest.mark.parametrize("wire", [Wire.FLOAT16, Wire.INT8])
def test_thin_wires_cost_their_coding(wire):
    assert BUSY < ratio("hepti", LARGE, "mixed3", 256, wire) < LATE


@pytest.mark.parametrize("system", ["megatron", "sequence", "galaxy", "grid2d"])
def test_equal_shares_of_equal_boards_cost_what_steps_do(system):
    """Nobody waits longer than others do; the first exchanges, of which rank 0 has all, apart."""
    assert ratio(system, BERT, "pi4x4", 128) == pytest.approx(1, abs=0.01)


def test_one_device_computes_what_it_did():
    for spec in (BERT, VIT, named_model("bert-base-decoupled-2x4")):
        assert ratio("single", spec, "mixed3", 100 if spec is not VIT else 197) == pytest.approx(1, abs=0.001)


@pytest.mark.parametrize("seed", sweeps.seeds(6, 60))
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_layers_that_are_alike_cost_together_what_every_one_does(norm, seed):
    """But where ranks wait for each other in turn: what is done often goes on at the pace of its second time."""
    rng = np.random.default_rng(seed)
    spec = like(BERT, layers=7, norm=norm)
    plan = random_plan(spec, rng, 3)
    s = setting(spec, pis(24.6, 70, 10), 64)

    crew, every = request_schedule(spec, [plan], 64, folded=False)
    one_by_one = Price(priced_turns(s, crew, every), ())
    together = price(s, plan)

    assert together.seconds == pytest.approx(one_by_one.seconds, rel=0.02)
    np.testing.assert_allclose(together.compute_s, one_by_one.compute_s, rtol=1e-9)
    np.testing.assert_array_equal(together.moved_bytes, one_by_one.moved_bytes)


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


def test_several_stages_are_no_schedule_of_one():
    cluster = pis(10, 20)
    plan = chain(BERT, cluster, [(0, 2), (1, 4)], "by hand", 64)

    with pytest.raises(HeptiError, match="price it as a pipeline"):
        request_seconds(setting(BERT, cluster, 64), plan)
